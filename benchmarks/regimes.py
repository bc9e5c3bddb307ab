"""How true the estimated error of the default solver is: data sets x kernels x widths x splits x sizes x components.

Every fit has the default settings, with and without `share_rows`. Its true error is sin^2 of the largest angle between the span of node 0's
components on all rows and that of central kernel PCA, which is computed here from scikit-learn's kernels. Data are MNIST digits, scikit-learn's
tables, and generated ones that are difficult: batch effects, heavy tails, hundreds of owners of four rows, rows in a periodic or sorted order,
rare groups that one owner has, near-equal eigenvalues, and duplicated rows. Tables have up to 10,000 rows.

The grid (`GRID`) is no full cross product: with the seeds 0 to 9 the splits take turns, and in large tables the kernels too. An entry with
fewer seeds is run with the seeds whose last digit is below that number.

    python benchmarks/regimes.py --data mnist-0358.npz --out regimes.csv --figure regimes.png     # the whole grid, seeds 0 to 9
    python benchmarks/regimes.py --quick
    python benchmarks/regimes.py --only "rare groups" --seeds 1000 1001
    python benchmarks/regimes.py --read regimes.csv     # the report of cells that were computed before

Rows are appended to --out as fits end. Prints the claims of docs/explanation/accuracy.md, and exits with 1 where one does not hold.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh
from scipy.spatial.distance import cdist
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_blobs, make_swiss_roll
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from dekpca import DecentralizedKernelPCA, Network

TOL = 1e-3
SMALL, LARGE = 1e-6, 0.3  # true errors between which estimate and bound are judged
TINY = 1e-12  # smaller ones are rounding
LOW, HIGH = 0.3, 6.0  # estimate over true error
OFTEN = 0.95  # of the judged fits
STATED, AGREES = 0.99, 0.95  # a component that is stated at the first agrees at least at the second
MANY_ROWS = 4096  # above which only a part of the rows were judging rows
DENSE_ROWS = 2000  # up to which the central answer is computed by a dense solver
TILE = 4096  # rows of a product; OpenBLAS crashes on the product of 16,000 rows with their own transpose
LISTED = 40  # offending cells of a claim
QUANTILES = (0, 0.05, 0.5, 0.95, 1)

WIDTHS = (0.3, 1.0, 3.0, 10.0)  # gamma, in units of that of "scale"
SPLITS = ("alike", "one class", "dirichlet 0.3", "sorted")
MADE = ("as made",)  # the rows in the order in which they were generated
TABLES = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer, "diabetes": load_diabetes}


@dataclass
class Cell:
    """One fit."""

    data: str
    kernel: str
    width: float
    split: str
    rows: int
    nodes: int
    k: int
    seed: int
    share_rows: bool
    error: float  # true
    estimate: float
    bound: float  # stated upper bound of the error
    warned: bool
    landmarks: int
    seconds: float
    megabytes: float  # sent by a node, on average
    agreement: str  # |correlation| of each component with the central one, on all rows
    stated: str  # accuracy_ of each component
    eigenvalue_ratio: float  # to the central one, of the worst component
    gap: float  # 1 - central eigenvalue k + 1 over k


@dataclass(frozen=True)
class Entry:
    """A part of the grid: each of the kernels, or for each seed one in turn, with one of the splits in turn."""

    data: str
    rows: int
    kernels: tuple[tuple[str, float], ...]
    splits: tuple[str, ...] = SPLITS
    components: tuple[int, ...] = (4, 10)
    seeds: int = 10
    in_turn: bool = False


@dataclass(frozen=True)
class Problem:
    """Fits with the same central answer."""

    data: str
    rows: int
    kernel: str
    width: float
    split: str
    components: tuple[int, ...]
    seed: int


# ------------------------------------------------------------------ the grid


def widths(kernel: str, *some: float) -> tuple[tuple[str, float], ...]:
    return tuple((kernel, width) for width in some)


PLAIN = (("linear", 1.0), ("poly 2", 1.0), ("poly 3", 1.0), ("cosine", 1.0), ("callable", 1.0))
ALL_RBF = widths("rbf", *WIDTHS)
FEW_RBF = widths("rbf", 0.3, 1.0, 3.0)
LAPLACIAN = widths("laplacian", 0.3, 1.0, 3.0)

SMALL_TABLES = (
    Entry("mnist", 3000, ALL_RBF, seeds=3),
    Entry(
        "mnist", 3000, (("laplacian", 1.0), ("cosine", 1.0), ("poly 2", 1.0), ("linear", 1.0)), in_turn=True, seeds=4
    ),
    Entry("digits", 1500, ALL_RBF, seeds=5),
    Entry("digits", 1500, (*LAPLACIAN, *PLAIN, *widths("sigmoid", 0.003, 0.03)), in_turn=True),
    Entry("wine", 1500, ALL_RBF, components=(2, 4, 10), seeds=5),
    Entry("wine", 1500, (*LAPLACIAN, *PLAIN), in_turn=True),
    Entry("breast cancer", 1500, ALL_RBF, seeds=5),
    Entry("breast cancer", 1500, (*LAPLACIAN, *PLAIN, *widths("sigmoid", 0.003)), in_turn=True),
    Entry("diabetes", 1500, ALL_RBF, seeds=5),
    Entry("diabetes", 1500, (*LAPLACIAN, *PLAIN), in_turn=True, components=(4,)),
    Entry("swiss roll", 1500, ALL_RBF, components=(2, 4, 10)),
    Entry("swiss roll", 1500, (*LAPLACIAN, ("poly 3", 1.0), ("callable", 1.0)), in_turn=True),
    Entry("blobs", 1500, ALL_RBF),
    Entry("blobs", 1500, (*LAPLACIAN, *PLAIN), in_turn=True, components=(4,)),
    Entry("batch effects", 1500, FEW_RBF, MADE),
    Entry("batch effects", 1500, (*LAPLACIAN, *PLAIN), MADE, in_turn=True),
    Entry("heavy tails", 1500, widths("rbf", 1.0, 10.0, 100.0), ("alike", "one class", "sorted")),
    Entry(
        "heavy tails",
        1500,
        (*widths("laplacian", 1.0, 3.0), *PLAIN, ("sigmoid", 0.001)),
        ("alike", "sorted"),
        in_turn=True,
    ),
    Entry("tiny owners", 3000, FEW_RBF, ("alike", "sorted", "one class"), seeds=6),
    Entry("tiny owners", 3000, (*LAPLACIAN, *PLAIN), ("alike", "sorted"), components=(4,), in_turn=True, seeds=6),
    Entry("periodic", 1500, FEW_RBF, ("as made", "as made", "sorted")),
    Entry("periodic", 1500, (*LAPLACIAN, *PLAIN), ("as made", "sorted"), components=(2, 4), in_turn=True),
    Entry("rare groups", 1500, widths("rbf", 0.1, 0.3, 1.0), MADE),
    Entry("rare groups", 1500, (*LAPLACIAN, *PLAIN), MADE, components=(4,), in_turn=True),
    Entry("isotropic", 1500, FEW_RBF, ("alike", "sorted")),
    Entry("isotropic", 1500, (*LAPLACIAN, *PLAIN), ("alike", "sorted"), components=(2, 4), in_turn=True),
    Entry("symmetric", 1500, FEW_RBF, ("alike", "one class")),
    Entry("symmetric", 1500, (*LAPLACIAN, *PLAIN), ("alike", "one class"), components=(2, 4), in_turn=True),
    Entry("duplicates", 1500, FEW_RBF, ("alike", "sorted")),
    Entry("duplicates", 1500, (*LAPLACIAN, *PLAIN), ("alike", "sorted"), components=(4,), in_turn=True),
)


def large_tables(rows: int, seeds: int) -> tuple[Entry, ...]:
    """The same data with more rows, one kernel for each seed."""
    mixed = (*widths("rbf", 0.3, 1.0, 3.0), *widths("laplacian", 0.3, 1.0), *PLAIN[1:])
    order = ("alike", "sorted")
    made = (
        ("mnist", (*widths("rbf", 0.3, 1.0, 3.0), ("cosine", 1.0), ("poly 2", 1.0)), SPLITS),
        ("swiss roll", (*ALL_RBF, *LAPLACIAN, ("poly 3", 1.0), ("callable", 1.0)), SPLITS),
        ("blobs", (*ALL_RBF, *LAPLACIAN, ("poly 2", 1.0), ("callable", 1.0)), SPLITS),
        ("batch effects", mixed, MADE),
        ("heavy tails", (*widths("rbf", 1.0, 10.0, 100.0), *widths("laplacian", 1.0, 3.0), *PLAIN), order),
        ("tiny owners", mixed, order),
        ("periodic", (*FEW_RBF, *LAPLACIAN, ("poly 2", 1.0), ("callable", 1.0)), ("as made", "as made", "sorted")),
        ("rare groups", (*widths("rbf", 0.03, 0.1, 0.3), *LAPLACIAN, ("poly 3", 1.0), ("callable", 1.0)), MADE),
        ("isotropic", (*FEW_RBF, *LAPLACIAN, ("poly 2", 1.0), ("callable", 1.0)), order),
        ("symmetric", (*FEW_RBF, *LAPLACIAN, ("poly 2", 1.0), ("callable", 1.0)), ("alike", "one class")),
        ("duplicates", mixed, order),
    )
    return tuple(Entry(name, rows, kernels, splits, seeds=seeds, in_turn=True) for name, kernels, splits in made)


GRID = (*large_tables(10_000, 5), *large_tables(6000, 10), *SMALL_TABLES)  # the longest first


def quick_grid() -> tuple[Entry, ...]:
    """Of each part of the grid one kernel, one split and one number of components, others for each part."""
    some = (*large_tables(10_000, 10)[2:4], *large_tables(6000, 10), *SMALL_TABLES)
    return tuple(
        Entry(e.data, e.rows, one(e.kernels, i), one(e.splits, i), one(e.components, i)) for i, e in enumerate(some)
    )


def one(values: tuple, i: int) -> tuple:
    return (values[i % len(values)],)


def problems(grid: tuple[Entry, ...], seeds: list[int]) -> Iterator[Problem]:
    """What to fit with these seeds; splits and, where the entry says so, kernels take turns."""
    for entry in grid:
        for seed in seeds:
            digit, count = seed % 10, len(entry.kernels)
            if digit >= entry.seeds:
                continue
            turns = [digit * count // entry.seeds] if entry.in_turn else range(count)
            for i in turns:
                split = entry.splits[(seed if entry.in_turn else seed + i) % len(entry.splits)]
                yield Problem(entry.data, entry.rows, *entry.kernels[i], split, entry.components, seed)


# ------------------------------------------------------------------ data


def owners(rows: int) -> int:
    return 6 if rows <= 600 else min(rows // 75, 60)


def blocks(rows: int) -> list[np.ndarray]:
    """The rows of each owner of equal, consecutive parts."""
    return np.array_split(np.arange(rows), owners(rows))


def quarters(values: np.ndarray) -> np.ndarray:
    return np.digitize(values, np.quantile(values, [0.25, 0.5, 0.75]))


def curved(rng: np.random.Generator, rows: int, latent: int, columns: int) -> np.ndarray:
    """Rows on a bent surface of `latent` dimensions, with a little noise."""
    Z = rng.normal(size=(rows, latent))
    bent = np.concatenate([Z, np.sin(2.0 * Z)], axis=1)
    return bent @ rng.normal(size=(bent.shape[1], columns)) + 0.1 * rng.normal(size=(rows, columns))


def swiss_roll(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    X, t = make_swiss_roll(rows, noise=0.1, random_state=int(rng.integers(2**31)))
    return X, quarters(t)


def blobs(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(rows, n_features=5, centers=8, random_state=int(rng.integers(2**31)))


def batch_effects(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Each owner's rows are shifted and scaled, column by column, by amounts of its own."""
    X, y = curved(rng, rows, 3, 15), np.empty(rows, dtype=int)
    spread = X.std(axis=0)
    for j, own in enumerate(blocks(rows)):
        X[own] = X[own] * np.exp(rng.normal(scale=0.3, size=15)) + 0.7 * spread * rng.normal(size=15)
        y[own] = j
    return X, y


