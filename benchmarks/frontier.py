"""Seconds against error: dekpca, and what people would pick instead for more rows than kernel PCA can hold.

    python benchmarks/frontier.py --data mnist-0358.npz --figure docs/frontier.png --out frontier.csv
    python benchmarks/frontier.py --data mnist-0358.npz --sections panels --truths truths --only-truths     # on a GPU, for the same with --truths
    python benchmarks/frontier.py --data mnist-0358.npz --sections one-shot       # so many landmarks against Nystroem + PCA, m = 200, 400, 800
    python benchmarks/frontier.py --data mnist-0358.npz --sections owners         # 60,000 rows as 6 to 6,000 owners
    python benchmarks/frontier.py --data mnist-0358.npz --sections growth --figure docs/growth.png     # by rows, columns, components, owners
    python benchmarks/frontier.py --data mnist-0358.npz --sections gpu            # on a CUDA device: plain PyTorch Nystroem, 1,000,000 rows

rbf with gamma="scale", 4 components, float64, one process. Every panel takes turns: each method is fitted once in a round, with the number of the
round as seed, and medians of five rounds count (three for 100,000 rows). Error: 1 - the smallest |correlation| of a component's values with central
kernel PCA's; and sin^2 of the largest angle between the spans; and the largest relative error of an eigenvalue. The central answer of up to 23,326
rows is exact, of more rows it is found by subspace iterations with the exact kernel, tile by tile, until they change nothing in the sixth digit.

At the end each method's fastest setting that is at least as accurate as the default with tol 1e-3 is compared with it; nystrompca takes part if it is
installed. The exit code is 1 where a floor does not hold.
"""

from __future__ import annotations

import csv
import time
import warnings
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import eigh, solve_triangular
from sklearn.datasets import make_blobs, make_swiss_roll
from sklearn.decomposition import PCA, KernelPCA
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.pipeline import make_pipeline

import measuring as scale
from common import Floors, arguments, console, load, numbers, table
from dekpca import DecentralizedKernelPCA, Projection
from owners import flights

try:
    from nystrompca import NystromKPCA
except ImportError:
    NystromKPCA = None

K = 4
PAUSE = (
    0.1  # seconds between fits: idle threads of OpenBLAS spin for a while, and would take a core from the next method
)
SECTIONS = ("panels", "one-shot", "owners", "flights", "growth", "gpu")
BAR = 0.6  # of the time of the fastest alternative that is as accurate
PALETTE = {
    "dekpca, default": "#0072b2",
    "dekpca, one shot": "#56b4e9",
    "dekpca, projection": "#009e73",
    "Nystroem + PCA": "#d55e00",
    "RPCholesky + PCA": "#cc79a7",
    "nystrompca": "#999999",
    "RBFSampler + PCA": "#e69f00",
    "KernelPCA": "#000000",
}


@dataclass
class Point:
    """One method on one data set."""

    data: str
    rows: int
    method: str
    setting: str
    seconds: float
    error: float  # of the worst component
    span: float
    eigenvalue: float
    agreement: str = ""


@dataclass
class Truth:
    """Central kernel PCA: orthonormal values (rows, K), and eigenvalues."""

    values: np.ndarray
    eigenvalues: np.ndarray

    def point(self, data: str, method: str, setting: str, seconds: float, Z: np.ndarray, eigenvalues: Any) -> Point:
        Z = np.asarray(Z, dtype=np.float64)[:, :K]
        Z = Z - Z.mean(axis=0)
        agreement = np.abs((Z * self.values).sum(axis=0)) / np.linalg.norm(Z, axis=0)
        cosines = np.linalg.svd(np.linalg.qr(Z)[0].T @ self.values, compute_uv=False)
        off = np.abs(np.asarray(eigenvalues)[:K] / self.eigenvalues - 1).max()
        return Point(
            data, len(Z), method, setting, seconds, float(max(1 - agreement.min(), 1e-9)), float(max(1 - cosines[-1] ** 2, 1e-9)), float(off),
            numbers(agreement, 5),
        )  # fmt: skip


def kernel_rows(X: np.ndarray, L: np.ndarray, gamma: float) -> np.ndarray:
    squares = (X * X).sum(axis=1)[:, None] + (L * L).sum(axis=1) - 2 * (X @ L.T)
    return np.exp(-gamma * np.maximum(squares, 0))


