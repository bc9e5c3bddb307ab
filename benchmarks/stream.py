"""Rows that come in parts: against a fit of all rows; a stream that drifts; rows that are forgotten.

    python benchmarks/stream.py [--rows 200000] [--figure docs/stream.png]

Differences are relative: of eigenvalues, each to its own; of component values, to the largest; of the stated error, to itself. Fails if a floor of
the issue does not hold: 1e-10 for cuts, 1e-9 for forgotten rows.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from common import Floors, console, table
from dekpca import DecentralizedKernelPCA
from dekpca.site import Site
from dekpca.solvers.sums import Stream, solve
from dekpca.solvers.sums.moments import Moments, Seen

CUTS, FORGOTTEN = 1e-10, 1e-9
K, COLUMNS, LANDMARKS = 4, 20, 200
SETTINGS = {"n_components": K, "gamma": 0.02, "random_state": 0}


def rows_of(count: int, rng: np.random.Generator) -> np.ndarray:
    centres = 1.5 * np.random.default_rng(1).normal(size=(12, COLUMNS))
    return centres[rng.integers(12, size=count)] + rng.normal(size=(count, COLUMNS)) * np.geomspace(1, 0.1, COLUMNS)


def apart(one, other, X: np.ndarray) -> tuple[float, float, float]:
    """The largest relative differences of two answers: eigenvalues, component values, stated error."""
    values, there = one.transform(X), other.transform(X)
    errors = [1 - model.span_accuracy_**2 for model in (one, other)]
    eigenvalues = np.abs(one.eigenvalues_ / other.eigenvalues_ - 1).max()
    return eigenvalues, np.abs(values - there).max() / np.abs(there).max(), abs(errors[0] / errors[1] - 1)


def show(made, name: str, differences, *more: str) -> None:
    made.add_row(name, *(f"{difference:.1e}" for difference in differences), *more)


def held(model) -> int:
    """How many rows the estimator holds."""
    return sum(len(some.rows) for some in model._stream.summed.kept) + model._stream.waits


# ---------------------------------------------------------------------- cuts
def cuts(count: int, floors: Floors) -> None:
    X = rows_of(count, np.random.default_rng(0))
    points = X[np.random.default_rng(2).choice(count, LANDMARKS, replace=False)]
    start = time.perf_counter()
    whole = DecentralizedKernelPCA(**SETTINGS, landmarks=points).fit_parts([X])
    seconds = time.perf_counter() - start
    title = f"{count:,} rows, {LANDMARKS} landmarks: a stream against fit, which takes {seconds:.1f} s"
    made = table(
        title,
        "rows a call",
        "eigenvalues",
        "components",
        "stated error",
        "s adding",
        "s for the answer",
        "rows held, at most (at the end)",
    )
    ends = {
        "1 (the first 2,000), then all": [*range(1, 2001), count],
        "7": [*range(7, count, 7), count],
        "1,000": list(range(1000, count + 1, 1000)),
        f"{count:,}": [count],
    }
    for name, stops in ends.items():
        model = DecentralizedKernelPCA(**SETTINGS, landmarks=points)
        start, most = time.perf_counter(), 0
        for first, last in zip([0, *stops], stops, strict=False):
            model.partial_fit(X[first:last])
            most = max(most, held(model))
        added = time.perf_counter()
        model.eigenvalues_  # noqa: B018  (computed when it is asked for)
        answered = time.perf_counter()
        found = apart(model, whole, X[:2000])
        show(made, name, found, f"{added - start:.1f}", f"{answered - added:.2f}", f"{most:,} ({held(model):,})")
        floors.require(max(found) < CUTS, f"cut {name}: within {CUTS}")
    # landmarks and gamma by the first rows, over five nodes
    auto = {"n_components": K, "random_state": 0}
    model = DecentralizedKernelPCA(**auto, network=5)
    for rows in np.array_split(X, 10):
        model.partial_fit(rows)
    chosen = model._stream.basis.marks.points
    same = DecentralizedKernelPCA(n_components=K, random_state=0, gamma=model.gamma_, landmarks=chosen)
    same.fit(X, nodes=np.arange(count) % 5)
    found = apart(model, same, X[:2000])
    show(
        made, f"{count // 10:,}, which choose {len(chosen)} landmarks; five nodes", found, "", "", f"({held(model):,})"
    )
    floors.require(max(found) < CUTS, f"landmarks of the first rows: within {CUTS}")
    console.print(made)


# ---------------------------------------------------------------------- rounding
def rounding(floors: Floors) -> None:
    """What is left of 10,000 rows that are added to sums over many, one by one, and subtracted in another order."""
    rng = np.random.default_rng(0)
    X, some = rows_of(100_000, rng), rows_of(10_000, rng)
    model = DecentralizedKernelPCA(**SETTINGS, landmarks=X[:50]).partial_fit(X)
    stream: Stream = model._stream

    def term(rows: np.ndarray) -> dict[str, np.ndarray]:
        return Moments(
            Seen(stream.basis.rows(rows, *np.zeros((2, len(rows)), int)), stream.basis.marks, stream.basis.kernel),
            True,
            K,
            1,
        ).term()

    base = term(X)
    total = dict(base)
    for sign, order in ((1.0, range(len(some))), (-1.0, rng.permutation(len(some)))):
        for i in order:
            one = term(some[i : i + 1])
            total = {name: value + sign * one[name] for name, value in total.items()}
    made = table("10,000 rows added to sums over 100,000 and subtracted again", "sums", "relative error that is left")
    for name, value in base.items():
        error = np.abs(total[name] - value).max() / np.abs(value).max()
        made.add_row(name, f"{error:.1e}")
        floors.require(error < FORGOTTEN / 1e3, f"{name}: plain sums are exact enough")
    console.print(made)


# ---------------------------------------------------------------------- rows that are forgotten
def forgotten(count: int, floors: Floors) -> None:
    rng = np.random.default_rng(0)
    X = rows_of(count, rng)
    points = rows_of(LANDMARKS, rng)
    goes = np.zeros(count, dtype=bool)
    goes[rng.permutation(count)[: count // 2]] = True
    made = table(
        f"{count:,} rows, of which a random half is forgotten in random order",
        "against",
        "eigenvalues",
        "components",
        "stated error",
    )

    def streamed(nodes=None, **settings) -> DecentralizedKernelPCA:
        model = DecentralizedKernelPCA(**SETTINGS | settings, landmarks=points)
        for some in np.array_split(np.arange(count), 20):
            model.partial_fit(X[some], nodes=None if nodes is None else nodes[some])
        order = rng.permutation(np.flatnonzero(goes))
        singles, others = order[:100], order[100:]
        for some in [*singles[:, None], *np.array_split(others, 100)]:
            model.forget(X[some])
        return model

    model = streamed(np.where(goes, "goes", "stays"))
    fit = DecentralizedKernelPCA(**SETTINGS, landmarks=points).fit_parts({"stays": X[~goes]})
    found = apart(model, fit, X[:2000])
    show(made, "fit of the other half, whose rows are another node's", found)
    floors.require(max(found) < FORGOTTEN, f"forgotten rows of a node that leaves: within {FORGOTTEN}")

    model = streamed()
    stream, left = model._stream, np.flatnonzero(~goes)
    node = np.zeros(len(left), dtype=int)
    site = Site(model.network_, np.array([len(left)]), np.array([0]), X[left], numbered=(node, left))
    answer = _run(solve(site, stream.basis.options))
    values, there = model.transform(X[:2000]), answer.function(answer.terms)(answer.kernel, X[:2000])
    found = (
        np.abs(model.eigenvalues_ / answer.eigenvalues - 1).max(),
        np.abs(values - there).max() / np.abs(there).max(),
        abs((1 - model.span_accuracy_**2) / answer.accuracy.error - 1),
    )
    show(made, "fit of the other half, whose rows keep their numbers", found)
    floors.require(max(found) < FORGOTTEN, f"forgotten rows of a node that stays: within {FORGOTTEN}")
    fits = [
        DecentralizedKernelPCA(**SETTINGS | {"random_state": seed}, landmarks=points).fit_parts([X[left]])
        for seed in (0, 1)
    ]
    show(made, "fit of the other half, numbered anew: other rows judge", apart(model, fits[0], X[:2000]))
    show(made, "(two such fits with different seeds)", apart(fits[1], fits[0], X[:2000]))

    settings = {"kernel": _kernel, "share_rows": False}  # no rows judge
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = streamed(**settings)
        fit = DecentralizedKernelPCA(**SETTINGS | settings, landmarks=points).fit_parts([X[left]])
        found = apart(model, fit, X[:2000])
    show(made, "fit of the other half, a callable kernel with share_rows=False", found)
    floors.require(max(found) < FORGOTTEN, f"forgotten rows, no rows judge: within {FORGOTTEN}")
    console.print(made)


def _kernel(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return (1 + A @ B.T / COLUMNS) ** 2


def _run(solver):
    """What a solver finds if all rows are here."""
    told = None
    while True:
        try:
            round_ = solver.send(told)
        except StopIteration as end:
            return end.value
        told = round_.conclude(round_.term())


# ---------------------------------------------------------------------- a stream that drifts
DAYS, A_DAY, CALM = 40, 2000, 10


def drift(figure: Path | None, floors: Floors) -> None:
    rng = np.random.default_rng(0)
    centres = 1.5 * rng.normal(size=(6, 8))
    away = np.where(np.arange(6) % 2, -0.25, 0.25)

    def day(t: int) -> np.ndarray:
        moved = centres.copy()
        moved[:, 0] += max(0, t - CALM) * away
        return moved[rng.integers(6, size=A_DAY)] + rng.normal(size=(A_DAY, 8)) * np.geomspace(1, 0.2, 8)

    settings = {"n_components": K, "gamma": 0.05, "random_state": 0}
    model, seen, records = DecentralizedKernelPCA(**settings), [], []
    made = table("a stream that drifts from day 10 on", "day", "rows", "landmarks", "true error", "stated", "bound")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        for t in range(DAYS):
            X, caught[:] = day(t), []
            seen.append(X)
            model.partial_fit(X)
            state = record(model, seen, settings)
            records.append((t, *state))
            stale = state[-1] > model.tol
            advised = any("refresh(X)" in str(warning.message) for warning in caught)
            floors.require(stale == advised, f"day {t}: a warning that advises refresh where the bound is above tol")
            if stale:
                made.add_row(*map(str, (t, *state[:2])), *(f"{x:.1e}" for x in state[2:]))
                seen, caught[:] = [X], []
                model.refresh(X)
                state = record(model, seen, settings)
                records.append((t, *state))
                floors.require(state[-1] <= model.tol, f"day {t}: refresh brings the bound below tol")
            if stale or t % 5 == 0:
                made.add_row(
                    f"{t}, refreshed" if stale else str(t), *map(str, state[:2]), *(f"{x:.1e}" for x in state[2:])
                )
    floors.require(any(bound > model.tol for *_, bound in records), "the bound rises above tol")
    below = sum(true > max(bound, 1e-9) for *_, true, _, bound in records)
    console.print(f"the bound is below the true error in {below} of {len(records)} answers")
    floors.require(below <= 0.1 * len(records), "the bound is below the true error in at most a tenth of the answers")
    console.print(made)
    if figure is not None:
        draw(records, model.tol, figure)


def record(model, seen: list[np.ndarray], settings) -> tuple[int, int, float, float, float]:
    """Rows, landmarks, the error against a fit of the same rows with a tolerance far below, the stated error and its bound."""
    X = np.concatenate(seen)
    stated, bound = 1 - model.span_accuracy_**2, 1 - model.span_accuracy_bound_**2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = DecentralizedKernelPCA(**settings, tol=1e-9, max_landmarks=800).fit_parts([X])
        spans = [np.linalg.qr(values - values.mean(axis=0))[0] for values in (model.transform(X), truth.transform(X))]
    cosines = np.linalg.svd(spans[0].T @ spans[1], compute_uv=False)
    return len(X), model.n_landmarks_, max(0.0, 1 - cosines.min() ** 2), stated, bound


def draw(records, tol: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    t, _, _, true, stated, bound = np.array(records).T
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    axes.axvspan(-1, CALM, color="0.95", lw=0)
    for values, name, style in (
        (bound, "bound on the error", "-"),
        (stated, "stated error", "--"),
        (true, "true error", "k."),
    ):
        axes.semilogy(t, np.maximum(values, 1e-9), style, label=name)
    axes.axhline(tol, color="tab:red", lw=1)
    axes.annotate("tol", (DAYS - 2, tol), xytext=(0, 3), textcoords="offset points", color="tab:red")
    for day in t[1:][np.diff(t) == 0]:
        axes.axvline(day, color="0.6", lw=1, ls=":")
        axes.annotate("refresh", (day, 1e-6), xytext=(4, 0), textcoords="offset points", rotation=90, color="0.4")
    axes.set(
        xlim=(-1, DAYS),
        xlabel=f"day ({A_DAY:,} rows each; the rows drift from day {CALM} on)",
        ylabel="error (squared sine)",
    )
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    floors = Floors()
    cuts(given.rows, floors)
    rounding(floors)
    forgotten(given.rows // 2, floors)
    drift(given.figure, floors)
    floors.finish()


if __name__ == "__main__":
    main()
