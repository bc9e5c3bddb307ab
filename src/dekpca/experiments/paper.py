"""The experiments of the paper (He et al. 2025, Section 5), and some others, as data and functions.

Each compares the paper's settings with dekpca's default, first component, ring network. `similarity` is the paper's measure, the mean over the nodes;
`worst` that of the worst node; `agreement` the correlation of the worst node's component values with the central ones.
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
from ..block import Block
from ..core.centering import center_blocks, center_rows
from ..core.landmarks import Landmarks
from ..core.spectrum import transposed
from ..engines import local
from ..estimator import DecentralizedKernelPCA
from ..network import Network
from ..node_model import NodeModel
from ..options import PAPER
from ..parameters import Parameters
from ..plan import plan_parts
from ..program import program
from ..report.panels import Panel, Series
from ..space import Coordinates, Known
from . import splits
from .runner import Experiment, Row, Source

NODES = (10, 20, 40, 60, 80)
SIZES = (40, 80, 120, 160, 200, 240, 300)
NEIGHBORS = (2, 4, 6, 8, 10, 12)
ALPHAS = (float("inf"), 10.0, 1.0, 0.3, 0.1, 0.0)  # Dirichlet: from similar nodes to one class per node
ITERATIONS = 8  # drawn in the neighbors experiment
LONG = 300
PAPER_ITERATIONS = 20  # the paper's iteration must be stopped here: later it diverges

METHODS = ("local", "neighborhood", "paper", "dekpca")
NAMES = {
    "local": "local kernel PCA",
    "neighborhood": "neighborhood kernel PCA",
    "paper": "the paper's settings, 20 iterations",
    "dekpca": "dekpca, projection solver",
}


def rows_a_node(source: Source, nodes: int, wanted: int) -> int:
    """The paper's number, or as many as the data allows, with a margin for uneven splits."""
    return min(wanted, int(0.9 * len(source.X)) // nodes)


def _estimator(method: str, source: Source, network: Network, seed: int, **changes: Any) -> DecentralizedKernelPCA:
    settings = {"gamma": source.gamma, "network": network, "random_state": seed, "solver": "projection"}
    if method == "paper":
        settings |= PAPER | {"max_iter": PAPER_ITERATIONS}
    return DecentralizedKernelPCA(1, **settings | changes)


def _fit(method: str, source: Source, parts: Sequence[np.ndarray], network: Network, seed: int) -> Any:
    if method == "local":
        return baselines.local(parts, 1, gamma=source.gamma)
    if method == "neighborhood":
        return baselines.neighborhood(parts, network, 1, gamma=source.gamma)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the paper's settings are stopped early on purpose
        return _estimator(method, source, network, seed).fit_parts(parts)


@dataclass(frozen=True, eq=False)
class Problem:
    """One way to deal the rows, with its central answer."""

    parts: list[np.ndarray]
    together: np.ndarray
    central: NodeModel

    @classmethod
    def of(cls, source: Source, rows: Sequence[np.ndarray]) -> Problem:
        parts = [source.X[r].astype(np.float64) for r in rows]
        return cls(parts, np.concatenate(parts), baselines.central(parts, 1, gamma=source.gamma))


def _compare(source: Source, problem: Problem, network: Network, seed: int) -> tuple[list[Row], dict[str, float]]:
    """All methods on one problem: measurements, and seconds of the fits."""
    measured, took = [], {}
    for method in METHODS:
        start = time.perf_counter()
        model = _fit(method, source, problem.parts, network, seed)
        took[method] = time.perf_counter() - start
        similar = metrics.similarity(model, problem.central)[:, 0]
        agreement = metrics.agreement(model, problem.central, problem.together)[:, 0].min()
        found = {"similarity": float(similar.mean()), "worst": float(similar.min()), "agreement": float(agreement)}
        measured.append({"method": method} | found)
    return measured, took


def node_seconds(parts: Sequence[np.ndarray], model: DecentralizedKernelPCA) -> np.ndarray:
    """(J,) seconds of computation of each node alone in its process; real nodes run in parallel."""
    plan = plan_parts(Parameters.of(model), parts)
    blocks = [block for j in plan.nodes for block in plan.hosting([j]).blocks()]
    seconds = np.zeros(len(parts))

    def timed(block: Any, options: Any, resume: Any = None) -> Any:
        script, reply, node = program(block, options, resume), None, int(block.nodes[0])
        while True:
            start = time.perf_counter()
            try:
                request = script.send(reply)
            except StopIteration as end:
                seconds[node] += time.perf_counter() - start
                return end.value
            seconds[node] += time.perf_counter() - start
            reply = yield request

    local.drive(blocks, plan.options, script=timed)
    return seconds


# ---------------------------------------------------------------------- nodes
def _measure_nodes(source: Source, cell: dict[str, Any], seed: int) -> tuple[list[Row], list[Row]]:
    nodes, size, network = cell["nodes"], cell["rows"], Network.ring(cell["nodes"], 4)
    rows = splits.evenly(source.y, np.full(nodes, size), seed)
    problem = Problem.of(source, rows)
    measured, took = _compare(source, problem, network, seed)
    start = time.perf_counter()
    KernelPCA(1, kernel="rbf", gamma=source.gamma, eigen_solver="arpack", random_state=0).fit(problem.together)
    times = [{"what": "central, scikit-learn", "seconds": time.perf_counter() - start}]
    for method in ("paper", "dekpca"):
        slowest = node_seconds(problem.parts, _estimator(method, source, network, seed)).max()
        times.append({"what": f"{method}, slowest node", "seconds": float(slowest)})
        times.append({"what": f"{method}, whole network", "seconds": took[method]})
    return [{"nodes": nodes, "rows": size} | row for row in measured], times


def _nodes_cells(source: Source) -> list[dict[str, Any]]:
    size = rows_a_node(source, max(NODES), 100)
    return [{"nodes": nodes, "rows": size} for nodes in NODES]


def _draw_nodes(rows: list[Row], times: list[Row]) -> list[Panel]:
    panels = [_by(rows, "nodes", "nodes", "Similarity against the number of nodes")]
    series = []
    for what in dict.fromkeys(t["what"] for t in times):
        points = [(int(str(t["cell"]).split()[0].split("=")[1]), t["seconds"]) for t in times if t["what"] == what]
        x = sorted({p[0] for p in points})
        series.append(Series(what, x, [float(np.mean([s for n, s in points if n == v])) for v in x]))
    panels.append(Panel("Time against the number of nodes", "nodes", "seconds", series, log_y=True))
    return panels


# ---------------------------------------------------------------------- samples
def _measure_samples(source: Source, cell: dict[str, Any], seed: int) -> tuple[list[Row], list[Row]]:
    nodes, size = cell["nodes"], cell["rows"]
    problem = Problem.of(source, splits.evenly(source.y, np.full(nodes, size), seed))
    measured, took = _compare(source, problem, Network.ring(nodes, 4), seed)
    return [{"rows": size} | row for row in measured], _times(took)


def _samples_cells(source: Source) -> list[dict[str, Any]]:
    scale = rows_a_node(source, 20, max(SIZES)) / max(SIZES)
    return [{"nodes": 20, "rows": rows} for rows in sorted({max(5, int(size * scale)) for size in SIZES})]


# ---------------------------------------------------------------------- neighbors
def _measure_neighbors(source: Source, cell: dict[str, Any], seed: int) -> tuple[list[Row], list[Row]]:
    network = Network.ring(cell["nodes"], cell["neighbors"])
    rows = splits.evenly(source.y, np.full(cell["nodes"], cell["rows"]), seed)
    problem = Problem.of(source, rows)
    measured, took = _compare(source, problem, network, seed)
    found = [{"neighbors": cell["neighbors"], "iteration": 0} | row for row in measured]
    for method in ("paper", "dekpca"):
        model = _estimator(method, source, network, seed, max_iter=ITERATIONS, tol=0.0)
        for t, similar in by_iteration(model, problem, range(1, ITERATIONS + 1)):
            step = {"neighbors": cell["neighbors"], "iteration": t, "method": method}
            found.append(step | {"similarity": float(similar.mean()), "worst": float(similar.min()), "agreement": ""})
    return found, _times(took)


def _neighbors_cells(source: Source) -> list[dict[str, Any]]:
    return [{"nodes": 20, "rows": rows_a_node(source, 20, 100), "neighbors": n} for n in NEIGHBORS]


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
        panels.append(Panel(NAMES[method].split(",")[0], "neighbors", "similarity", series))
    return panels


def by_iteration(
    model: DecentralizedKernelPCA, problem: Problem, wanted: Sequence[int] | range
) -> list[tuple[int, np.ndarray]]:
    """(iteration, similarity of each node) while the nodes iterate, for the iterations wanted."""
    plan = plan_parts(Parameters.of(model), problem.parts)
    options = plan.options
    u = problem.central.own_function()
    raw_u = replace(u, offset=np.zeros_like(u.offset))
    u_norm = np.sqrt(
        sum(float(np.sum(c * raw_u(problem.central.kernel, p))) for p, c in zip(u.points, u.coefficients, strict=True))
    )
    fixed: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    found: list[tuple[int, np.ndarray]] = []

    def fix(block: Block, known: Known) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inner products with u of the landmark coordinates and of the rest of each sample, and among the latter."""
        kernel, coordinates = known.kernel(options), Coordinates.of(block, options, known)
        flat = block.samples.reshape(-1, block.samples.shape[2])
        values = raw_u(kernel, flat).reshape(block.samples.shape[:2]) * block.mask
        marks = coordinates.marks
        on_marks = marks.root.T @ raw_u(kernel, marks.points)[:, 0] if isinstance(marks, Landmarks) else np.zeros(0)
        left = (values - coordinates.raw @ on_marks)[..., None]
        rest = kernel.gram(block.samples, block.samples) - coordinates.raw @ transposed(coordinates.raw)
        rest = rest * block.mask[:, None, :] * block.mask[:, :, None]
        if options.centering == "local":
            left, rest = center_rows(left, block.mask), center_blocks(rest, block.mask, block.mask)
        return on_marks, left[..., 0], rest

    def observe(blocks: list[Block], checkpoints: list[Any]) -> None:
        t = checkpoints[0].state.iteration
        if t not in wanted or (found and found[-1][0] == t):
            return
        if not fixed:
            fixed.extend(fix(block, c.known) for block, c in zip(blocks, checkpoints, strict=True))
        similar = np.empty(len(problem.parts))
        for block, checkpoint, (on_marks, left, rest) in zip(blocks, checkpoints, fixed, strict=True):
            w = (checkpoint.state.w @ checkpoint.state.iterate.rotation[:, :1])[..., 0]
            shared, own = w[:, : len(on_marks)], w[:, len(on_marks) :]
            inner = shared @ on_marks + np.sum(own * left, axis=1)
            square = np.sum(shared**2, axis=1) + np.sum(own * (rest @ own[..., None])[..., 0], axis=1)
            similar[block.nodes] = np.abs(inner) / (np.sqrt(np.maximum(square, np.finfo(float).tiny)) * u_norm)
        found.append((t, similar))

    local.run(plan, observe)
    return found


# ---------------------------------------------------------------------- heterogeneity
def _measure_heterogeneity(source: Source, cell: dict[str, Any], seed: int) -> tuple[list[Row], list[Row]]:
    alpha = float(cell["alpha"])
    rows = splits.dirichlet(source.y, np.full(cell["nodes"], cell["rows"]), alpha, seed)
    measured, took = _compare(source, Problem.of(source, rows), Network.ring(cell["nodes"], 4), seed)
    return [{"alpha": alpha} | row for row in measured], _times(took)


def _heterogeneity_cells(source: Source) -> list[dict[str, Any]]:
    return [
        {"nodes": 20, "rows": min(rows_a_node(source, 20, 100), 60 if len(source.X) < 3000 else 100), "alpha": a}
        for a in ALPHAS
    ]


def _draw_heterogeneity(rows: list[Row], times: list[Row]) -> list[Panel]:
    order = {alpha: i for i, alpha in enumerate(ALPHAS)}
    labelled = [r | {"place": order[float(r["alpha"])]} for r in rows]
    ticks = ["inf\n(alike)", *(f"{alpha:g}" for alpha in ALPHAS[1:-1]), "0\n(one class)"]
    label = "Dirichlet parameter of the classes' shares"
    return [
        replace(_by(labelled, "place", label, what, measure), x_ticks=ticks)
        for measure, what in (("similarity", "similarity, mean of the nodes"), ("agreement", "agreement, worst node"))
    ]


# ---------------------------------------------------------------------- convergence
def _measure_convergence(source: Source, cell: dict[str, Any], seed: int) -> tuple[list[Row], list[Row]]:
    network = Network.ring(cell["nodes"], 4)
    problem = Problem.of(source, splits.evenly(source.y, np.full(cell["nodes"], cell["rows"]), seed))
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "paper": ("paper", {}),
        "proximal, no landmarks": ("paper", {"update": "proximal", "rho": "auto", "n_oversamples": "auto"}),
        "dekpca": ("dekpca", {}),
    }
    wanted = sorted({1, 2, 3, 4, *range(5, LONG + 1, 5)})
    found: list[Row] = []
    for name, (method, changes) in ways.items():
        model = _estimator(method, source, network, seed, **changes | {"max_iter": LONG, "tol": 0.0})
        for t, similar in by_iteration(model, problem, wanted):
            found.append(
                {"method": name, "iteration": t, "similarity": float(similar.mean()), "worst": float(similar.min())}
            )
    return found, []


def _convergence_cells(source: Source) -> list[dict[str, Any]]:
    return [{"nodes": n, "rows": rows_a_node(source, 80, 100)} for n in (20, 40, 80)]


def _draw_convergence(rows: list[Row], times: list[Row]) -> list[Panel]:
    panels = []
    for cell in dict.fromkeys(r["cell"] for r in rows):
        series = []
        for method in dict.fromkeys(r["method"] for r in rows):
            x, mean, _ = _means([r for r in rows if r["method"] == method and r["cell"] == cell], "iteration")
            series.append(
                Series({"paper": "the paper's update", "dekpca": "dekpca's default"}.get(method, method), x, mean)
            )
        panels.append(Panel(str(cell).replace("=", " "), "iteration", "similarity", series))
    return panels


# ---------------------------------------------------------------------- helpers
def _times(took: dict[str, float]) -> list[Row]:
    return [{"what": f"{method}, whole network", "seconds": seconds} for method, seconds in took.items()]


def _means(rows: list[Row], by: str, measure: str = "similarity") -> tuple[list[float], list[float], list[float]]:
    """x, mean and standard deviation over the repeats."""
    x = sorted({r[by] for r in rows})
    groups = [[r[measure] for r in rows if r[by] == v] for v in x]
    return x, [float(np.mean(g)) for g in groups], [float(np.std(g)) for g in groups]


def _by(rows: list[Row], by: str, label: str, title: str, measure: str = "similarity") -> Panel:
    series = [
        Series(NAMES[method], *_means([r for r in rows if r["method"] == method], by, measure)) for method in METHODS
    ]
    return Panel(title, label, measure, series)


MEASURED = ("method", "similarity", "worst", "agreement")


EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            "nodes", "More nodes (the paper's Fig. 3)", ("nodes", "rows", *MEASURED), _nodes_cells, _measure_nodes, _draw_nodes,
            "The similarity to the central answer hardly falls when the network grows, and the time of a node does not rise, while that of a "
            "central kernel PCA on all the rows rises with their square. The time of the slowest node was measured with each node by itself, "
            "since nodes work in parallel.",
        ),
        Experiment(
            "samples", "More samples a node (Fig. 4)", ("rows", *MEASURED), _samples_cells, _measure_samples,
            lambda rows, times: [_by(rows, "rows", "samples a node", "Similarity against the samples of a node")],
            "A node alone needs many samples; a node that talks to its neighbors does not.",
        ),
        Experiment(
            "neighbors", "More neighbors (Fig. 5)", ("neighbors", "iteration", *MEASURED), _neighbors_cells, _measure_neighbors, _draw_neighbors,
            "With more neighbors the first iterations come closer; the neighborhood's own solution is the line. Iteration 0 in the table is the "
            "end result.",
        ),
        Experiment(
            "heterogeneity", "Nodes that differ", ("alpha", *MEASURED), _heterogeneity_cells, _measure_heterogeneity, _draw_heterogeneity,
            "The paper's nodes centre by their own mean, which throws away all that distinguishes nodes. Shares of classes are drawn from a "
            "Dirichlet distribution.",
        ),
        Experiment(
            "convergence", "Running on", ("method", "iteration", "similarity", "worst"), _convergence_cells, _measure_convergence, _draw_convergence,
            "The paper's update is good after a few iterations and then diverges; the proximal one stays.",
        ),
    )
}  # fmt: skip
