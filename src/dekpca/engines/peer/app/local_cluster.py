"""A local cluster: processes on this machine that are nodes to each other, over loopback, with real certificates.

For trying, for tests, and for `engine="peer"`. Each process runs one node after the other as it is told (worker.py); what goes in and comes out are
files without pickle.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from ....answer import Answer
from ....block import make_blocks
from ....core.spectrum import to_numpy
from ....files import private, write_text
from ....network import Network
from ....plan import Observer, Outcome, Plan, Traffic
from ..net.identity import init_ca, issue
from ..storage import codec

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
PEER_TIMEOUT, START_TIMEOUT = 60, 120  # seconds; all are on one machine


class ClusterError(RuntimeError):
    """A node of the cluster failed; the message says which, and why."""


def run(plan: Plan, observer: Observer | None = None) -> Outcome:
    """Run the program for all nodes, each in a process of its own on this machine, with certificates from a CA made for this run.

    `observer` is not called: no process sees all nodes. Kernels and penalties that are Python functions cannot cross.
    """
    if plan.resume is not None or plan.checkpoint is not None:
        raise ValueError("engine='peer' goes on from the folder of each node, not from a state; use dekpca node run")
    with LocalCluster(len(plan.network)) as cluster:
        return cluster.run(plan)


class LocalCluster:
    """`size` processes, one for each node of a network of at most so many (a context manager)."""

    def __init__(self, size: int):
        self.size = size
        self._runs = 0

    def __enter__(self) -> LocalCluster:
        self._temporary = tempfile.TemporaryDirectory(prefix="dekpca-")
        self.folder = Path(self._temporary.name)
        self._certified: set[str] = set()
        init_ca(self.folder / "certs", "this run")
        command = [sys.executable, "-m", "dekpca.engines.peer.app.worker"]
        self._logs = [open(self.folder / f"worker-{i}.log", "wb", opener=private) for i in range(self.size)]  # noqa: SIM115
        self.workers = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **ENVIRONMENT}, text=True, umask=0o077
            )
            for log in self._logs
        ]  # fmt: skip
        return self

    def __exit__(self, *error: Any) -> None:
        for worker in self.workers:
            assert worker.stdin is not None
            assert worker.stdout is not None
            if error[0] is not None:
                worker.kill()
            worker.stdin.close()
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            worker.stdout.close()
        for log in self._logs:
            log.close()
        self._temporary.cleanup()

    def run(self, plan: Plan) -> Outcome:
        """Run the program for all nodes of a plan, each in a process of the cluster."""
        parts, network, options = plan.parts, plan.network, plan.options
        if len(network) > self.size:
            raise ValueError(f"{len(network)} nodes for a cluster of {self.size}")
        try:
            flat = codec.flatten(options)
        except TypeError as error:
            raise ValueError(f"engine='peer': {error}") from error
        self._runs += 1
        folder = self.folder / f"run-{self._runs}"
        folder.mkdir(mode=0o700)
        codec.write(folder / "options.bin", flat)
        for name in network.names:
            if name not in self._certified:
                issue(self.folder / "certs", name, 30)
                self._certified.add(name)
        write_nodes(
            folder, parts, network, f"run-{self._runs}", "../certs", {}, {"peer_timeout": PEER_TIMEOUT, "start_timeout": START_TIMEOUT}
        )  # fmt: skip
        self._tell([folder / f"{name}.toml" for name in network.names])
        return self._collect(folder, parts, network)

    def _tell(self, configs: Sequence[Path]) -> None:
        """Let each process run a node, and wait for all; the first that fails ends the cluster."""
        with ThreadPoolExecutor(len(configs)) as pool:
            waiting = {
                pool.submit(self._ask, worker, config): config.stem
                for worker, config in zip(self.workers, configs, strict=False)
            }
            for future in as_completed(waiting):
                problem = future.result()
                if problem is not None:
                    for worker in self.workers:
                        worker.kill()
                    raise ClusterError(f"node {waiting[future]}: {problem}")

    @staticmethod
    def _ask(worker: Any, config: Path) -> str | None:
        """Returns what went wrong."""
        try:
            worker.stdin.write(f"{config}\n")
            worker.stdin.flush()
        except BrokenPipeError:
            return "its process has died"
        said = worker.stdout.readline()
        return json.loads(said)["error"] if said else "its process has died"

    def _collect(self, folder: Path, parts: Sequence[Any], network: Network) -> Outcome:
        """The nodes' answers, as if they had been computed here."""
        sizes = np.array([part.shape[0] for part in parts])
        answers: list[Answer] = []
        seconds: dict[str, float] = {}
        traffic = Traffic(network.directed_edges, len(network))
        for j, name in enumerate(network.names):
            said = codec.read(folder / f"{name}.answer.bin")
            (block,) = make_blocks([to_numpy(parts[j])], network, [j], sizes)
            answers.append(Answer(block=block, **said["answer"]))
            seconds = seconds or said["seconds"]
            for kind, (messages, sent) in said["traffic"].items():
                for total, count in ((traffic.messages, messages), (traffic.bytes, sent)):
                    total.setdefault(kind, np.zeros(len(network), dtype=np.int64))[j] += count
            for other, sent in said["edges"].items():
                here = (network.directed_edges == (j, network.number[other])).all(axis=1)
                traffic.edge_bytes[here] += sent
        return Outcome(answers, traffic, seconds)


def free_addresses(count: int) -> list[str]:
    """Addresses on loopback that nobody listens on just now; below the ports that systems give to outgoing connections,
    one of which could otherwise take a port before its node listens."""
    found: set[int] = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.add(port)
    return [f"127.0.0.1:{port}" for port in found]


def write_nodes(
    folder: Path, parts: Sequence[Any], network: Network, run: str, certs: str, model: Mapping[str, Any], more: Mapping[str, Any]
) -> None:  # fmt: skip
    """NAME.toml and NAME.npy for every node, on loopback; `certs` is where the certificates are, seen from `folder`."""
    addresses = dict(zip(network.names, free_addresses(len(network)), strict=True))
    for j, name in enumerate(network.names):
        with open(folder / f"{name}.npy", "wb", opener=private) as file:
            np.save(file, to_numpy(parts[j]), allow_pickle=False)
        neighbors = [network.names[q] for q in network.neighbors(j)]
        settings = {
            "name": name, "run": run, "listen": addresses[name], "data": f"{name}.npy", "folder": name,
            "certificate": f"{certs}/{name}.crt", "key": f"{certs}/{name}.key", "ca": f"{certs}/ca.crt",
        }  # fmt: skip
        tables = {"neighbors": {q: addresses[q] for q in neighbors}} | ({"model": model} if model else {})
        write_toml(folder / f"{name}.toml", settings | dict(more), tables)


def write_toml(path: Path, settings: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> None:
    """A small TOML file: texts, numbers and lists are written as in JSON."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items())]
    write_text(path, "\n".join(lines) + "\n")