def heavy_tails(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Student's t with two degrees of freedom, times random loadings."""
    X = rng.standard_t(2, size=(rows, 12)) @ rng.normal(size=(12, 20)) + 0.1 * rng.normal(size=(rows, 20))
    return X, quarters(np.linalg.norm(X, axis=1))


def tiny_owners(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Clusters of unequal sizes; `sizes` makes the owners."""
    y = rng.choice(12, rows, p=rng.dirichlet(np.full(12, 2.0)))
    return rng.normal(scale=3.0, size=(12, 12))[y] + rng.normal(size=(rows, 12)) @ rng.normal(size=(12, 12)) / 2.0, y


def periodic(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Row i is of cluster i mod 4, and owners have consecutive rows in this order."""
    y = np.arange(rows) % 4
    return rng.normal(scale=2.0, size=(4, 6))[y] + rng.normal(size=(rows, 6)), y


def rare_groups(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """One to three groups of 6 to 25 rows, far away from all others, each at one owner."""
    X, y = curved(rng, rows, 2, 12), np.zeros(rows, dtype=int)
    spread = X.std()
    for own in rng.permutation(len(blocks(rows)))[: rng.integers(1, 4)]:
        group = blocks(rows)[own][: rng.integers(6, 26)]
        away = rng.normal(size=12)
        X[group] = 4.0 * spread * 12**0.5 * away / np.linalg.norm(away) + 0.3 * spread * rng.normal(
            size=(len(group), 12)
        )
        y[group] = own + 1
    return X, y


def isotropic(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The same variance in all directions: eigenvalues are near-equal in groups."""
    X = rng.normal(size=(rows, 6))
    return X, quarters(X[:, 0])


def symmetric(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Sixteen clusters of equal size and equal distances from the origin, in opposite pairs along the axes."""
    y = rng.permutation(np.arange(rows) % 16)
    corners = 4.0 * np.concatenate([np.eye(8), -np.eye(8)])
    return corners[y] + 0.7 * rng.normal(size=(rows, 8)), y


def duplicates(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Few distinct rows, each about ten times."""
    X, which = curved(rng, rows // 10, 3, 10), rng.integers(rows // 10, size=rows)
    return X[which], quarters(X[which, 0])


GENERATED: dict[str, Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]] = {
    "swiss roll": swiss_roll, "blobs": blobs, "batch effects": batch_effects, "heavy tails": heavy_tails, "tiny owners": tiny_owners,
    "periodic": periodic, "rare groups": rare_groups, "isotropic": isotropic, "symmetric": symmetric, "duplicates": duplicates,
}  # fmt: skip


def load(name: str, rows: int, mnist: Path | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, standardized where columns have units, and classes to split by."""
    rng = np.random.default_rng(seed)
    if name in GENERATED:
        return GENERATED[name](rng, rows)
    if name == "mnist":
        with np.load(mnist) as file:
            X, y = file["X"], file["y"]
    else:
        X, y = TABLES[name](return_X_y=True)
        X = X if name == "digits" else StandardScaler().fit_transform(X)
        y = quarters(y) if name == "diabetes" else y
    some = rng.permutation(len(X))[:rows]
    return X[some].astype(np.float64), y[some]


def sizes(name: str, rows: int) -> list[int]:
    """How many rows each owner has; tiny owners have two fifths of all rows."""
    if name != "tiny owners":
        return [len(own) for own in blocks(rows)]
    tiny = rows // 10
    return [len(own) for own in np.array_split(np.arange(rows - 4 * tiny), 5)] + [4] * tiny


def deal(name: str, X: np.ndarray, y: np.ndarray, split: str, seed: int) -> list[np.ndarray]:
    """The numbers of the rows of each owner."""
    rng = np.random.default_rng(seed)
    if split == "dirichlet 0.3":  # each class goes to the nodes in shares that are drawn
        nodes, owner = owners(len(X)), np.empty(len(y), dtype=int)
        for c in np.unique(y):
            owner[y == c] = rng.choice(nodes, (y == c).sum(), p=rng.dirichlet(np.full(nodes, 0.3)))
        return [np.flatnonzero(owner == j) for j in np.unique(owner)]
    order = np.arange(len(X)) if split == "as made" else rng.permutation(len(X))
    if split == "one class":
        order = order[np.argsort(y[order], kind="stable")]
    elif split == "sorted":  # along the first linear component
        order = np.argsort(X @ np.linalg.eigh(np.cov(X.T))[1][:, -1], kind="stable")
    count = np.array(sizes(name, len(X)))
    if name == "tiny owners":
        count = rng.permutation(count)
    return np.split(order, np.cumsum(count)[:-1])


# ------------------------------------------------------------------ kernels and the central answer


def exponential(A: np.ndarray, B: np.ndarray, rate: float = 0.5) -> np.ndarray:
    """A callable kernel."""
    return np.exp(-rate * cdist(A, B))


def kernel_parameters(kernel: str, width: float, X: np.ndarray) -> dict[str, Any]:
    """Parameters of the estimator. gamma is `width` times that of "scale"."""
    scale = 1.0 / (X.shape[1] * X.var())
    if kernel == "callable":
        return {"kernel": partial(exponential, rate=width * scale**0.5)}
    if kernel == "laplacian":
        return {"kernel": kernel, "gamma": width / (X.shape[1] * X.std())}
    if kernel.startswith("poly"):
        return {"kernel": "poly", "gamma": width * scale, "degree": int(kernel[-1]), "coef0": 1.0}
    if kernel == "sigmoid":
        return {"kernel": kernel, "gamma": width * scale, "coef0": 0.0}
    return {"kernel": kernel} | ({"gamma": width * scale} if kernel == "rbf" else {})


def centred_gram(X: np.ndarray, parameters: dict[str, Any]) -> np.ndarray:
    kernel = parameters["kernel"]
    rest = {name: value for name, value in parameters.items() if name != "kernel"}
    K = np.empty((len(X), len(X)))
    tiles = [slice(i, i + TILE) for i in range(0, len(X), TILE)]
    for a in tiles:
        for b in tiles:
            K[a, b] = kernel(X[a], X[b]) if callable(kernel) else pairwise_kernels(X[a], X[b], metric=kernel, **rest)
    means = K.mean(axis=0)
    K -= means
    K -= means[:, None]
    K += means.mean()
    return K


def truth(X: np.ndarray, parameters: dict[str, Any], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (k + 1) and orthonormal values (rows, k + 1) of central kernel PCA."""
    K, n = centred_gram(X, parameters), len(X)
    if n <= DENSE_ROWS:
        values, vectors = eigh(K, subset_by_index=[n - k - 1, n - 1], overwrite_a=True)
    else:
        start = np.random.default_rng(0).normal(size=n)
        values, vectors = eigsh(K, k + 4, ncv=max(3 * k, 40), v0=start, tol=1e-10)
    order = np.argsort(-values)[: k + 1]
    return values[order], vectors[:, order]


# ------------------------------------------------------------------ one fit


def span_error(values: np.ndarray, true: np.ndarray) -> float:
    basis = np.linalg.qr(values - values.mean(axis=0))[0]
    return float(1.0 - min(1.0, np.linalg.svd(basis.T @ true, compute_uv=False)[-1]) ** 2)


def correlations(values: np.ndarray, true: np.ndarray) -> np.ndarray:
    """|correlation| of each component's values with the central ones."""
    centred = values - values.mean(axis=0)
    return np.abs((centred * true).sum(axis=0)) / np.maximum(np.linalg.norm(centred, axis=0), 1e-300)


def text(values: np.ndarray) -> str:
    return " ".join(f"{value:.5f}" for value in values)


def make_network(nodes: int, seed: int) -> Network:
    return Network.random(nodes, degree=4 if nodes > 5 else 2, seed=seed)


def fit(
    problem: Problem, X: np.ndarray, parts: list[np.ndarray], k: int, share: bool, parameters: dict, true: tuple, device: str | None
) -> Cell:  # fmt: skip
    """Fit, and compare with the central answer."""
    seed = problem.seed
    if problem.kernel != "callable":  # which is of NumPy
        parameters = {**parameters, "device": device}
    network = make_network(len(parts), seed)
    model = DecentralizedKernelPCA(k, network=network, tol=TOL, share_rows=share, random_state=seed, **parameters)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        model.fit_parts([X[own] for own in parts])
        seconds = time.perf_counter() - start
    warned = not model.converged_ or any(issubclass(w.category, ConvergenceWarning) for w in caught)
    values = np.asarray(model.transform(X))
    central, vectors = true
    ratio = np.asarray(model.eigenvalues_) / central[:k]
    return Cell(
        problem.data, problem.kernel, problem.width, problem.split, len(X), len(parts), k, seed, share,
        error=span_error(values, vectors[:, :k]),
        estimate=float(1.0 - model.span_accuracy_**2),
        bound=float(1.0 - getattr(model, "span_accuracy_bound_", np.nan) ** 2),
        warned=warned,
        landmarks=int(model.n_landmarks_),
        seconds=seconds,
        megabytes=float(sum(np.mean(sent) for sent in model.history_["bytes"].values()) / 1e6),
        agreement=text(correlations(values, vectors[:, :k])),
        stated=text(model.accuracy_),
        eigenvalue_ratio=float(ratio[np.argmax(np.abs(np.log(np.maximum(ratio, 1e-300))))]),
        gap=float(1.0 - central[k] / central[k - 1]),
    )  # fmt: skip


def solve(problem: Problem, mnist: Path | None, out: Path | None, device: str | None) -> tuple[list[Cell], list[str]]:
    """All fits of a problem, and what was raised by those that failed."""
    cells, failed = [], []
    with threadpool_limits(1):
        X, y = load(problem.data, problem.rows, mnist, problem.seed)
        parameters = kernel_parameters(problem.kernel, problem.width, X)
        parts = deal(problem.data, X, y, problem.split, problem.seed)
        true = truth(X, parameters, max(problem.components))
        for k in problem.components:
            for share in (True, False):
                try:
                    cells.append(fit(problem, X, parts, k, share, parameters, true, device))
                except Exception as error:  # the other fits go on; the report names this one
                    failed.append(f"{problem}, k={k}, share_rows={share}: {type(error).__name__}: {error}")
                else:
                    append(out, cells[-1])
    return cells, failed


# ------------------------------------------------------------------ csv


def begin(out: Path | None) -> None:
    if out:
        with open(out, "w", newline="") as file:
            csv.writer(file).writerow([f.name for f in fields(Cell)])


def append(out: Path | None, cell: Cell) -> None:
    """One short write at the end of the file, so that the rows of two processes do not mix."""
    if out:
        with open(out, "a", newline="") as file:
            csv.writer(file).writerow(astuple(cell))


def read(path: Path) -> list[Cell]:
    made = {"str": str, "int": int, "float": float, "bool": lambda word: word == "True"}
    with open(path, newline="") as file:
        return [Cell(**{f.name: made[str(f.type)](row[f.name]) for f in fields(Cell)}) for row in csv.DictReader(file)]


# ------------------------------------------------------------------ report


def quantiles(values: Any, form: str = ".2f") -> str:
    known = [value for value in values if not np.isnan(value)]
    return " ".join(f"{q:{form}}" for q in np.quantile(known, QUANTILES)) if known else "none"


def ratio(cell: Cell) -> float:
    return cell.estimate / cell.error


def is_near(cell: Cell) -> bool:
    return LOW <= ratio(cell) <= HIGH  # never of NaN


def is_bounded(cell: Cell) -> bool:
    return cell.bound >= cell.error


def short(cell: Cell) -> str:
    """A cell, on one line."""
    what = f"{cell.data}, {cell.kernel} {cell.width:g}, {cell.split}, {cell.rows} rows, {cell.nodes} nodes, k={cell.k}, seed {cell.seed}"
    numbers = f"error {cell.error:.2g}, estimate {cell.estimate:.2g}, bound {cell.bound:.2g}, gap {cell.gap:.2g}, {cell.landmarks} landmarks"
    return f"{what}, share_rows={cell.share_rows}{', warned' if cell.warned else ''}: {numbers}"


def claim(holds: bool, what: str, offending: list[str] | None = None) -> bool:
    print(f"{'holds' if holds else 'FAILS'}: {what}")
    offending = offending or []
    for line in offending[:LISTED]:
        print("    ", line)
    if len(offending) > LISTED:
        print(f"     and {len(offending) - LISTED} more")
    return holds


def claim_silence(cells: list[Cell]) -> bool:
    quiet = [c for c in cells if not c.warned]
    bad = [c for c in quiet if not c.error < 2 * TOL]
    print(f"{len(cells)} fits, {len(cells) - len(quiet)} with a warning")
    worst = f"; the worst error is {max(c.error for c in quiet):.2g}" if quiet else ""
    return claim(
        not bad, f"every fit without a warning has a true error below {2 * TOL:g}{worst}", [short(c) for c in bad]
    )


def claim_share(cells: list[Cell], good: Callable[[Cell], bool], what: str) -> bool:
    """Whether 95 % of the cells are good, of all and of those with many rows."""
    bad = [c for c in cells if not good(c)]
    share = 1.0 - len(bad) / max(1, len(cells))
    holds = claim(share >= OFTEN, f"{what}: {share:.1%} of {len(cells)}", [short(c) for c in sorted(bad, key=ratio)])
    many = [c for c in cells if c.rows > MANY_ROWS]
    share = float(np.mean([good(c) for c in many])) if many else 1.0
    return claim(share >= OFTEN, f"the same above {MANY_ROWS} rows: {share:.1%} of {len(many)}") and holds


def claim_components(cells: list[Cell]) -> bool:
    checked, bad = 0, []
    for c in cells:
        pairs = [(float(a), float(s)) for a, s in zip(c.agreement.split(), c.stated.split(), strict=True)]
        sure = [(a, s) for a, s in pairs if s >= STATED]
        checked += len(sure)
        bad += [f"{short(c)}; stated {s:.3f}, agrees {a:.3f}" for a, s in sure if not a >= AGREES]
    every = sum(len(c.stated.split()) for c in cells)
    what = f"no component that is stated at {STATED} or more agrees by less than {AGREES}: {checked} of {every} components are, {len(bad)} do"
    return claim(not bad, what, bad)


def groups(cells: list[Cell]) -> Iterator[tuple[str, list[Cell]]]:
    yield "all", cells
    yield f"above {MANY_ROWS} rows", [c for c in cells if c.rows > MANY_ROWS]
    for name in ("share_rows", "warned", "k", "kernel", "data"):
        for value in sorted({getattr(c, name) for c in cells}):
            yield f"{name} {value}", [c for c in cells if getattr(c, name) == value]


def table(judged: list[Cell]) -> None:
    print(f"\nEstimate over true error, {len(judged)} fits with true errors from {SMALL:g} to {LARGE}:")
    print(f"{'':26} {'fits':>5} {'within':>7} {'bounded':>8}   quantiles 0 5 50 95 100 %")
    for name, some in groups(judged):
        if some:
            near, bounded = (np.mean([f(c) for c in some]) for f in (is_near, is_bounded))
            print(f"{name:26} {len(some):5} {near:7.1%} {bounded:8.1%}   {quantiles([ratio(c) for c in some])}")
    print()


def costs(cells: list[Cell]) -> None:
    print("\nQuantiles 0 5 50 95 100 %:")
    for name, form in (("landmarks", ".0f"), ("seconds", ".2f"), ("megabytes", ".2f")):
        for what, some in (("", cells), (f", above {MANY_ROWS} rows", [c for c in cells if c.rows > MANY_ROWS])):
            print(f"  {name + what:34} {quantiles([getattr(c, name) for c in some], form)}")
    ratios = np.array([c.eigenvalue_ratio for c in cells])
    off = np.quantile(np.abs(ratios - 1.0), OFTEN)
    print(f"  {'worst eigenvalue over central':34} {quantiles(ratios, '.3f')}; in 95 % of fits within {off:.2g} of 1")


def report(cells: list[Cell], failed: list[str]) -> bool:
    """Print what the cells say; whether all claims hold."""
    refused = [line for line in failed if "positive semi-definite" in line]
    broken = [line for line in failed if line not in refused]
    judged = [c for c in cells if SMALL < c.error < LARGE]
    table(judged)
    holds = claim_silence(cells)
    holds &= claim_share(judged, is_near, f"estimate over true error between {LOW} and {HIGH} in at least {OFTEN:.0%}")
    if all(np.isnan(c.bound) for c in cells):
        holds = claim(False, "the models state no bound")
    else:
        holds &= claim_share(judged, is_bounded, f"bound at least the true error in at least {OFTEN:.0%}")
    tiny = [c for c in cells if TINY < c.error <= SMALL]
    print(
        f"Of {len(tiny)} fits with true errors from {TINY:g} to {SMALL:g} {np.mean([is_bounded(c) for c in tiny]):.1%} have such a bound."
    )
    holds &= claim_components(cells)
    holds &= claim(not broken, f"no fit failed; {len(refused)} were refused for an indefinite kernel", failed)
    costs(cells)
    return holds


def draw(cells: list[Cell], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 5.2), layout="constrained")
    for large, color in ((False, "#0072b2"), (True, "#e69f00")):
        for share, marker in ((True, "o"), (False, "^")):
            some = [c for c in cells if (c.rows > MANY_ROWS) == large and c.share_rows == share]
            x, y = (np.maximum([getattr(c, name) for c in some], 1e-12) for name in ("error", "estimate"))
            label = f"{'more than' if large else 'up to'} {MANY_ROWS} rows, share_rows={share}"
            axes.loglog(x, y, marker, color=color, alpha=0.5, ms=4, mew=0, label=label)
    line = np.array([1e-12, 1.0])
    axes.loglog(line, line, "k-", lw=1)
    axes.fill_between(line, LOW * line, HIGH * line, color="k", alpha=0.08, lw=0, label=f"{LOW:g} to {HIGH:g} times")
    axes.axhline(TOL, color="k", ls=":", lw=1)
    axes.text(2e-12, 1.3 * TOL, "tol")
    axes.set(xlabel="true error (sin² of the angle between spans)", ylabel="estimated error", xlim=(1e-12, 1.5), ylim=(1e-12, 1.5))  # fmt: skip
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)


# ------------------------------------------------------------------ command line


def compute(given: argparse.Namespace) -> tuple[list[Cell], list[str]]:
    seeds = given.seeds or ([0] if given.quick else list(range(10)))
    wanted = [
        problem
        for problem in problems(quick_grid() if given.quick else GRID, seeds)
        if given.only in (None, problem.data) and (given.data or problem.data != "mnist")
    ]
    begin(given.out)
    cells: list[Cell] = []
    failed: list[str] = []
    start = time.perf_counter()
    with ProcessPoolExecutor(given.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(solve, problem, given.data, given.out, given.device): problem for problem in wanted}
        for i, done in enumerate(as_completed(running), 1):
            try:
                some, lost = done.result()
            except Exception as error:  # such as a process that was killed
                some, lost = [], [f"{running[done]}: {type(error).__name__}: {error}"]
            cells += some
            failed += lost
            if sys.stderr.isatty() or i % 20 == 0:
                print(
                    f"{i} of {len(wanted)}, {len(cells)} fits, {time.perf_counter() - start:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    return cells, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="MNIST's digits 0, 3, 5, 8 (X, y in an npz); left out without it")
    parser.add_argument("--seeds", type=int, nargs="+", help="0 to 9; with --quick 0")
    parser.add_argument("--only", choices=["mnist", *TABLES, *GENERATED], help="one data set")
    parser.add_argument("--quick", action="store_true", help="a small grid")
    parser.add_argument("--out", type=Path, help="every cell, as csv")
    parser.add_argument("--read", type=Path, help="report the cells of this csv, without fits")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", help="fit on this device with PyTorch, such as cuda")
    given = parser.parse_args()
    cells, failed = (read(given.read), []) if given.read else compute(given)
    if not cells:
        sys.exit("no fits")
    if given.figure:
        draw(cells, given.figure)
    sys.exit(0 if report(cells, failed) else 1)


if __name__ == "__main__":
    main()
