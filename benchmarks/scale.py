"""Speed and memory, each against something measured in the same run.

    python benchmarks/scale.py --data mnist-0358.npz                     # on the CPU: taskset -c 0,1 for two cores
    python benchmarks/scale.py --data mnist-0358.npz --sections gpu      # on a CUDA device

MNIST's digits 0, 3, 5, 8; rbf, 4 components, default settings; nodes on a ring. Beyond the 23,326 images rows are copies with noise (a tenth of
the data's standard deviation, on pixels that are not zero). Agreement: the worst of 20 nodes with central kernel PCA (of 40,000 of the rows, on a
GPU 100,000, where there are more).
"""

from __future__ import annotations

import gc
import warnings
from typing import Any

import numpy as np

from common import GAMMA, Floors, arguments, console, load, numbers, table
from dekpca import Network
from dekpca.experiments import scale
from dekpca.memory import parse_size

JUDGING = ("separation", "moments", "judging")  # of the answer and of the start: how good they are
SECTIONS = ("central", "growth", "memory", "transform", "gpu")


def central(X: np.ndarray, floors: Floors) -> None:
    """80 nodes of 100 rows against scikit-learn, and part by part against the machine."""
    rows, _ = scale.draw(X, 8000)
    network = Network.ring(80, 4)
    for dtype in ("float64", "float32"):
        given = rows.astype(dtype)
        machine = scale.rates(given)
        ours, theirs = scale.against_central(given, network, GAMMA)
        machine = machine.or_better(scale.rates(given))
        ratio = theirs / ours.seconds
        console.print(
            f"{dtype}: J = 80, 8000 rows: network {ours.seconds:.2f} s ({ours.iterations} iterations), scikit-learn {theirs:.2f} s, "
            f"{ratio:.2f} times as long; "
            f"agreement {numbers(ours.agreement, 5)}; machine {machine.flops / 1e9:.0f} GFLOP/s, {machine.bandwidth / 1e9:.1f} GB/s "
            f"(copying {machine.copying / 1e9:.1f})"
        )
        title = f"{dtype}, part by part; of 784 columns {scale.columns_multiplied(given):.0f} are not zero for a line of samples"
        reached = parts_table(title, network, 100, given, ours, machine)
        if dtype == "float64":
            judging = sum(ours.parts.get(part, 0.0) for part in JUDGING) / ours.seconds
            others = 1.0 - sum(ours.parts[part] for part in reached) / ours.seconds - judging
            floors.require(others <= 0.1, f"J = 80: everything else takes {others:.1%} of the time, floor 10 %")
            floors.require(
                judging <= 0.2, f"J = 80: separation and accuracy take {judging:.1%} of the time, floor 20 %"
            )
            for part, fraction in reached.items():
                share = ours.parts[part] / ours.seconds
                if part in ("Gram blocks", "iterations"):
                    floors.require(
                        fraction >= 0.5, f"J = 80: {part} at {fraction:.1%} of what the machine does, floor 50 %"
                    )
                else:
                    floors.require(share <= 0.1, f"J = 80: {part} takes {share:.1%} of the time, floor 10 %")
            floors.require(ratio >= 3, f"J = 80: scikit-learn takes {ratio:.2f} times as long as the network, floor 3")
        good(floors, ours, f"J = 80, {dtype}")
        ours, theirs = scale.against_central(given, network, GAMMA, repeats=5, solver="auto")
        ratio = theirs / ours.seconds
        console.print(
            f"{dtype}: the default (solver='auto') {ours.seconds:.2f} s, scikit-learn {theirs:.2f} s, {ratio:.2f} times as long; "
            f"agreement {numbers(ours.agreement, 5)}"
        )
        floors.require(ratio >= 3.5, f"J = 80: scikit-learn takes {ratio:.2f} times as long as the default, floor 3.5")
        good(floors, ours, f"J = 80, {dtype}, default")


