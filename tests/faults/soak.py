"""`make soak`: six nodes, fits back to back, a random node killed every 20 s on average and started again, or, one in three, lost for good.

    PYTHONPATH=tests python -m faults.soak --minutes 30

Every fit has data of its own, and every node's answer is compared with the local engine's, of the nodes that were left. Memory, threads and open
files of each
process are sampled all the time: neither a long fit nor a long series of fits may make them grow.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from dekpca import DecentralizedKernelPCA, Network, Projection
from dekpca.node_model import NodeModel
from dekpca.testing import EIGENVALUE_TOLERANCE, VALUE_TOLERANCE

from .cluster import Cluster, Problem
from .losses import MISSING
from .proxy import Wires
from .scenarios import WELL
from .supervisor import Nursery

BETWEEN_KILLS = 20.0  # seconds, on average
EDGES = (("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("f", "a"), ("a", "d"))
MODEL = {
    "n_components": 2, "share_rows": True, "gamma": 0.05, "random_state": 0,
    "solver": {"n_landmarks": 15, "max_iter": 150, "tol": 0.0},
}  # fmt: skip
SAMPLE = 0.5  # seconds between looks at memory, threads and files
A_FIT = 240.0  # seconds after which a fit hangs; it takes about ten
LOST = 1 / 3  # of the kills, one a fit: the node does not come back, and the others go on without it
SETTINGS = {"on_loss": "continue", "quorum": 4}
TIMEOUT = 25.0  # seconds, peer_timeout; a killed node is back after a few
GROWTH = 1.05  # of medians, late over early: memory of a process varies by a few per cent


@dataclass(frozen=True)
class Part(Problem):
    """The problem of one fit: same network, other data."""

    seed: int = 0

    def part(self, name: str) -> np.ndarray:
        rng = np.random.default_rng([self.seed, self.names.index(name)])
        centers = np.random.default_rng(self.seed).normal(scale=1.5, size=(3, self.columns))
        return centers[self.names.index(name) % 3] + np.geomspace(2, 0.3, self.columns) * rng.normal(
            size=(self.rows, self.columns)
        )


@dataclass
class Seen:
    """One look at a process."""

    fit: int
    pid: int
    age: float  # seconds since the process was first seen
    rss: int  # KiB
    threads: int
    files: int


@dataclass
class Soak:
    seconds: float
    rng: random.Random
    seen: list[Seen] = field(default_factory=list)
    kills: Counter = field(default_factory=Counter)  # by what the node had said last
    losses: int = 0  # kills for good
    without: int = 0  # fits that ended without a lost node
    fits: int = 0
    worst: float = 0.0  # of differences from the local engine, relative
    longest: float = 0.0
    stray: int = 0  # files that should not be there
    born: dict[int, float] = field(default_factory=dict)

    def run(self, nursery: Nursery, folder: Path) -> None:
        end = time.monotonic() + self.seconds
        self.next_kill = time.monotonic() + self.rng.expovariate(1 / BETWEEN_KILLS)
        while time.monotonic() < end:
            before = time.monotonic()
            problem = Part(EDGES, rows=40, columns=5, model=MODEL, seed=self.fits)
            fit = folder / f"fit-{self.fits}"
            with Wires() as wires, Cluster(fit, nursery, wires, problem, TIMEOUT, **SETTINGS) as cluster:
                self._compare(cluster, self._one(cluster))
                leftover = [p for name in cluster.nodes for p in cluster.run_folder(name).glob(".*.part")]
                self.stray = max(self.stray, len(leftover))
            shutil.rmtree(folder / f"fit-{self.fits}")
            self.longest = max(self.longest, time.monotonic() - before)
            self.fits += 1

    def _one(self, cluster: Cluster) -> str | None:
        """A fit, to its end; returns the node that was lost, if one was."""
        lost, known = None, False
        cluster.start()
        begun, last_look = time.monotonic(), 0.0
        while any(node.running for node in cluster.nodes.values()):
            now = time.monotonic()
            assert now - begun < A_FIT, cluster.report(f"fit {self.fits} is not over after {A_FIT:g} s")
            ended = {n.name: n.code for n in cluster.nodes.values() if n.code is not None and n.name != lost}
            failed = {name: code for name, code in ended.items() if code not in (*WELL, MISSING)}
            assert not failed, cluster.report(f"fit {self.fits}: exit codes {failed}")
            if now >= self.next_kill:
                self.next_kill = now + self.rng.expovariate(1 / BETWEEN_KILLS)
                victim = self.rng.choice(list(cluster.nodes))
                if cluster.nodes[victim].running:
                    node = cluster.nodes[victim]
                    node.happened(lambda event: False)
                    self.kills[next((e["message"] for e in reversed(node.events) if "message" in e), "nothing")] += 1
                    cluster.kill(victim)
                    # Before all know the network a loss stops them: nobody could say who should agree.
                    known = known or all(cluster.has_said(name, "network known") for name in cluster.nodes)
                    if lost is None and self.rng.random() < LOST and known:
                        lost = victim
                        self.losses += 1
                    else:
                        cluster.start(victim)
            if now - last_look > SAMPLE:
                last_look = now
                for node in cluster.nodes.values():
                    if node.running:
                        self._look(node.pid)
            time.sleep(0.02)
        return lost

    def _look(self, pid: int) -> None:
        try:
            status = dict(
                line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
            )
            files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            age = time.monotonic() - self.born.setdefault(pid, time.monotonic())
            self.seen.append(Seen(self.fits, pid, age, int(status["VmRSS"].split()[0]), int(status["Threads"]), files))
        except (OSError, KeyError):
            pass  # it has just ended

    def _compare(self, cluster: Cluster, lost: str | None) -> None:
        names = [name for name in cluster.problem.names if name != lost]
        missing = {m["node"] for name in names for m in NodeModel.load(cluster.model_file(name)).missing}
        assert missing <= {lost}, cluster.report(f"fit {self.fits}: {sorted(missing)} are missing, not {lost}")
        self.without += bool(missing)
        took_part = names if missing else cluster.problem.names
        edges = [edge for edge in EDGES if set(edge) <= set(took_part)]
        model = DecentralizedKernelPCA(
            **MODEL | {"solver": Projection(**MODEL["solver"])}, network=Network.from_edges(edges)
        )
        parts = {name: cluster.problem.part(name) for name in took_part}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tol = 0 does not converge
            model.fit_parts(parts)
        X = np.concatenate(list(parts.values()))
        for name in names:
            got, wanted = NodeModel.load(cluster.model_file(name)), model.node_models_[name]
            apart = np.abs(got.eigenvalues_ / wanted.eigenvalues_ - 1).max()
            values, truth = got.transform(X), wanted.transform(X)
            worst = np.abs(values - truth).max() / np.abs(truth).max()
            assert apart <= EIGENVALUE_TOLERANCE, f"fit {self.fits}, node {name}: WRONG eigenvalues, {apart:.1e} apart"
            assert worst <= VALUE_TOLERANCE, f"fit {self.fits}, node {name}: WRONG values, {worst:.1e} apart"
            self.worst = max(self.worst, float(worst))

    # ------------------------------------------------------------------ what grew
    def growth(self) -> list[tuple[str, float, float, bool]]:
        """What, early, late, and whether that is growth."""
        rows = []
        third = self.fits / 3
        grown = [s for s in self.seen if s.age > 2.0]  # a process that has imported and connected
        for what in ("rss", "threads", "files"):
            early = [getattr(s, what) for s in grown if s.fit <= third]
            late = [getattr(s, what) for s in grown if s.fit >= 2 * third]
            if early and late:
                a, b = float(np.median(early)), float(np.median(late))
                rows.append((f"{what}, first and last third of the fits", a, b, b > GROWTH * a))
        within = {what: ([], []) for what in ("rss", "threads", "files")}
        for pid in {s.pid for s in grown}:
            own = [s for s in grown if s.pid == pid]
            if len(own) >= 6:
                for what, (early, late) in within.items():
                    values = [getattr(s, what) for s in own]
                    early.append(np.median(values[: len(values) // 3]))
                    late.append(np.median(values[-(len(values) // 3) :]))
        for what, (early, late) in within.items():
            if early:
                a, b = float(np.median(early)), float(np.median(late))
                rows.append((f"{what}, first and last third of a process's life", a, b, b > GROWTH * a))
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    soak = Soak(60 * a.minutes, random.Random(a.seed))
    temporary = Path(tempfile.gettempdir())
    files_before = len(list(temporary.iterdir()))
    start = time.monotonic()
    failure = ""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    with Nursery() as nursery:
        try:
            soak.run(nursery, folder)
        except AssertionError as error:
            failure = str(error)
        except KeyboardInterrupt:
            console.print("interrupted; so far:")
    grown = soak.growth()
    files_after = len(list(temporary.iterdir()))
    kills = sum(soak.kills.values())
    verdict = "then it failed" if failure else "every answer right"
    console.print(
        f"{soak.fits} fits of 6 nodes in {(time.monotonic() - start) / 60:.1f} minutes, {verdict} (largest "
        f"difference from the local engine {soak.worst:.0e} of the largest value); "
        f"{kills} kills, {soak.losses} of them for good, {soak.without} answers without the lost node; "
        f"longest fit {soak.longest:.0f} s",
        highlight=False,
    )
    console.print(
        "killed when the node's last words were: " + ", ".join(f"{k!r} {n}" for k, n in soak.kills.most_common())
    )
    shown = Table()
    for heading in ("what (medians over processes; memory in KiB)", "early", "late", ""):
        shown.add_column(heading, justify="left" if not shown.columns else "right")
    for what, early, late, bad in grown:
        shown.add_row(what, f"{early:,.0f}", f"{late:,.0f}", "[red]grows[/]" if bad else "")
    shown.add_row("files left in folders of runs (.part)", "0", str(soak.stray), "[red]grows[/]" if soak.stray else "")
    shown.add_row("entries in the temporary folder", str(files_before), str(files_after), "")
    console.print(shown)
    if failure:
        console.print(f"FAILED: {failure}", markup=False)
        console.print(f"its folder is kept: {folder}", markup=False)
    else:
        shutil.rmtree(folder)
    sys.exit(1 if failure or soak.stray or any(bad for *_, bad in grown) else 0)


if __name__ == "__main__":
    main()
