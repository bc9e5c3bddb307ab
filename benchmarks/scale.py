"""Speed and memory, each against something measured in the same run.

    python benchmarks/scale.py --data mnist-0358.npz                     # on the CPU: taskset -c 0,1 for two cores

MNIST's digits 0, 3, 5, 8; rbf, 4 components, default settings; nodes on a ring. Beyond the 23,326 images rows are copies with noise (a tenth of
the data's standard deviation, on pixels that are not zero). Agreement: the worst of 20 nodes with central kernel PCA (of 40,000 of the rows).
"""

from __future__ import annotations

import warnings

import numpy as np

import measuring as scale
from common import GAMMA, Floors, arguments, console, load, numbers, table
from dekpca import Network, Projection
from dekpca.memory import parse_size

SECTIONS = ("central", "growth", "memory", "transform")


def central(X: np.ndarray, floors: Floors) -> None:
    """80 nodes of 100 rows against scikit-learn, and where the time goes."""
    rows, _ = scale.draw(X, 8000)
    network = Network.ring(80, 4)
    for dtype in ("float64", "float32"):
        given = rows.astype(dtype)
        for name, solver, floor in (("the default", "auto", 3.5), ("projection", Projection(), 0.5)):
            ours, theirs = scale.against_central(given, network, GAMMA, repeats=5, solver=solver)
            ratio = theirs / ours.seconds
            console.print(
                f"{dtype}: {name} {ours.seconds:.2f} s ({ours.iterations} iterations), scikit-learn {theirs:.2f} s, {ratio:.2f} times as long; "
                f"agreement {numbers(ours.agreement, 5)}"
            )
            shown = table(f"{dtype}, {name}, part by part", "part", "seconds", "share")
            for part, taken in ours.parts.items():
                shown.add_row(part, f"{taken:.3f}", f"{taken / ours.seconds:.0%}")
            console.print(shown)
            floors.require(
                ratio >= floor, f"J = 80: scikit-learn takes {ratio:.2f} times as long as {name}, floor {floor}"
            )
            good(floors, ours, f"J = 80, {dtype}, {name}")


def good(floors: Floors, found: scale.Fit, what: str) -> None:
    """Two components are right, and the nodes agree. (With 200 landmarks the span of four is a little above tol, and the fit warns.)"""
    floors.require(min(found.agreement[:2]) >= 0.999, f"{what}: agreement {numbers(found.agreement, 5)}, floor 0.999")
    floors.require(found.iterations < 100, f"{what}: nodes do not agree after {found.iterations} iterations")


def growth(X: np.ndarray, floors: Floors) -> None:
    """Ten times the nodes; fits of few nodes are timed several in a row, so that all take about as long, and all sizes take turns."""
    shown = table(
        "n = 100, 4 neighbors",
        "nodes",
        "rows",
        "seconds",
        "the first, s",
        "a node, ms",
        "iterations",
        "agreement",
        "peak of the fit, GB",
        "of the process, GB",
    )
    seconds = {}
    cases = [scale.Case(J, 100, 4, in_a_row=1000 // J) for J in (100, 200, 400, 1000)]
    for found in scale.apart(X, cases, GAMMA):
        J = found.nodes
        seconds[J] = found.seconds
        process = found.checks["process_bytes"]
        shown.add_row(
            str(J), str(found.rows), f"{found.seconds:.2f}", f"{found.checks['first_seconds']:.2f}", f"{1e3 * found.seconds / J:.2f}",
            str(found.iterations), numbers(found.agreement, 5), scale.gigabytes(found.peak_bytes), scale.gigabytes(process),
        )  # fmt: skip
        good(floors, found, f"J = {J}")
        floors.require(process < 8 * 2**30, f"J = {J}: peak {scale.gigabytes(process)} GB, floor 8 GiB")
    console.print(shown)
    ratio = seconds[1000] / seconds[100]
    console.print(f"ten times the nodes take {ratio:.2f} times as long")
    floors.require(ratio <= 11, f"ten times the nodes take {ratio:.2f} times as long, floor 11")


def memory(X: np.ndarray, floors: Floors) -> None:
    """Within a limit and without one, the same answer: with all kernel matrices, and with matrices that are computed again."""
    for J, n, limit in ((1000, 100, "4.5GB"), (50, 500, "2GB")):
        cases = [scale.Case(J, n, 4, {"memory_limit": x}) for x in (None, limit)]
        free, tight = scale.apart(X, cases, GAMMA, judged=False)
        apart = float(np.abs(free.checks["values"] - tight.checks["values"]).max())
        console.print(
            f"J = {J}, n = {n}: {free.seconds:.1f} s and {scale.gigabytes(free.peak_bytes)} GB; memory_limit={limit!r}: {tight.seconds:.1f} s and "
            f"{scale.gigabytes(tight.peak_bytes)} GB; component values differ by {apart:.1e}"
        )
        floors.require(
            tight.peak_bytes <= parse_size(limit), f"memory_limit={limit!r}: {scale.gigabytes(tight.peak_bytes)} GB"
        )
        floors.require(apart < 1e-8, f"memory_limit={limit!r} changes component values by {apart:.1e}")


def transform(X: np.ndarray, floors: Floors) -> None:
    rows, _ = scale.draw(X, 2000)
    _, model = scale.fit(rows, Network.ring(20, 4), GAMMA)
    new, _ = scale.draw(X, 100_000, seed=1)
    ours, bare = scale.transform_times(model, new)
    console.print(
        f"transform of 100,000 rows: {ours:.2f} s, kernel and product alone {bare:.2f} s: {ours / bare:.2f} times"
    )
    floors.require(
        ours <= 1.5 * bare, f"transform takes {ours / bare:.2f} times the kernel and product alone, floor 1.5"
    )


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--sections", default="central,growth,memory,transform", help=f"any of {', '.join(SECTIONS)}")
    a = parser.parse_args()
    X, _ = load(a.data)
    floors = Floors()
    warnings.simplefilter("error", RuntimeWarning)
    for name in a.sections.split(","):
        {f.__name__: f for f in (central, growth, memory, transform)}[name](X, floors)
    floors.finish()


if __name__ == "__main__":
    main()
