"""References for the decentralized answer: central, local and neighborhood kernel PCA.

Each returns node models, with the same interface as a fit. They use all data in one place; nothing here is decentralized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

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
from .scaling import Columns
from .signs import reference, signed

Array = Any

IN_COMMON = 1e-6  # a direction with a smaller part outside some node's span counts as common to all
ARPACK_ROWS = 2000  # from here on ARPACK finds a few eigenvectors faster than LAPACK


def central(
    X_or_parts: Array | Sequence[Array],
    n_components: int = 2,
    kernel: str | Callable[..., Any] = "rbf",
    gamma: float | str | None = "scale",
    degree: float = 3,
    coef0: float = 1.0,
    kernel_params: Mapping[str, Any] | None = None,
    normalize: bool = False,
    standardize: bool = False,
) -> NodeModel:
    """Kernel PCA of all the data in one place: what every node should end with.

    Examples
    --------
    >>> import numpy as np
    >>> import dekpca
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> dekpca.baselines.central(X, 2, gamma=0.1).transform(X).shape
    (50, 2)
    """
    parts, features = _samples([X_or_parts] if is_frame(X_or_parts) or aac.is_array_api_obj(X_or_parts) else X_or_parts)
    (X,), columns = _standardized([np.concatenate(parts)], standardize)
    k = _settled([X], kernel, gamma, degree, coef0, kernel_params, normalize)
    return _one("central", X, n_components, k, columns, features, "samples of all nodes")


def local(
    parts: Sequence[Array],
    n_components: int = 2,
    kernel: str | Callable[..., Any] = "rbf",
    gamma: float | str | None = "scale",
    degree: float = 3,
    coef0: float = 1.0,
    kernel_params: Mapping[str, Any] | None = None,
    normalize: bool = False,
    standardize: bool = False,
) -> list[NodeModel]:
    """Kernel PCA of each node's own data: what a node has without communication.

    Examples
    --------
    >>> import numpy as np
    >>> import dekpca
    >>> parts = [np.random.default_rng(j).normal(size=(20, 3)) for j in range(4)]
    >>> [model.name for model in dekpca.baselines.local(parts, 2)]
    ['0', '1', '2', '3']
    """
    parts, features = _samples(parts)
    parts, columns = _standardized(parts, standardize)
    k = _settled(parts, kernel, gamma, degree, coef0, kernel_params, normalize)
    return [
        _one(str(j), part, n_components, k, columns, features, f"samples of node {j}") for j, part in enumerate(parts)
    ]


def neighborhood(
    parts: Sequence[Array],
    network: Network,
    n_components: int = 2,
    kernel: str | Callable[..., Any] = "rbf",
    gamma: float | str | None = "scale",
    degree: float = 3,
    coef0: float = 1.0,
    kernel_params: Mapping[str, Any] | None = None,
    normalize: bool = False,
    standardize: bool = False,
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
    parts, features = _samples(parts)
    parts, columns = _standardized(parts, standardize)
    if len(parts) != len(network):
        raise ValueError(f"{len(parts)} parts for a network of {len(network)} nodes; give one for each node")
    k = _settled(parts, kernel, gamma, degree, coef0, kernel_params, normalize)
    models = []
    for j, own in enumerate(parts):
        gram = _centered(k, own, own)
        cross = np.concatenate([gram] + [_centered(k, own, parts[q]) for q in network.neighbors(j)], axis=1)
        lam, basis = scipy.linalg.eigh(gram)
        keep = lam > CUTOFF * max(lam[-1], 0)
        white = basis[:, keep] / np.sqrt(lam[keep])  # unit functions of the node
        seen = white.T @ cross
        values, vectors = scipy.linalg.eigh(seen @ seen.T)
        found = min(n_components, len(values))
        coefficients = white @ vectors[:, ::-1][:, :found]
        name = network.names[j]
        models.append(
            _model(
                name,
                own,
                k,
                coefficients,
                values[::-1][:found],
                n_components,
                columns,
                features,
                f"samples of node {name}",
            )
        )
    return models


def plain_consensus(
    parts: Sequence[Array],
    n_components: int = 2,
    kernel: str | Callable[..., Any] = "rbf",
    gamma: float | str | None = "scale",
    degree: float = 3,
    coef0: float = 1.0,
    kernel_params: Mapping[str, Any] | None = None,
    normalize: bool = False,
    standardize: bool = False,
) -> list[NodeModel]:
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
    parts, features = _samples(parts)
    parts, columns = _standardized(parts, standardize)
    k = _settled(parts, kernel, gamma, degree, coef0, kernel_params, normalize)
    ends = np.cumsum([0, *map(len, parts)])
    gram = np.block([[_centered(k, a, b) for b in parts] for a in parts])
    lam, basis = scipy.linalg.eigh(gram)
    keep = lam > CUTOFF * max(lam[-1], 0)
    rows = basis[:, keep] * np.sqrt(lam[keep])  # coordinates of all samples in an orthonormal basis of their span
    spans = [scipy.linalg.orth(rows[a:b].T, rcond=CUTOFF**0.5) for a, b in pairwise(ends)]
    mean_projection = sum(span @ span.T for span in spans) / len(spans)
    shares, directions = scipy.linalg.eigh(mean_projection)
    common = directions[:, shares > 1 - IN_COMMON]
    values, vectors = (
        scipy.linalg.eigh(common.T @ (rows.T @ rows) @ common) if common.size else (np.empty(0), np.empty((0, 0)))
    )
    found = min(n_components, len(values))
    functions = common @ vectors[:, ::-1][:, :found] if found else np.zeros((rows.shape[1], 0))
    models = []
    for j, (part, (a, b)) in enumerate(zip(parts, pairwise(ends), strict=True)):
        coefficients = scipy.linalg.pinv(rows[a:b].T, rtol=CUTOFF) @ functions
        models.append(
            _model(
                str(j),
                part,
                k,
                coefficients,
                values[::-1][:found],
                n_components,
                columns,
                features,
                f"samples of node {j}",
            )
        )
    return models


def _samples(parts: Sequence[Array]) -> tuple[list[np.ndarray], Features]:
    """Matrices of numbers, on NumPy, with named columns in the internal order of the estimator."""
    features, found = check_parts(list(parts), list(map(str, range(len(parts)))), None, "error")
    return [to_numpy(part) for part in found], features


def _standardized(parts: Sequence[np.ndarray], wanted: bool) -> tuple[Sequence[np.ndarray], Columns | None]:
    """Columns scaled by the mean and standard deviation of all the data, as in a network."""
    if not wanted:
        return parts, None
    X = np.concatenate(parts)
    columns = Columns.of(X.mean(axis=0), X.var(axis=0))
    return [columns.standardized(part) for part in parts], columns


def _settled(
    parts: Sequence[np.ndarray], kernel: Any, gamma: Any, degree: Any, coef0: Any, params: Any, normalize: bool
) -> Kernel:
    n_features = parts[0].shape[1]
    settled = make_kernel(kernel, gamma, degree, coef0, params, normalize, n_features)
    if not isinstance(gamma, str) or not settled.has_gamma:
        return settled
    return replace(settled, gamma=settled.scaled(n_features, float(np.concatenate(parts).var())))


def _centered(kernel: Kernel, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return double_centered(kernel.gram(A, B))


def _one(
    name: str, X: np.ndarray, n_components: int, kernel: Kernel, columns: Columns | None, features: Features, what: str
) -> NodeModel:
    n = len(X)
    found = min(n_components, n)
    gram = _centered(kernel, X, X)
    if n >= ARPACK_ROWS and found < n // 10:
        values, vectors = eigsh(gram, found, which="LA", v0=np.random.default_rng(0).uniform(-1, 1, n))
    else:
        values, vectors = scipy.linalg.eigh(gram, subset_by_index=[n - found, n - 1])
        if len(values) < found:  # LAPACK's subset driver may lose some where many are equal
            values, vectors = (x[..., n - found :] for x in scipy.linalg.eigh(gram))
    values, vectors = values[::-1], signed(vectors[:, ::-1], reference(kernel, X.shape[1])(X) @ vectors[:, ::-1])
    positive = values > CUTOFF * max(values[0], 0)
    scale = np.where(positive, 1.0 / np.sqrt(np.where(positive, values, 1.0)), 0.0)
    return _model(name, X, kernel, vectors * scale, np.maximum(values, 0.0), n_components, columns, features, what)


def _model(
    name: str,
    X: np.ndarray,
    kernel: Kernel,
    coefficients: np.ndarray,
    values: np.ndarray,
    n_components: int,
    columns: Columns | None,
    features: Features,
    what: str,
) -> NodeModel:
    """Functions over X, centred by its mean; columns of zeros for components that the data does not have."""
    missing = n_components - coefficients.shape[1]
    coefficients = np.pad(coefficients - coefficients.mean(axis=0), [(0, 0), (0, missing)])
    values = np.pad(values, (0, missing))
    raw = Function((X,), (coefficients,), np.zeros(n_components, dtype=X.dtype))
    function = Function((X,), (coefficients,), raw(kernel, X).mean(axis=0))
    contents = [Held(len(X), what, samples=True)]
    return NodeModel(name, kernel, {"node": function}, "node", values, "local", contents, columns, features)
