"""Measures of the nodes' answers, for an observer with all data and the central answer.

    similarity   |cos| in feature space between a node's own function w_j and the central component: the paper's measure
    oracle       the same for the projection of the central component on the node's span: the optimum for w_j
    agreement    absolute correlation over given points of a node's values with the central ones: what a user cares about
    angles       principal angles between the span of a node's functions and that of the central components

`model` is a fitted DecentralizedKernelPCA or a list of node models (a baseline's, say); `central` is `baselines.central`
of all the data. All return arrays (nodes, components), on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import CUTOFF, double_centered, like, to_numpy
from .chunks import row_tiles
from .data.columns import Samples, check_same_names
from .kernels import TILE_ROWS, Kernel
from .node_model import Function, NodeModel

Array = Any


def similarity(model: Any, central: NodeModel) -> np.ndarray:
    """Absolute cos(w_j, u_i) for each node j and component i.

    Examples
    --------
    >>> import numpy as np
    >>> import dekpca
    >>> X = np.random.default_rng(0).normal(size=(90, 3))
    >>> model = dekpca.DecentralizedKernelPCA(2, gamma=0.1, network=3, random_state=0).fit(X)
    >>> central = dekpca.baselines.central(X, 2, gamma=0.1)
    >>> dekpca.metrics.similarity(model, central).shape
    (3, 2)
    """
    nodes, u, at = _in_feature_space(model, central)
    u_norm = _norms(central.kernel, u)
    out = []
    for node in nodes:
        w = _hosted(node.own_function())
        k = min(w.offset.shape[0], u.offset.shape[0])
        sets = zip(w.points, w.coefficients, strict=True)
        inner = sum((c[:, :k] * at(p)[:, :k]).sum(axis=0) for p, c in sets)
        out.append(_ratio(np.abs(inner), _norms(node.kernel, w)[:k] * u_norm[:k]))
    return np.array(out)


def oracle(model: Any, central: NodeModel) -> np.ndarray:
    """The similarity of P_j u_i, the best that node j could express.

    Examples
    --------
    >>> import dekpca
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris().data
    >>> central, alone = dekpca.baselines.central(X, 2, gamma=0.1), dekpca.baselines.local([X[:50]], 2, gamma=0.1)
    >>> similarity, best = dekpca.metrics.similarity(alone, central), dekpca.metrics.oracle(alone, central)
    >>> bool((similarity <= best).all())
    True
    """
    nodes, u, at = _in_feature_space(model, central)
    u_norm = _norms(central.kernel, u)
    out = []
    for node in nodes:
        sets = _hosted(node.own_function()).points
        points, values = np.concatenate(sets), np.concatenate([at(p) for p in sets])
        gram = node.kernel.gram(points, points)
        if node.centering == "local" and "node" in node.functions:
            # functions over own samples have only differences from the own mean
            start = sum(len(p) for p in sets[:-1])
            values[start:] -= values[start:].mean(axis=0)
            gram[start:, start:] = double_centered(gram[start:, start:])
            gram[:start, start:] -= gram[:start, start:].mean(axis=1, keepdims=True)
            gram[start:, :start] = gram[:start, start:].T
        inside = _orthonormal(gram).T @ values
        out.append(_ratio(np.sqrt((inside**2).sum(axis=0)), u_norm))
    return np.array(out)


def agreement(model: Any, central: NodeModel, X: Array, expansion: str | None = None) -> np.ndarray:
    """Absolute correlation over the rows of X of each node's component values with the central ones.

    Examples
    --------
    >>> import dekpca
    >>> from sklearn.datasets import load_iris
    >>> X = load_iris().data
    >>> model = dekpca.DecentralizedKernelPCA(2, network=3, random_state=0).fit(X)
    >>> central = dekpca.baselines.central(X, 2, gamma=model.gamma_)
    >>> bool((dekpca.metrics.agreement(model, central, X) > 0.999).all())
    True
    """
    nodes = _nodes(model, central)
    samples = Samples.of(X, "X")
    samples = Samples(to_numpy(samples.X), samples.names or nodes[0].features.names or central.features.names)
    truth = central.transform(samples)
    functions = [_hosted(node.function(expansion)) for node in nodes]
    values = _evaluate(nodes[0].kernel, functions, to_numpy(_prepared(nodes[0], samples, expansion)))
    k = min(values.shape[2], truth.shape[1])
    values, truth = values[..., :k], truth[:, :k]
    values, truth = values - values.mean(axis=1, keepdims=True), truth - truth.mean(axis=0)
    inner = np.abs((values * truth).sum(axis=1))
    return _ratio(inner, np.sqrt((values**2).sum(axis=1) * (truth**2).sum(axis=0)))


def angles(model: Any, central: NodeModel) -> np.ndarray:
    """Principal angles (radians, rising) between the span of each node's functions and that of the central components.

    Examples
    --------
    >>> import numpy as np
    >>> import dekpca
    >>> parts = [np.random.default_rng(j).normal(size=(20, 3)) for j in range(4)]
    >>> central, local = dekpca.baselines.central(parts, 2), dekpca.baselines.local(parts, 2)
    >>> dekpca.metrics.angles(local, central).shape
    (4, 2)
    """
    nodes, u, at = _in_feature_space(model, central)
    u_basis = _orthonormal(_inner(central.kernel, u))
    out = []
    for node in nodes:
        w = _hosted(node.own_function())
        cross = sum(c.T @ at(p) for p, c in zip(w.points, w.coefficients, strict=True))
        cosines = np.linalg.svd(_orthonormal(_inner(node.kernel, w)).T @ cross @ u_basis, compute_uv=False)
        out.append(np.arccos(np.clip(cosines, 0.0, 1.0)))
    return np.array(out)


class _Raw:
    """<phi(x), u_i> for sets of points; a set that several nodes hold (the landmarks) is evaluated once."""

    def __init__(self, kernel: Kernel, u: Function):
        self._kernel, self._u = kernel, replace(u, offset=np.zeros_like(u.offset))
        # Kept with their points, which stay alive, so that no address is reused.
        self._seen: dict[tuple[int, int], tuple[Array, np.ndarray]] = {}

    def __call__(self, points: np.ndarray) -> np.ndarray:
        key = _identity(points)
        if key not in self._seen:
            self._seen[key] = (points, self._u(self._kernel, points))
        return self._seen[key][1]


def _identity(points: np.ndarray) -> tuple[int, int]:
    """Views of the same rows are the same set of points."""
    return points.__array_interface__["data"][0], points.shape[0]


def _nodes(model: Any, central: NodeModel) -> Sequence[NodeModel]:
    nodes = getattr(model, "node_models_", model)
    if isinstance(nodes, NodeModel):
        nodes = [nodes]
    if len(nodes) == 0:
        raise ValueError("no node models to measure")
    if not _same(nodes[0].kernel, central.kernel):
        both = f"the nodes have {nodes[0].kernel}, the central answer {central.kernel}"
        raise ValueError(f"{both}; use the same for both")
    if (nodes[0].scales is None) != (central.scales is None):
        standardized, raw = ("nodes", "central answer") if central.scales is None else ("central answer", "nodes")
        raise ValueError(f"the {standardized} standardize columns, the {raw} not; use the same for both")
    return nodes


def _prepared(node: NodeModel, samples: Samples, expansion: str | None) -> Array:
    offset = node.function(expansion).offset
    return node.prepared(Samples(like(offset, samples.X), samples.names), offset)


def _in_feature_space(model: Any, central: NodeModel) -> tuple[Sequence[NodeModel], Function, _Raw]:
    """The nodes, the central components with columns in the order of the nodes' points, and those components as a function."""
    nodes = _nodes(model, central)
    if nodes[0].own_function().fourier:
        why = (
            "random features are not in the kernel's feature space, so their angle to the central answer has no meaning"
        )
        raise ValueError(f"{why}; use agreement")
    u, mine, theirs = _hosted(central.own_function()), nodes[0].features, central.features
    if mine.names is not None and theirs.names is not None:
        check_same_names(theirs.names, mine.names, "the central answer", "the nodes")  # both have natural order
    else:
        u = replace(u, points=tuple(mine.to_sorted(theirs.from_sorted(p)) for p in u.points))
    return nodes, u, _Raw(central.kernel, u)


