"""Nodes that are lost for good, and networks that fall apart, where on_loss = "continue": six real processes in a ring, a path or a star.

The nodes that remain connected and have the quorum, four of six, must end within peer_timeout and a grace with the same models, bit for bit: to
rounding, which under masks differs from run to run, those of an undisturbed run of these nodes alone. They agree with central kernel PCA of their
rows. Their exit code says that nodes are missing, and their model file which. All others must stop in the same time, with the exit code of a node
that can go on later, and name the lost node. A seed stands for the node that is lost and for the message after which.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dekpca.baselines import central
from dekpca.metrics import agreement
from dekpca.node_model import NodeModel
from dekpca.testing import VALUE_TOLERANCE

from .cluster import Cluster, Problem
from .proxy import Wire, Wires
from .supervisor import Nursery

NAMES = "abcdef"
SHAPES = {
    "ring": tuple(zip(NAMES, NAMES[1:] + NAMES[0], strict=True)),
    "path": tuple(itertools.pairwise(NAMES)),
    "star": tuple(("a", other) for other in NAMES[1:]),
    "bridge": tuple(itertools.pairwise(NAMES)),  # a path with fallback edges across c and d
}
FALLBACK = {"bridge": (("b", "d"), ("c", "e"))}
QUORUM = 4
TIMEOUT = 6.0  # seconds, peer_timeout
GRACE = 10.0  # seconds after it, in which the others must have ended
MISSING, STOPPED, EXCLUDED = 5, 4, 6  # exit codes
CLOSE = 0.999  # agreement of an undisturbed run with central kernel PCA, at least
LANDMARKS = {"n_components": 2, "gamma": 0.1, "standardize": True, "random_state": 0, "tol": 1e-3}
PROGRESS = 15.0  # seconds, progress_timeout
SETTINGS = {"on_loss": "continue", "quorum": QUORUM, "progress_timeout": PROGRESS}
PHASES = ("meeting", "columns", "landmarks", "moments", "judge", "end")

Models = dict[str, dict[str, np.ndarray]]  # the arrays of each node's model, by name
LOSSES: dict[str, Callable[..., str]] = {}


@dataclass(frozen=True)
class Six(Problem):
    """Six nodes of which some take part; what rows a node has does not depend on who else does."""

    rows: int = 30

    def part(self, name: str) -> np.ndarray:
        number = NAMES.index(name)
        rng = np.random.default_rng(number)
        return rng.normal(size=(self.rows + 3 * number, self.columns)) * np.geomspace(2, 0.3, self.columns) + number % 3


def problem(shape: str, without: frozenset[str] = frozenset()) -> Six:
    fallback = FALLBACK.get(shape, ())
    if without:  # what remains uses the fallback edges, if it must
        kept = {edge for edge in SHAPES[shape] if not without.intersection(edge)}
        kept |= {edge for edge in fallback if not without.intersection(edge)}
        return Six(edges=tuple(sorted(kept)), model=LANDMARKS)
    return Six(edges=SHAPES[shape], model=LANDMARKS, fallback_edges=fallback)


class Truths:
    """Models of undisturbed runs of some of the six nodes, made when first asked for."""

    def __init__(self, nursery: Nursery, folder: Path):
        self.nursery, self.folder = nursery, folder
        self._models: dict[tuple[str, frozenset[str]], Models] = {}
        self.agreements: dict[tuple[str, frozenset[str]], float] = {}
        self._lock = threading.Lock()

    def models(self, shape: str, without: frozenset[str]) -> Models:
        with self._lock:
            if (shape, without) not in self._models:
                folder = self.folder / f"{shape}-without-{''.join(sorted(without))}"
                undisturbed = replace(problem(shape, without), fallback_edges=())  # nobody needs them
                with Wires() as wires, Cluster(folder, self.nursery, wires, undisturbed) as cluster:
                    cluster.start()
                    codes = cluster.until_ended()
                    assert set(codes.values()) == {0}, cluster.report(f"the undisturbed run ended with {codes}")
                    self._models[shape, without] = arrays(cluster)
                    self.agreements[shape, without] = central_agreement(cluster, frozenset(NAMES) - without)
                    assert self.agreements[shape, without] > CLOSE, f"{self.agreements}"
            return self._models[shape, without]


def arrays(cluster: Cluster) -> Models:
    """The models without their headers, which say who is missing; an empty one where there is none."""
    found: Models = {}
    for name in cluster.nodes:
        path, found[name] = cluster.model_file(name), {}
        if path.exists():
            with np.load(path, allow_pickle=False) as file:
                assert json.loads(str(file["header"]))["run"] == cluster.folder.name
                found[name] = {key: file[key] for key in file.files if key != "header"}
    return found


def check(cluster: Cluster, final: Models, truth: Models, names: Iterable[str]) -> None:
    """These nodes must have the same model, bit for bit, and that of another run, whose masks were others, to rounding."""
    first, *others = names
    for name in others:
        same = {k: x.tobytes() for k, x in final[name].items()} == {k: x.tobytes() for k, x in final[first].items()}
        assert same, cluster.report(f"nodes {first} and {name} have DIFFERENT ANSWERS")
    assert final[first].keys() == truth[first].keys(), cluster.report(f"node {first}: {sorted(final[first])}")
    for key, value in truth[first].items():
        found, size = final[first][key], np.abs(value).max(initial=0.0)
        right = found.shape == value.shape and (np.abs(found - value) <= VALUE_TOLERANCE * size).all()
        assert right, cluster.report(f"node {first}: WRONG ANSWER, {key} differs from the undisturbed run")


def central_agreement(cluster: Cluster, names: frozenset[str]) -> float:
    """Of the models of these nodes with central kernel PCA of their rows: the worst component of the worst node."""
    rows = np.concatenate([cluster.problem.part(name) for name in sorted(names)])
    models = [NodeModel.load(cluster.model_file(name)) for name in sorted(names)]
    truth = central(rows, LANDMARKS["n_components"], gamma=LANDMARKS["gamma"], standardize=LANDMARKS["standardize"])
    return float(agreement(models, truth, rows).min())


def play(name: str, seed: int, nursery: Nursery, truths: Truths, folder: Path) -> str:
    """Run a scenario; returns its outcome, or raises AssertionError."""
    shape, _, kind = name.partition("-")
    rng = random.Random(f"{name} {seed}")
    with (
        Wires() as wires,
        Cluster(folder, nursery, wires, problem(shape), TIMEOUT, **SETTINGS) as cluster,
    ):
        return LOSSES[kind](cluster, rng, seed, shape, truths)


def parts(shape: str, lost: frozenset[str]) -> list[frozenset[str]]:
    """The connected parts that remain."""
    left = set(NAMES) - lost
    found = []
    while left:
        part = {left.pop()}
        edges = (*SHAPES[shape], *FALLBACK.get(shape, ()))
        while more := {b for e in edges for a, b in (e, e[::-1]) if a in part and b in left}:
            part |= more
            left -= more
        found.append(frozenset(part))
    return found


def slowly(cluster: Cluster, seconds: float = 0.02) -> None:
    for wire in cluster.wire.values():
        wire.delay = seconds


def until_phase(cluster: Cluster, name: str, phase: str) -> None:
    """Of the program, as far as this node shows it."""
    if phase == "meeting":
        # Before that a loss stops all, those that have not heard from a neighbor yet after start_timeout.
        knows = lambda: all(cluster.has_said(other, "network known") for other in cluster.nodes)  # noqa: E731
        cluster.until(knows, "all nodes know the network")
    elif phase == "end":
        ended = lambda event: event.get("message") == "answer is final"  # noqa: E731
        cluster.until(lambda: cluster.nodes[name].happened(ended) or not cluster.nodes[name].running, "answer is final")
    else:
        cluster.until_heard(name, phase)


def judge(cluster: Cluster, shape: str, lost: frozenset[str], begun: float, truths: Truths) -> str:
    """After the loss of these nodes at this time: who must have an answer, and which."""
    rest = [name for name in cluster.nodes if name not in lost]
    codes = cluster.until_ended(max(0.0, begun + TIMEOUT + GRACE - time.monotonic()), *rest)
    final = arrays(cluster)
    whole = truths.models(shape, frozenset())
    if 0 in codes.values():  # all had the answer before; those that the loss cut off may not know that it is final
        for part in parts(shape, lost):
            done = {codes[name] for name in part}
            assert done == {0} or (done == {STOPPED} and len(part) < QUORUM), cluster.report(f"exit codes {codes}")
            if done == {0}:
                check(cluster, final, whole, part)
            else:
                assert not any(final[name] for name in part), cluster.report("WRONG ANSWER")
        return "answer of all"
    outcomes = []
    for part in parts(shape, lost):
        enough = len(part) >= QUORUM
        outside = frozenset(NAMES) - part
        truth = truths.models(shape, outside) if enough else {}
        for name in part:
            if enough:
                assert codes[name] == MISSING, cluster.report(f"exit codes {codes}")
                assert abs(central_agreement(cluster, part) - truths.agreements[shape, outside]) <= 1e-6
                said = {m["node"] for m in NodeModel.load(cluster.model_file(name)).missing}
                assert said == outside, (
                    f"the model of node {name} says that {sorted(said)} are missing, not {sorted(outside)}"
                )
                finished = json.loads((cluster.run_folder(name) / "finished.json").read_text())
                assert {m["node"] for m in finished["missing"]} == outside
            else:
                assert codes[name] in (STOPPED, EXCLUDED), cluster.report(f"exit codes {codes}")
                assert any(f"node {other}" in cluster.nodes[name].error() for other in outside), cluster.report(
                    "no name"
                )
                assert not final[name], f"node {name} has a model"
        if enough:
            check(cluster, final, truth, part)
        outcomes.append("answer of the survivors" if enough else "too few, stopped")
    return " and ".join(sorted(set(outcomes)))


# ---------------------------------------------------------------------- losses
def loss(kind: str) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        LOSSES[kind] = function
        return function

    return add


@loss("killed")
def killed(cluster: Cluster, rng: random.Random, seed: int, shape: str, truths: Truths) -> str:
    """`kill -9` for good: each node in turn, at each phase."""
    victims = "cd" if shape == "bridge" else NAMES
    victim, phase = victims[seed % len(victims)], PHASES[seed // len(victims) % len(PHASES)]
    slowly(cluster)
    cluster.start()
    watched = victim if phase != "end" else next(name for name in NAMES if name != victim)
    until_phase(cluster, watched, phase)
    cluster.kill(victim)
    begun = time.monotonic()
    for wire in cluster.wire.values():
        wire.delay = 0.0
    return judge(cluster, shape, frozenset(victim), begun, truths)


def split(cluster: Cluster, harm: Callable[[Wire], Any]) -> None:
    """Between a, b, c and d, e, f."""
    for a, b in cluster.problem.edges:
        if (a in "abc") != (b in "abc"):
            for wire in cluster.between(a, b):
                harm(wire)


@loss("parted")
def parted(cluster: Cluster, rng: random.Random, seed: int, shape: str, truths: Truths) -> str:
    """Three and three, for ever: neither side has the quorum. Later all go on, together, to the answer of all."""
    slowly(cluster)
    cluster.start()
    until_phase(cluster, rng.choice(NAMES), rng.choice(PHASES[:4]))
    split(cluster, rng.choice([Wire.drop, Wire.refuse]))
    begun = time.monotonic()
    codes = cluster.until_ended(begun + TIMEOUT + GRACE - time.monotonic())
    assert set(codes.values()) == {STOPPED}, cluster.report(f"exit codes {codes}")
    for wire in cluster.wire.values():
        wire.heal()
    cluster.start()
    codes = cluster.until_ended()
    assert set(codes.values()) == {0}, cluster.report(f"exit codes {codes}")
    check(cluster, arrays(cluster), truths.models(shape, frozenset()), NAMES)
    return "all stopped, then the answer of all"


@loss("parted-briefly")
def parted_briefly(cluster: Cluster, rng: random.Random, seed: int, shape: str, truths: Truths) -> str:
    """Three and three, healed within the timeout: the same answer as ever."""
    slowly(cluster)
    cluster.start()
    until_phase(cluster, rng.choice(NAMES), rng.choice(PHASES[:4]))
    split(cluster, rng.choice([Wire.drop, Wire.refuse]))
    time.sleep(TIMEOUT / 3)  # the scenario itself
    for wire in cluster.wire.values():
        wire.heal()
    codes = cluster.until_ended()
    assert set(codes.values()) == {0}, cluster.report(f"exit codes {codes}")
    check(cluster, arrays(cluster), truths.models(shape, frozenset()), NAMES)
    return "answer of all"


@loss("stopped")
def stopped(cluster: Cluster, rng: random.Random, seed: int, shape: str, truths: Truths) -> str:
    """SIGSTOP for longer than the timeout, then SIGCONT while the others work: the late node is told that it is out."""
    victim = {"ring": rng.choice(NAMES), "path": "a", "star": "b"}[shape]  # the others stay connected
    slowly(cluster)
    cluster.start()
    until_phase(cluster, victim, "columns")
    cluster.nodes[victim].signal(signal.SIGSTOP)
    begun = time.monotonic()
    other = next(name for name in NAMES if name != victim)
    cluster.until(lambda: cluster.has_said(other, "begun anew"), "the others go on", TIMEOUT + GRACE)
    cluster.nodes[victim].signal(signal.SIGCONT)
    codes = cluster.until_ended(begun + TIMEOUT + GRACE + TIMEOUT - time.monotonic(), victim)
    error = cluster.nodes[victim].error()
    if codes[victim] == EXCLUDED:
        assert f"without node {victim}" in error, cluster.report("the late node is not told")
        assert "new run" in error, cluster.report("the owner is not told what to do")
    else:  # the others had finished, and were gone
        assert codes[victim] == STOPPED, cluster.report(f"exit codes {codes}")
    return judge(cluster, shape, frozenset(victim), begun, truths)


@loss("hanging")
def hanging(cluster: Cluster, rng: random.Random, seed: int, shape: str, truths: Truths) -> str:
    """A program that hangs, though its node is alive: the others go on without it after progress_timeout."""
    victim = NAMES[seed % len(NAMES)]
    cluster.nodes[victim].stuck = "honest"
    cluster.start()
    cluster.until(lambda: all(cluster.has_said(name, "begun") for name in NAMES), "all begin")
    # In the worst case its neighbors find out one after the other.
    begun = time.monotonic() + 2 * PROGRESS
    return judge(cluster, shape, frozenset(victim), begun, truths)


NAMED = [
    f"{shape}-{kind}"
    for kind in LOSSES
    for shape in ("ring", "path", "star")
    if kind not in ("parted-briefly", "hanging") or shape == "ring"
]
NAMED.append("bridge-killed")
