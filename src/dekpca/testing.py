"""The conformance suite for engines: the same problems as the local engine, and the same answers.

For authors of engines. `check_engine(run)` takes a function `run(plan) -> Outcome` (dekpca.plan) and raises an
AssertionError if its answers differ from the local engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .engines import local
from .kernels import Kernel
from .network import Network
from .options import PAPER, Settings, settle
from .plan import Plan

EIGENVALUE_TOLERANCE = 1e-10  # relative: other blocks mean other BLAS calls, so the last digits may differ
ACCURACY_TOLERANCE = 1e-3  # relative: products of what is small compared with the kernel, hence of its rounding
VALUE_TOLERANCE = 1e-8  # of component values, relative to the largest


def problems() -> Iterator[tuple[str, Plan]]:
    """Small problems by name, which together use every kind of message."""
    rng = np.random.default_rng(0)
    centers = 2 * rng.normal(size=(3, 5))
    spread = np.geomspace(2.0, 0.3, 5)

    def parts(sizes: list[int]) -> list[np.ndarray]:
        return [centers[j % 3] + spread * rng.normal(size=(n, 5)) for j, n in enumerate(sizes)]

    usual: dict[str, Any] = {
        "n_components": 2, "kernel": Kernel("rbf", gamma=0.05), "solver": "projection", "landmarks": 12, "max_iter": 60, "tol": 1e-3, "seed": 0,
    }  # fmt: skip

    ring, star, path = Network.ring(6, 4), Network.star(5), Network.path(4)
    sums = {"solver": "auto", "landmarks": "auto"}
    for name, sizes, network, changes in (
        ("landmarks that grow", [15, 20, 9, 14], path, sums),
        ("no row leaves", [30, 20, 14, 25], path, sums | {"share_rows": False}),
        ("owners apart", [30, 20, 14, 25], path, sums | {"share_rows": False, "owners_apart": True}),
        ("a number of landmarks", [15, 20, 9, 14], path, sums | {"landmarks": 12}),
        ("a kernel judged by rows", [15, 20, 9, 14], path, sums | {"kernel": Kernel("sigmoid", gamma=1e-4, coef0=0.0)}),
        ("many rows", [900, 2000, 700, 5400], path, sums | {"standardize": True, "gamma_by_variance": True}),
        ("points known to all", [15, 20, 9, 14], path, sums | {"landmarks": centers[:2]}),
        ("equal nodes on a ring", [20] * 6, ring, {}),
        ("unequal nodes on a star", [30, 1, 12, 25, 7], star, {}),
        ("gamma by a network sum, random start", [15, 20, 9, 14], path, {"gamma_by_variance": True, "init": "random"}),
        (
            "random features",
            [15, 20, 9, 14],
            path,
            {"landmarks": "random-features", "solver": "landmarks", "n_landmarks": 60},
        ),
        ("standardized columns", [15, 20, 9, 14], path, {"standardize": True}),
        ("noise", [20] * 6, ring, {"exchange_noise": 0.01}),
        (
            "the paper's settings",
            [20] * 6,
            ring,
            {key: PAPER[key] for key in ("update", "centering", "rho", "init")} | {"landmarks": 0, "max_iter": 12},
        ),
    ):
        own = parts(sizes)
        settings = Settings.of(**usual | changes)
        yield name, Plan.of(own, network, settle(settings, network, np.array(sizes)))


def check_engine(run: Callable[..., Any], hosted: Callable[[Network], Iterable[str]] | None = None) -> None:
    """Assert that an engine gives the local engine's answers.

    Parameters
    ----------
    run : callable
        An engine: from a plan for all nodes to an outcome. If this process hosts some nodes only, `plan.hosting` is the plan for these.
    hosted : callable, optional
        The names of the nodes of a network whose answers this process gets; default: all.

    Examples
    --------
    >>> from dekpca.engines import local
    >>> from dekpca.testing import check_engine
    >>> check_engine(local.run)
    """
    for name, plan in problems():
        expected, got = (by_node(engine(plan)) for engine in (local.run, run))
        wanted = set(plan.network.names if hosted is None else hosted(plan.network))
        assert got.keys() == wanted, f"{name}: answers for nodes {sorted(got)}, expected {sorted(wanted)}"
        check_answers(name, got, expected)


def check_answers(name: str, got: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Assert that answers, as `by_node` gives them, are the expected ones; `expected` may hold more nodes."""
    bits = {answer.known.mean.tobytes() for answer, _ in got.values() if answer.known.mean is not None}
    assert len(bits) <= 1, f"{name}: a network sum differs between nodes"
    assert len({answer.accuracy for answer, _ in got.values()}) <= 1, f"{name}: nodes differ in how good the answer is"
    for node, (answer, w) in got.items():
        truth, w_truth = expected[node]
        assert answer.n_iter == truth.n_iter, (
            f"{name}, node {node}: {answer.n_iter} iterations, expected {truth.n_iter}"
        )
        if truth.known.mean is not None:  # engines add in different orders
            about = f"{name}, node {node}: the network's mean"
            np.testing.assert_allclose(
                answer.known.mean, truth.known.mean, rtol=0, atol=1e-12 * np.abs(truth.known.mean).max(), err_msg=about
            )
        assert (answer.accuracy is None) == (truth.accuracy is None), f"{name}, node {node}: accuracy"
        if answer.accuracy is not None:
            mine, theirs = (np.array([*a.errors, a.error, a.bound]) for a in (answer.accuracy, truth.accuracy))
            np.testing.assert_allclose(
                mine, theirs, rtol=ACCURACY_TOLERANCE, atol=VALUE_TOLERANCE, err_msg=f"{name}, node {node}: accuracy"
            )
        np.testing.assert_allclose(
            answer.eigenvalues,
            truth.eigenvalues,
            rtol=EIGENVALUE_TOLERANCE,
            err_msg=f"{name}, node {node}: eigenvalues",
        )
        np.testing.assert_allclose(
            w,
            w_truth,
            rtol=0,
            atol=VALUE_TOLERANCE * np.abs(w_truth).max(),
            err_msg=f"{name}, node {node}: function",
        )


def by_node(outcome: Any) -> dict[str, tuple[Any, np.ndarray]]:
    """Each hosted node's answer, and its function without padding."""
    found = {}
    for answer in outcome.answers:
        m = 0 if answer.marks is None else answer.marks.size
        for b, name in enumerate(answer.block.names):
            rows = 0 if answer.z is None else int(answer.block.own_sizes[b])
            found[name] = answer, answer.w[b, : m + rows, :]
    return found
