"""The experiments of the paper (He et al. 2025, Section 5), and some others, as data and functions.

Each compares the paper's settings with those of the projection solver: first component, ring network. `similarity` is the paper's measure, the mean
over the nodes; `worst` that of the worst node; `agreement` the correlation of the worst node's component values with the central ones.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.decomposition import KernelPCA
from sklearn.exceptions import ConvergenceWarning

from .. import baselines, metrics
from ..engines import local
from ..estimator import DecentralizedKernelPCA
from ..messages import Script
from ..network import Network
from ..node_model import NodeModel, NodeModels
from ..plan import plan_parts
from ..program import program
from ..report.panels import Panel, Series
from ..rounds import Transcript
from ..settings import Options
from ..site import Site, apart
from ..solvers.projection import PAPER, Projection, ProjectionOptions
from ..solvers.projection.solve import iterate, make_answer, meet, start
from . import splits
from .runner import Experiment, Row, Source

NODES = (10, 20, 40, 60, 80)
SIZES = (40, 80, 120, 160, 200, 240, 300)
NEIGHBORS = (2, 4, 6, 8, 10, 12)
ALPHAS = (float("inf"), 10.0, 1.0, 0.3, 0.1, 0.0)  # Dirichlet: from similar nodes to one class per node
ITERATIONS = 8  # drawn in the neighbors experiment
LONG = 300
PAPER_ITERATIONS = 20  # the paper's iteration must be stopped here: later it diverges

NAMES = {  # of the methods
    "local": "local kernel PCA",
    "neighborhood": "neighborhood kernel PCA",
    "paper": "the paper's settings, 20 iterations",
    "dekpca": "dekpca, projection solver",
}


def rows_a_node(source: Source, nodes: int, wanted: int) -> int:
    """The paper's number, or as many as the data allows, with a margin for uneven splits."""
    return min(wanted, int(0.9 * len(source.X)) // nodes)


@dataclass(frozen=True, eq=False)
class Problem:
    """The rows of a cell, dealt to its nodes, with their central answer."""

    source: Source
    parts: list[np.ndarray]
    network: Network
    seed: int
    central: NodeModel

    @classmethod
    def of(cls, source: Source, cell: dict[str, Any], seed: int) -> Problem:
        sizes, alpha = np.full(cell["nodes"], cell["rows"]), float(cell.get("alpha", np.inf))
        parts = [source.X[r].astype(np.float64) for r in splits.dirichlet(source.y, sizes, alpha, seed)]
        network = Network.ring(cell["nodes"], cell.get("neighbors", 4))
        return cls(source, parts, network, seed, baselines.central(parts, 1, gamma=source.gamma))

    def estimator(self, method: str, **changes: Any) -> DecentralizedKernelPCA:
        """For the paper's settings or dekpca's; `changes` are options of `Projection`."""
        paper = method == "paper"
        solver = replace(PAPER, max_iter=PAPER_ITERATIONS, tol=0.0) if paper else Projection()
        given: dict[str, Any] = {"gamma": self.source.gamma, "network": self.network, "random_state": self.seed}
        return DecentralizedKernelPCA(1, normalize=paper, solver=replace(solver, **changes), **given)

    def fit(self, method: str) -> Any:
        if method == "local":
            return baselines.local(self.parts, 1, gamma=self.source.gamma)
        if method == "neighborhood":
            return baselines.neighborhood(self.parts, self.network, 1, gamma=self.source.gamma)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the paper's settings are stopped early on purpose
            return self.estimator(method).fit_parts(self.parts)


def compare(problem: Problem) -> tuple[list[Row], list[Row]]:
    """All methods on one problem: measurements, and seconds of the fits."""
    measured, times = [], []
    for method in NAMES:
        start = time.perf_counter()
        model = problem.fit(method)
        times.append({"what": f"{method}, whole network", "seconds": time.perf_counter() - start})
        similar = metrics.similarity(model, problem.central)[:, 0]
        agreement = metrics.agreement(model, problem.central, np.concatenate(problem.parts))[:, 0].min()
        found = {"similarity": float(similar.mean()), "worst": float(similar.min()), "agreement": float(agreement)}
        measured.append({"method": method} | found)
    return measured, times


def _measure(source: Source, cell: dict[str, Any], seed: int) -> tuple[list[Row], list[Row]]:
    measured, times = compare(Problem.of(source, cell, seed))
    return [cell | row for row in measured], times


def node_seconds(parts: Sequence[np.ndarray], model: DecentralizedKernelPCA) -> np.ndarray:
    """(J,) seconds of computation of each node alone in its process; real nodes run in parallel."""
    plan = plan_parts(model, parts)
    sites = apart(plan.parts, plan.network, plan.nodes.tolist(), plan.sizes)
    seconds = np.zeros(len(parts))

    def timed(site: Site, options: Options) -> Script:
        script, reply, node = program(site, options), None, int(site.nodes[0])
        while True:
            start = time.perf_counter()
            try:
                request = script.send(reply)
            except StopIteration as end:
                return end.value
            finally:
                seconds[node] += time.perf_counter() - start
            reply = yield request

    local.drive(sites, plan.options, local.Delivery(sites), script=timed)
    return seconds


def _measure_nodes(source: Source, cell: dict[str, Any], seed: int) -> tuple[list[Row], list[Row]]:
    problem = Problem.of(source, cell, seed)
    measured, times = compare(problem)
    start = time.perf_counter()
    whole = KernelPCA(1, kernel="rbf", gamma=source.gamma, eigen_solver="arpack", random_state=0)
    whole.fit(np.concatenate(problem.parts))
    found = [{"what": "central, scikit-learn", "seconds": time.perf_counter() - start}]
    for method in ("paper", "dekpca"):
        slowest = node_seconds(problem.parts, problem.estimator(method)).max()
        found.append({"what": f"{method}, slowest node", "seconds": float(slowest)})
        found += [row for row in times if row["what"] == f"{method}, whole network"]
    return [cell | row for row in measured], found


def _draw_nodes(rows: list[Row], times: list[Row]) -> list[Panel]:
    counted = [t | {"nodes": int(str(t["cell"]).split()[0].split("=")[1])} for t in times]
    series = []
    for what in dict.fromkeys(t["what"] for t in times):
        x, mean, _ = _means([t for t in counted if t["what"] == what], "nodes", "seconds")
        series.append(Series(what, x, mean))
    similar = _by(rows, "nodes", "nodes", "Similarity against the number of nodes")
    return [similar, Panel("Time against the number of nodes", "nodes", "seconds", series, log_y=True)]


def sizes_of(source: Source) -> list[int]:
    """The paper's numbers of rows of each of 20 nodes, scaled down if there are fewer."""
    scale = rows_a_node(source, 20, max(SIZES)) / max(SIZES)
    return sorted({max(5, int(size * scale)) for size in SIZES})


def _measure_neighbors(source: Source, cell: dict[str, Any], seed: int) -> tuple[list[Row], list[Row]]:
    problem = Problem.of(source, cell, seed)
    measured, times = compare(problem)
    found = [cell | {"iteration": 0} | row for row in measured]
    for method in ("paper", "dekpca"):
        model = problem.estimator(method, max_iter=ITERATIONS, tol=0.0)
        for row in by_iteration(model, problem, range(1, ITERATIONS + 1)):
            found.append(cell | {"method": method, "agreement": ""} | row)
    return found, times


def _draw_neighbors(rows: list[Row], times: list[Row]) -> list[Panel]:
    panels = []
    for method in ("paper", "dekpca"):
        steps = [r for r in rows if r["method"] == method and r["iteration"] > 0]
        series = []
        for t in (1, 2, 4, ITERATIONS):
            x, mean, spread = _means([r for r in steps if r["iteration"] == t], "neighbors")
            series.append(Series(f"iteration {t}", x, mean, spread, mode="bars"))
        x, mean, _ = _means([r for r in rows if r["method"] == "neighborhood"], "neighbors")
        series.append(Series("neighborhood kernel PCA", x, mean, color="#888888"))
        panels.append(Panel(NAMES[method].removesuffix(", 20 iterations"), "neighbors", "similarity", series))
    return panels


def by_iteration(model: DecentralizedKernelPCA, problem: Problem, wanted: Sequence[int] | range) -> list[Row]:
    """Mean and worst similarity of the nodes while they iterate, as of fits that stop there."""
    plan, met, found = plan_parts(model, problem.parts), [], []

    def observed(site: Site, options: Options) -> Script:
        asked = options.solver_options
        assert isinstance(asked, ProjectionOptions)
        run = yield from meet(site, asked, Transcript())
        met.append(run)
        start(run)
        yield from iterate(run, None)
        if run.runs[-1][0] != "diverged":  # else the iterate is an earlier one
            look(run.runs[-1][1])

    def look(t: int) -> None:
        if t in wanted:
            (run,) = met
            first = np.linalg.eigh(sum(node.w_values.T @ node.w_values for node in run.nodes))[1][:, -1:]
            answer = make_answer(run, np.ones(1), first, 1.0)
            similar = metrics.similarity(NodeModels([answer], True, plan.features), problem.central)
            found.append({"iteration": t, "similarity": float(similar.mean()), "worst": float(similar.min())})

    local.run(plan, lambda about: look(about.number), observed)
    return found


def _draw_heterogeneity(rows: list[Row], times: list[Row]) -> list[Panel]:
    order = {alpha: i for i, alpha in enumerate(ALPHAS)}
    labelled = [r | {"place": order[float(r["alpha"])]} for r in rows]
    ticks = ["inf\n(alike)", *(f"{alpha:g}" for alpha in ALPHAS[1:-1]), "0\n(one class)"]
    label = "Dirichlet parameter of the classes' shares"
    titles = {"similarity": "similarity, mean of the nodes", "agreement": "agreement, worst node"}
    return [replace(_by(labelled, "place", label, title, key), x_ticks=ticks) for key, title in titles.items()]


def _measure_convergence(source: Source, cell: dict[str, Any], seed: int) -> tuple[list[Row], list[Row]]:
    problem = Problem.of(source, cell, seed)
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "paper": ("paper", {}),
        "proximal, no landmarks": ("paper", {"update": "proximal", "rho": "auto", "n_oversamples": "auto"}),
        "dekpca": ("dekpca", {}),
    }
    wanted = [1, 2, 3, 4, *range(5, LONG + 1, 5)]
    found: list[Row] = []
    for name, (method, changes) in ways.items():
        model = problem.estimator(method, **changes | {"max_iter": LONG, "tol": 0.0})
        found += [{"method": name} | row for row in by_iteration(model, problem, wanted)]
    return found, []


