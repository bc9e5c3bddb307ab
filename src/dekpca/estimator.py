"""DecentralizedKernelPCA: the scikit-learn estimator.

Here parameters are checked, data is dealt to nodes and an engine is called. The algorithm is elsewhere (program.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import array_api_compat as aac
import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from . import engines, progress
from .answer import Answer
from .block import Dealt, part_sizes
from .columns import Features, Samples, check_all_named
from .core.accuracy import Accuracy
from .core.centering import BadColumn
from .core.spectrum import to_numpy
from .kernels import FREQUENCIES, KERNELS, make_kernel
from .memory import parse_size
from .network import Network, listing, natural_key
from .node_model import EXPANSIONS, NodeModel, NodeModels
from .options import MAX_LANDMARKS, RANDOM_FEATURES, Options, check_rho, noise_level, settle
from .samples import (
    check_alike,
    check_finite,
    check_part,
    foreign_samples,
    is_foreign,
    numeric,
    on_device,
    refuse_sparse,
)

Array = Any

ROWS_A_NODE = 200  # when the number of nodes is left to us
DEGREE = 4  # of the random regular network we then make
FLAT = 0.01  # a first component that explains less is worth a word


class NarrowKernelWarning(UserWarning):
    """The kernel is too narrow for the data: the components explain next to nothing."""


class DecentralizedKernelPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Kernel PCA of data that sits on many nodes which talk to their neighbors only.

    Every node ends with (nearly) the components that kernel PCA would find on all the data together.

    Parameters
    ----------
    n_components : int, default=2
        Number of components.
    kernel : {"rbf", "linear", "poly", "laplacian", "sigmoid", "cosine"} or callable, default="rbf"
        A callable maps two sample matrices to the matrix of k(a, b). It must be positive semi-definite, which sigmoid is not for most data: on a
        network it is then refused, and a single node leaves out negative eigenvalues, with a warning, as scikit-learn does.
    gamma : float, "scale" or None, default="scale"
        Of rbf, laplacian, poly and sigmoid. "scale" is 1 / (n_features * variance of all data), by a network sum, and does not depend on the
        units of the data (of laplacian: 1 / (n_features * standard deviation)). None is 1 / n_features, scikit-learn's default for KernelPCA.
    degree, coef0 : float
        Of poly (and coef0 of sigmoid).
    kernel_params : dict or None
        Keyword arguments for a callable kernel.
    normalize : bool, default=False
        Use k(x, y) / sqrt(k(x, x) k(y, y)).
    solver : {"auto", "projection", "landmarks"}, default="auto"
        "landmarks" is one shot, in the span of points that all nodes share, from network sums alone. "projection" is the iterative algorithm of
        the paper, made to converge: rows go to neighbors. "auto" takes the landmarks as far as `tol` asks, and iterates only where these
        cannot reach it, rows may leave their nodes and the iteration is estimated to be better.
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
        "auto" is as many as `tol` needs, at most `max_landmarks` (solver="projection": min(200, N // 10); random features: 4000). Points that
        add nothing to the others are left out. 0 is the paper's world and needs centering "local" or None.
    max_landmarks : int, default=2500
        To which n_landmarks="auto" may grow.
    landmarks : {"auto", "kmeans", "samples", "gaussian", "random-features"} or array (m, columns), default="auto"
        Points that all nodes share. "kmeans": means of clusters of at least 5 rows of a node's own data, no two of which share a row (a node with
        fewer rows gives none). "samples": rows, drawn from the nodes in proportion to their sizes. "gaussian": points that nobody owns, drawn from a
        Gaussian with the mean and the leading linear components of all rows. "auto": means as far as there are any, then rows or, without
        `share_rows`, points that nobody owns. An array: points that everybody has already, public or synthetic (checked by a fingerprint).
        "random-features" (solver="landmarks"; rbf and laplacian kernels) has no points at all: `n_landmarks` random Fourier features from the seed,
        by block power iterations until the squared relative residual is below `tol`.
    share_rows : bool, default=True
        Whether rows may leave their node: as landmarks, to all nodes, and in the iteration to neighbors. Without, nothing but means of rows and
        sums do.
    missing : {"error", "mean"}, default="error"
        What NaN in the samples means: an error, or a missing value, in whose place the column's mean over all nodes goes, from a network sum. The
        means are kept in the node models, for new points.
    standardize : bool, default=False
        Scale every column by the mean and standard deviation over all nodes, from a network sum; kept in the node models, which take and give
        points in the original units. Landmarks given as an array are scaled too; `exchange_noise` is in units of the scaled columns.
    expansion : {"neighborhood", "node", "landmarks"}, default="neighborhood"
        Through what a node evaluates new points, and what its model therefore holds: the samples of its neighborhood,
        its own, or the landmarks alone (which are part of the others too). With solver="landmarks" it is always the
        landmarks.
    exchange_noise : float or str, default=0
        Gaussian noise on samples before they leave a node (to neighbors or as landmarks), drawn once: a standard
        deviation, or a signal to noise ratio such as "20dB". Node models then hold noisy samples only. Component values and sums are
        still those of the samples without noise, and the noise comes from `random_state`: docs/privacy.md says what that hides.
    max_iter : int, default=100
        At most so many iterations; with update="paper" for each component.
    tol : float, default=1e-3
        The error that is asked for: sin^2 of the largest angle between the span of the components and that of central kernel PCA, as it is
        estimated (docs/accuracy.md). An estimate above it draws a ConvergenceWarning. In the iteration, all nodes stop together when each is done:
        the square of its disagreement with its neighbors, and that of its change in five iterations, both relative to the size of the components, are
        below this; 0 runs all of max_iter.
    network : Network, int or None, default=None
        A number of nodes, or None for about 200 rows a node (so one node up to 300 rows: central kernel PCA): a seeded
        random 4-regular network (complete up to 5 nodes).
    engine : {"local", "mpi", "peer"}, default="local"
        Who hosts the nodes and carries their messages: one process, or the ranks that `mpiexec` started (docs/clusters.md), each
        of which calls `fit_parts` with the samples of its own nodes; or a process for each node, started here, with gRPC and TLS between them,
        which is for trying what owners of nodes do with `dekpca node run` (docs/peers.md).
    dtype : "float32", "float64" or None, default=None
        To compute in; None is that of the data.
    copy_X : bool, default=True
        False: where the rows of the nodes lie in X one after the other (`nodes` in order, nodes of one size), X is not copied. The fitted model then
        refers to it, so it must not be changed.
    device : str or None, default=None
        Where NumPy data is to be computed on, such as "cuda": it goes there as a PyTorch tensor (pip install 'dekpca[gpu]'), and answers come
        back as NumPy. None: where the data is; tensors that are on a device already stay there, and so do the answers.
    memory_limit : int, str or None, default=None
        At most so many bytes (or "2GB") for what `fit` allocates beside the data that it is given. Gram blocks that do not fit are computed
        again in each iteration, which gives the same answer in more time. (engine="local")
    random_state : int, RandomState or None
        Deals the rows and draws network, landmarks, noise and random starts; at each node by its name, whatever its
        number.
    diagnostics : bool, default=False
        Record the augmented Lagrangian too.
    verbose : bool, default=False
        Show a progress bar on standard error, where that is a terminal.

    Attributes
    ----------
    gamma_ : float
        The kernel's gamma, as the fit settled it.
    feature_names_in_ : (columns,)
        Where the samples had named columns (a DataFrame). Nodes may have them in different orders; this is the order of X, or of the first part.
    accuracy_ : (n_components,)
        For each component, the estimated |correlation| of its values on all rows with those of central kernel PCA.
    span_accuracy_ : float
        The estimated smallest cosine between the span of the components and the central one.
    eigenvalues_ : (n_components,)
        Estimates of the eigenvalues of the centred kernel matrix of all data.
    explained_variance_ratio_ : (n_components,)
        Eigenvalues over the trace of the centred kernel matrix.
    n_iter_ : int
        Iterations in all; 1 where none were needed.
    converged_ : bool
    history_ : dict
        By iteration: "residual" and "change" of the worst node, "since_check" (its change since the last
        check), "objective" and, with diagnostics, "lagrangian"; "residual_by_node" (iterations, nodes). A run
        stops where "residual" and "since_check" are below sqrt(tol). (Random features: "residual" alone.) "landmarks" and "error": by stage, how
        many landmarks there were, and the error of the span (sin^2) that they were estimated to have. "messages" and "bytes": by phase, what
        each node sent. Phases: landmarks (passed on), fingerprint, counts, columns, scale, mean, covariance, sketch, accuracy, power,
        check, spectrum (network sums along the tree), data (its samples), rho, share, view (each iteration), values, deflate.
        "edges" (E, 2) and "edge_bytes" (E,): along each directed edge, in all. "seconds": by part of the program.
    node_models_ : sequence of NodeModel
        With engine="mpi" those of the nodes that this rank hosts, by number; `history_` is of these nodes too.
    network_ : Network
    node_sizes_ : (nodes,)
        The number of rows of each node of the network.
    nodes_ : (rows,)
        The number of each row's node; after `fit_parts`, of the rows of all parts in the order of `network_.names`.
    answering_node_ : int
        The node through which `transform` answers; with engine="mpi" one that this rank hosts.

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
        "solver": [StrOptions({"auto", "projection", "landmarks"})],
        "update": [StrOptions({"proximal", "paper"})],
        "centering": [StrOptions({"global", "local"}), None],
        "init": [StrOptions({"landmarks", "random", "local"})],
        "rho": "no_validation",  # check_rho says more than a list of types can
        "n_oversamples": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "n_landmarks": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "max_landmarks": [Interval(Integral, 1, None, closed="left")],
        "landmarks": [StrOptions({"auto", "samples", "kmeans", "gaussian", RANDOM_FEATURES}), "array-like"],
        "share_rows": ["boolean"],
        "missing": [StrOptions({"error", "mean"})],
        "standardize": ["boolean"],
        "expansion": [StrOptions(set(EXPANSIONS))],
        "exchange_noise": [Interval(Real, 0, None, closed="left"), str],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "network": [Network, Interval(Integral, 1, None, closed="left"), None],
        "engine": [StrOptions(set(engines.ENGINES))],
        "dtype": "no_validation",
        "copy_X": ["boolean"],
        "device": [str, None],
        "memory_limit": [Interval(Integral, 1, None, closed="left"), str, None],
        "random_state": ["random_state"],
        "diagnostics": ["boolean"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_components=2,
        *,
        kernel="rbf",
        gamma="scale",
        degree=3,
        coef0=1.0,
        kernel_params=None,
        normalize=False,
        solver="auto",
        update="proximal",
        centering="global",
        init="landmarks",
        rho="auto",
        n_oversamples="auto",
        n_landmarks="auto",
        max_landmarks=MAX_LANDMARKS,
        landmarks="auto",
        share_rows=True,
        missing="error",
        standardize=False,
        expansion="neighborhood",
        exchange_noise=0.0,
        max_iter=100,
        tol=1e-3,
        network=None,
        engine="local",
        dtype=None,
        copy_X=True,
        device=None,
        memory_limit=None,
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
        self.max_landmarks = max_landmarks
        self.landmarks = landmarks
        self.share_rows = share_rows
        self.missing = missing
        self.standardize = standardize
        self.expansion = expansion
        self.exchange_noise = exchange_noise
        self.max_iter = max_iter
        self.tol = tol
        self.network = network
        self.engine = engine
        self.dtype = dtype
        self.copy_X = copy_X
        self.device = device
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.diagnostics = diagnostics
        self.verbose = verbose

    # ------------------------------------------------------------------ fitting
    def fit(self, X: Array, y: Any = None, nodes: Any = None) -> Self:
        """Deal the rows of X to the nodes and find the components.

        Parameters
        ----------
        X : array (rows, columns)
            NumPy, a DataFrame, or any array of the array API standard, and then the answers come in kind.
        nodes : sequence of labels, optional
            `nodes[i]` is the node (its name or number) of row i; where `network` is not a Network, the labels name the nodes.
            By default a seeded permutation of the rows is dealt evenly.
        """
        self._check_parameters()
        if self.engine == "mpi":
            raise ValueError(
                "engine='mpi' with fit: no rank holds all the data; call fit_parts with the samples of this rank's nodes"
            )
        X = self._check_samples(X)
        X = self._placed(self._features.to_sorted(X))
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
        check_finite(X, "X", rows, network, self.missing == "mean")
        self.nodes_ = np.empty(X.shape[0], dtype=np.int64)
        self.nodes_[np.concatenate(rows)] = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
        return self._fit(Dealt(X, rows, borrow=not self.copy_X), network, self._options(self._features, seed))

    def fit_parts(self, parts: Sequence[Array] | Mapping[Any, Array], y: Any = None) -> Self:
        """Find the components of data that is already apart.

        Parameters
        ----------
        parts : sequence of arrays (n_j, columns), or mapping of node name to array
            `parts[j]` are the samples of the node named `network.names[j]` (which `Network.from_edges` sorts); a mapping says whose
            they are, and names the nodes where `network` does not. Columns of DataFrames are taken by name: all parts need the same, in any
            order. With engine="mpi" every rank gives the parts of the nodes that it
            hosts: a sequence continues the numbers of the rank before, a mapping (which needs a Network) names them.

        Examples
        --------
        >>> import numpy as np
        >>> from dekpca import DecentralizedKernelPCA
        >>> rng = np.random.default_rng(0)
        >>> parts = {"oslo": rng.normal(size=(30, 4)), "rome": rng.normal(size=(50, 4)), "bonn": rng.normal(size=(20, 4))}
        >>> model = DecentralizedKernelPCA(2, gamma=0.1, random_state=0).fit_parts(parts)
        >>> model.network_.names, model.node_models_["rome"].transform(parts["oslo"]).shape
        (('bonn', 'oslo', 'rome'), (30, 2))
        """
        if self.engine == "mpi":
            company = engines.module("mpi").Company()
            nodes = list(parts) if isinstance(parts, Mapping) else None
            self._fit_hosted(list(parts.values()) if isinstance(parts, Mapping) else parts, nodes, company)
            return self
        self._check_parameters()
        _check_apart(parts)
        if len(parts) == 0:
            raise ValueError("fit_parts needs at least one part")
        seed = self._seed()
        if isinstance(parts, Mapping):
            named = {str(name): part for name, part in parts.items()}
            network = self._named_network(np.array(list(named)), seed)
            parts = [named[name] for name in network.names]
        else:
            network = self._make_network(len(parts), seed)
        if len(network) != len(parts):
            raise ValueError(f"{len(parts)} parts for a network of {len(network)} nodes; give one part for each node")
        checked = [self._placed(part) for part in self._check_parts(parts, network.names)]
        self.nodes_ = np.repeat(np.arange(len(checked)), [part.shape[0] for part in checked])
        return self._fit(checked, network, self._options(self._features, seed))

    def _fit_hosted(self, parts: Sequence[Array], nodes: Sequence[Any] | None, company: Any) -> list[str]:
        """fit_parts where other processes host the other nodes, and all must agree first; returns the names of the nodes hosted here."""
        mpi = engines.module("mpi")
        with company.checking():
            self._check_parameters()
            _check_apart(parts)
            parts, seed = list(parts), self._seed()
        counts, common_seed = company.counts(len(parts)), company.from_first(seed)
        if not isinstance(self.random_state, Integral):
            seed = common_seed
        with company.checking():
            if nodes is not None and not isinstance(self.network, Network):
                raise ValueError("engine='mpi' with named nodes needs network=, a Network that all ranks have alike")
            network = self._make_network(int(counts.sum()), seed)
            if len(network) != counts.sum():
                raise ValueError(
                    f"{counts.sum()} parts on {len(counts)} ranks for a network of {len(network)} nodes; give one part for each node"
                )
            first = int(counts[: company.rank].sum())
            numbers = list(range(first, first + len(parts))) if nodes is None else _node_numbers(nodes, network)
            names = [network.names[j] for j in numbers]
            if len(names) != len(parts):
                raise ValueError(f"{len(parts)} parts, but {len(names)} nodes named for them; give each part its node")
            checked = self._check_parts(parts, names)
            self.nodes_ = np.repeat(numbers, [part.shape[0] for part in checked])
            options = self._options(self._features, seed)
        settings = mpi.settings_of(options) | {
            name: getattr(self, name) for name in ("n_landmarks", "n_oversamples", "expansion")
        }
        company.agree_on_columns(self._features.sorted_names, self.n_features_in_)
        company.agree(mpi.facts(network, self.n_features_in_, checked[0].dtype, settings))
        _, sizes = company.roster(network, numbers, [part.shape[0] for part in checked])
        run = partial(mpi.run, nodes=numbers, comm=company.comm)
        self._fit(checked, network, options, run, np.array(numbers), sizes, shown=company.rank == 0)
        return names

    def _check_parts(self, parts: Sequence[Array], names: Sequence[str]) -> list[Array]:
        """The samples of nodes as matrices of numbers, with the columns in the order in which they are computed with."""
        owners = [f"node {name}" for name in names]
        given = [Samples.of(part, owner) for part, owner in zip(parts, owners, strict=True)]
        given = [
            Samples(check_part(samples.X, owner, self._float_types(), self.dtype), samples.names)
            for samples, owner in zip(given, owners, strict=True)
        ]
        check_all_named(given, owners)
        check_alike([samples.X for samples in given], names, self.missing == "mean")
        self._keep_features(Features(int(given[0].X.shape[1]), given[0].names))
        return [self._features.arrange(samples, owner, owners[0]) for samples, owner in zip(given, owners, strict=True)]

    def _keep_features(self, features: Features) -> None:
        self._features = features
        self.n_features_in_ = features.count
        if features.names is not None:
            self.feature_names_in_ = np.array(features.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_

    def _settled(self, parts: Sequence[Array], network: Network, seed: int) -> Options:
        """The settings of a run on this data."""
        sizes = np.array([part.shape[0] for part in parts])
        return settle(
            self._options(Features(parts[0].shape[1]), seed), network, sizes, self.n_landmarks, self.n_oversamples
        )

    def _fit(
        self,
        parts: Sequence[Array],
        network: Network,
        options: Options,
        run: Callable[..., Any] | None = None,
        nodes: np.ndarray | None = None,
        sizes: np.ndarray | None = None,
        shown: bool = True,
    ) -> Self:
        """`parts` are the samples of `nodes` (default: of all), `sizes` how many every node of the network has."""
        if nodes is None or sizes is None:
            nodes, sizes = np.arange(len(parts)), part_sizes(parts)
        options = settle(options, network, sizes, self.n_landmarks, self.n_oversamples)
        if self.expansion == "landmarks" and not options.n_landmarks:
            why = "on a network of one node" if len(network) == 1 else "with n_landmarks=0"
            raise ValueError(
                f"expansion='landmarks' {why}: there are no landmarks to expand in; use solver='landmarks', or expansion='node'"
            )
        if run is None:
            run = engines.get(self.engine)
            run = run if self.memory_limit is None else partial(run, memory_limit=parse_size(self.memory_limit))
        try:
            with progress.watch(bool(self.verbose) and shown, len(network), options) as watcher:
                outcome = run(parts, network, options, observer=watcher)
        except BadColumn as error:
            raise ValueError(f"{self._features.describe(error.column)} {error.text}") from error
        answers: list[Answer] = outcome.answers
        first = answers[0]
        self.network_ = network
        self.node_sizes_ = np.asarray(sizes)
        self.eigenvalues_ = self._back(first.eigenvalues)
        trace = float(first.trace)
        self.explained_variance_ratio_ = self.eigenvalues_ / trace if trace > 0 else self.eigenvalues_ * 0
        about = first.accuracy
        self.accuracy_ = np.full(self.n_components, np.nan) if about is None else np.array(about.components)
        self.span_accuracy_ = np.nan if about is None else about.span
        self.n_landmarks_ = 0 if first.marks is None else first.marks.size
        self.n_iter_ = first.n_iter
        self.converged_ = first.converged and (about is None or about.meets(self.tol))
        self.gamma_ = float(first.kernel.gamma)
        self.node_models_ = NodeModels(answers, self.expansion, options, self._features)
        self.history_ = _history(answers, outcome)
        self.answering_node_ = _best_informed(network, sizes, nodes)
        self._n_features_out = self.n_components
        if not first.converged:
            self._warn(first.runs)
        if about is not None and not about.meets(self.tol):
            self._warn_if_inaccurate(about, options, int(sizes.sum()))
        self._warn_if_narrow()
        return self

    def _warn_if_inaccurate(self, about: Accuracy, options: Options, rows: int) -> None:
        """Say how good the answer is estimated to be, what limited it, and what to do."""
        k, m = self.n_components, self.n_landmarks_
        message = (
            f"the components are estimated to be less accurate than tol={self.tol:g} asks for: squared sine {about.error:.2g} of the largest angle "
            f"between their span and that of central kernel PCA (span_accuracy_ {about.span:.4f})"
        )
        if options.solver == "projection":
            message += f", with {m} landmarks; use solver='auto', or more landmarks"
        elif not options.grow:
            message += f", with {m} landmarks; use n_landmarks='auto', or more of them"
        elif m >= options.max_landmarks:
            message += (
                f", with {m} landmarks, the limit that max_landmarks={options.max_landmarks} sets; raise it, or tol"
            )
        elif self.memory_limit is not None and options.share_rows:
            message += f", with {m} landmarks, as many as memory_limit={self.memory_limit!r} allows; raise it, or tol"
        else:
            message += (
                f", with {m} landmarks, where landmarks={self.landmarks!r} has no more that would help; raise tol"
            )
            message += "" if self.landmarks == "auto" else ", or use landmarks='auto'"
        if options.grow and not options.share_rows and rows > m:
            message += ", or use share_rows=True, if rows may leave their nodes"
        if self.kernel in ("rbf", "laplacian"):
            message += ", or lower gamma: a wider kernel needs fewer landmarks"
        if any(last > k for _, last in about.groups()):
            message += f". Eigenvalues {k} and {k + 1} lie close: another n_components may be easier to find"
        warnings.warn(message, ConvergenceWarning, stacklevel=4)

    def _warn_if_narrow(self) -> None:
        """A kernel so narrow that rows are alike only to themselves has components that explain next to nothing."""
        share = float(self.explained_variance_ratio_[0])
        unsure = self.update == "paper" or (
            isinstance(self.landmarks, str) and self.landmarks == RANDOM_FEATURES and not self.converged_
        )
        if not 0 < share < FLAT or self.kernel not in ("rbf", "laplacian") or unsure:
            return
        remedy = (
            "use a smaller gamma, or standardize=True"
            if self.gamma == "scale"
            else "use gamma='scale', or a smaller gamma"
        )
        warnings.warn(
            f"the first component explains {share:.2%} of the variance: with gamma={self.gamma_:.3g} the kernel is too narrow for this data, "
            f"so that nearly every row is alike only to itself; {remedy}",
            NarrowKernelWarning,
            stacklevel=4,
        )

    def _warn(self, runs: list[tuple[str, int]]) -> None:
        """Say what did not converge, by how much, and what to try."""
        failed = next(i for i, (verdict, _) in enumerate(runs) if verdict != "converged")
        verdict, iterations = runs[failed]
        last = sum(n for _, n in runs[: failed + 1]) - 1
        which = f"component {failed + 1}: " if len(runs) > 1 else ""
        allowed = self.tol**0.5
        state = f"relative residual {self.history_['residual'][last]:.2g}"
        if len(self.history_["since_check"]):
            node = self.node_models_.names[int(np.argmax(self.history_["residual_by_node"][last]))]
            state += f" (node {node}), change {self.history_['since_check'][last]:.2g} since the check before"
        state += f", where tol={self.tol:g} allows {allowed:.2g}"
        if verdict == "interrupted":
            message = f"{which}interrupted after {iterations} iterations; the last iterate is kept: {state}"
        elif verdict == "diverged":
            message = f"{which}diverged before iteration {iterations}; the iterate of the last good check is kept; use rho='auto'"
            message += " and update='proximal'" if self.update == "paper" else ""
        else:
            message = f"{which}not converged after {iterations} iterations: {state}; the last iterate is kept; "
            if self.update == "paper":
                message += "use update='proximal': the paper's can diverge"
            else:
                message += "raise max_iter or tol" + ("" if self.rho == "auto" else ", or use rho='auto'")
                message += (
                    "" if self.n_oversamples == "auto" else ", or raise n_oversamples, in case eigenvalues lie close"
                )
        warnings.warn(message, ConvergenceWarning, stacklevel=4)

    # ------------------------------------------------------------------ checks, at the edge
    def _check_parameters(self) -> None:
        if self.n_components is None:
            raise ValueError(
                "n_components=None: all components of N rows would take N columns at every node; give the number that you want"
            )
        if isinstance(self.kernel, str) and self.kernel == "precomputed":
            raise ValueError(
                "kernel='precomputed': a node must compare its rows with landmarks and neighbors, which a matrix given to it cannot do. Where one "
                "process has the whole matrix K, give row numbers as samples, X = numpy.arange(len(K))[:, None], and a kernel that looks them up: "
                "lambda A, B: K[numpy.ix_(A[:, 0].astype(int), B[:, 0].astype(int))]"
            )
        self._validate_params()
        check_rho(self.rho, self.max_iter)
        parse_size(self.memory_limit)
        if self.engine != "local" and (self.memory_limit is not None or self.device is not None):
            raise ValueError(
                f"memory_limit and device are for engine='local', but engine={self.engine!r}; leave them at None"
            )
        noise_level(self.exchange_noise)
        if self.dtype not in (None, "float32", "float64", np.float32, np.float64):
            raise ValueError(f"dtype={self.dtype!r}: known are 'float32', 'float64' and None")
        if self.solver == "landmarks" and self.update == "paper":
            raise ValueError(
                "solver='landmarks' has no z to update, so update='paper' means nothing; leave it at 'proximal'"
            )
        if isinstance(self.landmarks, str) and self.landmarks == RANDOM_FEATURES:
            if self.solver == "projection":
                raise ValueError(
                    f"landmarks={RANDOM_FEATURES!r} with solver={self.solver!r}: random features are no points that functions could be made of; "
                    "use solver='landmarks'"
                )
            if self.kernel not in FREQUENCIES:
                raise ValueError(
                    f"landmarks={RANDOM_FEATURES!r} with kernel={self.kernel!r}, which has none; kernels "
                    f"that have them: {', '.join(sorted(FREQUENCIES))}"
                )

    def _check_landmarks(self, features: Features) -> Any:
        if isinstance(self.landmarks, str):
            return self.landmarks
        samples = Samples.of(self.landmarks, "landmarks")
        points, n_features = samples.X, features.count
        if is_foreign(points):
            points = foreign_samples(points, "landmarks", None)
        points = check_array(to_numpy(points), dtype=np.float64, input_name="landmarks")
        if points.shape[1] != n_features:
            raise ValueError(f"landmarks: {points.shape[1]} columns, but the samples have {n_features}; use the same")
        points = features.arrange(Samples(points, samples.names), "landmarks", "the samples")
        _, first, counts = np.unique(points, axis=0, return_index=True, return_counts=True)
        if (counts > 1).any():
            row = int(first[counts > 1][0])
            raise ValueError(f"landmarks: row {row} comes {counts[counts > 1][0]} times; give each point once")
        if self.n_landmarks not in ("auto", len(points)):
            raise ValueError(
                f"n_landmarks={self.n_landmarks}, but landmarks are {len(points)} points; leave it at 'auto'"
            )
        return points

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _float_types(self) -> list[Any]:
        return [np.float64, np.float32] if self.dtype is None else [np.dtype(self.dtype).type]

    def _check_samples(self, X: Array) -> Array:
        refuse_sparse(X, "X")
        if is_foreign(X):
            X = foreign_samples(X, "X", self.dtype)
            self._keep_features(Features(int(X.shape[1])))
            if X.shape[0] < 2:
                raise ValueError(f"X has {X.shape[0]} sample(s); at least 2 are needed")
            return X
        if isinstance(X, (list, tuple)) and X and all(getattr(part, "ndim", 0) == 2 for part in X):
            raise ValueError(
                f"fit takes one array, but got a list of {len(X)}; use fit_parts for data that is already apart"
            )
        samples = Samples.of(X, "X")
        try:
            X = validate_data(self, samples.X, dtype=self._float_types(), ensure_min_samples=2, ensure_all_finite=False)
        except ValueError as error:
            if "could not convert" in str(error):
                raise numeric(error, "X") from error
            raise
        self._keep_features(Features(int(X.shape[1]), samples.names))
        return X

    def _make_network(self, n_nodes: int, seed: int) -> Network:
        if isinstance(self.network, Network):
            return self.network
        if self.network is not None:
            n_nodes = int(self.network)
        if n_nodes <= DEGREE + 1:
            return Network.complete(n_nodes)
        return Network.random(n_nodes, degree=DEGREE, seed=seed % 2**32)

    def _named_network(self, names: np.ndarray, seed: int) -> Network:
        """The network over these names: the one given, or one made for them."""
        if isinstance(self.network, Network):
            network = self.network
        else:
            network = self._make_network(len(names), seed)
            if len(network) != len(names):
                raise ValueError(
                    f"network={self.network}, but the data names {len(names)} nodes: {listing(names)}; leave network at None, "
                    "or give a Network of these"
                )
            ordered = sorted(names, key=natural_key)
            edges = [(ordered[network.number[a]], ordered[network.number[b]]) for a, b in network.edges]
            network = Network.from_edges(edges) if edges else Network({ordered[0]: []})
        unknown = [name for name in names if name not in network.number]
        if unknown:
            raise ValueError(
                f"nodes: {listing(unknown)} not in the network, whose nodes are {listing(network.names)}; add them to the network or "
                "leave out their rows"
            )
        present = set(names.tolist())
        empty = [name for name in network.names if name not in present]
        if empty:
            raise ValueError(
                f"nodes: no row for node {listing(empty)}; every node needs at least one: leave it out of the network"
            )
        return network

    def _rows_by_label(self, labels: Any, n_rows: int, seed: int) -> tuple[Network, list[np.ndarray]]:
        owners = np.asarray(labels).ravel()
        if len(owners) != n_rows:
            raise ValueError(f"nodes has {len(owners)} labels for {n_rows} rows; give one for each row")
        numbers = np.issubdtype(owners.dtype, np.integer)
        missing = [] if numbers else [i for i, owner in enumerate(owners.tolist()) if owner is None or owner != owner]
        if missing:
            raise ValueError(f"nodes: no label in row {listing(missing)}; give every row its node")
        labels, owner = np.unique(owners if numbers else owners.astype(str), return_inverse=True)
        given = labels.astype(str)
        inside = isinstance(self.network, Network) and numbers and labels[0] >= 0 and labels[-1] < len(self.network)
        if inside and not set(given.tolist()) & set(self.network.names):  # numbers of nodes that have names
            given = np.array(self.network.names)[labels]
        network = self._named_network(given, seed)
        number = np.array([network.number[label] for label in given])[owner]
        order = np.argsort(number, kind="stable")
        return network, np.split(order, np.cumsum(np.bincount(number, minlength=len(network)))[:-1])

    def _options(self, features: Features, seed: int) -> Options:
        kernel = make_kernel(
            self.kernel, self.gamma, self.degree, self.coef0, self.kernel_params, self.normalize, features.count
        )
        return Options(
            n_components=int(self.n_components),
            n_oversamples=0,
            kernel=kernel,
            gamma_by_variance=isinstance(self.gamma, str) and kernel.has_gamma,
            solver=self.solver,
            update=self.update,
            centering=self.centering,
            init=self.init,
            rho=self.rho,
            n_landmarks=0,
            landmarks=self._check_landmarks(features),
            max_landmarks=int(self.max_landmarks),
            share_rows=bool(self.share_rows),
            impute=self.missing == "mean",
            standardize=self.standardize,
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
        refuse_sparse(X, "X")
        if not is_foreign(X):
            nan = "allow-nan" if self.missing == "mean" else True
            X = validate_data(self, Samples.of(X, "X").X, dtype=self._float_types(), reset=False, ensure_all_finite=nan)
            X = self._in_kind(X)
        return self._back(self._answering.transform(Samples(X, self._features.names)))

    def inverse_transform(self, Z: Array, alpha: float = 0.1) -> Array:
        """Points that have about these component values, as `answering_node_` reconstructs them: see `NodeModel.inverse_transform`."""
        check_is_fitted(self)
        if not is_foreign(Z):
            Z = self._in_kind(check_array(Z, dtype=self._float_types(), input_name="Z"))
        return self._back(self._answering.inverse_transform(Z, alpha))

    @property
    def _answering(self) -> NodeModel:
        return self.node_models_[self.network_.names[self.answering_node_]]

    def _in_kind(self, host: np.ndarray) -> Array:
        """NumPy input for a model that was fitted on arrays of another library or device."""
        like = self._answering.eigenvalues_
        if not is_foreign(like):
            return host
        return aac.array_namespace(like).asarray(host, dtype=like.dtype, device=aac.device(like))

    def _placed(self, X: Array) -> Array:
        """Samples where they are to be computed on."""
        if self.device is None:
            return X
        if is_foreign(X):
            raise ValueError(
                f"device={self.device!r} is for NumPy data, but got {type(X).__name__} on {aac.device(X)}, which is computed on where it "
                "is; leave device at None"
            )
        return on_device(X, self.device)

    def _back(self, x: Array) -> Array:
        """What was computed on another device, as the NumPy array that was asked with."""
        return x if self.device is None else to_numpy(x)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.allow_nan = self.missing == "mean"
        return tags


def _check_apart(parts: Any) -> None:
    if aac.is_array_api_obj(parts):
        raise ValueError("fit_parts takes one array for each node, but got one array; use fit(X)")


def _node_numbers(nodes: Sequence[Any], network: Network) -> list[int]:
    """Nodes given by name or, where that is no name, by number."""
    numbers = []
    for node in nodes:
        by_number = isinstance(node, Integral) and 0 <= int(node) < len(network)
        if str(node) not in network.number and not by_number:
            raise ValueError(f"node {node!r} is not in the network, whose nodes are {listing(network.names)}")
        numbers.append(network.number[str(node)] if str(node) in network.number else int(node))
    return numbers


def _best_informed(network: Network, sizes: np.ndarray, nodes: np.ndarray) -> int:
    """Of `nodes`, the one with the most samples around; of equals, the first by name."""
    around = sizes + np.bincount(
        network.directed_edges[:, 0], weights=sizes[network.directed_edges[:, 1]], minlength=len(sizes)
    )
    candidates = network.by_name[np.isin(network.by_name, nodes)]
    return int(candidates[np.argmax(around[candidates])])


def _history(answers: Sequence[Answer], outcome: Any) -> dict[str, Any]:
    """What the nodes recorded, put together by us; no node knows it."""
    nodes = np.concatenate([answer.block.nodes for answer in answers])
    traffic = outcome.traffic
    history: dict[str, Any] = {"messages": traffic.messages, "bytes": traffic.bytes, "seconds": outcome.seconds}
    history |= {"edges": traffic.edges, "edge_bytes": traffic.edge_bytes}
    for name in ("residual", "change", "since_check", "objective", "lagrangian"):
        if name not in answers[0].history:
            if name != "lagrangian":  # no iterations were needed
                history[name] = np.empty(0)
            continue
        rows = np.concatenate([to_numpy(answer.history[name]) for answer in answers], axis=1)
        by_node = rows[:, np.argsort(nodes)]
        history[name] = by_node.sum(axis=1) if name in ("objective", "lagrangian") else by_node.max(axis=1)
        if name == "residual":
            history["residual_by_node"] = by_node
    stages = answers[0].known.stages
    history["landmarks"] = np.array([m for m, _ in stages], dtype=np.int64)
    history["error"] = np.array([error for _, error in stages])
    return history
