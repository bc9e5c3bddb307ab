"""Time and memory of a fit, for the benchmarks.

Each measurement is compared with another of the same run: with scikit-learn, with the machine's own rates, with the bare kernel.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import array_api_compat as aac
import numpy as np
from sklearn.decomposition import KernelPCA

from dekpca import DecentralizedKernelPCA, Network, Projection, baselines
from dekpca.arrays import to_numpy
from dekpca.chunks import row_tiles, threads
from dekpca.kernels import Rbf

Array = Any

K = 4  # components
NOISE = 0.1  # of the data's standard deviation, added to copies of rows if there are too few
REFERENCE_ROWS = {True: 40_000, False: 100_000}  # of central kernel PCA, at most: on the host, on a device
DENSE_ROWS = 10_000  # up to here by eigendecomposition
REPEATS = 3  # of fits in a separate process; the fastest counts
SETTLE = 0.3  # seconds before each measurement: BLAS threads busy-wait for a while after the last call
LOOKED_AT = 20  # nodes whose answers are compared with central kernel PCA


@dataclass(frozen=True)
class Rates:
    """The machine's peak rates: operations and bytes (read and written) per second."""

    flops: float
    bandwidth: float  # on a CPU by adding two arrays into a third, with write allocate, as in the iterations
    copying: float  # without write allocate

    def or_better(self, other: Rates) -> Rates:
        """The better of two measurements, since other programs may disturb one."""
        return Rates(*(max(a, b) for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Fit:
    """One fit, measured."""

    nodes: int
    rows: int
    seconds: float
    parts: dict[str, float]
    iterations: int
    converged: bool
    agreement: list[float]  # of the worst compared node, by component
    fastest: dict[str, float] = field(default_factory=dict)  # best time of each part over several fits
    peak_bytes: int = 0  # beyond the memory before the fit
    checks: dict[str, Any] = field(default_factory=dict)


def wait(x: Array) -> None:
    """Wait for the GPU."""
    if aac.is_torch_array(x) and x.is_cuda:
        import torch

        torch.cuda.synchronize()


def best(f: Callable[[], Any], like: Array, repeats: int = 3) -> float:
    """Seconds of the fastest of several calls, after a warm-up call."""
    f()
    taken = []
    for _ in range(repeats):
        wait(like)
        start = time.perf_counter()
        f()
        wait(like)
        taken.append(time.perf_counter() - start)
    return min(taken)


def rates(like: Array, size: int = 2048) -> Rates:
    """Measured with products of matrices, sums and copies, in the dtype and on the device of `like`, by as many threads as BLAS uses."""
    xp = aac.array_namespace(like)
    placed = {"dtype": like.dtype, "device": aac.device(like)}
    a = xp.ones((size, size), **placed) * 0.5
    seconds = best(lambda: a @ a, like)
    n = 2**25 if aac.is_numpy_array(like) else 2**28
    x, y, out = (xp.ones((n,), **placed) for _ in range(3))

    def copy(part: slice) -> None:
        out[part] = x[part]

    def add(part: slice) -> None:
        np.add(x[part], y[part], out=out[part])

    flops, moved = 2.0 * size**3 / seconds, float(n * (xp.finfo(like.dtype).bits // 8))
    if not aac.is_numpy_array(like):
        copying = 2 * moved / best(lambda: copy(slice(n)), like, 5)
        return Rates(flops, copying, copying)
    with threads(n) as count, ThreadPoolExecutor(count) as pool:
        parts = list(row_tiles(n, -(-n // count)))
        copying = 2 * moved / best(lambda: list(pool.map(copy, parts)), like, 5)
        adding = 3 * moved / best(lambda: list(pool.map(add, parts)), like, 5)
    return Rates(flops, adding, copying)


def draw(X: Array, rows: int, seed: int = 0) -> tuple[Array, bool]:
    """So many rows of X in random order; if there are fewer, rows drawn with replacement, with noise on nonzero entries, and True.

    Zeros stay, since zeros save work: few rows and many must differ only in their number.
    """
    xp = aac.array_namespace(X)
    random = np.random.default_rng(seed)
    if rows <= X.shape[0]:
        return xp.take(X, xp.asarray(random.permutation(X.shape[0])[:rows], device=aac.device(X)), axis=0), False
    chosen = xp.asarray(random.integers(X.shape[0], size=rows), device=aac.device(X))
    out = xp.take(X, chosen, axis=0)
    deviation = NOISE * float(xp.std(X))
    step = 100_000
    for start in range(
        0, rows, step
    ):  # noise from the library of the data: drawing it on the host would take longer than the fit
        part = out[start : start + step, :]
        if aac.is_torch_array(X):
            import torch

            generator = torch.Generator(device=X.device).manual_seed(seed + start)
            noise = torch.randn(part.shape, dtype=X.dtype, device=X.device, generator=generator)
        else:
            noise = xp.asarray(random.standard_normal(part.shape), dtype=X.dtype)
        part += xp.where(part != 0, deviation * noise, xp.zeros_like(part))
    return out, True


def estimator(network: Network, gamma: float, **settings: Any) -> DecentralizedKernelPCA:
    settings = {"solver": Projection(), **settings}
    return DecentralizedKernelPCA(K, gamma=gamma, network=network, random_state=0, **settings)


def fit(
    X: Array, network: Network, gamma: float, repeats: int = 1, judged: bool = True, **settings: Any
) -> tuple[Fit, DecentralizedKernelPCA]:
    """Fit equal shares of the rows of X, in order; the best of `repeats`. Compared with central kernel PCA only if `judged`."""
    labels = np.repeat(np.arange(len(network)), X.shape[0] // len(network))
    found: tuple[float, DecentralizedKernelPCA] | None = None
    for _ in range(repeats):
        model = None
        wait(X)
        time.sleep(SETTLE)
        start = time.perf_counter()
        model = estimator(network, gamma, **settings).fit(X, nodes=labels)
        wait(X)
        taken = time.perf_counter() - start
        if found is None or taken < found[0]:
            found = taken, model
    assert found is not None
    seconds, model = found
    measured = Fit(
        len(network),
        X.shape[0],
        seconds,
        dict(model.history_["seconds"]),
        model.n_iter_,
        model.converged_,
        agreement(model, X, gamma) if judged else [],
    )
    return measured, model


def agreement(model: DecentralizedKernelPCA, X: Array, gamma: float) -> list[float]:
    """|correlation| of the component values of the worst of some nodes with those of central kernel PCA of at most REFERENCE_ROWS rows."""
    xp = aac.array_namespace(X)
    random = np.random.default_rng(1)
    most = REFERENCE_ROWS[aac.is_numpy_array(X)]
    rows = xp.asarray(np.sort(random.permutation(X.shape[0])[:most]), device=aac.device(X))
    some = xp.take(X, rows, axis=0) if X.shape[0] > most else X
    at = some[:2000, :]
    if some.shape[0] <= DENSE_ROWS:
        truth = baselines.central(to_numpy(some).astype(np.float64), K, gamma=gamma).transform(
            to_numpy(at).astype(np.float64)
        )
    else:
        truth = to_numpy(central_values(xp.astype(some, xp.float32), gamma)[:2000, :]).astype(np.float64)
    worst = np.ones(K)
    for node in random.permutation(len(model.network_))[:LOOKED_AT]:
        values = to_numpy(model.node_models_[int(node)].transform(at)).astype(np.float64)
        worst = np.minimum(worst, [abs(np.corrcoef(values[:, i], truth[:, i])[0, 1]) for i in range(K)])
    return worst.tolist()


def central_values(X: Array, gamma: float, passes: int = 3) -> Array:
    """The component values of central kernel PCA at all rows of X, by block power iterations with the whole kernel matrix, a tile at a time.

    They start from the components of a few rows, so that few iterations are needed.
    """
    xp = aac.array_namespace(X)
    kernel = Rbf(gamma=gamma)
    few = to_numpy(X[:: max(1, X.shape[0] // 2000), :]).astype(np.float64)
    function = baselines.central(few, 3 * K, gamma=gamma).own_function()
    points, coefficients = (
        xp.asarray(np.concatenate(x), dtype=X.dtype, device=aac.device(X))
        for x in (function.points, function.coefficients)
    )
    step = 4096

    def through(points: Array, coefficients: Array) -> Array:
        tiles = [kernel.gram(X[a : a + step, :], points) @ coefficients for a in range(0, X.shape[0], step)]
        values = xp.concat(tiles)
        return values - xp.mean(values, axis=0)

    basis = xp.linalg.qr(through(points, coefficients))[0]
    for _ in range(passes):
        image = through(X, basis)  # basis is centred already
        basis = xp.linalg.qr(image)[0]
    _, turn = xp.linalg.eigh(xp.matrix_transpose(basis) @ through(X, basis))
    return (basis @ xp.flip(turn, axis=1))[:, :K]


def against_central(
    X: np.ndarray, network: Network, gamma: float, repeats: int = 10, **settings: Any
) -> tuple[Fit, float]:
    """The network and scikit-learn's KernelPCA on the same rows, interleaved; the best of each, and of each part of a fit."""
    ours: list[Fit] = []
    theirs, model = [], None
    for _ in range(repeats):
        found, fitted = fit(X, network, gamma, judged=False, **settings)
        if not ours or found.seconds < min(f.seconds for f in ours):
            model = fitted
        del fitted
        ours.append(found)
        time.sleep(SETTLE)
        start = time.perf_counter()
        KernelPCA(K, kernel="rbf", gamma=gamma, eigen_solver="arpack", random_state=0).fit(X)
        theirs.append(time.perf_counter() - start)
    assert model is not None
    best = min(ours, key=lambda f: f.seconds)
    best.agreement = agreement(model, X, gamma)
    best.fastest = {part: min(f.parts[part] for f in ours) for part in best.parts}
    return best, min(theirs)


@dataclass(frozen=True)
class Case:
    """A measurement in a separate process."""

    nodes: int
    rows_a_node: int
    neighbors: int
    settings: dict[str, Any] = field(default_factory=dict)
    in_a_row: int = 1  # consecutive fits whose mean time counts


def apart(
    X: np.ndarray,
    cases: Sequence[Case],
    gamma: float,
    judged: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Fit]:
    """For each case the fastest of some fits in a separate process, and the peak memory of the first; `checks` has component values at a few rows.

    Unless `judged` there is one fit, without a comparison with central kernel PCA, which takes longer. Other
    programs slow a machine down for seconds and for minutes. So the time of short fits is a mean of several
    consecutive ones, which are disturbed like long ones, and the cases are interleaved. Each round begins with a
    discarded warm-up fit, because the host of a virtual machine reclaims memory that is free for seconds; `checks`
    has the time of the first one.
    """
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1, mp_context=context)) for _ in cases]
        for pool, case in zip(pools, cases, strict=True):
            tell(f"{case.nodes} nodes: warm-up")
            pool.submit(_begin, X, case, gamma).result()
        rounds: list[list[Fit]] = []
        for number in range(REPEATS if judged else 1):
            rounds.append([])
            for pool, case in zip(pools, cases, strict=True):
                rounds[-1].append(pool.submit(_again, judged).result())
                tell(
                    f"{case.nodes} nodes, round {number + 1} of {REPEATS if judged else 1}: {rounds[-1][-1].seconds:.2f} s a fit"
                )
        found = [min(fits, key=lambda f: f.seconds) for fits in zip(*rounds, strict=True)]
        for pool, best, first in zip(pools, found, rounds[0], strict=True):
            best.peak_bytes, best.checks = first.peak_bytes, first.checks
            if judged:
                tell(f"{best.nodes} nodes: comparing with central kernel PCA")
                best.agreement = pool.submit(_agreement).result()
    return found


class _Fits:
    """The fits of a case, in its process."""

    here: _Fits

    def __init__(self, X: np.ndarray, case: Case, gamma: float):
        self.case, self.gamma = case, gamma
        self.rows, _ = draw(X, case.nodes * case.rows_a_node)
        self.network = Network.ring(case.nodes, case.neighbors)
        self.labels = np.repeat(np.arange(case.nodes), case.rows_a_node)
        # excludes one-time imports and allocations
        estimator(Network.ring(8, 2), gamma).fit(self.rows[:400])
        self.model: Any = None

    def again(self, warmed_up: bool) -> Fit:
        time.sleep(SETTLE)
        before = _memory("VmRSS", reset=True)  # X, from which the rows were drawn, is freed by now
        first, parts = self.timed(1)
        whole = _memory("VmHWM")
        seconds, parts = self.timed(self.case.in_a_row) if warmed_up else (first, parts)
        model, rows = self.model, len(self.rows)
        found = Fit(self.case.nodes, rows, seconds, parts, model.n_iter_, model.converged_, [], {}, whole - before)
        values = np.asarray(model.transform(self.rows[:200]))
        found.checks = {"values": values, "process_bytes": whole, "first_seconds": first}
        return found

    def timed(self, count: int) -> tuple[float, dict[str, float]]:
        """Seconds of each of several consecutive fits, and of its parts."""
        parts: dict[str, float] = defaultdict(float)
        start = time.perf_counter()
        for _ in range(count):
            self.model = None
            self.model = estimator(self.network, self.gamma, **self.case.settings).fit(self.rows, nodes=self.labels)
            for part, spent in self.model.history_["seconds"].items():
                parts[part] += spent / count
        return (time.perf_counter() - start) / count, dict(parts)


def _begin(X: np.ndarray, case: Case, gamma: float) -> None:
    _Fits.here = _Fits(X, case, gamma)


def _again(warmed_up: bool) -> Fit:
    return _Fits.here.again(warmed_up)


def _agreement() -> list[float]:
    fits = _Fits.here
    return agreement(fits.model, fits.rows, fits.gamma)


def _memory(what: str, reset: bool = False) -> int:
    """Bytes of this process now (VmRSS), or the peak (VmHWM) since the last reset; 0 without /proc."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def transform_times(model: DecentralizedKernelPCA, X: Array) -> tuple[float, float]:
    """Seconds of `transform`, and of the kernel evaluation and product alone, in the same tiles."""
    function = model._answering.function()
    xp = aac.array_namespace(function.offset)
    points, coefficients = xp.concat(function.points), xp.concat(function.coefficients)
    step = 4096
    out = xp.empty((X.shape[0], K), dtype=X.dtype, device=aac.device(X))

    def bare() -> None:
        for start in range(0, X.shape[0], step):
            out[start : start + step, :] = (
                model._answering.kernel.gram(X[start : start + step, :], points) @ coefficients
            )

    return best(lambda: model.transform(X), X, 2), best(bare, X, 2)


def gigabytes(count: float) -> str:
    return "-" if not math.isfinite(count) else f"{count / 1e9:.2f}"