def _draw_convergence(rows: list[Row], times: list[Row]) -> list[Panel]:
    panels, names = [], {"paper": "the paper's update", "dekpca": NAMES["dekpca"]}
    for cell in dict.fromkeys(r["cell"] for r in rows):
        series = []
        for method in dict.fromkeys(r["method"] for r in rows):
            x, mean, _ = _means([r for r in rows if r["method"] == method and r["cell"] == cell], "iteration")
            series.append(Series(names.get(method, method), x, mean))
        panels.append(Panel(str(cell).replace("=", " "), "iteration", "similarity", series))
    return panels


def _means(rows: list[Row], by: str, measure: str = "similarity") -> tuple[list[float], list[float], list[float]]:
    """x, mean and standard deviation over the repeats."""
    x = sorted({r[by] for r in rows})
    groups = [[r[measure] for r in rows if r[by] == v] for v in x]
    return x, [float(np.mean(g)) for g in groups], [float(np.std(g)) for g in groups]


def _by(rows: list[Row], by: str, label: str, title: str, measure: str = "similarity") -> Panel:
    found = {method: [r for r in rows if r["method"] == method] for method in NAMES}
    series = [Series(NAMES[method], *_means(some, by, measure)) for method, some in found.items()]
    return Panel(title, label, measure, series)


