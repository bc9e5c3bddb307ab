"""DecentralizedKernelPCA: the scikit-learn estimator. It validates, deals, plans, runs the plan on an engine, and publishes the result."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import array_api_compat as aac
import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from . import engines
from .block import Dealt, part_sizes
from .columns import Features, Samples
from .core.spectrum import to_numpy
from .deal import deal_by_label, deal_rows
from .node_model import NodeModel
from .options import MAX_LANDMARKS
from .parameters import CONSTRAINTS, Parameters
from .plan import make_plan, plan_parts, with_checkpoint
from .results import MixedComponentsWarning, NarrowKernelWarning, Result, run_plan
from .samples import check_finite, foreign_samples, is_foreign, numeric, placed, refuse_sparse

__all__ = ["DecentralizedKernelPCA", "MixedComponentsWarning", "NarrowKernelWarning"]

Array = Any


class DecentralizedKernelPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Kernel PCA of data on many nodes, which communicate with their neighbors only.

    Every node ends with (nearly) the components that kernel PCA would find on all the data together.

    Parameters
    ----------
    n_components : int, default=2
        Number of components.
    kernel : {"rbf", "linear", "poly", "laplacian", "sigmoid", "cosine"} or callable, default="rbf"
        A callable maps two sample matrices to the matrix of k(a, b). The kernel must be positive semi-definite;
        sigmoid is not for most data. An indefinite kernel is refused on a network; a single node drops negative
        eigenvalues, with a warning, as scikit-learn does.
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
        the paper, made to converge: rows go to neighbors. "auto" is "landmarks" with as many of them as `tol` needs; a setting that only the
        iteration has (such as update="paper") chooses "projection".
    update : {"proximal", "paper"}, default="proximal"
        The step for z. The paper's can diverge; it is here to reproduce the paper (see `dekpca.PAPER`).
    centering : {"global", "local"} or None, default="global"
        Subtract the mean of the network (in landmark coordinates), of each node, or nothing.
    init : {"landmarks", "random", "local"}, default="landmarks"
        Where to start.
    rho : "auto", "paper-bound", float, sequence or callable, default="auto"
        Penalty. A sequence of (from iteration, penalty of the node itself, of its neighbors) or a callable (iteration,
        itself) -> penalty is a schedule.
    n_oversamples : "auto" or int, default="auto"
        Extra columns; "auto" is max(4, n_components), or fewer if the nodes are small. Without extra columns the last component may converge slowly.
    landmarks : "auto", int, array (m, columns) or "random-features", default="auto"
        Points that all nodes share. "auto": centres of k-means of all rows, as many as `tol` needs, at most
        `max_landmarks` (solver="projection": min(200, N // 10)). Each is the mean of at least 5 rows, whoever owns
        them; rows become landmarks where clusters are too small, if `share_rows` allows it. A number: so many, or
        fewer if others would add nothing. 0, as in the paper, needs centering "local" or None. An array: points that
        all nodes have already, public or synthetic (checked by a fingerprint). "random-features" (rbf and laplacian
        kernels) uses no points but `max_landmarks` random Fourier features from the seed, with block power
        iterations until the squared relative residual is below `tol`.
    max_landmarks : int, default=2500
        Limit of landmarks="auto". With the default, all rows of up to 4,096 may become landmarks, which makes the answer exact.
    share_rows : bool, default=True
        Whether rows may leave their node: as landmarks, to all nodes, and in the iteration to neighbors. If False,
        only means of rows and sums leave it.
    missing : {"error", "mean"}, default="error"
        Meaning of NaN in the samples: an error, or a missing value, which is replaced by the column's mean over all
        nodes (a network sum). Node models keep the means for new points.
    standardize : bool, default=False
        Scale every column by the mean and standard deviation over all nodes, from a network sum. Node models keep
        both, and take and give points in the original units. Landmarks given as an array are scaled too;
        `exchange_noise` is in units of the scaled columns.
    expansion : {"neighborhood", "node", "landmarks"}, default="neighborhood"
        The points over which a node's functions are expanded, and which its model therefore holds: the samples of
        its neighborhood, its own, or the landmarks alone (which are part of the others too). With solver="landmarks"
        it is always the landmarks.
    exchange_noise : float or str, default=0
        Gaussian noise on samples before they leave a node (solver="projection"), drawn once: a standard deviation,
        or a signal to noise ratio such as "20dB". Node models then hold noisy samples only. Component values and
        sums are still those of the samples without noise, and the noise depends on `random_state`: docs/privacy.md
        says what this hides.
    max_iter : int, default=100
        Largest number of iterations; with update="paper" for each component.
    tol : float, default=1e-3
        The target error: sin^2 of the largest angle between the span of the components and that of central kernel
        PCA (docs/accuracy.md). Landmarks grow until the bound on it is below `tol`; a bound above it causes a
        ConvergenceWarning. In the iteration, all nodes
        stop together when each has converged: the squares of its disagreement with its neighbors and of its change
        in five iterations, both relative to the size of the components, are below `tol`. 0 runs all of max_iter.
    network : Network, int or None, default=None
        A number of nodes, or None for about 200 rows per node, gives a seeded random 4-regular network (complete up
        to 5 nodes). Below 300 rows None is one node, which is central kernel PCA.
    engine : {"local", "mpi", "peer"}, default="local"
        What hosts the nodes and carries their messages. "local": one process. "mpi": the ranks that `mpiexec`
        started (docs/clusters.md), each of which calls `fit_parts` with the samples of its own nodes. "peer": a
        process for each node, started here, with gRPC and TLS between them; this is to try out `dekpca node run`
        (docs/peers.md).
    dtype : "float32", "float64" or None, default=None
        The dtype to compute in; None is that of the data.
    copy_X : bool, default=True
        If False, X is not copied where the rows of the nodes are consecutive (`nodes` in order, nodes of equal
        size). The fitted model then refers to X, which must not be changed.
    device : str or None, default=None
        The device for NumPy data, such as "cuda": it is copied there as a PyTorch tensor (pip install
        'dekpca[gpu]'), and answers come back as NumPy. None: the device of the data; tensors stay there, and so do
        the answers.
    memory_limit : int, str or None, default=None
        Largest number of bytes (or "2GB") that `fit` allocates in addition to its input. Gram blocks that do not fit
        are recomputed in each iteration, which gives the same answer in more time. (engine="local")
    secure_sums : bool, default=False
        Every network sum is over integers modulo 2^64, with masks that cancel in the total (docs/privacy.md).
        solver="landmarks"; simulated by engine="local". Between peers (`dekpca node run`) it is the default.
    privacy : dict or None, default=None
        Differential privacy for each row, with secure sums: {"epsilon": 1.0, "delta": 1e-6}, and optionally "colluding" (nodes), "rank",
        "norm" (a public bound on rows), "points_share", "ledger" (a file) and "budget". Landmarks are public points (an array),
        "random-features", or with "norm" points drawn from noisy sums ("auto" or a number).
    random_state : int, RandomState or None
        Seed for dealing the rows and drawing network, landmarks, noise and random starts; draws of a node depend on its name, not on its number.
    diagnostics : bool, default=False
        Record the augmented Lagrangian too.
    verbose : bool, default=False
        Show a progress bar on standard error, where that is a terminal.

    Attributes
    ----------
    gamma_ : float
        The kernel's gamma that the fit used.
    feature_names_in_ : (columns,)
        Only if the samples had named columns (a DataFrame). Nodes may have them in different orders; this is the order of X, or of the first part.
    accuracy_ : (n_components,)
        For each component, the estimated |correlation| of its values on all rows with those of central kernel PCA.
        0 for a component that the data does not have.
    span_accuracy_ : float
        The estimated smallest cosine between the span of the components and the central one. With `privacy`, both
        ignore what the landmarks miss if the kernel is not rbf or laplacian, or landmarks are random features.
    span_accuracy_bound_ : float
        A lower bound on that cosine, which fails in few fits. `tol` is compared with it.
    mixed_components_ : list of tuples of int
        Groups of components (counted from 0) whose eigenvalues are too close to tell them apart. Their span is right,
        but each may be any mixture of the group.
    eigenvalues_ : (n_components,)
        Estimates of the eigenvalues of the centred kernel matrix of all data.
    explained_variance_ratio_ : (n_components,)
        Eigenvalues over the trace of the centred kernel matrix.
    n_landmarks_ : int
        How many landmarks the answer has.
    n_iter_ : int
        Total number of iterations; 1 if none were needed.
    converged_ : bool
    history_ : dict
        "landmarks", "error" and "bound": by stage, the number of landmarks, the estimated error of the span (sin^2)
        and its bound. "messages" and "bytes": by phase, what each node sent. Phases: sizes, columns, axes, clusters,
        landmarks, moments, judge (rounds of the default solver), fingerprint, mean, covariance, power, check, spectrum
        (other network sums along the tree), data (its samples), rho, share, view (each iteration), values, deflate.
        "edges" (E, 2) and "edge_bytes" (E,): along each directed edge, in all. "seconds": by part of the program.
        By iteration: "residual" and "change" of the worst node, "since_check" (its change since the last check),
        "objective" and, with diagnostics, "lagrangian"; "residual_by_node" (iterations, nodes). A run stops where
        "residual" and "since_check" are below sqrt(tol). (Random features: "residual" alone.)
    node_models_ : sequence of NodeModel
        With engine="mpi" only those of the nodes of this rank, by number; `history_` has only these nodes too.
    privacy_ : Ledger or None
        With `privacy`: the releases, their noise, and the epsilon spent.
    network_ : Network
    node_sizes_ : (nodes,)
        The number of rows of each node of the network.
    nodes_ : (rows,)
        The number of each row's node; after `fit_parts`, of the rows of all parts in the order of `network_.names`.
    answering_node_ : int
        The node whose model `transform` uses; with engine="mpi" a node of this rank.

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

    _parameter_constraints = CONSTRAINTS

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
        secure_sums=False,
        privacy=None,
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
        self.secure_sums = secure_sums
        self.privacy = privacy
        self.random_state = random_state
        self.diagnostics = diagnostics
        self.verbose = verbose

    # ------------------------------------------------------------------ fitting
    def fit(self, X: Array, y: Any = None, nodes: Any = None, checkpoint: str | os.PathLike[str] | None = None) -> Self:
        """Deal the rows of X to the nodes and find the components.

        Parameters
        ----------
        X : array (rows, columns)
            NumPy, a DataFrame, or any array of the array API standard; answers are arrays of the same library.
        nodes : sequence of labels, optional
            `nodes[i]` is the node (its name or number) of row i; where `network` is not a Network, the labels name the nodes.
            By default a seeded permutation of the rows is dealt evenly.
        checkpoint : path, optional
            A folder for checkpoints, so that the same call resumes after the process was killed, to the same bits
            (engine="local" and "mpi"; a number as `random_state`). Only its owner may enter it; `fit` empties it at
            the end. docs/usage.md says which solvers iterate.
        """
        parameters = Parameters.of(self)
        parameters.check()
        engine = engines.module(self.engine)
        if hasattr(engine, "plan_parts"):
            raise ValueError(
                f"engine={self.engine!r} with fit: no rank holds all the data; call fit_parts with the samples of this rank's nodes"
            )
        X, features = self._check_samples(X, parameters)
        X = placed(features.to_sorted(X), self.device)
        seed = parameters.seed()
        if nodes is None:
            network, rows = deal_rows(self.network, X.shape[0], seed)
        else:
            network, rows = deal_by_label(self.network, nodes, X.shape[0], seed)
        check_finite(X, "X", rows, network, parameters.allow_nan)
        parts = Dealt(X, rows, borrow=not self.copy_X)
        plan = make_plan(parameters, parameters.settings(features, seed), network, parts, features)
        plan = with_checkpoint(plan, parameters, checkpoint)
        self._publish(run_plan(plan, engine.run, parameters))
        self.nodes_ = np.empty(X.shape[0], dtype=np.int64)
        self.nodes_[np.concatenate(rows)] = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
        return self

    def fit_parts(
        self,
        parts: Sequence[Array] | Mapping[Any, Array],
        y: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Find the components of data that is already split.

        Parameters
        ----------
        parts : sequence of arrays (n_j, columns), or mapping of node name to array
            `parts[j]` are the samples of the node named `network.names[j]` (which `Network.from_edges` sorts). A
            mapping names the node of each array, and names the nodes if `network` does not. Columns of DataFrames
            are matched by name: all parts need the same columns, in any order. With engine="mpi" every rank gives
            the parts of its nodes: a sequence continues the numbering of the rank before, a mapping (which needs a
            Network) names them.
        checkpoint : path, optional
            As in `fit`; with engine="mpi" the same folder on all ranks, with files for each rank.

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
        parameters = Parameters.of(self)
        engine = engines.module(self.engine)
        plan = getattr(engine, "plan_parts", plan_parts)(
            parameters, parts
        )  # engines with several processes make their own plan
        plan = with_checkpoint(plan, parameters, checkpoint)
        return self._publish(run_plan(plan, engine.run, parameters))

    @classmethod
    def from_result(cls, result: Result) -> Self:
        """An estimator with the parameters and the result of a fit that ran elsewhere."""
        return cls(**result.parameters.as_dict())._publish(result)

    def _publish(self, result: Result) -> Self:
        plan = result.plan
        self._keep_features(plan.features)
        self.network_ = plan.network
        self.node_sizes_ = plan.sizes
        self.nodes_ = np.repeat(plan.nodes, part_sizes(plan.parts))
        self.eigenvalues_ = self._back(result.eigenvalues)
        self.explained_variance_ratio_ = self._back(result.explained_variance_ratio)
        self.accuracy_ = result.accuracy
        self.span_accuracy_ = result.span_accuracy
        self.span_accuracy_bound_ = result.span_accuracy_bound
        self.mixed_components_ = result.mixed_components
        self.n_landmarks_ = result.n_landmarks
        self.n_iter_ = result.n_iter
        self.converged_ = result.converged
        self.gamma_ = result.gamma
        self.node_models_ = result.node_models
        self.history_ = result.history
        self.answering_node_ = result.answering_node
        self.privacy_ = result.ledger
        self._n_features_out = self.n_components
        for warning in result.warnings():
            warnings.warn(warning, stacklevel=3)
        return self

    def _keep_features(self, features: Features) -> None:
        self._features = features
        self.n_features_in_ = features.count
        if features.names is not None:
            self.feature_names_in_ = np.array(features.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_

    def _check_samples(self, X: Array, parameters: Parameters) -> tuple[Array, Features]:
        """Samples as a matrix of numbers, and their columns."""
        refuse_sparse(X, "X")
        if is_foreign(X):
            X = foreign_samples(X, "X", self.dtype)
            if X.shape[0] < 2:
                raise ValueError(f"X has {X.shape[0]} sample(s); at least 2 are needed")
            return X, Features(int(X.shape[1]))
        if isinstance(X, (list, tuple)) and X and all(getattr(part, "ndim", 0) == 2 for part in X):
            raise ValueError(
                f"fit takes one array, but got a list of {len(X)}; use fit_parts for data that is already apart"
            )
        samples = Samples.of(X, "X")
        try:
            X = validate_data(
                self, samples.X, dtype=parameters.float_types, ensure_min_samples=2, ensure_all_finite=False
            )
        except ValueError as error:
            if "could not convert" in str(error):
                raise numeric(error, "X") from error
            raise
        return X, Features(int(X.shape[1]), samples.names)

    # ------------------------------------------------------------------ using
    def transform(self, X: Array) -> Array:
        """Component values of new points.

        Uses the model of one node, `answering_node_`: the one with the most samples in its neighborhood (ties: the
        first by name), since its functions have the most terms. `node_models_[j].transform` uses another node's.
        """
        check_is_fitted(self)
        refuse_sparse(X, "X")
        if not is_foreign(X):
            nan = "allow-nan" if self.missing == "mean" else True
            floats = Parameters.of(self).float_types
            X = validate_data(self, Samples.of(X, "X").X, dtype=floats, reset=False, ensure_all_finite=nan)
            X = self._in_kind(X)
        return self._back(self._answering.transform(Samples(X, self._features.names)))

    def inverse_transform(self, Z: Array, alpha: float = 0.1) -> Array:
        """Points with about these component values, from the model of `answering_node_`: see `NodeModel.inverse_transform`."""
        check_is_fitted(self)
        if not is_foreign(Z):
            Z = self._in_kind(check_array(Z, dtype=Parameters.of(self).float_types, input_name="Z"))
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

    def _back(self, x: Array) -> Array:
        """Results of another device as a NumPy array, if the input was NumPy."""
        return x if self.device is None else to_numpy(x)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.allow_nan = self.missing == "mean"
        return tags
