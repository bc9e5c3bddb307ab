"""DecentralizedKernelPCA: the scikit-learn estimator. It validates, deals, plans, runs the plan on an engine, and publishes the result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from . import engines, progress
from .accuracy import Accuracy
from .arrays import like, to_numpy
from .data.checks import checked, is_foreign, placed, where_complete
from .data.columns import Features, Samples, split_off
from .data.frames import frame_names, is_dask, is_frame
from .data.owners import deal
from .data.rows import Rows
from .engines.local import Before
from .network import listing
from .node_model import NodeModel, NodeModels
from .parameters import Parameters, check, check_stream, float_types, refuse, seed_of, settings_of
from .plan import Plan, make_plan, plan_parts, plan_rows
from .program import program
from .results import MixedComponentsWarning, NarrowKernelWarning, Result, run_plan
from .settings import LandmarkSource
from .site import Dealt
from .solvers.sums import Basis, Stream

__all__ = ["DecentralizedKernelPCA", "MixedComponentsWarning", "NarrowKernelWarning"]

Array = Any

# Attributes that a stream computes from its sums when one of them is asked for
FOUND = (
    "eigenvalues_", "explained_variance_ratio_", "accuracy_", "span_accuracy_", "span_accuracy_bound_", "mixed_components_", "converged_",
    "n_iter_", "history_", "privacy_", "node_models_", "answering_node_", "n_components_", "_n_features_out",
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Whether two values of a parameter are the same; arrays by what is in them, since a copy by pickle has others."""
    if hasattr(one, "shape") or hasattr(other, "shape"):
        return type(one) is type(other) and one.shape == other.shape and bool((to_numpy(one) == to_numpy(other)).all())
    return one is other or bool(one == other)


def refuse_text(y: Any) -> None:
    """Refuse the name of a column in the place of y, which scikit-learn's pipelines give and which is not used."""
    if isinstance(y, str):
        raise TypeError(f"y={y!r}: y is not used; did you mean nodes={y!r}?")


class DecentralizedKernelPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Parameters):
    """Kernel PCA of data on many nodes, which communicate with their neighbors only.

    Every node ends with (nearly) the components that kernel PCA would find on all the data together.

    Parameters
    ----------
    n_components : int or float, default=2
        Number of components. A float between 0 and 1 is a share of the variance, as in scikit-learn's PCA: the network
        takes as many components as explain at least this share (`n_components_`). Not with `Projection`, random
        features or differential privacy.
    kernel : {"rbf", "linear", "poly", "laplacian", "sigmoid", "cosine"} or callable, default="rbf"
        A callable maps two sample matrices to the matrix of k(a, b). The kernel must be positive semi-definite,
        which sigmoid is not for most data. An indefinite kernel is refused on a network; a single node leaves
        negative eigenvalues out, with a warning, as scikit-learn does.
    gamma : float, "scale" or None, default="scale"
        Of rbf, laplacian, poly and sigmoid. "scale" is 1 / (n_features * variance of all data), found by a network
        sum, and does not depend on the units of the data (of laplacian: 1 / (n_features * standard deviation)).
        None is 1 / n_features, scikit-learn's default for KernelPCA.
    degree : float, default=3
        Of poly.
    coef0 : float, default=1
        Of poly and sigmoid.
    kernel_params : dict or None, default=None
        Keyword arguments for a callable kernel.
    normalize : bool, default=False
        Use k(x, y) / sqrt(k(x, x) k(y, y)) instead of k(x, y).
    tol : float, default=1e-3
        The error that is asked for: sin^2 of the largest angle between the span of the components and that of
        central kernel PCA (docs/explanation/accuracy.md). Landmarks are added until the bound on it is at most `tol`. If it
        stays above, there is a ConvergenceWarning. With random features it is the squared relative residual at
        which the iteration stops.
    landmarks : "auto", int, array (m, columns) or "random-features", default="auto"
        Points that all nodes share; components are functions over them. "auto": centres of k-means of all rows, as
        many as `tol` needs and at most `max_landmarks`. Each is the mean of at least 5 rows, whoever owns them;
        where clusters are too small, rows become landmarks, if `share_rows` allows it. A number: so many, or fewer
        if others would add nothing. An array: points that all nodes have already, public or synthetic (a
        fingerprint is compared). "random-features" (rbf and laplacian kernels): no points, but `max_landmarks`
        random Fourier features drawn from the seed, and block power iterations.
    max_landmarks : int, default=2500
        Limit of landmarks="auto". With the default, all rows of up to 4,096 may become landmarks, which makes the
        answer exact.
    share_rows : bool, default=True
        Whether rows may leave their node, as landmarks that all nodes get. If False, only sums and means of rows
        leave it. (A single node of at most 1,000 rows has nobody to tell: its model holds its rows.)
    solver : "auto" or Projection, default="auto"
        "auto": a few network sums in the span of the landmarks; a single node with at most 1,000 rows decomposes
        its kernel matrix. `dekpca.Projection(...)`: the iterative algorithm of the paper, made to converge, with
        options of its own; rows go to neighbors. `dekpca.PAPER` is the paper's own (with normalize=True).
    standardize : bool, default=False
        Scale every column by its mean and standard deviation over all nodes, found by a network sum. Node models
        keep both, and take and give points in the original units. Landmarks given as an array are scaled too.
    missing : {"error", "drop", "mean"}, default="error"
        What to do about missing values (NaN): refuse them; leave such rows out of the fit, and give NaN for them in
        `transform`; or replace them by the column's mean over all nodes (a network sum), which node models keep for
        new points.
    contamination : float or None, default=None
        A share of the rows of the fit, such as 0.01. One more network sum, of a histogram of reconstruction errors, then
        finds the threshold `offset_` of `score_samples` below which at most this share of all rows is.
    network : Network, int or None, default=None
        A number of nodes, or None for about 200 rows per node, gives a seeded random 4-regular network (complete up
        to 5 nodes). Below 300 rows None is one node, which is central kernel PCA.
    engine : {"local", "dask", "mpi"}, default="local"
        What hosts the nodes and carries their messages. "local": this process, or for Dask collections the workers
        that have them. "dask": the workers of the current Dask client (docs/howto/clusters.md). "mpi": the ranks that `mpiexec`
        started (docs/howto/clusters.md), each of which calls `fit_parts` with the samples of its own nodes. Owners who do
        not share a machine use `dekpca node run` instead (docs/howto/peers.md).
    privacy : "secure-sums", Privacy, dict or None, default=None
        "secure-sums": every network sum is over integers modulo 2^64, under masks that cancel in the total
        (docs/explanation/privacy.md). `dekpca.Privacy(epsilon=..., delta=...)`, or a dict of its fields: differential privacy
        for each row, with secure sums. Landmarks are then public points (an array), "random-features", or, with a
        bound `norm` on the rows, points drawn from noisy sums ("auto" or a number). engine="local" simulates both;
        between owners (`dekpca node run`) they protect, and secure sums need three nodes there: of two, each would
        learn the other's sums.
    dtype : "float32", "float64" or None, default=None
        The dtype to compute in; None is that of the data.
    device : str or None, default=None
        The device for NumPy data, such as "cuda": the data is copied there as a PyTorch tensor (pip install
        'dekpca[gpu]'), and answers come back as NumPy. None: the device of the data; tensors stay there, and so do
        the answers.
    memory_limit : int, str or None, default=None
        Largest number of bytes (or "2GB") that `fit` allocates in addition to its input. It limits the number of
        landmarks; kernel matrices of `Projection` that do not fit are computed again in each iteration, which
        gives the same answer in more time. Of `Rows` it also bounds blocks and samples. (engine="local")
    random_state : int, RandomState or None, default=None
        Seed for dealing the rows and for drawing network, landmarks, noise and random starts. Draws of a node
        depend on its name, not on its number. With secure sums each fit has other keys, and so rounds in its own way.
    verbose : bool, default=False
        Write a line on standard error after each stage, or after every fifth iteration. These are the lines of the
        logger "dekpca".

    Attributes
    ----------
    n_components_ : int
        The number of components.
    eigenvalues_ : (n_components,)
        Estimates of the eigenvalues of the centred kernel matrix of all data.
    explained_variance_ratio_ : (n_components,)
        Eigenvalues over the trace of the centred kernel matrix.
    accuracy_ : (n_components,)
        For each component, the estimated absolute correlation of its values on all rows with those of central kernel PCA;
        0 for a component that the data does not have, NaN where nothing is known (random features, and `Projection`
        that does not begin with landmarks).
    span_accuracy_ : float
        The estimated smallest cosine between the span of the components and the central one. With `privacy`, both
        ignore what the landmarks miss if the kernel is not rbf or laplacian, or landmarks are random features.
    span_accuracy_bound_ : float
        A lower bound on that cosine, which fails in few fits. `tol` is compared with it.
    mixed_components_ : list of tuples of int
        Groups of components (counted from 0) whose eigenvalues are too close to tell them apart. Their span is right,
        but each may be any mixture of the group.
    converged_ : bool
        Whether every iteration has converged, the error is at most `tol` as far as is known, and the data has all
        components.
    n_landmarks_ : int
        How many landmarks the answer has.
    n_iter_ : int
        The number of iterations of `Projection` or of random features, of all components together; 0 where nothing
        iterates.
    gamma_ : float
        The kernel's gamma that the fit used.
    offset_ : float
        Only with `contamination`: rows with a lower `score_samples` are outliers. The same at all nodes.
    node_models_ : sequence of NodeModel
        The components as each node knows them: `node_models_[0]` by place, `node_models_["rome"]` by name.
        With engine="mpi" only those of the nodes of this
        rank; `history_` has only these nodes too.
    answering_node_ : int
        The node whose model `transform` uses; with engine="mpi" a node of this rank.
    network_ : Network
        The network of the fit.
    node_sizes_ : (nodes,)
        The number of rows of each node of the network.
    nodes_ : (rows,)
        The number of each row's node, or -1 if missing="drop" left the row out; after `fit_parts`, of the rows of all
        parts that were used, in the order of `network_.names`; after `partial_fit`, of the rows of the last call. None
        after a fit of `Rows` with missing="drop".
    n_samples_seen_ : int
        After `partial_fit`: the number of rows that the answer is about.
    n_features_in_ : int
        The number of columns.
    feature_names_in_ : (columns,)
        Only if the samples had named columns (a DataFrame). Nodes may have them in different orders; this is the
        order of X, or of the first part.
    privacy_ : Ledger or None
        With differential privacy: the releases, their noise, and the epsilon spent.
    history_ : dict
        "landmarks", "error" and "bound": by stage, the number of landmarks, the estimated error of the span (sin^2)
        and its bound. "messages" and "bytes": by phase, what each node sent. Phases: columns, axes, clusters,
        landmarks, moments, judge (rounds of the default solver), sizes (secure sums), fingerprint (given landmarks),
        mean, power (random features), scores (`contamination`); of `Projection`: data (its samples), rho, share, view (each iteration), check,
        values, spectrum, deflate. "edges" (E, 2) and "edge_bytes" (E,): along each directed edge, in all.
        "seconds": by part of the program. Of `Rows` also "passes" over the file, and how many rows missing="drop" left
        out ("dropped"). By iteration: "residual" and "change" of the worst node, "since_check" (its
        change since the last check), "objective" and, with diagnostics, "lagrangian"; "residual_by_node"
        (iterations, nodes). (Random features: "residual" alone.)

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

    # ------------------------------------------------------------------ fitting
    def fit(self, X: Array, y: Any = None, nodes: Any = None) -> Self:
        """Deal the rows of X to the nodes and find the components.

        Parameters
        ----------
        X : array (rows, columns)
            NumPy, any array of the array API standard, a DataFrame of pandas or polars, or a table of pyarrow. Answers
            are arrays of the same library or, for DataFrames, of NumPy. Or a Dask array or DataFrame, whose partitions
            are the nodes and stay on their workers. Or `dekpca.Rows`: files that need not fit into memory.
        nodes : sequence of labels, or the name of a column of X, optional
            `nodes[i]` is the node (its name or number) of row i; where `network` is not a Network, the labels name the nodes.
            A column that is named here is not a feature, and `transform` leaves it out if it is there. By default a
            seeded permutation of the rows is dealt evenly; `Rows` are on one node, unless `network` says otherwise.
        """
        check(self)
        refuse_text(y)
        if is_dask(X):
            return self._fit_collection(X, nodes)
        if isinstance(X, Rows):
            return self._fit_rows(X, nodes)
        engine = self._engine()
        if hasattr(engine, "plan_parts"):
            remedy = "call fit_parts with the samples of this rank's nodes"
            raise ValueError(f"engine={self.engine!r} with fit: no rank holds all the data; {remedy}")
        seed = seed_of(self)
        owned = deal(X, nodes, self.network, seed, self.dtype, self.missing)
        parts = Dealt(placed(owned.X, self.device), owned.rows)
        plan = make_plan(self, settings_of(self, owned.features, seed), owned.network, parts, owned.features)
        self._publish(run_plan(plan, engine.run, self), owner=nodes if isinstance(nodes, str) else None)
        self._nodes = owned._replace(X=None).node_of
        return self

    nodes_: Any
    node_models_: NodeModels
    _nodes: Callable[[], np.ndarray]  # finds nodes_ when it is asked for
    _owner_column: str | None  # of DataFrames, which named the owners: no feature

    def _fit_collection(self, X: Any, nodes: Any) -> Self:
        """Rows of a Dask collection, on the workers that have them."""
        engine = self._engine(X)
        self._publish(run_plan(engine.plan_collection(self, X, nodes), engine.run, self), owner=nodes)
        if nodes is not None or self.missing == "drop":
            self.nodes_ = None  # the order of the rows is not that of the partitions
        return self

    def _engine(self, X: Any = None) -> Any:
        """The module of the engine, which can do what is asked for; of a Dask collection that of its workers."""
        if is_dask(X) and self.engine not in ("local", "dask"):
            raise ValueError(f"engine={self.engine!r} with a Dask {type(X).__name__}; use engine='dask'")
        name = "dask" if is_dask(X) else self.engine
        module = engines.module(name)
        refuse(self, f"engine={name!r}", module.CANNOT)
        return module

    def _fit_rows(self, X: Rows, nodes: Any) -> Self:
        """Rows that are read in blocks."""
        with progress.shown(bool(self.verbose)):
            plan, blocks = plan_rows(self, X, nodes)
        reader, surveyed = blocks.reader, blocks.reader.seconds
        owner = X.roles.owner if nodes is None else nodes
        self._publish(run_plan(plan, engines.module("local").run, self), owner=owner)
        self.nodes_ = None if self.missing == "drop" else blocks.node
        self.history_ |= {"passes": reader.passes, "dropped": reader.dropped}
        self.history_["seconds"]["first pass"] = surveyed
        return self

    def fit_parts(self, parts: Sequence[Array] | Mapping[Any, Array], y: Any = None) -> Self:
        """Find the components of data that is already split.

        Parameters
        ----------
        parts : sequence or generator of arrays (n_j, columns), or mapping of node name to array
            `parts[j]` are the samples of the node named `network.names[j]` (which `Network.from_edges` sorts). A
            mapping names the node of each array, and names the nodes if `network` does not. Columns of DataFrames
            are matched by name: all parts need the same columns, in any order. With engine="mpi" every rank gives
            the parts of its nodes: a sequence continues the numbering of the rank before, a mapping (which needs a
            Network) names them.

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
        engine = engines.module(self.engine)
        make = getattr(engine, "plan_parts", None)  # engines with several processes make a plan, or refuse it, together
        if make is None:
            engine, make = self._engine(), plan_parts
        return self._publish(run_plan(make(self, parts), engine.run, self))

    # ------------------------------------------------------------------ rows that keep coming
    _stream: Any = None  # Stream
    _plan: Plan
    _given: dict[str, Any]  # the parameters of the first call

    def partial_fit(self, X: Array, y: Any = None, nodes: Any = None) -> Self:
        """Add rows to those of earlier calls.

        The first call chooses landmarks, gamma and scales by its rows, as `fit` does. Later calls keep them, and refuse
        parameters that have changed. The answer is that of a `fit` of all rows with these landmarks, gamma and scales,
        up to rounding, however the rows are cut into calls. It is computed when an attribute or `transform` asks for
        it, so that calls with few rows are cheap. Where the landmarks do not suit the rows any more, the bound on the
        error rises above `tol`, and the ConvergenceWarning advises `refresh`.

        The estimator, also as a pickle, holds a sample of the rows (all of the first 49,000, later at most 43,000),
        sums over all, and 8 bytes for each row. Rows of an earlier `fit` are not among them. With solver="auto" and
        without `privacy` only.

        Parameters
        ----------
        X : array (rows, columns)
            At least one row, but the first call chooses by what it gets: give it as many rows as you have, or give
            `landmarks` as an array and `gamma` as a number. Or a Dask array or DataFrame, whose rows stay on their
            workers; the answer is that of the same rows here. With engine="mpi" the new rows of this rank's nodes,
            possibly none; all ranks call it, and compute the answer at its end.
        nodes : sequence of labels, or the name of a column of X, optional
            The node of each row, as in `fit`. Nodes are those of `network`, or those that the first call names; a call
            need not have rows of all. By default rows go to the nodes in turn: row i of all calls to node i modulo the
            number of nodes (network=None: one node).

        Examples
        --------
        >>> import numpy as np
        >>> from dekpca import DecentralizedKernelPCA
        >>> X = np.random.default_rng(0).normal(size=(500, 5))
        >>> model = DecentralizedKernelPCA(2, gamma=0.05, random_state=0)
        >>> for rows in np.array_split(X, 10):
        ...     model = model.partial_fit(rows)
        >>> model.n_samples_seen_, model.transform(X).shape
        (500, (500, 2))
        """
        refuse_text(y)
        rows = self._new_rows(X, nodes, "partial_fit")
        stream = self._begin_stream(rows) if self._stream is None else self._stream
        return self._add_rows(stream, rows, nodes)

    def refresh(self, X: Array, nodes: Any = None) -> Self:
        """Begin again with these rows alone, with the landmarks so far and as many more as `tol` needs for these rows.

        For when the rows have changed so much that `partial_fit` warns. Gamma and scales stay. Sums over earlier rows
        say nothing about new landmarks, so they are dropped: give the rows that the answer is to be about, such as
        those of the last month. More rows may follow by `partial_fit`.

        Parameters
        ----------
        X, nodes
            As of `partial_fit`.

        Examples
        --------
        >>> import numpy as np
        >>> from dekpca import DecentralizedKernelPCA
        >>> X = np.random.default_rng(0).normal(size=(500, 5))
        >>> model = DecentralizedKernelPCA(2, gamma=0.05, random_state=0).partial_fit(X)
        >>> before = model.n_landmarks_
        >>> model.refresh(3 * X).n_landmarks_ > before, model.n_samples_seen_, model.converged_
        (True, 500, True)
        """
        rows, basis = self._new_rows(X, nodes, "refresh"), self._stream.basis
        settings = replace(
            settings_of(self, rows.features, basis.options.seed), stream=True, kernel=basis.kernel, gamma_by_variance=False, impute=False,
            standardize=False, landmarks=LandmarkSource(), n_landmarks="auto", resume="partial_fit",
        )  # fmt: skip
        plan, points = rows.plan(self, settings, basis), to_numpy(basis.marks.points)
        most = max(plan.options.max_landmarks, len(points))
        plan = replace(plan, options=replace(plan.options, earlier=points, max_landmarks=most))
        answer = run_plan(plan, rows.run, self).outcome.answers[0]
        return self._add_rows(Stream(basis.grown(answer)), rows, nodes)

    def forget(self, X: Array, nodes: Any = None) -> Self:
        """Take rows off that `partial_fit` or `refresh` has added, as if they had never come.

        The answer is that of a fit of the other rows with the same landmarks, gamma, scales and random draws, until two
        thirds of the rows, or of what the landmarks miss of them, are forgotten. Beyond that it is judged by fewer rows
        than a fit would draw. What stays of forgotten rows: landmarks that are rows (there is a warning) or means of
        rows, gamma and scales, which the first call or `refresh` has chosen.

        Parameters
        ----------
        X : array (rows, columns)
            Rows exactly as they were added, once for each time. If one was not, there is a ValueError, and nothing changes.
        nodes : sequence of labels, or the name of a column of X, optional
            The node of each row. By default any node that has it.

        Examples
        --------
        >>> import numpy as np
        >>> from dekpca import DecentralizedKernelPCA
        >>> X = np.random.default_rng(0).normal(size=(500, 5))
        >>> model = DecentralizedKernelPCA(2, gamma=0.05, landmarks=X[:100] / 2, random_state=0)
        >>> model.partial_fit(X).forget(X[7:9]).n_samples_seen_
        498
        """
        rows, stream = self._new_rows(X, nodes, "forget"), self._stream
        landmarks = rows.take_from(stream, nodes is not None)
        if landmarks:
            remedy = "begin a new estimator without it to be rid of it"
            warnings.warn(
                f"{landmarks} of the rows are landmarks, and stay in the model as such; {remedy}", stacklevel=2
            )
        return self._stream_changed(stream, rows)

    def _new_rows(self, X: Array, nodes: Any, what: str) -> Any:
        """The rows of a call, checked and on nodes: `NewRows` of an engine."""
        where = "dask" if is_dask(X) else self.engine if self.engine != "dask" else "local"
        engine, before = engines.module(where), None
        with getattr(engine, "together", nullcontext)():
            check(self)
            check_stream(self)
            self._engine(X)
            if self._stream is None and what != "partial_fit":
                raise NotFittedError(f"{what}: there are no rows of partial_fit; call partial_fit first")
            if self._stream is not None:
                self._check_unchanged()
                before = Before(self._stream, self.network_, self._features)
                if not is_foreign(X) and not is_dask(X):
                    bare = split_off(X, nodes, "X")[1] if isinstance(nodes, str) else X
                    validate_data(self, bare, reset=False, skip_check_array=True)
        return engine.new_rows(self, X, nodes, before, what)

    def _check_unchanged(self) -> None:
        """Refuse other parameters than those of the first call."""
        now = self.get_params(deep=False)
        other = [n for n, x in self._given.items() if not same(x, now[n])]
        if other:
            what = f"{listing(other)}: changed since the first call of partial_fit"
            raise ValueError(f"{what}; set it back, or begin anew with a new estimator")

    def _begin_stream(self, rows: Any) -> Stream:
        """Landmarks, gamma and scales by the first rows."""
        plan = rows.plan(self, replace(settings_of(self, rows.features, rows.seed), stream=True))
        answer = run_plan(plan, rows.run, self).outcome.answers[0]
        self._plan, self._given = replace(plan, parts=[]), self.get_params(deep=False)
        self._keep_features(rows.features)
        self.network_, self._owner_column = rows.network, None
        return Stream(Basis.of(rows.network.names, plan.options.solver_options, answer))

    def _add_rows(self, stream: Stream, rows: Any, nodes: Any) -> Self:
        rows.add_to(stream)
        self._owner_column = nodes if isinstance(nodes, str) else self._owner_column
        return self._stream_changed(stream, rows)

    def _stream_changed(self, stream: Stream, rows: Any) -> Self:
        """The stream has changed: forget the answer, which is computed anew when it is asked for or, where rows are not `lazy`, now."""
        for name in (*FOUND, "offset_"):
            self.__dict__.pop(name, None)
        basis = stream.basis
        self._stream, self.gamma_, self.n_landmarks_ = stream, float(basis.kernel.gamma), basis.marks.size
        self.node_sizes_, self.nodes_ = rows.sizes(stream), rows.node_of
        self.n_samples_seen_ = int(self.node_sizes_.sum())
        if not rows.lazy:
            self._answer(rows.answering(self._plan, stream), rows.run)
        return self

    def __copy__(self) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, _stream=copy(self._stream))  # each goes on with its own rows
        return other

    def __getattr__(self, name: str) -> Any:
        if name == "nodes_" and "_nodes" in self.__dict__:
            self.nodes_ = self._nodes()
            return self.nodes_
        if name == "offset_":
            raise AttributeError("offset_: no threshold; fit with contamination=, such as 0.01")
        if name not in FOUND or self._stream is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        stream = self._stream
        # the landmarks stand for the rows, which are in the sums
        plan = replace(self._plan, sizes=stream.sizes, parts=[stream.basis.marks.points])
        self._answer(plan, engines.module("local").run)
        return self.__dict__[name]

    def _answer(self, plan: Plan, run: Any) -> None:
        """Publish the answer of the stream."""
        stream = self._stream
        run = partial(run, script=partial(program, stream=stream))
        self._publish(run_plan(plan, run, type(self)(**self._given)), stream, self._owner_column)

    @classmethod
    def from_result(cls, result: Result) -> Self:
        """An estimator with the parameters and the result of a fit that ran elsewhere."""
        return cls(**result.parameters.get_params(deep=False))._publish(result)

    def _publish(self, result: Result, stream: Stream | None = None, owner: str | None = None) -> Self:
        """The attributes of a fitted estimator. `owner`: the column that named the owners, which is no feature."""
        plan, self._stream = result.plan, stream
        self._keep_features(plan.features)
        self.network_, self.node_sizes_ = plan.network, plan.sizes
        if stream is None:
            self._nodes = partial(np.repeat, plan.nodes, plan.sizes[plan.nodes])
            for name in ("nodes_", "n_samples_seen_", "_plan", "_given"):  # of an earlier fit or stream
                self.__dict__.pop(name, None)
        self.eigenvalues_ = self._back(result.eigenvalues)
        self.explained_variance_ratio_ = self._back(result.explained_variance_ratio)
        about = result.estimate or Accuracy.unknown(result.n_components)
        self.accuracy_, self.mixed_components_ = np.array(about.components), list(about.mixed)
        self.span_accuracy_, self.span_accuracy_bound_ = about.span, about.span_bound
        self.n_landmarks_, self.n_iter_, self.converged_ = result.n_landmarks, result.n_iter, result.converged
        self.gamma_, self.history_, self.privacy_ = result.gamma, result.history, result.ledger
        self.node_models_, self.answering_node_ = result.node_models, result.answering_node
        self._owner_column = self.node_models_.owner_column = owner
        if result.offset is not None:
            self.offset_ = result.offset
        elif hasattr(self, "offset_"):  # of an earlier fit
            del self.offset_
        self.n_components_ = self._n_features_out = result.n_components
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

    # ------------------------------------------------------------------ using
    def transform(self, X: Array) -> Array:
        """Component values of new points.

        Uses the model of one node, `answering_node_`: the one with the most samples in its neighborhood (ties: the
        first by name), whose functions have the most terms with `Projection`; by default all nodes have the same.
        `node_models_[j].transform` uses another node's.
        With missing="drop", rows that lack a value have NaN in all components.
        """
        return self._of_rows("transform", X, list(self.get_feature_names_out()) if is_dask(X) else None)

    def score_samples(self, X: Array) -> Array:
        """How normal each row is, (rows,): minus its reconstruction error. Higher is more normal, as in scikit-learn's outlier detectors.

        With `contamination`, outliers are the rows with `score_samples(X) < offset_`, at every node alike. Uses the model of
        `answering_node_`, as `transform` does.
        """
        return -self.reconstruction_error(X)

    def reconstruction_error(self, X: Array) -> Array:
        """What the components leave of each row in feature space, (rows,): `|phi(x) - mean|^2` - sum of the squared component values (Q, SPE)."""
        return self._of_rows("reconstruction_error", X)

    def hotelling_t2(self, X: Array) -> Array:
        """How far out each row is within the components, (rows,): the sum of squared component values, each over its variance over all rows of the
        fit (Hotelling's T2)."""
        return self._of_rows("hotelling_t2", X)

    def _of_rows(self, method: str, X: Array, columns: Sequence[str] | None = None) -> Array:
        """A method of the answering node's model, of rows as `transform` takes them. `columns`: of the answer, if it is a matrix."""
        check_is_fitted(self)
        if is_dask(X):
            self.node_models_  # noqa: B018  # of a stream: computed here once, and not by every task
            return engines.module("dask").each_partition(
                getattr(self, method), X, method if columns is None else columns
            )
        if isinstance(X, Rows):
            owner = self._owner_column
            X = X.owned_by(owner) if owner is not None and owner in X.source.names and X.roles.owner is None else X
            missing: Any = "error" if self.missing == "error" else "mean"  # a row that lacks a value has values, too
            features, who = self._features, X.who
            blocks = (checked(block.samples, who, self.dtype) for block in X.blocks(missing))
            ordered = (features.from_sorted(features.arrange(block, who, "the fit")) for block in blocks)
            return np.concatenate([self._values(method, self._in_kind(block)) for block in ordered])
        if self._owner_column is not None and is_frame(X) and self._owner_column in frame_names(X):
            _, X = split_off(X, self._owner_column, "X")
        named = partial(validate_data, self, X, reset=False, skip_check_array=True)  # scikit-learn's contract for names
        if is_frame(X):  # a column of texts that the fit had not is unknown, rather than to be encoded
            named()
        samples = checked(X, "X", self.dtype)
        if not is_foreign(samples.X):
            if not is_frame(X):
                named()
            samples = Samples(self._in_kind(samples.X), self._features.names)
        return self._values(method, samples.X)

    def _values(self, method: str, X: Array) -> Array:
        """A method of the answering node's model, of rows with columns in the order of the fit."""

        def values(X: Array) -> Array:
            return getattr(self._answering, method)(Samples(X, self._features.names))

        return self._back(where_complete(values, X) if self.missing == "drop" else values(X))

    def inverse_transform(self, Z: Array, alpha: float | None = None) -> Array:
        """Points with about these component values, from the model of `answering_node_`: see `NodeModel.inverse_transform`."""
        check_is_fitted(self)
        if not is_foreign(Z):
            Z = self._in_kind(check_array(Z, dtype=float_types(self), input_name="Z"))
        return self._back(self._answering.inverse_transform(Z, alpha))

    @property
    def _answering(self) -> NodeModel:
        return self.node_models_[self.network_.names[self.answering_node_]]

    def _in_kind(self, host: np.ndarray) -> Array:
        """NumPy input for a model that was fitted on arrays of another library or device."""
        theirs = self._answering.eigenvalues_
        return like(theirs, host) if is_foreign(theirs) else host

    def _back(self, x: Array) -> Array:
        """Results of another device as a NumPy array, if the input was NumPy."""
        return x if self.device is None else to_numpy(x)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.allow_nan = self.missing != "error"
        return tags
