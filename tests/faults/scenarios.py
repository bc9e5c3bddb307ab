"""What can go wrong while nodes work together, as scenarios; each a function of a cluster and a random generator.

A scenario does its harm and returns how the nodes must end. Most return SAME: all nodes end well, and every model is bit for bit the
one of an undisturbed run. Others end with an error that names the peer, and then the same run goes on to the same bits.
`play` runs one and judges it: anything else is an AssertionError that says what, and how the nodes stood.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dekpca.peers.storage.database import FILE

from .cluster import LONG, Cluster, Problem
from .proxy import Wire, Wires
from .supervisor import Nursery

SAME, NAMED = "same bits", "error names the peer, then same bits"
WELL = {0, 3}  # exit codes of a node that has its answer, converged or not
OVER = 1  # exit code of a node whose run is over, as far as it knows
STOPPED = 4  # exit code of a node that could not go on, but can later
GRACE = 5.0  # seconds after peer_timeout in which a node must have said what is wrong
SHORT = 6.0  # seconds, peer_timeout of those scenarios that wait for it

Scenario = Callable[[Cluster, random.Random], str]
SCENARIOS: dict[str, Scenario] = {}
TIMEOUTS: dict[str, float] = {}  # peer_timeout where it is not the usual one
PROBLEMS: dict[str, Problem] = {}  # the problem where it is not the usual one


def scenario(
    name: str, peer_timeout: float | None = None, problem: Problem | None = None
) -> Callable[[Scenario], Scenario]:
    def add(function: Scenario) -> Scenario:
        SCENARIOS[name] = function
        if peer_timeout is not None:
            TIMEOUTS[name] = peer_timeout
        if problem is not None:
            PROBLEMS[name] = problem
        return function

    return add


class Truth:
    """The models of undisturbed runs, made once for each problem, when first asked for."""

    def __init__(self, nursery: Nursery, folder: Path, usual: Problem | None = None):
        self.nursery, self.folder = nursery, folder
        self.usual = usual or Problem()
        self._models: dict[str, dict[str, dict[str, bytes]]] = {}
        self._lock = threading.Lock()

    def models(self, name: str) -> dict[str, dict[str, bytes]]:
        """For a scenario."""
        problem = PROBLEMS.get(name, self.usual)
        key = name if name in PROBLEMS else "usual"
        with self._lock:
            if key not in self._models:
                with Wires() as wires, Cluster(self.folder / key, self.nursery, wires, problem) as cluster:
                    cluster.start()
                    codes = cluster.until_ended()
                    assert set(codes.values()) <= WELL, cluster.report(f"the undisturbed run ended with {codes}")
                    models = cluster.models()
                    assert all(models.values()), cluster.report("the undisturbed run left no models")
                    self._models[key] = models
            return self._models[key]


def play(name: str, seed: int, nursery: Nursery, truth: Truth, folder: Path) -> str:
    """Run a scenario; returns its outcome, or raises AssertionError."""
    expected = truth.models(name)
    rng = random.Random(f"{name} {seed}")
    timeout = TIMEOUTS.get(name, 60.0)
    with Wires() as wires, Cluster(folder, nursery, wires, PROBLEMS.get(name, truth.usual), timeout) as cluster:
        outcome = SCENARIOS[name](cluster, rng)
        codes = cluster.until_ended()
        assert set(codes.values()) <= WELL, cluster.report(f"exit codes {codes}")
        for node, model in cluster.models().items():
            differing = [key for key in expected[node] if model.get(key) != expected[node][key]]
            assert model.keys() == expected[node].keys(), cluster.report(f"node {node}: a model with {sorted(model)}")
            assert not differing, cluster.report(
                f"node {node}: WRONG ANSWER, {differing} differ from the undisturbed run"
            )
    return outcome


# ---------------------------------------------------------------------- what several scenarios need
def slowly(cluster: Cluster, seconds: float = 0.01) -> None:
    """Messages take their time, so that a phase lasts long enough to be seen."""
    for wire in cluster.wire.values():
        wire.delay = seconds


def normal(cluster: Cluster) -> None:
    for wire in cluster.wire.values():
        wire.heal()


def some_edge(cluster: Cluster, rng: random.Random) -> list[Wire]:
    return cluster.between(*rng.choice(cluster.problem.edges))


def a_moment(rng: random.Random, longest: float = 0.05) -> None:
    """Not to wait for anything: so that every seed hits another instant."""
    time.sleep(rng.random() * longest)


def kill_and_restart(cluster: Cluster, rng: random.Random, *victims: str) -> None:
    a_moment(rng)
    running = [v for v in victims if cluster.nodes[v].running]
    cluster.kill(*running)
    a_moment(rng, 0.5)
    normal(cluster)
    cluster.start(*victims)  # one that had ended before we came has nothing to lose either


# ---------------------------------------------------------------------- nodes that are killed
@scenario("kill-hello")
def kill_hello(cluster: Cluster, rng: random.Random) -> str:
    """Before anybody answers: it is the only node there."""
    victim = rng.choice(list(cluster.nodes))
    cluster.start(victim)
    kill_and_restart(cluster, rng, victim)
    cluster.start(*(name for name in cluster.nodes if name != victim))
    return SAME


@scenario("kill-flooding")
def kill_flooding(cluster: Cluster, rng: random.Random) -> str:
    """It has met a neighbor, but the network is not known: one node is missing."""
    missing, victim = rng.choice([(m, v) for m in cluster.nodes for v in cluster.nodes if m != v])
    others = [name for name in cluster.nodes if name != missing]
    cluster.start(*others)
    if set(cluster.problem.around(victim)) - {missing}:
        cluster.until(lambda: cluster.has_said(victim, "neighbor is up"), f"node {victim} meets a neighbor")
    kill_and_restart(cluster, rng, victim)
    cluster.start(missing)
    return SAME


def kill_when_heard(kind: str, cluster: Cluster, rng: random.Random) -> str:
    slowly(cluster)
    victim = rng.choice(list(cluster.nodes))
    cluster.start()
    cluster.until_heard(victim, kind)
    kill_and_restart(cluster, rng, victim)
    return SAME


KINDS = (
    "columns", "axes", "clusters", "landmarks", "moments", "data", "rho", "share", "view", "check", "values", "spectrum", "judge",
)  # fmt: skip
for _kind in KINDS:
    SCENARIOS[f"kill-{_kind}"] = partial(kill_when_heard, _kind)


@scenario("kill-after-its-end")
def kill_after_its_end(cluster: Cluster, rng: random.Random) -> str:
    """It has its model and stays for its neighbors only."""
    slowly(cluster, 0.02)
    victim = rng.choice(list(cluster.nodes))
    cluster.start()
    cluster.until(lambda: cluster.model_file(victim).exists(), f"node {victim} saves its model")
    kill_and_restart(cluster, rng, victim)
    return SAME


@scenario("kill-two-at-once")
def kill_two(cluster: Cluster, rng: random.Random) -> str:
    slowly(cluster)
    victims = rng.sample(list(cluster.nodes), 2)
    cluster.start()
    cluster.until_heard(victims[0], rng.choice(KINDS))
    kill_and_restart(cluster, rng, *victims)
    return SAME


@scenario("kill-all")
def kill_all(cluster: Cluster, rng: random.Random) -> str:
    slowly(cluster)
    cluster.start()
    cluster.until_heard(rng.choice(list(cluster.nodes)), rng.choice(KINDS))
    kill_and_restart(cluster, rng, *cluster.nodes)
    return SAME


@scenario("kill-again-and-again")
def kill_again(cluster: Cluster, rng: random.Random) -> str:
    """The same node, five times, each time as soon as it has begun and a random moment after."""
    slowly(cluster)
    victim = rng.choice(list(cluster.nodes))
    cluster.start()
    for _ in range(5):
        cluster.until(
            lambda: cluster.has_said(victim, "begun") or not cluster.nodes[victim].running, f"node {victim} begins"
        )
        a_moment(rng, 0.3)
        if cluster.nodes[victim].running:
            cluster.kill(victim)
        cluster.start(victim)
    normal(cluster)
    return SAME


@scenario("stop-5-s")
def stop_and_continue(cluster: Cluster, rng: random.Random) -> str:
    slowly(cluster)
    victim = rng.choice(list(cluster.nodes))
    cluster.start()
    cluster.until_heard(victim, rng.choice(KINDS))
    if cluster.nodes[victim].running:
        cluster.nodes[victim].signal(signal.SIGSTOP)
        time.sleep(5)  # the scenario itself
        cluster.nodes[victim].signal(signal.SIGCONT)
    normal(cluster)
    return SAME


# ---------------------------------------------------------------------- wires that misbehave
@scenario("delay")
def delay(cluster: Cluster, rng: random.Random) -> str:
    for wire in some_edge(cluster, rng):
        wire.delay = 0.2
    cluster.start()
    return SAME


@scenario("slow-1-Mbit")
def slow(cluster: Cluster, rng: random.Random) -> str:
    for wire in cluster.wire.values():
        wire.rate = 125_000
    cluster.start()
    return SAME


@scenario("slow-1-Mbit-large", problem=Problem(edges=(("a", "b"),), rows=1600, columns=500))
def slow_and_large(cluster: Cluster, rng: random.Random) -> str:
    """6.4 MB on the same wire, most of a minute: a slow neighbor is not a lost one."""
    return slow(cluster, rng)


def harm_an_edge(harm: Callable[[Wire], Any], cluster: Cluster, rng: random.Random, times: int = 3) -> str:
    """Several times, at several phases, on random edges."""
    slowly(cluster)
    cluster.start()
    for kind in sorted(rng.sample(KINDS, times), key=KINDS.index):
        edge = rng.choice(cluster.problem.edges)
        cluster.until_heard(edge[0], kind)
        for wire in cluster.between(*edge):
            harm(wire)
        a_moment(rng)
    return SAME


SCENARIOS["cut"] = partial(harm_an_edge, Wire.cut)
SCENARIOS["reset"] = partial(harm_an_edge, Wire.reset)


@scenario("half-open")
def half_open(cluster: Cluster, rng: random.Random) -> str:
    return harm_an_edge(Wire.half_open, cluster, rng, times=1)


@scenario("reset-mid-message")
def reset_mid_message(cluster: Cluster, rng: random.Random) -> str:
    """After a random number of bytes, from the handshake on."""
    for wire in cluster.wire.values():
        wire.reset_after(rng.randrange(1, 20_000))
    cluster.start()
    return SAME


@scenario("duplicate-connections")
def duplicate(cluster: Cluster, rng: random.Random) -> str:
    for wire in cluster.wire.values():
        wire.duplicate()
    cluster.start()
    for kind in sorted(rng.sample(KINDS, 2), key=KINDS.index):  # so that there are new connections
        edge = rng.choice(cluster.problem.edges)
        cluster.until_heard(edge[0], kind)
        for wire in cluster.between(*edge):
            wire.cut()
    return SAME


def partition(cluster: Cluster, rng: random.Random) -> list[tuple[str, str]]:
    """The edges that a random cut of the network separates."""
    names = list(cluster.nodes)
    side = set(rng.sample(names, rng.randrange(1, len(names))))
    return [(a, b) for a, b in cluster.problem.edges if (a in side) != (b in side)]


@scenario("partition-10-s")
def partition_healed(cluster: Cluster, rng: random.Random) -> str:
    slowly(cluster)
    cluster.start()
    cluster.until_heard(rng.choice(list(cluster.nodes)), rng.choice(KINDS))
    harm = rng.choice([Wire.drop, Wire.refuse])
    for a, b in partition(cluster, rng):
        for wire in cluster.between(a, b):
            harm(wire)
    time.sleep(10)  # the scenario itself
    normal(cluster)
    return SAME


@scenario("partition-for-ever", SHORT)
def partition_not_healed(cluster: Cluster, rng: random.Random) -> str:
    """Every node stops in time and says which peer it misses; later the run goes on."""
    slowly(cluster, 0.05)
    cluster.start()
    cluster.until_heard(rng.choice(list(cluster.nodes)), rng.choice(KINDS[:-3]))
    harm, broken = rng.choice([Wire.drop, Wire.refuse]), partition(cluster, rng)
    for a, b in broken:
        for wire in cluster.between(a, b):
            harm(wire)
    stop_in_time(cluster, SHORT, {name for edge in broken for name in edge})
    normal(cluster)
    cluster.start()
    return NAMED


def stop_in_time(cluster: Cluster, peer_timeout: float, names: set[str]) -> None:
    """All nodes that run say within peer_timeout + 5 s which of `names` they miss, and end; none has an answer, all can go on later."""
    nodes = [node for node in cluster.nodes.values() if node.running]
    cluster.until(lambda: all(node.error() for node in nodes), "all nodes say what is wrong", peer_timeout + GRACE)
    codes = cluster.until_ended()
    for node in nodes:
        assert node.code == STOPPED, cluster.report(f"exit codes {codes}, expected {STOPPED}")
        said = any(f"node {other} " in node.error() for other in names)
        assert said, cluster.report(f"node {node.name} does not name any of {sorted(names)}: {node.error()}")
        assert cluster.run_folder(node.name).joinpath(FILE).stat().st_size, f"node {node.name} kept nothing"


@scenario("never-comes-back", SHORT)
def never_comes_back(cluster: Cluster, rng: random.Random) -> str:
    """A node is killed and stays away: the others name it; later all go on."""
    slowly(cluster, 0.05)
    victim = rng.choice(list(cluster.nodes))
    cluster.start()
    cluster.until_heard(victim, rng.choice(KINDS[:-3]))
    cluster.kill(victim)
    stop_in_time(cluster, SHORT, {victim})
    normal(cluster)
    cluster.start()
    return NAMED


# ---------------------------------------------------------------------- disks
@contextmanager
def small_disk(folder: Path, size: int) -> Any:
    """A file system of its own with so many bytes, where we may mount one; yields how to make room."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)], check=True, capture_output=True)  # fmt: skip
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True, capture_output=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