def _same(one: Kernel, two: Kernel) -> bool:
    """Whether two kernels are the same function; normalization does not change a kernel with k(x, x) = 1."""
    numbers = {name: getattr(one, name) for name in ("gamma", "degree", "coef0")}
    same = one == replace(two, **numbers, normalize=one.normalize if one.is_normal else two.normalize)
    return same and all(np.isclose(number, getattr(two, name), rtol=1e-6, atol=0) for name, number in numbers.items())


def _hosted(function: Function) -> Function:
    """The function with NumPy arrays (the same objects if they are NumPy already)."""
    points, coefficients = tuple(map(to_numpy, function.points)), tuple(map(to_numpy, function.coefficients))
    return Function(points, coefficients, to_numpy(function.offset), function.fourier)


def _inner(kernel: Kernel, w: Function) -> np.ndarray:
    """Inner products of a function's columns in feature space."""
    raw = replace(w, offset=np.zeros_like(w.offset))
    return sum(c.T @ raw(kernel, p) for p, c in zip(w.points, w.coefficients, strict=True))


def _norms(kernel: Kernel, w: Function) -> np.ndarray:
    return np.sqrt(np.maximum(np.diagonal(_inner(kernel, w)), 0.0))


def _orthonormal(inner: np.ndarray) -> np.ndarray:
    """Columns that turn functions with these inner products into an orthonormal basis of their span."""
    lam, basis = np.linalg.eigh(0.5 * (inner + inner.T))
    keep = lam > CUTOFF * max(lam[-1], 0)
    return basis[:, keep] / np.sqrt(lam[keep])


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """top / bottom, and 0 if a node has no such component."""
    return np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1.0), 0.0)


def _evaluate(kernel: Kernel, functions: Sequence[Function], X: np.ndarray) -> np.ndarray:
    """Values of many nodes' functions (J, rows, k); k(X, points) is computed once for points that several nodes hold."""
    sets: dict[tuple[int, int], tuple[np.ndarray, list[int], list[np.ndarray]]] = {}  # points, holders, coefficients
    for j, function in enumerate(functions):
        for points, c in zip(function.points, function.coefficients, strict=True):
            _, holders, coefficients = sets.setdefault(_identity(points), (points, [], []))
            holders.append(j)
            coefficients.append(c)
    offsets = np.array([f.offset for f in functions])
    values = np.empty((len(functions), len(X), offsets.shape[1]))
    bases = [(functions[0].basis(kernel, p), holders, c) for p, holders, c in sets.values()]
    for rows in row_tiles(len(X), TILE_ROWS):
        values[:, rows] = -offsets[:, None, :]
        for basis, holders, coefficients in bases:
            wide = basis(X[rows]) @ np.concatenate(coefficients, axis=1)
            values[holders, rows] += np.moveaxis(wide.reshape(len(wide), -1, values.shape[2]), 1, 0)
    return values
