"""The paper's Fig. 1 and 2: the reason for projection consensus, and the blocks of the global kernel matrix that nodes know."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from .. import baselines
from ..estimator import DecentralizedKernelPCA
from ..network import Network
from ..node_model import NodeModel
from ..report.panels import COLORS, Panel, Series
from ..solvers.projection import Projection

NETWORK = Network.path(3)
ROWS = 120


def direction(model: NodeModel) -> np.ndarray:
    """The unit vector in the plane of a linear kernel's first component; zero if there is none."""
    origin, x, y = model.transform(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))[:, 0]
    vector = np.array([x - origin, y - origin])
    length = float(np.linalg.norm(vector))
    if length < 1e-9:
        return np.zeros(2)
    return vector / length * (1 if vector[0] >= 0 else -1)


def plane(poor: bool, seed: int = 0) -> list[np.ndarray]:
    """Three nodes whose data share a main axis; with `poor` the third node's data lie on a line across it."""
    rng = np.random.default_rng(seed)
    axis = np.deg2rad(25)
    turn = np.array([[np.cos(axis), np.sin(axis)], [-np.sin(axis), np.cos(axis)]])
    parts = [rng.normal(size=(ROWS, 2)) * [2.0 + 0.4 * j, 0.9] @ turn for j in range(3)]
    if poor:
        line = np.deg2rad(70)
        parts[2] = rng.normal(size=(ROWS, 1)) * 0.8 * [[np.cos(line), np.sin(line)]]
    return [part - part.mean(axis=0) for part in parts]


def solutions(parts: Sequence[np.ndarray], seed: int = 0) -> dict[str, list[np.ndarray]]:
    """Directions of each node by method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solver = Projection(centering="local", init="local", n_landmarks=0, max_iter=2000, tol=1e-8)
        ours = DecentralizedKernelPCA(1, kernel="linear", network=NETWORK, solver=solver, random_state=seed)
        ours.fit_parts(parts)
    return {
        "central": [direction(baselines.central(parts, 1, kernel="linear"))],
        "local": [direction(m) for m in baselines.local(parts, 1, kernel="linear")],
        "plain consensus": [direction(m) for m in baselines.plain_consensus(parts, 1, kernel="linear")],
        "projection consensus": [direction(m) for m in ours.node_models_],
    }


def panels(seed: int = 0) -> list[Panel]:
    """Both cases, three pictures each, then the six-node network and its kernel matrix."""
    made = []
    for poor, case in ((False, "all nodes see the plane"), (True, "node 2 sees a line")):
        parts = plane(poor, seed)
        found = solutions(parts, seed)
        clouds = [
            Series(f"node {j}", part[:, 0].tolist(), part[:, 1].tolist(), mode="points", color=COLORS[j])
            for j, part in enumerate(parts)
        ]
        for method in ("local", "plain consensus", "projection consensus"):
            arrows = [_axis("", (3.6 - 0.7 * j) * v, COLORS[j]) for j, v in enumerate(found[method])]
            truth = _axis("central", 4.2 * found["central"][0], "black", dashed=True)
            made.append(Panel(f"{method}: {case}", "", "", [*clouds, truth, *arrows], square=True))
    made += knowledge()
    return made


def _axis(name: str, vector: np.ndarray, color: str, dashed: bool = False) -> Series:
    """A line through the origin."""
    return Series(name, [-vector[0], vector[0]], [-vector[1], vector[1]], color=color, dashed=dashed)


def knowledge() -> list[Panel]:
    """The blocks of the kernel matrix of all data that nodes of a six-node network know: pairs of owners in some neighborhood."""
    network = Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4)])
    angle = np.pi / 2 - 2 * np.pi * np.arange(6) / 6
    x, y = np.cos(angle), np.sin(angle)
    edges = [
        Series("edge" if i == 0 else "", [x[int(a)], x[int(b)]], [y[int(a)], y[int(b)]], color="#888888")
        for i, (a, b) in enumerate(network.edges)
    ]
    nodes = [
        Series(f"node {j}", [x[j]], [y[j]], mode="points", color=COLORS[1 if j == 1 else 0], size=500, texts=[str(j)])
        for j in range(6)
    ]
    mine = np.isin(np.arange(6), [1, *network.neighbors(1)])
    known = np.where(np.outer(mine, mine), 2, network.watchers.toarray() > 0)
    grid = np.kron(known, np.ones((6, 6), dtype=int))
    legend = ("nobody sees both samples", "somebody sees both", "node 1 does")
    return [
        Panel("Six nodes", "", "", [*edges, *nodes], square=True, bare=True),
        Panel("What is known of the kernel matrix of all data", matrix=grid, matrix_legend=legend),
    ]