def truth(X: np.ndarray, gamma: float) -> Truth:
    """Block subspace iterations with the exact centred kernel, tile by tile, from a Nystroem start; on a GPU where there is one, else in float32."""
    rng = np.random.default_rng(0)
    L = X[rng.permutation(len(X))[:1000]]
    values, vectors = np.linalg.eigh(kernel_rows(L, L, gamma))
    keep = values > 1e-8 * values[-1]
    root = vectors[:, keep] / np.sqrt(values[keep])
    psi = np.concatenate([kernel_rows(X[i : i + 5000], L, gamma) @ root for i in range(0, len(X), 5000)])
    psi -= psi.mean(axis=0)
    V = np.linalg.qr(psi @ np.linalg.eigh(psi.T @ psi)[1][:, -(K + 16) :])[0]
    times_kernel = kernel_product(X, gamma)
    before = None
    for _ in range(20):
        V = V - V.mean(axis=0)
        W = times_kernel(V)
        W -= W.mean(axis=0)
        values, turn = eigh((V.T @ W + W.T @ V) / 2)
        values, turn = values[::-1], turn[:, ::-1]
        ritz = V @ turn[:, :K]
        if before is not None and np.linalg.svd(ritz.T @ before, compute_uv=False)[-1] ** 2 > 1 - 1e-7:
            break
        before, V = ritz, np.linalg.qr(W @ turn)[0]
    return Truth(np.linalg.qr(ritz)[0], values[:K])


def kept_truth(folder: Path | None, name: str, X: np.ndarray, gamma: float) -> Truth:
    """From a file of this folder, if it has one for these rows; else computed and kept there."""
    if folder is None:
        return truth(X, gamma)
    path, check = folder / f"{name}.npz", np.array([X.sum(), (X * X).sum(), gamma])
    if path.exists():
        with np.load(path, allow_pickle=False) as file:
            if np.allclose(file["check"], check, rtol=1e-12):
                return Truth(file["values"], file["eigenvalues"])
    found = truth(X, gamma)
    np.savez(path, values=found.values, eigenvalues=found.eigenvalues, check=check)
    return found


def kernel_product(X: np.ndarray, gamma: float) -> Callable[[np.ndarray], np.ndarray]:
    """V -> K V."""
    try:
        import torch

        on_gpu = torch.cuda.is_available()
    except ImportError:
        on_gpu = False
    if not on_gpu:
        single = X.astype(np.float32)

        def on_host(V: np.ndarray) -> np.ndarray:
            tiles = (kernel_rows(single[i : i + 1000], single, np.float32(gamma)) for i in range(0, len(X), 1000))
            return np.concatenate([tile @ V.astype(np.float32) for tile in tiles]).astype(np.float64)

        return on_host
    whole = torch.as_tensor(X, device="cuda")
    squares = (whole * whole).sum(dim=1)

    def on_device(V: np.ndarray) -> np.ndarray:
        given, out = torch.as_tensor(V, device="cuda"), torch.empty(V.shape, dtype=torch.float64, device="cuda")
        for i in range(0, len(X), 2000):
            tile = 2 * whole[i : i + 2000] @ whole.T - squares - squares[i : i + 2000, None]
            out[i : i + 2000] = torch.exp(gamma * tile.clamp_(max=0)) @ given
        return out.cpu().numpy()

    return on_device


def data_sets(mnist: Path, rows: int) -> dict[str, np.ndarray]:
    """Images, a table, a manifold, clusters, heavy tails."""
    images, _ = load(mnist)
    table_, _ = flights(rows, seed=1)
    random = np.random.default_rng(0)
    tails = random.standard_t(3, (rows, 5)) @ random.normal(size=(5, 20)) + 0.5 * random.standard_t(3, (rows, 20))
    return {
        "MNIST": scale.draw(images, rows)[0],
        "flights": (table_ - table_.mean(axis=0)) / table_.std(axis=0),
        "swiss roll": make_swiss_roll(rows, noise=0.5, random_state=0)[0],
        "clusters": make_blobs(rows, n_features=20, centers=10, cluster_std=4.0, random_state=0)[0],
        "heavy tails": tails,
    }


# ---------------------------------------------------------------------- what people would pick
def rp_cholesky(X: np.ndarray, gamma: float, m: int, seed: int = 0, block: int = 100) -> np.ndarray:
    """Randomly pivoted Cholesky, accelerated by rejection (Epperly, Tropp, Webber 2024): F (rows, m) with F F' about the kernel matrix.

    The pivots of a block are drawn at once; each is kept with the chance that those before it leave, so that they are distributed as if they were
    drawn one by one.
    """
    rng = np.random.default_rng(seed)
    left, F = np.ones(len(X)), np.zeros((len(X), 0))
    while F.shape[1] < m and left.sum() > 1e-9 * len(X):  # below it rounding decides, and every pivot is rejected
        drawn = np.unique(rng.choice(len(X), size=block, p=left / left.sum()))
        rng.shuffle(drawn)
        among = kernel_rows(X[drawn], X[drawn], gamma) - F[drawn] @ F[drawn].T
        first, kept, factor = among.diagonal().copy(), [], np.zeros((len(drawn), len(drawn)))
        for i in range(len(drawn)):
            if rng.random() * first[i] < among[i, i] and len(kept) < m - F.shape[1]:
                column = among[:, i] / np.sqrt(among[i, i])
                among -= np.outer(column, column)
                factor[:, len(kept)] = column
                kept.append(i)
        columns = kernel_rows(X, X[drawn[kept]], gamma) - F @ F[drawn[kept]].T
        lower = np.tril(factor[kept, : len(kept)])
        F = np.concatenate([F, solve_triangular(lower, columns.T, lower=True).T], axis=1)
        left = np.maximum(1.0 - (F * F).sum(axis=1), 0.0)
    return F


