"""DecentralizedKernelPCA: the scikit-learn estimator.

Here parameters are checked, data is dealt to nodes and an engine is called. The algorithm is elsewhere (program.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Self

import array_api_compat as aac
import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from . import engines, progress
from .answer import Answer
from .core.spectrum import to_numpy
from .kernels import KERNELS, make_kernel
from .network import Network, listing, natural_key
from .node_model import EXPANSIONS, NodeModels
from .options import Options, check_rho, noise_level, settle

Array = Any

ROWS_A_NODE = 200  # when the number of nodes is left to us
DEGREE = 4  # of the random regular network we then make


class DecentralizedKernelPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Kernel PCA of data that sits on many nodes which talk to their neighbors only.

    Every node ends with (nearly) the components that kernel PCA would find on all the data together.

    Parameters
    ----------
    n_components : int, default=2
        Number of components.
    kernel : {"rbf", "linear", "poly", "laplacian", "sigmoid", "cosine"} or callable, default="rbf"
        A callable maps two sample matrices to the matrix of k(a, b). It must be positive semi-definite.
    gamma : float, "scale" or None, default=None
        Of rbf, laplacian, poly and sigmoid. None is 1 / n_features; "scale" is 1 / (n_features * variance of all data),
        by a network sum.
    degree, coef0 : float
        Of poly (and coef0 of sigmoid).
    kernel_params : dict or None
        Keyword arguments for a callable kernel.
    normalize : bool, default=False
        Use k(x, y) / sqrt(k(x, x) k(y, y)).
    solver : {"projection", "landmarks"}, default="projection"
        "projection" is the iterative algorithm: samples go to neighbors. "landmarks" is one shot, in the span of the
        landmarks: no sample leaves its node unless it is a landmark.
    update : {"proximal", "paper"}, default="proximal"
        The step for z. The paper's can diverge; it is here to reproduce the paper (see `dekpca.PAPER`).
    centering : {"global", "local"} or None, default="global"
        Subtract the mean of the network (carried by the landmarks), of each node, or nothing.
    init : {"landmarks", "random", "local"}, default="landmarks"
        Where to start.
    rho : "auto", "paper-bound", float, sequence or callable, default="auto"
        Penalty. A sequence of (from iteration, penalty of the node itself, of its neighbors) or a callable (iteration,
        itself) -> penalty is a schedule.
    n_oversamples : "auto" or int, default="auto"
        Extra columns; "auto" is max(4, n_components), or what fits. Without them the last component may converge
        slowly.
    n_landmarks : "auto" or int, default="auto"
        "auto" is min(200, N // 10). 0 is the paper's world and needs centering "local" or None.
    landmarks : {"samples"}, default="samples"
        Where landmarks come from: samples drawn from the nodes in proportion to their sizes. They are shown to all
        nodes.
    expansion : {"neighborhood", "node", "landmarks"}, default="neighborhood"
        Through what a node evaluates new points, and what its model therefore holds: the samples of its neighborhood,
        its own, or the landmarks alone (which are part of the others too). With solver="landmarks" it is always the
        landmarks.
    exchange_noise : float or str, default=0
        Gaussian noise on samples before they leave a node (to neighbors or as landmarks), drawn once: a standard
        deviation, or a signal to noise ratio such as "20dB". Node models then hold noisy samples only; the components
        are still those of the samples without noise.
    max_iter : int, default=100
    tol : float, default=1e-3
        All nodes stop together when each is done: the square of its disagreement with its neighbors, and that of its
        change in five iterations, both relative to the size of the components, are below this. Functions that differ by
        a relative square of 1e-3 correlate to 0.9995; 0 runs all of max_iter.
    network : Network, int or None, default=None
        A number of nodes, or None for about 200 rows a node: a seeded random 4-regular network (complete up to 5
        nodes).
    engine : {"local"}, default="local"
    dtype : "float32", "float64" or None, default=None
        To compute in; None is that of the data.
    random_state : int, RandomState or None
        Deals the rows and draws network, landmarks, noise and random starts; at each node by its name, whatever its
        number.
    diagnostics : bool, default=False
        Record the augmented Lagrangian too.
    verbose : bool, default=False
        Show progress on standard error.

    Attributes
    ----------
    eigenvalues_ : (n_components,)
        Estimates of the eigenvalues of the centred kernel matrix of all data.
    explained_variance_ratio_ : (n_components,)
    n_iter_ : int
        Iterations in all; 1 where none were needed.
    converged_ : bool
    history_ : dict
        "residual", "change", "objective" (and "lagrangian"): arrays (iterations,), "residual_by_node" (iterations,
        nodes); "messages" and "bytes": for each phase what each node sent.
    node_models_ : sequence of NodeModel
    network_ : Network
    answering_node_ : int
        The node through which `transform` answers.

    Examples
    --------
    >>> import numpy as np
    >>> from dekpca import DecentralizedKernelPCA, Network
    >>> X = np.random.default_rng(0).normal(size=(200, 5))
    >>> model = DecentralizedKernelPCA(n_components=2, gamma=0.05, network=Network.ring(6), random_state=0)
    >>> Z = model.fit_transform(X)
    >>> Z.shape, model.converged_
    ((200, 2), True)
    >>> model.node_models_[3].transform(X[:2]).shape
    (2, 2)
    """

    _parameter_constraints = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "kernel": [StrOptions(set(KERNELS)), callable],
        "gamma": [Interval(Real, 0, None, closed="neither"), StrOptions({"scale"}), None],
        "degree": [Interval(Real, 0, None, closed="left")],
        "coef0": [Interval(Real, None, None, closed="neither")],
        "kernel_params": [dict, None],
        "normalize": ["boolean"],
        "solver": [StrOptions({"projection", "landmarks"})],
        "update": [StrOptions({"proximal", "paper"})],
        "centering": [StrOptions({"global", "local"}), None],
        "init": [StrOptions({"landmarks", "random", "local"})],
        "rho": "no_validation",  # check_rho says more than a list of types can
        "n_oversamples": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "n_landmarks": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "landmarks": [StrOptions({"samples"})],
        "expansion": [StrOptions(set(EXPANSIONS))],
        "exchange_noise": [Interval(Real, 0, None, closed="left"), str],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "network": [Network, Interval(Integral, 1, None, closed="left"), None],
        "engine": [StrOptions(set(engines.ENGINES))],
        "dtype": "no_validation",
        "random_state": ["random_state"],
        "diagnostics": ["boolean"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_components=2,
        *,
        kernel="rbf",
        gamma=None,
        degree=3,
        coef0=1.0,
        kernel_params=None,
        normalize=False,
        solver="projection",
        update="proximal",
        centering="global",
        init="landmarks",
        rho="auto",
        n_oversamples="auto",
        n_landmarks="auto",
        landmarks="samples",
        expansion="neighborhood",
        exchange_noise=0.0,
        max_iter=100,
        tol=1e-3,
        network=None,
        engine="local",
        dtype=None,
        random_state=None,
        diagnostics=False,
        verbose=False,
    ):
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.kernel_params = kernel_params
        self.normalize = normalize
        self.solver = solver
        self.update = update
        self.centering = centering
        self.init = init
        self.rho = rho
        self.n_oversamples = n_oversamples
        self.n_landmarks = n_landmarks
        self.landmarks = landmarks
        self.expansion = expansion
        self.exchange_noise = exchange_noise
        self.max_iter = max_iter
        self.tol = tol
        self.network = network
        self.engine = engine
        self.dtype = dtype
        self.random_state = random_state
        self.diagnostics = diagnostics
        self.verbose = verbose

    # ------------------------------------------------------------------ fitting
    def fit(self, X: Array, y: Any = None, nodes: Any = None) -> Self:
        """Deal the rows of X to the nodes and find the components.

        Parameters
        ----------
        X : array (rows, columns)
            NumPy, or any array of the array API standard; the answers come in kind.
        nodes : sequence of labels, optional
            `nodes[i]` is the node (its name or number) of row i. By default a seeded permutation of the rows is dealt
            evenly.
        """
        self._check_parameters()
        X = self._check_samples(X)
        seed = self._seed()
        if nodes is None:
            network = self._make_network(max(1, round(X.shape[0] / ROWS_A_NODE)), seed)
            if X.shape[0] < len(network):
                raise ValueError(
                    f"n_samples={X.shape[0]} rows for {len(network)} nodes; each node needs at least one: use fewer nodes"
                )
            rows = np.array_split(np.random.default_rng(seed).permutation(X.shape[0]), len(network))
        else:
            network, rows = self._rows_by_label(nodes, X.shape[0], seed)
        _check_finite(X, "X", rows, network)
        xp = aac.array_namespace(X)
        device = aac.device(X)
        parts = [xp.take(X, xp.asarray(r, device=device), axis=0) for r in rows]
        return self._fit(parts, network, seed)

    def fit_parts(self, parts: Sequence[Array], y: Any = None) -> Self:
        """Find the components of data that is already apart: `parts[j]` are the samples (n_j, columns) of node j.

        Examples
        --------
        >>> import numpy as np
        >>> from dekpca import DecentralizedKernelPCA
        >>> rng = np.random.default_rng(0)
        >>> parts = [rng.normal(size=(n, 4)) for n in (30, 50, 20)]
        >>> DecentralizedKernelPCA(2, gamma=0.1, random_state=0).fit_parts(parts).network_
        Network(3 nodes, 3 edges, 2 neighbors a node)
        """
        self._check_parameters()
        if len(parts) == 0:
            raise ValueError("fit_parts needs at least one part")
        seed = self._seed()
        network = self._make_network(len(parts), seed)
        if len(network) != len(parts):
            raise ValueError(f"{len(parts)} parts for a network of {len(network)} nodes; give one part for each node")
        checked = [self._check_part(part, name) for part, name in zip(parts, network.names, strict=True)]
        _check_alike(checked, network)
        self.n_features_in_ = int(checked[0].shape[1])
        return self._fit(checked, network, seed)

    def _fit(self, parts: list[Array], network: Network, seed: int) -> Self:
        sizes = np.array([part.shape[0] for part in parts])
        if self.expansion == "landmarks" and self.n_landmarks == 0:
            raise ValueError(
                "expansion='landmarks' with n_landmarks=0: there is nothing to expand in; use 'node' or 'neighborhood'"
            )
        options = settle(self._options(parts[0].shape[1], seed), network, sizes, self.n_landmarks, self.n_oversamples)
        run = engines.get(self.engine)
        with progress.watch(bool(self.verbose), len(network), options) as watcher:
            outcome = run(parts, network, options, observer=watcher)
        answers: list[Answer] = outcome.answers
        first = answers[0]
        self.network_ = network
        self.eigenvalues_ = first.eigenvalues
        self.explained_variance_ratio_ = (
            first.eigenvalues / first.trace if float(first.trace) > 0 else first.eigenvalues * 0
        )
        self.n_iter_ = first.n_iter
        self.converged_ = first.converged
        self.node_models_ = NodeModels(answers, self.expansion, options.centering)
        self.history_ = _history(answers, outcome.traffic)
        self.answering_node_ = _best_informed(network, sizes)
        self._n_features_out = self.n_components
        if not self.converged_:
            self._warn()
        return self

    def _warn(self) -> None:
        residual, change = (self.history_[name][-1] for name in ("residual", "change"))
        last = int(np.argmax(self.history_["residual_by_node"][-1]))
        advice = "raise max_iter or tol"
        if self.update == "paper":
            advice += ", or use update='proximal': the paper's can diverge"
        elif self.rho != "auto":
            advice += ", or use rho='auto'"
        elif self.n_oversamples != "auto":
            advice += ", or n_oversamples, in case eigenvalues lie close together"
        warnings.warn(
            f"not converged after {self.n_iter_} iterations: relative residual {residual:.2g} (node {self.network_.names[last]}), "
            f"change {change:.2g} in the last iteration, where tol={self.tol:g} allows {self.tol**0.5:.2g}; the last iterate is kept; {advice}",
            ConvergenceWarning,
            stacklevel=4,
        )

    # ------------------------------------------------------------------ checks, at the edge
    def _check_parameters(self) -> None:
        self._validate_params()
        check_rho(self.rho)
        noise_level(self.exchange_noise)
        if self.dtype is not None and str(np.dtype(self.dtype)) not in ("float32", "float64"):
            raise ValueError(f"dtype={self.dtype!r}: known are 'float32', 'float64' and None")
        if self.solver == "landmarks" and self.update == "paper":
            raise ValueError(
                "solver='landmarks' does not iterate, so update='paper' means nothing; leave it at 'proximal'"
            )

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _float_types(self) -> list[Any]:
        return [np.float64, np.float32] if self.dtype is None else [np.dtype(self.dtype).type]

    def _check_samples(self, X: Array) -> Array:
        if _is_foreign(X):
            X = _foreign_samples(X, "X", self.dtype)
            self.n_features_in_ = int(X.shape[1])
            if X.shape[0] < 2:
                raise ValueError(f"X has {X.shape[0]} sample(s); at least 2 are needed")
            return X
        return validate_data(self, X, dtype=self._float_types(), ensure_min_samples=2, ensure_all_finite=False)

    def _check_part(self, part: Array, name: str) -> Array:
        who = f"node {name}"
        if _is_foreign(part):
            part = _foreign_samples(part, who, self.dtype)
        else:
            try:
                part = check_array(
                    part,
                    dtype=self._float_types(),
                    ensure_min_samples=0,
                    ensure_min_features=0,
                    ensure_all_finite=False,
                    input_name=who,
                )
            except (ValueError, TypeError) as error:
                raise type(error)(f"{who}: {error}") from error
        if part.shape[0] == 0:
            raise ValueError(
                f"{who}: no samples; every node needs at least one: give it some or leave it out of the network"
            )
        if part.shape[1] == 0:
            raise ValueError(f"{who}: no columns; samples need at least one feature")
        return part

    def _make_network(self, n_nodes: int, seed: int) -> Network:
        if isinstance(self.network, Network):
            return self.network
        if self.network is not None:
            n_nodes = int(self.network)
        if n_nodes <= DEGREE + 1:
            return Network.complete(n_nodes)
        return Network.random(n_nodes, degree=DEGREE, seed=seed % 2**32)

    def _rows_by_label(self, labels: Any, n_rows: int, seed: int) -> tuple[Network, list[np.ndarray]]:
        owners = np.asarray(labels).ravel()
        if len(owners) != n_rows:
            raise ValueError(f"nodes has {len(owners)} labels for {n_rows} rows; give one for each row")
        given, owner = np.unique(owners.astype(str), return_inverse=True)
        if isinstance(self.network, Network):
            network = self.network
        else:
            network = self._make_network(len(given), seed)
            if len(network) != len(given):
                raise ValueError(
                    f"network={self.network} nodes, but nodes names {len(given)}: {listing(given)}; make them equal"
                )
            if self.network is None:  # take the names from the labels
                names = sorted(given, key=natural_key)
                edges = [(names[network.number[a]], names[network.number[b]]) for a, b in network.edges]
                network = Network.from_edges(edges) if edges else Network({names[0]: []})
        unknown = [label for label in given if label not in network.number]
        if unknown:
            raise ValueError(f"nodes: {listing(unknown)} not in the network, whose nodes are {listing(network.names)}")
        empty = [name for name in network.names if name not in set(given)]
        if empty:
            raise ValueError(
                f"nodes: no row for node {listing(empty)}; every node needs at least one: leave it out of the network"
            )
        number = np.array([network.number[label] for label in given])[owner]
        order = np.argsort(number, kind="stable")
        return network, np.split(order, np.cumsum(np.bincount(number, minlength=len(network)))[:-1])

    def _options(self, n_features: int, seed: int) -> Options:
        kernel = make_kernel(
            self.kernel, self.gamma, self.degree, self.coef0, self.kernel_params, self.normalize, n_features
        )
        return Options(
            n_components=int(self.n_components),
            n_oversamples=0,
            kernel=kernel,
            gamma_by_variance=isinstance(self.gamma, str),
            solver=self.solver,
            update=self.update,
            centering=self.centering,
            init=self.init,
            rho=self.rho,
            n_landmarks=0,
            exchange_noise=self.exchange_noise,
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            seed=seed,
            diagnostics=self.diagnostics,
        )

    # ------------------------------------------------------------------ using
    def transform(self, X: Array) -> Array:
        """Component values of new points.

        The answer is that of one node, `answering_node_`: the one with the most samples in its neighborhood (of equals,
        the first by name), since its function is made of the most. Any other node's is `node_models_[j].transform`.
        """
        check_is_fitted(self)
        model = self.node_models_[self.answering_node_]
        if _is_foreign(X):
            return model.transform(X)
        X = validate_data(self, X, dtype=self._float_types(), reset=False)
        if _is_foreign(self.eigenvalues_):
            xp = aac.array_namespace(self.eigenvalues_)
            X = xp.asarray(X, dtype=self.eigenvalues_.dtype, device=aac.device(self.eigenvalues_))
        return model.transform(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _best_informed(network: Network, sizes: np.ndarray) -> int:
    around = sizes + np.bincount(
        network.directed_edges[:, 0], weights=sizes[network.directed_edges[:, 1]], minlength=len(sizes)
    )
    return int(network.by_name[np.argmax(around[network.by_name])])


def _history(answers: Sequence[Answer], traffic: Any) -> dict[str, Any]:
    """What the nodes recorded, put together by us; no node knows it."""
    nodes = np.concatenate([answer.block.nodes for answer in answers])
    history: dict[str, Any] = {"messages": traffic.messages, "bytes": traffic.bytes}
    for name in answers[0].history:
        rows = np.concatenate([to_numpy(answer.history[name]) for answer in answers], axis=1)
        by_node = np.empty_like(rows)
        by_node[:, nodes] = rows
        if name in ("residual", "change"):
            history[name] = by_node.max(axis=1)
        else:
            history[name] = by_node.sum(axis=1)
        if name == "residual":
            history["residual_by_node"] = by_node
    return history


def _is_foreign(X: Any) -> bool:
    """An array of another library than NumPy."""
    return aac.is_array_api_obj(X) and not aac.is_numpy_array(X) and not issparse(X)


def _foreign_samples(X: Array, who: str, dtype: Any) -> Array:
    xp = aac.array_namespace(X)
    if len(X.shape) != 2 or X.shape[1] == 0:
        raise ValueError(f"{who}: shape {tuple(X.shape)}, expected rows and at least one column")
    if dtype is not None:
        wanted = getattr(xp, str(np.dtype(dtype))) if isinstance(dtype, (str, type, np.dtype)) else dtype
        return xp.astype(X, wanted, copy=False)
    if X.dtype in (xp.float32, xp.float64):
        return X
    if not xp.isdtype(X.dtype, ("integral", "bool")):
        raise ValueError(f"{who}: dtype {X.dtype} is not numeric; expected float32, float64 or integers")
    return xp.astype(X, xp.float64)


def _check_finite(X: Array, who: str, rows: Sequence[np.ndarray], network: Network) -> None:
    """NaN and infinity, told by row and by the node that the row belongs to."""
    xp = aac.array_namespace(X)
    if bool(xp.all(xp.isfinite(X))):
        return
    row = int(np.flatnonzero(~np.isfinite(to_numpy(X)).all(axis=1))[0])
    node = next(network.names[j] for j, own in enumerate(rows) if row in own)
    raise ValueError(
        f"Input {who} contains NaN or infinity in row {row}, which belongs to node {node}; remove or impute such rows"
    )


def _check_alike(parts: Sequence[Array], network: Network) -> None:
    first, name = parts[0], network.names[0]
    for part, other in zip(parts, network.names, strict=True):
        if type(part) is not type(first) or aac.device(part) != aac.device(first):
            raise ValueError(
                f"node {other}: samples of another array library or device than node {name}'s; use one for all"
            )
        if part.shape[1] != first.shape[1]:
            raise ValueError(
                f"node {other}: {part.shape[1]} features, but node {name} has {first.shape[1]}; all nodes need the same columns"
            )
        if part.dtype != first.dtype:
            raise ValueError(
                f"node {other}: dtype {part.dtype}, but node {name} has {first.dtype}; set dtype, or give all nodes the same"
            )
        xp = aac.array_namespace(part)
        if not bool(xp.all(xp.isfinite(part))):
            row = int(np.flatnonzero(~np.isfinite(to_numpy(part)).all(axis=1))[0])
            raise ValueError(f"node {other}: NaN or infinity in row {row}; remove or impute such rows")