def runs_out(cluster: Cluster, victim: str, seconds: float) -> None:
    """The node whose disk is full says so; the others name it, or it comes back before they give up."""
    cluster.until_ended(seconds, victim)
    last = cluster.until(cluster.nodes[victim].error, f"node {victim} says why it stops")
    assert cluster.nodes[victim].code == STOPPED, cluster.report(f"exit code {cluster.nodes[victim].code}")
    assert "space" in last or "too large" in last, cluster.report(f"node {victim} does not say that its disk is full")


if can_mount():

    @scenario("disk-full")
    def disk_full(cluster: Cluster, rng: random.Random) -> str:
        """The disk of one node is full, at any moment; when there is room again, it goes on."""
        slowly(cluster)
        victim = rng.choice(list(cluster.nodes))
        with small_disk(cluster.run_folder(victim), rng.randrange(16, 64) << 12) as make_room:
            cluster.start()
            runs_out(cluster, victim, LONG)
            make_room()
            normal(cluster)
            cluster.start(victim)
            cluster.until_ended()
        return SAME


@scenario("file-limit")
def file_limit(cluster: Cluster, rng: random.Random) -> str:
    """As a full disk, where we may not mount one: no file may be larger than so many bytes."""
    slowly(cluster)
    victim = rng.choice(list(cluster.nodes))
    cluster.nodes[victim].file_limit = rng.randrange(40_000, 150_000)  # SQLite has 32 KiB for a start
    cluster.start()
    runs_out(cluster, victim, LONG)
    cluster.nodes[victim].file_limit = None
    normal(cluster)
    cluster.start(victim)
    return SAME


