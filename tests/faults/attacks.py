"""`make attacks`: strangers and neighbors that attack a run of three real peers over TLS, each with 1,024 file descriptors at most.

| attack | what it does, to all three nodes at once |
|---|---|
| idle | 1,500 TCP connections to each node that say nothing, opened again when they are closed |
| hello | as many that send a whole ClientHello, and then nothing |
| loris | as many that send a ClientHello, one byte a second |
| stranger | 100 at a time that finish the handshake, with a certificate of the same CA, and then say nothing |
| calls | calls by such a stranger, one after the other, on 8 connections |
| greetings | a neighbor's certificate greets with 100,000 invented neighbors, again and again, while the network is not known |

The attack begins before any neighbor is connected, goes on until the run ends, and every connection is cut once in between. Passing means: all nodes
end with the models of an undisturbed run, bit for bit, below 300 MB. `stuck` is a node that beats and acknowledges but does not send
(stuck.py): the others must end within the limit and name it, all of them the same.

PYTHONPATH=tests python -m faults.attacks
PYTHONPATH=tests python -m faults.attacks --only hello --keep /tmp/look
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from rich.table import Table

from dekpca.peers.net import authority
from dekpca.peers.net.edge import SERVICE
from dekpca.peers.protocol import wire_pb2 as wire
from dekpca.peers.protocol.checks import metadata

from . import scenarios
from .cluster import Cluster, Problem
from .proxy import Wires
from .supervisor import Nursery

PROBLEM = Problem(edges=(("a", "b"), ("b", "c"), ("c", "a")))
OPEN_FILES = 1024
MOST_MEMORY = 300e6  # bytes; a node that nobody attacks has about 230 MB, most of it libraries
CONNECTIONS = {"idle": 1500, "hello": 1500, "loris": 1500, "stranger": 100, "calls": 8}
INVENTED = 100_000
LIMIT = 4.0  # seconds, progress_timeout where a node gets stuck
CHECKED = 30.0  # seconds after the limit in which all must have ended: a busy machine is slow
CLAIMS = {"honest": 1, "waits": 1, "computes": 10}  # what a stuck node says, and how many times the limit it has


# ---------------------------------------------------------------------- attackers
def call(port: int, certs: Path, name: str, run: str, claims: str) -> grpc.Channel:
    """A channel to a node with the certificate `name`; and what its calls say of themselves."""
    own = [(certs / f"{name}.{end}").read_bytes() for end in ("key", "crt")]
    credentials = grpc.ssl_channel_credentials((certs / "ca.crt").read_bytes(), *own)
    options = [("grpc.ssl_target_name_override", claims), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(f"127.0.0.1:{port}", credentials, options)


def strange_calls(port: int, target: str, certs: Path, run: str, ended: threading.Event) -> int:
    """Calls by somebody who is no neighbor, as fast as they are refused; returns how many."""
    channels = [call(port, certs, "stranger", run, target) for _ in range(CONNECTIONS["calls"])]
    made = 0
    while not ended.is_set():
        for channel in channels:
            with contextlib.suppress(grpc.RpcError):
                list(
                    channel.stream_stream(f"/{SERVICE}/Handshake")(
                        iter([b"x"]), metadata=metadata(run, "stranger"), timeout=5
                    )
                )
            made += 1
    for channel in channels:
        channel.close()
    return made


def handshakes(
    port: int, target: str, sender: str, facts: list[wire.Setting], certs: Path, run: str, seconds: float
) -> Counter[str]:
    """Handshakes of a neighbor with invented neighbors, four at a time; returns how often they were answered in which way."""
    answers: Counter[str] = Counter()
    end, turns = time.monotonic() + seconds, itertools.count(10)

    def work(channel: grpc.Channel) -> None:
        while time.monotonic() < end:
            turn = next(turns)
            names = [f"{turn}{i}" for i in range(INVENTED)]
            record = wire.Record(name=f"invented-{turn}", neighbors=names, rows=5)
            said = wire.Handshake(settings=facts, records=[record]).SerializeToString()
            try:
                list(
                    channel.stream_stream(f"/{SERVICE}/Handshake")(
                        iter([said]), metadata=metadata(run, sender), timeout=30
                    )
                )
                answers["OK"] += 1
            except grpc.RpcError as error:
                answers[error.code().name] += 1

    with call(port, certs, sender, run, target) as channel, ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [channel] * 4))
    return answers


@contextlib.contextmanager
def attackers(how: str, cluster: Cluster, ports: dict[str, int]) -> Iterator[list[int]]:
    """One against each node; yields a list that at the end has how many connections, or calls, each has made."""
    certs, made = cluster.folder / "certs", list[int]()
    if how == "calls":
        ended = threading.Event()
        with ThreadPoolExecutor(len(ports)) as pool:
            started = [
                pool.submit(strange_calls, port, name, certs, cluster.folder.name, ended)
                for name, port in ports.items()
            ]
            try:
                yield made
            finally:
                ended.set()
                made += [one.result() for one in started]
        return
    script = [sys.executable, str(Path(__file__).with_name("flood.py"))]
    floods = [
        subprocess.Popen(
            [*script, str(port), how, str(CONNECTIONS[how]), str(certs)], stdout=subprocess.PIPE, text=True
        )
        for port in ports.values()
    ]
    try:
        for one in floods:
            assert one.stdout is not None
            assert one.stdout.readline()
            assert one.stdout.readline(), "an attacker died"  # all have been opened, and a second is over
        yield made
    finally:
        for one in floods:
            one.kill()
            made += [int(["0", *one.communicate()[0].split()][-1])]


# ---------------------------------------------------------------------- a run under attack
class Attacked(Cluster):
    """Three nodes with a limit on open files, and the most memory and descriptors that any had."""

    def __init__(self, folder: Path, nursery: Nursery, wires: Wires, **more: Any):
        super().__init__(folder, nursery, wires, PROBLEM, **more)
        authority.issue(folder / "certs", "stranger")
        for node in self.nodes.values():
            node.open_files = OPEN_FILES
        self.descriptors = 0

    def watch(self) -> bool:
        """To be asked often: whether all have ended."""
        for node in self.nodes.values():
            with contextlib.suppress(OSError):
                self.descriptors = max(self.descriptors, len(os.listdir(f"/proc/{node.pid}/fd")))
        return not any(node.running for node in self.nodes.values())

    @property
    def memory(self) -> float:
        """Bytes, of the node that had most; when all have ended."""
        assert all(node.code is not None for node in self.nodes.values())
        return 1024.0 * max(node.peak for node in self.nodes.values())


def attack(how: str, nursery: Nursery, truth: scenarios.Truth, folder: Path, quick: bool = False) -> dict[str, Any]:
    """Returns what was measured; raises AssertionError if the run was harmed. `quick`: greetings for a second, and no connection is cut."""
    with Wires() as wires, Attacked(folder, nursery, wires) as cluster:
        begun = time.monotonic()
        if how == "greetings":
            extra = _with_greetings(cluster, 1.0 if quick else 5.0)
        else:
            ports = cluster.listen()
            with attackers(how, cluster, ports) as made:
                for name, port in ports.items():
                    cluster.lead(name, port)
                cluster.until_heard("a", "data")
                for line in [] if quick else cluster.wire.values():  # all must connect once more
                    line.reset()
                cluster.until(cluster.watch, "all nodes end")
            extra = {"made": sum(made)}
        seconds = time.monotonic() - begun
        codes = {name: node.code for name, node in cluster.nodes.items()}
        assert set(codes.values()) <= scenarios.WELL, cluster.report(f"exit codes {codes}")
        assert cluster.models() == truth.models("usual"), cluster.report("the models differ from the undisturbed run's")
        assert cluster.memory < MOST_MEMORY, cluster.report(f"{cluster.memory / 1e6:.0f} MB")
        return {"seconds": seconds, "memory": cluster.memory, "descriptors": cluster.descriptors, **extra}


def _with_greetings(cluster: Attacked, seconds: float) -> dict[str, Any]:
    """Node c comes only after the attack: until then the network is not known."""
    ports = cluster.listen("a", "b")
    for name, port in ports.items():
        cluster.lead(name, port)
    kept = json.loads(cluster.stored("b", "SELECT value FROM fact WHERE name = 'run'")[0][0])
    own = {"protocol", "run", "node", "neighbors", "data", "threads", "compiled code"}
    facts = [wire.Setting(name=what, value=value) for what, value in kept.items() if what not in own]
    answers = handshakes(ports["a"], "a", "b", facts, cluster.folder / "certs", cluster.folder.name, seconds)
    assert set(answers) <= {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}, answers  # the latter: gRPC's limit of 1 MiB
    cluster.start("c")
    cluster.until(cluster.watch, "all nodes end")
    return {"made": sum(answers.values())}


def get_stuck(claim: str, nursery: Nursery, folder: Path) -> dict[str, Any]:
    """Node c hangs. In a path a - b - c only b waits for it; a waits for b, and must not name it."""
    problem = Problem(edges=(("a", "b"), ("b", "c")))
    limit = LIMIT * CLAIMS[claim]
    # start_timeout is what somebody who says that it computes has at least
    more = {"progress_timeout": LIMIT, "start_timeout": 10 * LIMIT}
    with Wires() as wires, Cluster(folder, nursery, wires, problem, peer_timeout=120, **more) as cluster:
        cluster.nodes["c"].stuck = claim
        cluster.start()
        others = [cluster.nodes[name] for name in "ab"]
        cluster.until(lambda: all(cluster.has_said(node.name, "begun") for node in others), "all begin")
        begun = time.monotonic()
        cluster.until(lambda: not any(node.running for node in others), "the others end", limit + CHECKED)
        seconds = time.monotonic() - begun
        for node in others:
            assert node.code == scenarios.STOPPED, cluster.report(f"node {node.name} ended with {node.code}")
            assert "error: node c has " in node.error(), cluster.report(f"node {node.name} does not name node c")
        assert seconds > limit, cluster.report(f"given up after {seconds:.1f} s, before the limit of {limit:g} s")
        return {"seconds": seconds, "error": cluster.nodes["a"].error()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    parser.add_argument(
        "--keep", type=Path, help="folder for configurations, logs and models, kept; default: a temporary one"
    )
    a = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    shown = Table(title=f"three peers, {OPEN_FILES} file descriptors each", title_justify="left")
    for heading in ("attack", "seconds", "most MB", "most descriptors", "connections or calls made", ""):
        shown.add_column(heading, justify="left" if heading in ("attack", "") else "right")
    failed = False
    with tempfile.TemporaryDirectory(prefix="attacks-") as temporary, Nursery() as nursery:
        folder = a.keep or Path(temporary)
        truth = scenarios.Truth(nursery, folder / "undisturbed", PROBLEM)
        truth.models("usual")
        for how in (*CONNECTIONS, "greetings", *(f"stuck-{claim}" for claim in CLAIMS)):
            if a.only not in how:
                continue
            try:
                if how.startswith("stuck-"):
                    found = get_stuck(how.removeprefix("stuck-"), nursery, folder / how)
                    shown.add_row(how, f"{found['seconds']:.1f}", "", "", "", found["error"])
                else:
                    found = attack(how, nursery, truth, folder / how)
                    row = (
                        f"{found['seconds']:.1f}",
                        f"{found['memory'] / 1e6:.0f}",
                        str(found["descriptors"]),
                        f"{found['made']:,}",
                    )
                    shown.add_row(how, *row, "same bits")
            except AssertionError as error:
                failed = True
                console.print(f"{how}: {error}", markup=False)
                shown.add_row(how, "", "", "", "", "FAILED")
    console.print(shown)
    sys.exit(failed)


if __name__ == "__main__":
    main()