def other_nystrom(gamma: float, m: int):
    """nystrompca (Hallgren 2021), the other package with a bound on its error; it calls the kernel for each pair of rows."""

    def fit(X: np.ndarray, seed: int):
        model = NystromKPCA(m_subset=m, n_components=K, sigma=gamma**-0.5, seed=seed, scale=False)
        values = model.fit_transform(X)
        return model.explained_variance_ * len(X), lambda: values

    return fit


def pipeline(step: Any) -> Callable[[np.ndarray, int], tuple[np.ndarray, Callable[[], np.ndarray]]]:
    def fit(X: np.ndarray, seed: int) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
        model = make_pipeline(step.set_params(random_state=seed), PCA(K, svd_solver="covariance_eigh")).fit(X)
        return model[-1].explained_variance_ * (len(X) - 1), lambda: model.transform(X)

    return fit


def rp_pipeline(gamma: float, m: int):
    def fit(X: np.ndarray, seed: int):
        F = rp_cholesky(X, gamma, m, seed)
        model = PCA(K, svd_solver="covariance_eigh").fit(F)
        return model.explained_variance_ * (len(X) - 1), lambda: model.transform(F)

    return fit


def kernel_pca(gamma: float, solver: str):
    def fit(X: np.ndarray, seed: int):
        model = KernelPCA(K, kernel="rbf", gamma=gamma, eigen_solver=solver, random_state=seed, copy_X=False).fit(X)
        return model.eigenvalues_, lambda: model.transform(X)

    return fit


def ours(gamma: float, nodes: int, **settings: Any):
    def fit(X: np.ndarray, seed: int):
        model = DecentralizedKernelPCA(K, gamma=gamma, network=nodes, random_state=seed, **settings).fit(X)
        return model.eigenvalues_, lambda: model.transform(X)

    return fit