def damage(path: Path, rng: random.Random) -> str:
    """Cut a file short, or flip one of its bits."""
    data = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        path.write_bytes(data[: rng.randrange(len(data))])
        return "cut short"
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"bit flipped in byte {at}"


@scenario("damaged-database", 30.0)
def damaged_database(cluster: Cluster, rng: random.Random) -> str:
    """The database of a killed node is damaged, or its write-ahead log. What is lost was acknowledged: nobody may go on as if nothing had happened.

    Either it can be got again, and the bits are the same; or nodes stop with an error that names the file or the node.
    """
    slowly(cluster, 0.03)
    victim = rng.choice(list(cluster.nodes))
    cluster.start()
    cluster.until_heard(victim, rng.choice(KINDS[:-3]))
    cluster.kill(victim)
    folder = cluster.run_folder(victim)
    before = {name: (folder / name).read_bytes() for name in (FILE, f"{FILE}-wal") if (folder / name).exists()}
    hurt = rng.choice([name for name, data in before.items() if data])
    how = damage(folder / hurt, rng)
    normal(cluster)
    cluster.start(victim)
    codes = cluster.until_ended()
    if set(codes.values()) <= WELL:
        return SAME
    assert set(codes.values()) <= {*WELL, OVER}, cluster.report(f"{hurt} {how}: exit codes {codes}")
    said = cluster.nodes[victim].error()
    named = str(folder / FILE) in said or f"node {victim} " in said
    assert named, cluster.report(f"{hurt} {how}: node {victim} does not say what is wrong")
    # with the files brought back the run goes on
    for path in folder.glob(f"{FILE}*"):
        path.unlink()
    for name, data in before.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)
    cluster.start(*(name for name, code in codes.items() if code == OVER))
    return "error names the file, then same bits"
