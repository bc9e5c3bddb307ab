"""References for the decentralized answer: central, local and neighborhood kernel PCA.

Each returns node models, with the same interface as a fit. They use all data in one place; nothing here is decentralized.
`options` are parameters of `DecentralizedKernelPCA`, with its defaults: kernel, gamma, degree, coef0, kernel_params,
normalize and standardize.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import Any, TypedDict, Unpack

import array_api_compat as aac
import numpy as np
import scipy.linalg
from scipy.sparse.linalg import eigsh

from .arrays import CUTOFF, double_centered, to_numpy
from .data.checks import check_parts
from .data.columns import Features, is_frame
from .kernels import Kernel, make_kernel
from .network import Network
from .node_model import Function, Held, NodeModel
from .scaling import Scales
from .signs import reference, signed

Array = Any

IN_COMMON = 1e-6  # a direction with a smaller part outside some node's span counts as common to all
ARPACK_ROWS = 2000  # from here on ARPACK finds a few eigenvectors faster than LAPACK


class Options(TypedDict, total=False):
    """Parameters of `DecentralizedKernelPCA` that a reference has too."""

    kernel: str | Callable[..., Any]
    gamma: float | str | None
    degree: float
    coef0: float
    kernel_params: Mapping[str, Any] | None
    normalize: bool
    standardize: bool


def central(X_or_parts: Array | Sequence[Array], n_components: int = 2, **options: Unpack[Options]) -> NodeModel:
    """Kernel PCA of all the data in one place: what every node should end with.

    Examples
    --------
    >>> import numpy as np
    >>> import dekpca
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> dekpca.baselines.central(X, 2, gamma=0.1).transform(X).shape
    (50, 2)
    """
    whole = is_frame(X_or_parts) or aac.is_array_api_obj(X_or_parts)
    problem = _problem([X_or_parts] if whole else X_or_parts, n_components, **options)
    return problem.alone("central", np.concatenate(problem.parts), "samples of all nodes")


def local(parts: Sequence[Array], n_components: int = 2, **options: Unpack[Options]) -> list[NodeModel]:
    """Kernel PCA of each node's own data: what a node has without communication.

    Examples
    --------
    >>> import numpy as np
    >>> import dekpca
    >>> parts = [np.random.default_rng(j).normal(size=(20, 3)) for j in range(4)]
    >>> [model.name for model in dekpca.baselines.local(parts, 2)]
    ['0', '1', '2', '3']
    """
    problem = _problem(parts, n_components, **options)
    return [problem.alone(str(j), part, f"samples of node {j}") for j, part in enumerate(problem.parts)]


def neighborhood(
    parts: Sequence[Array], network: Network, n_components: int = 2, **options: Unpack[Options]
) -> list[NodeModel]:
    """The best functions over each node's own samples for the data of its neighborhood, every node centred by its own mean.

    Examples
    --------
    >>> import numpy as np
    >>> import dekpca
    >>> parts = [np.random.default_rng(j).normal(size=(20, 3)) for j in range(4)]
    >>> len(dekpca.baselines.neighborhood(parts, dekpca.Network.path(4), 2))
    4
    """
    problem = _problem(parts, n_components, **options)
    if len(problem.parts) != len(network):
        raise ValueError(f"{len(problem.parts)} parts for a network of {len(network)} nodes; give one for each node")
    models = []
    for j, own in enumerate(problem.parts):
        gram = problem.centered(own, own)
        around = [problem.centered(own, problem.parts[q]) for q in network.neighbors(j)]
        lam, basis = scipy.linalg.eigh(gram)
        keep = lam > CUTOFF * max(lam[-1], 0)
        white = basis[:, keep] / np.sqrt(lam[keep])  # unit functions of the node
        seen = white.T @ np.concatenate([gram, *around], axis=1)
        values, vectors = scipy.linalg.eigh(seen @ seen.T)
        coefficients, name = white @ vectors[:, ::-1], network.names[j]
        models.append(problem.model(name, own, coefficients, values[::-1], f"samples of node {name}"))
    return models


def plain_consensus(parts: Sequence[Array], n_components: int = 2, **options: Unpack[Options]) -> list[NodeModel]:
    """The best functions under the constraint w_j = w_q, every node centred by its own mean (the paper's Fig. 1).

    A function that all nodes can represent lies in the intersection of the spans of their samples. One node with
    poor data makes the intersection small; for most kernels it is empty, and the functions are zero.

    Examples
    --------
    >>> import numpy as np
    >>> import dekpca
    >>> rng = np.random.default_rng(0)
    >>> plane, line = rng.normal(size=(30, 2)) * [3, 1], rng.normal(size=(30, 1)) * [0, 1]
    >>> apart = dekpca.baselines.plain_consensus([plane, line], 1, kernel="linear")[0]
    >>> a, b, c = apart.transform([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])[:, 0]
    >>> bool(abs(b - a) < 1e-9), bool(abs(abs(c - a) - 1) < 1e-9)  # it points along the poor node's line
    (True, True)
    """
    problem = _problem(parts, n_components, **options)
    ends = np.cumsum([0, *map(len, problem.parts)])
    gram = np.block([[problem.centered(a, b) for b in problem.parts] for a in problem.parts])
    lam, basis = scipy.linalg.eigh(gram)
    keep = lam > CUTOFF * max(lam[-1], 0)
    rows = basis[:, keep] * np.sqrt(lam[keep])  # coordinates of all samples in an orthonormal basis of their span
    spans = [scipy.linalg.orth(rows[a:b].T, rcond=CUTOFF**0.5) for a, b in pairwise(ends)]
    mean_projection = sum(span @ span.T for span in spans) / len(spans)
    shares, directions = scipy.linalg.eigh(mean_projection)
    common = directions[:, shares > 1 - IN_COMMON]
    values, vectors = np.linalg.eigh(common.T @ (rows.T @ rows) @ common)
    models = []
    for j, (part, (a, b)) in enumerate(zip(problem.parts, pairwise(ends), strict=True)):
        coefficients = scipy.linalg.pinv(rows[a:b].T, rtol=CUTOFF) @ (common @ vectors[:, ::-1])
        models.append(problem.model(str(j), part, coefficients, values[::-1], f"samples of node {j}"))
    return models


@dataclass(frozen=True, eq=False)
class _Problem:
    """The rows of the nodes, as the kernel takes them, and what their models have in common."""

    parts: list[np.ndarray]
    n_components: int
    kernel: Kernel
    scales: Scales | None
    features: Features

    def centered(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        return double_centered(self.kernel.gram(A, B))

    def alone(self, name: str, X: np.ndarray, what: str) -> NodeModel:
        """Kernel PCA of these rows."""
        n = len(X)
        found = min(self.n_components, n)
        gram = self.centered(X, X)
        if n >= ARPACK_ROWS and found < n // 10:
            values, vectors = eigsh(gram, found, which="LA", v0=np.random.default_rng(0).uniform(-1, 1, n))
        else:
            values, vectors = scipy.linalg.eigh(gram, subset_by_index=[n - found, n - 1])
            if len(values) < found:  # LAPACK's subset driver may lose some where many are equal
                values, vectors = (x[..., n - found :] for x in scipy.linalg.eigh(gram))
        values, vectors = values[::-1], vectors[:, ::-1]
        vectors = signed(vectors, reference(self.kernel, X)(X) @ vectors)
        positive = values > CUTOFF * max(values[0], 0)
        scale = np.where(positive, 1.0 / np.sqrt(np.where(positive, values, 1.0)), 0.0)
        model = self.model(name, X, vectors * scale, np.maximum(values, 0.0), what)
        mean = Function((X,), (np.full((n, 1), 1.0 / n, dtype=X.dtype),), np.zeros(1, dtype=X.dtype))
        return replace(model, mean=replace(mean, offset=0.5 * mean(self.kernel, X).mean(axis=0)), n_rows=float(n))

    def model(self, name: str, X: np.ndarray, coefficients: np.ndarray, values: np.ndarray, what: str) -> NodeModel:
        """The first functions over X, centred by its mean; columns of zeros for components that the data does not have."""
        k = self.n_components
        missing = max(0, k - len(values))
        coefficients = np.pad((coefficients - coefficients.mean(axis=0))[:, :k], [(0, 0), (0, missing)])
        raw = Function((X,), (coefficients,), np.zeros(k, dtype=X.dtype))
        function = replace(raw, offset=raw(self.kernel, X).mean(axis=0))
        values, contents = np.pad(values[:k], (0, missing)), [Held(len(X), what, samples=True)]
        return NodeModel(
            name, self.kernel, {"node": function}, "node", values, "local", contents, self.scales, self.features
        )


def _problem(
    parts: Sequence[Array],
    n_components: int,
    kernel: str | Callable[..., Any] = "rbf",
    gamma: float | str | None = "scale",
    standardize: bool = False,
    **rest: Any,
) -> _Problem:
    """Checked rows on NumPy, with named columns in the internal order of the estimator; columns scaled over all data, as in a network."""
    if not isinstance(n_components, Integral) or n_components < 1:
        raise ValueError(f"n_components={n_components!r}: a reference has a whole number of components, at least 1")
    features, found = check_parts(list(parts), list(map(str, range(len(parts)))), None, "error")
    rows, scales = [to_numpy(part) for part in found], None
    if standardize:
        X = np.concatenate(rows)
        scales = Scales.of(X.mean(axis=0), X.var(axis=0))
        rows = [scales.standardized(part) for part in rows]
    made = make_kernel(kernel, gamma, n_features=features.count, **rest)
    if isinstance(gamma, str) and made.has_gamma:
        made = replace(made, gamma=made.scaled(features.count, float(np.concatenate(rows).var())))
    return _Problem(rows, n_components, made, scales, features)