def parts_table(
    title: str, network: Network, n: int, rows: Any, found: scale.Fit, machine: scale.Rates
) -> dict[str, float]:
    """Prints it; returns which part of the machine's rate each part of a fit reached: rates are the best of several tries, and so are parts."""
    fastest = found.fastest or found.parts
    shown = table(title, "part", "seconds", "share", "fastest, s", "GFLOP", "GB", "at best, s", "reached")
    parts = scale.work(network, n, rows, min(200, found.rows // 10), found.iterations)
    for w in parts:
        taken, bound = found.parts[w.part], w.bound(machine)
        shown.add_row(
            w.part, f"{taken:.3f}", f"{taken / found.seconds:.0%}", f"{fastest[w.part]:.3f}", f"{w.flops / 1e9:.2f}", f"{w.bytes / 1e9:.3f}",
            f"{bound:.4f}", f"{bound / fastest[w.part]:.0%}",
        )  # fmt: skip
    others = found.seconds - sum(found.parts[w.part] for w in parts)
    shown.add_row("everything else", f"{others:.3f}", f"{others / found.seconds:.0%}", "", "", "", "", "")
    console.print(shown)
    return {w.part: w.bound(machine) / fastest[w.part] for w in parts}


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
    """Within a limit and without one, the same answer: with all Gram blocks, for which 2 GB are enough, and with some computed again."""
    for J, n, limit in ((1000, 100, "2GB"), (50, 500, "0.8GB")):
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


def gpu(X: np.ndarray, floors: Floors) -> None:
    """On CUDA: 1 and 10 million rows; TF32; the CPU's answer."""
    import torch

    base = torch.as_tensor(X.astype(np.float32), device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    machine = scale.rates(base, 8192)
    torch.backends.cuda.matmul.allow_tf32 = True
    console.print(
        f"{machine.flops / 1e12:.1f} TFLOP/s float32, {scale.rates(base, 8192).flops / 1e12:.0f} with TF32, {machine.bandwidth / 1e12:.2f} TB/s"
    )
    shown = table(
        "whole fit, data on the device, best of 3",
        "rows",
        "nodes",
        "neighbors",
        "",
        "seconds",
        "iterations",
        "agreement",
        "peak, GB",
    )
    for J, n, around, limit in ((2000, 500, 2, 2.0), (10_000, 100, 4, 2.0), (100_000, 100, 4, 20.0)):
        rows, _ = scale.draw(base, J * n)
        network = Network.ring(J, around)
        for tf32 in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.cuda.reset_peak_memory_stats()
            found, model = scale.fit(rows, network, GAMMA, repeats=3 if J * n < 10**7 else 2)
            peak = torch.cuda.max_memory_allocated()
            label = "TF32" if tf32 else "float32"
            shown.add_row(
                f"{J * n:,}", f"{J:,}", str(around), label, f"{found.seconds:.3f}", str(found.iterations), numbers(found.agreement, 5),
                scale.gigabytes(peak),
            )  # fmt: skip
            console.print(
                f"{J * n:,} rows, {label}: {found.seconds:.3f} s { ({k: round(v, 3) for k, v in found.parts.items()}) }"
            )
            if not tf32:
                floors.require(found.seconds < limit, f"{J * n:,} rows: {found.seconds:.2f} s, floor {limit}")
                good(floors, found, f"{J * n:,} rows")
                parts_table(f"{J * n:,} rows, part by part", network, n, rows, found, machine)
            del model, found
            gc.collect()
            torch.cuda.empty_cache()
        del rows
        torch.cuda.empty_cache()
    console.print(shown)
    torch.backends.cuda.matmul.allow_tf32 = False
    few, _ = scale.draw(X, 4000)
    network = Network.ring(40, 4)
    _, here = scale.fit(few, network, GAMMA)
    _, there = scale.fit(torch.as_tensor(few, device="cuda"), network, GAMMA)
    apart = (
        np.abs(there.transform(torch.as_tensor(few, device="cuda")).cpu().numpy() - here.transform(few)).max()
        / np.abs(here.transform(few)).max()
    )
    console.print(f"float64, 40 nodes: component values on CPU and GPU differ by {apart:.1e}, relative")
    floors.require(apart < 1e-8, f"CPU and GPU differ by {apart:.1e}")
    new, _ = scale.draw(base, 1_000_000, seed=1)
    _, model = scale.fit(new[:100_000], Network.ring(1000, 4), GAMMA)
    ours, bare = scale.transform_times(model, new)
    console.print(
        f"transform of 1,000,000 rows: {ours:.3f} s, kernel and product alone {bare:.3f} s: {ours / bare:.2f} times"
    )


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--sections", default="central,growth,memory,transform", help=f"any of {', '.join(SECTIONS)}")
    a = parser.parse_args()
    X, _ = load(a.data)
    floors = Floors()
    warnings.simplefilter("error", RuntimeWarning)
    for name in a.sections.split(","):
        {f.__name__: f for f in (central, growth, memory, transform, gpu)}[name](X, floors)
    floors.finish()


if __name__ == "__main__":
    main()
