"""Attacks on a node in the middle of a run, with real processes, sockets and certificates: each is refused, logged, and changes nothing.

Nodes a, b and c run; c is stopped for a while, so that a waits in some iteration, and a is attacked. Then c goes on, and the models must be
those of a run that nobody attacked, bit for bit. Whoever holds a neighbor's certificate may send wrong numbers, of course (docs/security.md).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import numpy as np
import pytest

from dekpca.engines.peer import wire_pb2 as wire
from dekpca.engines.peer.identity import init_ca, issue, load, peer_name
from dekpca.engines.peer.letters import metadata
from dekpca.engines.peer.server import SERVICE
from faults import fuzz

RUN = "security"
PATIENCE = 90  # seconds for anything that should happen; a busy machine may be slow
Code = grpc.StatusCode


# ---------------------------------------------------------------------- a run under attack
@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """Node certificates a to d, an expired one of b under old/, and one of b by a CA of the same name under other/."""
    folder = tmp_path_factory.mktemp("certs")
    init_ca(folder, "group", 300)
    for name in "abcd":
        issue(folder, name, 90)
    (folder / "old").mkdir()
    for file in ("ca.crt", "ca.key"):
        shutil.copy(folder / file, folder / "old")
    issue(folder / "old", "b", 1, start=datetime.now(UTC) - timedelta(days=9))
    init_ca(folder / "other", "group", 300)
    issue(folder / "other", "b", 90)
    return folder


class Nodes:
    """Processes of nodes in a folder; all are gone when it is left."""

    def __init__(self, folder: Path, certs: Path, addresses: dict[str, str]):
        self.folder, self.addresses, self.processes = folder, addresses, {}
        rng = np.random.default_rng(0)
        for name in addresses:
            np.save(folder / f"{name}.npy", rng.normal(size=(30, 5)))
            neighbors = "\n".join(f'{other} = "{addresses[other]}"' for other in addresses if other != name)
            (folder / f"{name}.toml").write_text(
                f'name = "{name}"\nrun = "{RUN}"\nlisten = "{addresses[name]}"\ndata = "{name}.npy"\nfolder = "{name}-run"\n'
                f'out = "{name}.npz"\ncertificate = "{certs}/{name}.crt"\nkey = "{certs}/{name}.key"\nca = "{certs}/ca.crt"\n'
                f"peer_timeout = 120\n[neighbors]\n{neighbors}\n"
                "[model]\nn_components = 2\ngamma = 0.1\nmax_iter = 150\ntol = 0.0\n"
            )

    def start(self, *names: str) -> None:
        for name in names:
            log = (self.folder / f"{name}.log").open("ab")
            command = [sys.executable, "-m", "dekpca.cli", "node", "run", self.folder / f"{name}.toml", "--yes", "--json"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for(self, condition, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s\n{self.log('a')[-3000:]}"
            time.sleep(0.02)

    def finish(self) -> dict[str, bytes]:
        """The models of all nodes, when they have ended."""
        for name, process in self.processes.items():
            assert process.wait(PATIENCE) in (0, 3), self.log(name)[-3000:]  # 3: no convergence was asked for
        models = {name: np.load(self.folder / f"{name}.npz") for name in self.processes}
        return {name: {key: found[key] for key in found.files} for name, found in models.items()}

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@contextmanager
def nodes(folder: Path, certs: Path):
    folder.mkdir()
    addresses = dict(zip("abc", (f"127.0.0.1:{port}" for port in free_ports(3)), strict=True))
    started = Nodes(folder, certs, addresses)
    try:
        yield started
    finally:
        started.close()


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


# ---------------------------------------------------------------------- attackers
class Attacker:
    """Calls node a with the certificate `name` of `folder`, if any, claiming to be `claims`."""

    def __init__(self, address: str, certs: Path, folder: str = "", name: str | None = "b", claims: str = "b", run: str = RUN):
        roots = (certs / "ca.crt").read_bytes()
        own = [] if name is None else [(certs / folder / f"{name}.{end}").read_bytes() for end in ("key", "crt")]
        self.address, self.credentials, self.metadata = address, grpc.ssl_channel_credentials(roots, *own), metadata(run, claims)

    def call(self, method: str, *messages: bytes, compression: grpc.Compression | None = None) -> tuple[Code, str, list[bytes]]:
        """How the call ended, and what was answered before that. Without messages nothing is ever sent: the call stays open."""
        options = [("grpc.ssl_target_name_override", "a"), ("grpc.max_send_message_length", -1)]
        heard: list[bytes] = []
        with grpc.secure_channel(self.address, self.credentials, options, compression) as channel:
            said = iter(messages) if messages else silence()
            try:
                if method == "Greet":
                    heard.append(channel.stream_unary(f"/{SERVICE}/{method}")(said, metadata=self.metadata, timeout=PATIENCE))
                else:
                    calling = channel.stream_stream(f"/{SERVICE}/{method}")
                    heard.extend(calling(said, metadata=self.metadata, timeout=PATIENCE))
            except grpc.RpcError as error:
                return error.code(), error.details(), heard
        return Code.OK, "", heard


def silence():
    """Says nothing for as long as anybody listens."""
    time.sleep(2 * PATIENCE)
    yield b""


def piece(**changes) -> bytes:
    """A message of b to a, as far as nothing is changed."""
    head = {"run": RUN, "sender": "b", "round": 1, "kind": "share", "dtype": "<f8", "shape": [2, 2]} | changes
    return wire.Piece(head=wire.Head(**head), offset=0, data=bytes(32)).SerializeToString()
