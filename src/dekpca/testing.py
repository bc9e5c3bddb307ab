"""The conformance suite for engines: the same problems as the local engine, and the same answers.

For authors of engines. `check_engine(run)` takes a function `run(plan) -> Outcome` (dekpca.plan) and raises an
AssertionError if its answers differ from the local engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .engines import local
from .kernels import Rbf, Sigmoid
from .network import Network
from .plan import Plan
from .settings import RANDOM_FEATURES, LandmarkSource, Settings, settle
from .solvers.projection import PAPER, Projection

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

    ring, star, path, four = Network.ring(6, 4), Network.star(5), Network.path(4), [15, 20, 9, 14]
    few = Projection(n_landmarks=12, max_iter=60)
    for name, sizes, network, changes in (
        ("landmarks that grow", four, path, {}),
        ("no row leaves", [30, 20, 14, 25], path, {"share_rows": False}),
        ("owners apart", [30, 20, 14, 25], path, {"share_rows": False, "owners_apart": True}),
        ("a number of landmarks", four, path, {"n_landmarks": 12}),
        ("a kernel judged by rows", four, path, {"kernel": Sigmoid(gamma=1e-4, coef0=0.0)}),
        ("many rows", [900, 2000, 700, 5400], path, {"standardize": True, "gamma_by_variance": True}),
        ("points known to all", four, path, {"landmarks": LandmarkSource("points", centers[:2])}),
        ("random features", four, path, {"landmarks": LandmarkSource(RANDOM_FEATURES), "n_landmarks": 60}),
        ("projection, equal nodes on a ring", [20] * 6, ring, {"projection": few}),
        ("projection, unequal nodes on a star", [30, 1, 12, 25, 7], star, {"projection": few}),
        (
            "projection, random start",
            four,
            path,
            {"gamma_by_variance": True, "projection": replace(few, init="random")},
        ),
        ("projection, standardized columns", four, path, {"standardize": True, "projection": few}),
        ("projection, noise", [20] * 6, ring, {"projection": replace(few, exchange_noise=0.01)}),
        ("the paper's settings", [20] * 6, ring, {"projection": replace(PAPER, max_iter=12)}),
    ):
        own = parts(sizes)
        settings = Settings(**{"n_components": 2, "kernel": Rbf(gamma=0.05), "seed": 0} | changes)  # type: ignore[arg-type]
        yield name, Plan.of(own, network, settle(settings, network, np.array(sizes)))


def check_engine(
    run: Callable[..., Any], hosted: Callable[[Network], Iterable[str]] | None = None, projection: bool = True
) -> None:
    """Assert that an engine gives the local engine's answers.

    Parameters
    ----------
    run : callable
        An engine: from a plan for all nodes to an outcome. If this process hosts some nodes only, `plan.hosting` is the plan for these.
    hosted : callable, optional
        The names of the nodes of a network whose answers this process gets; default: all.
    projection : bool
        Whether the engine carries the messages of the projection solver, too.

    Examples
    --------
    >>> from dekpca.engines import local
    >>> from dekpca.testing import check_engine
    >>> check_engine(local.run)
    """
    for name, plan in problems():
        if plan.options.projection is not None and not projection:
            continue
        expected, got = (by_node(engine(plan)) for engine in (local.run, run))
        wanted = set(plan.network.names if hosted is None else hosted(plan.network))
        assert got.keys() == wanted, f"{name}: answers for nodes {sorted(got)}, expected {sorted(wanted)}"
        check_answers(name, got, expected)


def check_answers(name: str, got: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Assert that answers, as `by_node` gives them, are the expected ones; `expected` may hold more nodes."""
    bits = {answer.mean.tobytes() for answer, _ in got.values() if answer.mean is not None}
    assert len(bits) <= 1, f"{name}: a network sum differs between nodes"
    assert len({answer.accuracy for answer, _ in got.values()}) <= 1, f"{name}: nodes differ in how good the answer is"
    for node, (answer, functions) in got.items():
        (truth, wanted), where = expected[node], f"{name}, node {node}"
        assert answer.n_iter == truth.n_iter, f"{where}: {answer.n_iter} iterations, expected {truth.n_iter}"
        pairs: list[tuple[str, Any, Any, float]] = []
        if truth.mean is not None:  # engines add in different orders
            pairs.append(("the network's mean", answer.mean, truth.mean, 1e-12))
        assert (answer.accuracy is None) == (truth.accuracy is None), f"{where}: accuracy"
        if answer.accuracy is not None:
            mine, theirs = (np.array([*a.errors, a.error, a.bound]) for a in (answer.accuracy, truth.accuracy))
            np.testing.assert_allclose(mine, theirs, ACCURACY_TOLERANCE, VALUE_TOLERANCE, err_msg=f"{where}: accuracy")
        pairs.append(("eigenvalues", answer.eigenvalues, truth.eigenvalues, EIGENVALUE_TOLERANCE))
        assert functions.keys() == wanted.keys(), f"{where}: expansions {sorted(functions)}"
        for expansion, terms in functions.items():
            arrays = ((x.shared, *x.coefficients) for x in (terms, wanted[expansion]))
            for mine, theirs in zip(*arrays, strict=True):
                pairs.append((f"function over {expansion}", mine, theirs, VALUE_TOLERANCE))
        for what, mine, theirs, tolerance in pairs:
            size = max(np.abs(theirs).max(initial=0.0), 1e-300)
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * size, err_msg=f"{where}: {what}")


def by_node(outcome: Any) -> dict[str, tuple[Any, Any]]:
    """Each hosted node's answer, and its functions by expansion."""
    hosted = [(answer, int(j)) for answer in outcome.answers for j in answer.site.nodes]
    return {answer.site.network.names[j]: (answer, answer.expansions(j)) for answer, j in hosted}