def methods(gamma: float, rows: int) -> dict[tuple[str, str], Callable]:
    nodes = rows // 500
    found: dict[tuple[str, str], Callable] = {}
    most = 1600 if rows <= 8000 else 800  # more take 10 s and longer there, and nothing is compared with them
    for tol in (1e-2, 1e-3, 1e-4):
        found["dekpca, default", f"tol {tol:g}"] = ours(gamma, nodes, tol=tol)
    for m in (m for m in (200, 400, 800) if m < most):
        found["dekpca, one shot", f"{m} landmarks"] = ours(gamma, nodes, landmarks=m)
    for m in (m for m in (50, 100, 150, 200, 300, 400, 600, 800, 1100, 1600) if m <= most):
        found["Nystroem + PCA", f"{m}"] = pipeline(Nystroem(gamma=gamma, n_components=m, random_state=0))
    for m in (m for m in (100, 200, 400, 800) if m <= most // 2):
        found["RPCholesky + PCA", f"{m}"] = rp_pipeline(gamma, m)
    for m in (m for m in (400, 1600) if m <= most):
        found["RBFSampler + PCA", f"{m}"] = pipeline(RBFSampler(gamma=gamma, n_components=m, random_state=0))
    if rows <= 8000:
        found["dekpca, projection", "200 landmarks"] = ours(gamma, rows // 100, solver=Projection(n_landmarks=200))
        for solver in ("arpack", "randomized"):
            found["KernelPCA", solver] = kernel_pca(gamma, solver)
        if NystromKPCA is not None:
            found["nystrompca", "100"] = other_nystrom(gamma, 100)
    return found


def measured(data: str, X: np.ndarray, contenders: dict, central: Truth, rounds: int) -> list[Point]:
    """All methods take turns; the seconds are the median of each, and the errors those of its fit of median error."""
    found: dict[Any, list[Point]] = {name: [] for name in contenders}
    for seed in range(rounds):
        for name, fit in contenders.items():
            time.sleep(PAUSE)
            start = time.perf_counter()
            eigenvalues, transform = fit(X, seed)
            taken = time.perf_counter() - start
            found[name].append(central.point(data, *name, taken, transform(), eigenvalues))
    middle = [sorted(points, key=lambda p: p.span)[len(points) // 2] for points in found.values()]
    seconds = [float(np.median([p.seconds for p in points])) for points in found.values()]
    return [replace(point, seconds=taken) for point, taken in zip(middle, seconds, strict=True)]


def as_accurate(points: list[Point], mine: Point) -> dict[str, Point]:
    """The fastest setting of each other method whose span is as accurate as that of one of dekpca's fits."""
    found: dict[str, Point] = {}
    for p in sorted(points, key=lambda p: p.seconds):
        if not p.method.startswith("dekpca") and p.span <= mine.span:
            found.setdefault(p.method, p)
    return found


# ---------------------------------------------------------------------- sections
def panels(given: Any, floors: Floors) -> list[Point]:
    points: list[Point] = []
    equal = table(
        "the default, and each method's fastest setting that is as accurate", "data, rows", "default, s", "error", "method", "s",
        "error", "default / method",
    )  # fmt: skip
    for rows in given.rows:
        for data, X in data_sets(given.data, rows).items():
            gamma = 1.0 / (X.shape[1] * X.var())
            central = kept_truth(given.truths, f"{data} {rows}".replace(" ", "-"), X, gamma)
            if given.only_truths:
                continue
            found = measured(data, X, methods(gamma, rows), central, 5 if rows <= 8000 else 3)
            points += found
            title = f"{data}, {rows} rows x {X.shape[1]}; eigenvalues {numbers(central.eigenvalues, 1)}"
            shown = table(
                title,
                "method",
                "setting",
                "seconds",
                "error of the worst component",
                "of the span",
                "of eigenvalues",
                "agreement",
            )
            for p in sorted(found, key=lambda p: p.seconds):
                shown.add_row(
                    p.method,
                    p.setting,
                    f"{p.seconds:.3f}",
                    f"{p.error:.1e}",
                    f"{p.span:.1e}",
                    f"{p.eigenvalue:.1e}",
                    p.agreement,
                )
            console.print(shown)
            mine = next(p for p in found if (p.method, p.setting) == ("dekpca, default", "tol 0.001"))
            others = as_accurate(found, mine)
            for p in others.values():
                equal.add_row(
                    f"{data}, {rows}", f"{mine.seconds:.3f}", f"{mine.span:.1e}", f"{p.method} {p.setting}", f"{p.seconds:.3f}",
                    f"{p.span:.1e}", f"{mine.seconds / p.seconds:.2f}",
                )  # fmt: skip
            ratio = max((mine.seconds / p.seconds for p in others.values()), default=0.0)
            floors.require(ratio <= BAR, f"{data}, {rows} rows: {ratio:.2f} of the fastest as accurate, floor {BAR}")
    console.print(equal)
    return points


def one_shot(given: Any, floors: Floors) -> None:
    """Given landmarks against Nystroem + PCA with as many landmarks: the same rows for both, so that the points do not decide."""
    images, _ = load(given.data)
    shown = table(
        "one shot against Nystroem + PCA",
        "rows",
        "m",
        "seconds",
        "Nystroem",
        "ratio",
        "agreement",
        "Nystroem's",
        "eigenvalues / central",
    )
    for rows in (8000, 60_000):
        X = scale.draw(images, rows)[0]
        gamma = 1.0 / (X.shape[1] * X.var())
        central = kept_truth(given.truths, f"MNIST-{rows}", X, gamma)
        for m in (200, 400, 800):
            step = Nystroem(gamma=gamma, n_components=m, random_state=0)
            points = X[step.fit(X).component_indices_]
            pair = {
                ("ours", ""): ours(gamma, rows // 100, landmarks=points),
                ("theirs", ""): pipeline(Nystroem(gamma=gamma, n_components=m, random_state=0)),
            }
            mine, theirs = measured("MNIST", X, pair, central, 9 if rows == 8000 else 5)
            model = DecentralizedKernelPCA(K, gamma=gamma, network=rows // 100, random_state=0, landmarks=points).fit(X)
            ratio = mine.seconds / theirs.seconds
            quotient = model.eigenvalues_ / central.eigenvalues
            shown.add_row(
                str(rows),
                str(m),
                f"{mine.seconds:.3f}",
                f"{theirs.seconds:.3f}",
                f"{ratio:.2f}",
                mine.agreement,
                theirs.agreement,
                numbers(quotient),
            )
            what = f"{rows} rows, {m} landmarks"
            floors.require(ratio <= 0.8, f"{what}: {ratio:.2f} of Nystroem's time, floor 0.8")
            worst = min(
                float(a) - float(b) for a, b in zip(mine.agreement.split(), theirs.agreement.split(), strict=True)
            )
            floors.require(
                worst >= -1e-4, f"{what}: a component agrees less than Nystroem's, by {-worst:.1e}; floor 1e-4"
            )
            floors.require(mine.eigenvalue <= 0.005, f"{what}: eigenvalues off by {mine.eigenvalue:.2%}, floor 0.5 %")
    console.print(shown)


def owners(given: Any, floors: Floors) -> None:
    """60,000 rows as few and as many owners."""
    images, _ = load(given.data)
    X = scale.draw(images, 60_000)[0]
    gamma = 1.0 / (X.shape[1] * X.var())
    shown = table(
        "60,000 rows as so many owners",
        "owners",
        "400 landmarks, s",
        "default, s",
        "landmarks",
        "estimated error of the span",
    )
    seconds: dict[int, float] = {}
    default: dict[int, tuple[float, Any]] = {}
    for _ in range(3):
        for J in (6, 60, 600, 6000):
            for settings, into in (
                ({"landmarks": 400}, seconds),
                ({}, default),
            ):
                start = time.perf_counter()
                model = DecentralizedKernelPCA(K, gamma=gamma, network=J, random_state=0, **settings).fit(X)
                taken = time.perf_counter() - start
                if into is seconds:
                    seconds[J] = min(taken, seconds.get(J, np.inf))
                elif taken < default.get(J, (np.inf,))[0]:
                    default[J] = taken, model
    for J in seconds:
        model = default[J][1]
        shown.add_row(
            str(J),
            f"{seconds[J]:.2f}",
            f"{default[J][0]:.2f}",
            str(model.n_landmarks_),
            f"{1 - model.span_accuracy_**2:.1e}",
        )
    console.print(shown)
    spread = max(seconds.values()) / min(seconds.values())
    floors.require(spread <= 1.3, f"6 to 6,000 owners: {spread:.2f} times apart with as many landmarks, floor 1.3")


def flights_section(given: Any, floors: Floors) -> None:
    """300,000 rows of 12 columns that belong to 16 owners."""
    X, owner = flights(300_000)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    gamma = 1.0 / (X.shape[1] * X.var())
    shown = table(
        "300,000 flights of 16 owners",
        "components",
        "method",
        "seconds",
        "landmarks",
        "estimated error of the span",
        "ratio",
    )
    for k in (3, 4):
        best: dict[str, tuple[float, Any]] = {}
        for _ in range(3):
            for name in ("default", "Nystroem(200) + PCA"):
                start = time.perf_counter()
                if name == "default":
                    model: Any = DecentralizedKernelPCA(k, gamma=gamma, network=16, random_state=0).fit(X, nodes=owner)
                else:
                    model = make_pipeline(
                        Nystroem(gamma=gamma, n_components=200, random_state=0), PCA(k, svd_solver="covariance_eigh")
                    ).fit(X)
                taken = time.perf_counter() - start
                if taken < best.get(name, (np.inf,))[0]:
                    best[name] = taken, model
        mine, theirs = best["default"][0], best["Nystroem(200) + PCA"][0]
        found = best["default"][1]
        shown.add_row(
            str(k),
            "default",
            f"{mine:.2f}",
            str(found.n_landmarks_),
            f"{1 - found.span_accuracy_**2:.1e}",
            f"{mine / theirs:.2f}",
        )
        shown.add_row(str(k), "Nystroem(200) + PCA", f"{theirs:.2f}", "200", "", "")
        floors.require(
            mine <= 1.2 * theirs, f"300,000 flights, {k} components: {mine / theirs:.2f} of Nystroem's time, floor 1.2"
        )
    console.print(shown)


def growth(given: Any, floors: Floors) -> None:
    """How the time grows: rows, columns, components and owners, one at a time; clusters of 20 columns, and images. Of components also KernelPCA's."""
    images, _ = load(given.data)

    def blobs(rows: int, columns: int = 20) -> np.ndarray:
        return make_blobs(rows, n_features=columns, centers=10, cluster_std=4.0, random_state=0)[0]

    some, many, components = scale.draw(images, 8000)[0], blobs(60_000), (2, 5, 10, 20, 50, 100)
    gamma, beside = 1.0 / (some.shape[1] * some.var()), "components, KernelPCA"
    cases: dict[str, dict[int, Callable[[], Callable[[], Any]]]] = {
        "rows, of 20 columns": {n: lambda n=n: fitted(blobs(n)) for n in (2000, 10_000, 50_000, 200_000, 1_000_000)},
        "columns, of 5,000 rows": {d: lambda d=d: fitted(blobs(5000, d)) for d in (10, 100, 1000, 10_000)},
        "components, of 8,000 images": {k: lambda k=k: fitted(some, k) for k in components},
        beside: {k: lambda k=k: kernel_pca_fitted(some, k, gamma) for k in components},
        "owners, of 60,000 rows": {J: lambda J=J: fitted(many, J=J) for J in (6, 60, 600, 6000)},
    }
    shown = table(
        "growth", "what", "of it", "seconds", "landmarks", "error of the span, at most", "slope from the one before"
    )
    times: dict[str, dict[int, float]] = {}
    for what, sizes in cases.items():
        times[what] = {}
        for size, prepare in sizes.items():
            fit = prepare()
            taken, model = min((timed(fit) for _ in range(2)), key=lambda found: found[0])
            slope = ""
            if times[what]:
                last = max(times[what])
                slope = f"{np.log(taken / times[what][last]) / np.log(size / last):.2f}"
            times[what][size] = taken
            said = ["", "exact"]
            if isinstance(model, DecentralizedKernelPCA):
                said = [str(model.n_landmarks_), f"{1 - model.span_accuracy_bound_**2:.1e}"]
            shown.add_row(what, f"{size:,}", f"{taken:.3f}", *said, slope)
    console.print(shown)
    spread = max(times["owners, of 60,000 rows"].values()) / min(times["owners, of 60,000 rows"].values())
    # fits of 0.15 s, of which networkx takes 0.04 s for a network of 6,000; the section "owners" has the floor for longer fits
    floors.require(spread <= 1.5, f"6 to 6,000 owners: {spread:.2f} times apart, floor 1.5")
    if given.figure:
        draw_growth(times, times.pop(beside), given.figure)


def fitted(X: np.ndarray, k: int = K, J: int = 10) -> Callable[[], DecentralizedKernelPCA]:
    return lambda: DecentralizedKernelPCA(k, network=J, random_state=0).fit(X)


def kernel_pca_fitted(X: np.ndarray, k: int, gamma: float) -> Callable[[], KernelPCA]:
    """With the solver that was faster for so many components of 8,000 images."""
    solver = "randomized" if k > 20 else "arpack"
    return lambda: KernelPCA(k, kernel="rbf", gamma=gamma, eigen_solver=solver, random_state=0).fit(X)


def timed(fit: Callable[[], Any]) -> tuple[float, Any]:
    time.sleep(PAUSE)
    start = time.perf_counter()
    model = fit()
    return time.perf_counter() - start, model


def draw_growth(times: dict[str, dict[int, float]], exact: dict[int, float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(times), figsize=(3.4 * len(times), 3.2), layout="constrained", sharey=True)
    for ax, (what, seconds) in zip(axes, times.items(), strict=True):
        sizes, taken = np.array(list(seconds)), np.array(list(seconds.values()))
        ax.loglog(sizes, taken, "o-", color=PALETTE["dekpca, default"], lw=2)
        if "rows," in what:
            ax.loglog(sizes, taken[-1] * sizes / sizes[-1], "--", color="#999999", lw=1, label="in proportion")
        if "components" in what:
            ax.loglog(
                list(exact), list(exact.values()), "s--", color=PALETTE["KernelPCA"], lw=1, ms=4, label="KernelPCA"
            )
        if ax.get_legend_handles_labels()[0]:
            ax.legend(frameon=False, fontsize=9)
        ax.set_title(what, fontsize=10)
        ax.grid(True, which="major", alpha=0.25)
    axes[0].set_ylabel("seconds")
    figure.savefig(path, dpi=130)


def gpu(given: Any, floors: Floors) -> None:
    """Rows of MNIST on a CUDA device, float32: plain PyTorch Nystroem, one shot and the default; the truth at 1,000,000 rows."""
    import torch

    from dekpca import Network

    base = torch.as_tensor(load(given.data)[0].astype(np.float32), device="cuda")
    machine = scale.rates(base, 8192)
    torch.backends.cuda.matmul.allow_tf32 = True
    tf32 = scale.rates(base, 8192)
    console.print(
        f"{machine.flops / 1e12:.1f} TFLOP/s float32, {tf32.flops / 1e12:.0f} with TF32, {machine.bandwidth / 1e12:.2f} TB/s"
    )
    limits = {("one shot", 200): 0.05, ("one shot", 1000): 0.2, ("default", 0): 0.06}
    X = scale.draw(base, 1_000_000)[0]
    gamma = 1.0 / (X.shape[1] * float(X.var()))
    central = torch_truth(X, gamma)
    console.print(f"1,000,000 rows: eigenvalues {numbers(central.eigenvalues, 1)}")
    shown = table(
        "1,000,000 rows, best of 5",
        "method",
        "landmarks",
        "nodes",
        "TF32",
        "seconds",
        "agreement",
        "eigenvalues / central",
        "error of the span",
        "stated",
        "at most",
        "peak, GB",
    )
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        for m in (200, 1000, 2000):
            seconds, (values, found) = timed_on_device(lambda m=m: torch_nystroem(X, gamma, m))
            agreement = agreements(values, central)
            shown.add_row(
                "plain Nystroem",
                str(m),
                "",
                str(allowed),
                f"{seconds:.3f}",
                numbers(agreement, 5),
                numbers(found / central.eigenvalues),
                f"{span_error(values, central):.1e}",
                *[""] * 3,
            )
        for J in (1, 16, 2000, 10_000):
            network = Network.ring(J, 4) if J > 1 else 1
            for name, m in limits:
                settings = {"landmarks": m} if m else {}

                def fit(settings: dict = settings, network: Any = network) -> Any:
                    return DecentralizedKernelPCA(K, gamma=gamma, network=network, random_state=0, **settings).fit(X)

                torch.cuda.reset_peak_memory_stats()
                seconds, model = timed_on_device(fit)
                peak = torch.cuda.max_memory_allocated()
                values = model.transform(X)
                agreement = agreements(values, central)
                quotient = numbers(np.asarray(model.eigenvalues_.cpu()) / central.eigenvalues)
                shown.add_row(
                    name,
                    str(model.n_landmarks_),
                    f"{J:,}",
                    str(allowed),
                    f"{seconds:.3f}",
                    numbers(agreement, 5),
                    quotient,
                    f"{span_error(values, central):.1e}",
                    f"{1 - model.span_accuracy_**2:.1e}",
                    f"{1 - model.span_accuracy_bound_**2:.1e}",
                    scale.gigabytes(peak),
                )
                if allowed:
                    floors.require(
                        seconds <= limits[name, m],
                        f"1,000,000 rows, {J} nodes, {name} {m or ''}: {seconds:.3f} s, floor {limits[name, m]}",
                    )
                if name == "default" and J == 1:
                    by_part(model, X, tf32 if allowed else machine)
    console.print(shown)
    del X, model, values
    torch.cuda.empty_cache()
    X = scale.draw(base, 10_000_000)[0]
    network = Network.ring(2000, 4)
    seconds, model = timed_on_device(
        lambda: DecentralizedKernelPCA(K, gamma=gamma, network=network, random_state=0).fit(X), 2
    )
    console.print(
        f"10,000,000 rows, 2,000 nodes, default: {seconds:.2f} s, {model.n_landmarks_} landmarks, estimated {numbers(model.accuracy_, 5)}"
    )
    floors.require(seconds <= 1, f"10,000,000 rows: {seconds:.2f} s, floor 1")
    axes = torch.linalg.eigh(torch.cov(base.T))[1][:, -100:]
    X = torch.cat([some @ axes for some in X.split(1_000_000)])
    gamma = 1.0 / (X.shape[1] * float(X.var()))
    owner = np.repeat(np.arange(2000), len(X) // 2000)
    for name, nodes in (("dealt", None), ("nodes in order", owner)):
        seconds, model = timed_on_device(
            lambda nodes=nodes: DecentralizedKernelPCA(K, gamma=gamma, network=network, random_state=0).fit(X, nodes=nodes), 2
        )  # fmt: skip
        console.print(f"10,000,000 rows x 100, 2,000 nodes, {name}: {seconds:.2f} s, {model.n_landmarks_} landmarks")
        floors.require(seconds <= 0.5, f"10,000,000 rows x 100, {name}: {seconds:.2f} s, floor 0.5")


def by_part(model: Any, X: Any, machine: Any) -> None:
    """Seconds of the parts of a fit, and what the device needs at its rates for the products of the pass over all rows."""
    n, m = len(X), model.n_landmarks_
    least = (2 * n * m * X.shape[1] + 3 * n * m * m) / machine.flops + X.nbytes / machine.bandwidth
    taken = model.history_["seconds"]
    console.print(
        f"{sum(taken.values()):.3f} s: {', '.join(f'{part} {1e3 * s:.0f} ms' for part, s in taken.items())}; products of one pass with {m} "
        f"landmarks at the device's rates: {1e3 * least:.1f} ms"
    )


def span_error(values: Any, central: Truth) -> float:
    """sin^2 of the largest angle between the span of these values (rows, k), on the device, and the central one."""
    import torch

    values = values() if callable(values) else values
    basis = torch.linalg.qr((values - values.mean(dim=0)).double())[0]
    return 1 - float(torch.linalg.svdvals(basis.T @ torch.as_tensor(central.values, device=basis.device))[-1]) ** 2


def timed_on_device(f: Callable[[], Any], repeats: int = 5) -> tuple[float, Any]:
    import torch

    f()
    best = np.inf
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = f()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best, result


def torch_kernel(X: Any, L: Any, gamma: float) -> Any:
    import torch

    squares = (X * X).sum(dim=1)[:, None] + (L * L).sum(dim=1) - 2 * (X @ L.T)
    return torch.exp_(squares.clamp_(min=0).mul_(-gamma))


def torch_nystroem(X: Any, gamma: float, m: int) -> tuple[Any, np.ndarray]:
    """As scikit-learn's Nystroem + PCA, in chunks: values (rows, K) come as a function, so that they are not part of the time."""
    import torch

    L = X[torch.randperm(len(X), device="cuda")[:m]]
    values, vectors = torch.linalg.eigh(torch_kernel(L, L, gamma).double())
    root = (vectors / values.clamp(min=1e-8 * float(values[-1])).sqrt()).float()
    first, second = torch.zeros(m, device="cuda"), torch.zeros((m, m), device="cuda")
    for some in X.split(200_000):
        psi = torch_kernel(some, L, gamma) @ root
        first += psi.sum(dim=0)
        second += psi.T @ psi
    mean = first / len(X)
    found, basis = torch.linalg.eigh((second - len(X) * torch.outer(mean, mean)).double())
    weights = root @ basis[:, -K:].flip(1).float()
    return (lambda: torch.cat([torch_kernel(some, L, gamma) @ weights for some in X.split(200_000)])), found.flip(0)[
        :K
    ].cpu().numpy()


def agreements(values: Any, central: Truth) -> np.ndarray:
    Z = (values() if callable(values) else values).double().cpu().numpy()
    Z = Z - Z.mean(axis=0)
    return np.abs((Z * central.values).sum(axis=0)) / np.linalg.norm(Z, axis=0)


def torch_truth(X: Any, gamma: float) -> Truth:
    """Exact block subspace iterations with tiles of the kernel in TF32, from a Nystroem start of 5,000 rows."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    block = K + 8
    L = X[torch.randperm(len(X), device="cuda")[:5000]]
    values, vectors = torch.linalg.eigh(torch_kernel(L, L, gamma).double())
    root = (vectors / values.clamp(min=1e-8 * float(values[-1])).sqrt()).float()
    psi = torch.cat([torch_kernel(some, L, gamma) @ root for some in X.split(100_000)])
    psi -= psi.mean(dim=0)
    V = psi @ torch.linalg.eigh((psi.T @ psi).double())[1][:, -block:].float()
    del psi
    squares = (X * X).sum(dim=1)
    before = None
    for _ in range(4):
        V = torch.linalg.qr((V - V.mean(dim=0)).double())[0]
        W = torch.zeros_like(V)
        for i in range(0, len(X), 20_000):
            rows = X[i : i + 20_000]
            for j in range(0, len(X), 100_000):
                tile = rows @ X[j : j + 100_000].T
                tile.mul_(2).sub_(squares[i : i + 20_000, None]).sub_(squares[j : j + 100_000]).clamp_(max=0).mul_(
                    gamma
                ).exp_()
                W[i : i + 20_000] += (tile @ V[j : j + 100_000].float()).double()
        W -= W.mean(dim=0)
        small = V.T @ W
        values, turn = torch.linalg.eigh((small + small.T) / 2)
        ritz = V @ turn.flip(1)[:, :K]
        if before is not None and float(torch.linalg.svdvals(ritz.T @ before)[-1]) ** 2 > 1 - 1e-6:
            break
        before, V = ritz, W @ turn
    return Truth(ritz.cpu().numpy(), values.flip(0)[:K].cpu().numpy())


def draw(points: list[Point], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = sorted({p.rows for p in points})
    names = list(dict.fromkeys(p.data for p in points))
    figure, axes = plt.subplots(
        len(sizes), len(names), figsize=(3.6 * len(names), 3.1 * len(sizes) + 0.7), squeeze=False, layout="constrained"
    )
    for row, rows in zip(axes, sizes, strict=True):
        for ax, data in zip(row, names, strict=True):
            for method, color in PALETTE.items():
                some = sorted(
                    (p for p in points if (p.data, p.rows, p.method) == (data, rows, method)), key=lambda p: p.seconds
                )
                if some:
                    mine = method.startswith("dekpca")
                    ax.loglog(
                        [p.seconds for p in some], [p.span for p in some], "o-" if mine else "s--", color=color, label=method, lw=2 if mine else 1,
                        ms=6 if mine else 4,
                    )  # fmt: skip
            ax.set_title(f"{data}, {rows:,} rows", fontsize=10)
            ax.grid(True, which="major", alpha=0.25)
            ax.set_xlabel("seconds")
    for row in axes:
        row[0].set_ylabel("error of the span (sin²)")
    handles = {
        label: handle for ax in axes.ravel() for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=7, fontsize=9, frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=["panels", "one-shot", "owners", "flights"])
    parser.add_argument("--rows", type=int, nargs="+", default=[8000, 100_000])
    parser.add_argument("--out", type=Path, help="every point, as csv")
    parser.add_argument("--figure", type=Path)
    parser.add_argument(
        "--truths",
        type=Path,
        help="a folder for central answers: a GPU finds them in seconds, two cores in half an hour",
    )
    parser.add_argument("--only-truths", action="store_true", help="find these, and measure nothing")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    floors = Floors()
    if "panels" in given.sections:
        points = panels(given, floors)
        if given.out:
            with open(given.out, "w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([f.name for f in fields(Point)])
                writer.writerows(astuple(p) for p in points)
        if given.figure:
            draw(points, given.figure)
    sections = {"one-shot": one_shot, "owners": owners, "flights": flights_section, "growth": growth, "gpu": gpu}
    for name, section in sections.items():
        if name in given.sections:
            section(given, floors)
    floors.finish()


if __name__ == "__main__":
    main()