MEASURED = ("method", "similarity", "worst", "agreement")
EXPERIMENTS = {
    e.name: e for e in (
        Experiment(
            "nodes", "More nodes (the paper's Fig. 3)", ("nodes", "rows", *MEASURED),
            lambda source: [{"nodes": n, "rows": rows_a_node(source, max(NODES), 100)} for n in NODES], _measure_nodes, _draw_nodes,
            "The similarity to the central answer hardly falls when the network grows, and the time of a node does not rise, while that of a "
            "central kernel PCA on all the rows rises with their square. The time of the slowest node was measured with each node by itself, "
            "since nodes work in parallel.",
        ),
        Experiment(
            "samples", "More samples a node (the paper's Fig. 4)", ("rows", *MEASURED),
            lambda source: [{"nodes": 20, "rows": rows} for rows in sizes_of(source)], _measure,
            lambda rows, times: [_by(rows, "rows", "samples a node", "Similarity against the samples of a node")],
            "A node alone needs many samples; a node that talks to its neighbors does not.",
        ),
        Experiment(
            "neighbors", "More neighbors (the paper's Fig. 5)", ("neighbors", "iteration", *MEASURED),
            lambda source: [{"nodes": 20, "rows": rows_a_node(source, 20, 100), "neighbors": n} for n in NEIGHBORS],
            _measure_neighbors, _draw_neighbors,
            "With more neighbors the first iterations come closer; the neighborhood's own solution is the line. Iteration 0 in the table is the "
            "end result.",
        ),
        Experiment(
            "heterogeneity", "Nodes that differ", ("alpha", *MEASURED),
            lambda source: [{"nodes": 20, "rows": rows_a_node(source, 20, 60 if len(source.X) < 3000 else 100), "alpha": a} for a in ALPHAS],
            _measure, _draw_heterogeneity,
            "The paper's nodes centre by their own mean, which throws away all that distinguishes nodes. Shares of classes are drawn from a "
            "Dirichlet distribution.",
        ),
        Experiment(
            "convergence", "Running on", ("method", "iteration", "similarity", "worst"),
            lambda source: [{"nodes": n, "rows": rows_a_node(source, 80, 100)} for n in (20, 40, 80)], _measure_convergence, _draw_convergence,
            "The paper's update is good after a few iterations and then diverges; the proximal one stays.",
        ),
    )
}  # fmt: skip
