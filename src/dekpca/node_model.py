"""The model of a node: functions that it can evaluate anywhere, saved without pickle.

A component is a function f(x) = sum_p k(x, p) c_p - offset over points p: the landmarks, the node's own samples, its
neighbors'. Means and landmark coordinates are folded into the coefficients and the offset.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from os import PathLike
from typing import Any, overload

import array_api_compat as aac
import numpy as np

from .accuracy import Accuracy
from .answer import Answer, Function
from .data.checks import check_finite
from .data.columns import Features, Samples, check_names, check_same_names, split_off
from .data.frames import frame_names, is_frame
from .kernels import Kernel, Rbf
from .landmarks import Landmarks, RandomFeatures
from .network import listing
from .privacy.ledger import Ledger
from .scaling import Scales, prepared
from .scores import Histogram
from .solvers.sums.clusters import LEAST_CLUSTER

Array = Any

log = logging.getLogger("dekpca")

# Of pre-images, relative to the number of points: the largest eigenvalue that their kernel matrix may have.
RIDGE = 1e-3


@dataclass(frozen=True)
class Held:
    """A set of points in a model: how many, what they are, and whether they are samples of an owner."""

    rows: int
    what: str
    samples: bool

    def __str__(self) -> str:
        return f"{self.rows} {self.what}"


@dataclass(eq=False, repr=False)
class NodeModel:
    """The components as one node knows them.

    Attributes
    ----------
    name : str
        Of the node.
    expansion : {"neighborhood", "node", "landmarks"}
        The default expansion of `transform`: over the samples of the node and its neighbors, the node's own, or the
        landmarks alone (the first two include the landmarks). Smaller expansions are available too.
    eigenvalues_ : array (n_components,)
        Estimates of the eigenvalues of the whole network's centred kernel matrix.
    accuracy_ : array (n_components,)
        For each component, the estimated absolute correlation of its values with those of central kernel PCA; NaN if unknown.
    span_accuracy_ : float
        The estimated smallest cosine between the span of the components and the central one.
    feature_names_in_ : array (columns,)
        The names of the columns, where the samples had names.
    fill : array (columns,) or None
        With missing="mean", the replacements of missing values, also in `transform`.
    reading : dict
        How the command line turns files into samples for this model (columns to leave out, also of DataFrames, and
        categories).
    privacy_ : Ledger or None
        With differential privacy: the releases, and the epsilon and delta spent.
    run, missing : str or None, sequence of dict
        Of a model of peers: the id of its run, and the nodes that were lost during the fit (name, rows, time).
    transcript : str or None
        A hash of everything that the nodes were told in the fit: nodes with the same answer have the same.
    mean : Function or None
        The mean of all rows in feature space, for scores; None: the nodes were centred by means of their own.
    n_rows : float
        Of all nodes; with differential privacy, the noisy number; 0 if unknown.
    offset_ : float
        With `contamination`: rows x with `score_samples(x) < offset_` are as far out as this share of all rows of the
        fit. It comes from `histogram`, the reconstruction errors of all rows, and is the same at all nodes.
    contents : sequence of Held
        The points in the model and its file, and their owners. If none are samples (`any(held.samples for held in
        model.contents)` is False) the model can be published.

    Examples
    --------
    >>> import numpy as np
    >>> from dekpca import DecentralizedKernelPCA
    >>> X = np.random.default_rng(0).normal(size=(120, 3))
    >>> model = DecentralizedKernelPCA(2, gamma=0.1, network=3, random_state=0).fit(X)
    >>> node = model.node_models_[1]
    >>> node.name, node.transform(X[:5]).shape
    ('1', (5, 2))
    >>> print(*node.contents, sep="; ")
    15 landmarks (means of at least 5 rows of the network); 72 landmarks (rows of the nodes)
    """

    name: str
    kernel: Kernel
    functions: Mapping[str, Function]
    expansion: str
    eigenvalues_: Array
    centering: str | None
    contents: Sequence[Held]
    scales: Scales | None
    features: Features
    fill: Array | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Accuracy | None = None
    privacy_: Ledger | None = None
    missing: Sequence[dict[str, Any]] = ()
    run: str | None = None
    transcript: str | None = None
    mean: Function | None = None
    n_rows: float = 0.0
    histogram: Histogram | None = None
    contamination: float | None = None
    _preimages: dict[tuple[str, float], tuple[Function, Kernel]] = field(default_factory=dict, init=False)
    _told_order: bool = field(default=False, init=False)

    @property
    def n_features_in_(self) -> int:
        return int(self.functions[self.expansion].points[0].shape[1])

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The names of the columns, in the order in which `transform` takes an array without names; only if the samples had names."""
        if self.features.names is None:
            raise AttributeError(f"node {self.name}: fitted on columns without names")
        return np.array(self.features.names, dtype=object)

    @property
    def n_components(self) -> int:
        return int(self.eigenvalues_.shape[0])

    @property
    def _stated(self) -> Accuracy:
        return self.accuracy or Accuracy.unknown(self.n_components)

    @property
    def accuracy_(self) -> np.ndarray:
        return np.array(self._stated.components)

    @property
    def span_accuracy_(self) -> float:
        return self._stated.span

    @property
    def span_accuracy_bound_(self) -> float:
        return self._stated.span_bound

    @property
    def mixed_components_(self) -> list[tuple[int, ...]]:
        return list(self._stated.mixed)

    def __repr__(self) -> str:
        return f"NodeModel({self.name!r}, {self.n_components} components over {', '.join(map(str, self.contents))})"

    def transform(self, X: Array, expansion: str | None = None) -> Array:
        """Component values at the rows of X: (rows, n_components). Named columns are matched by name, in any order."""
        function = self.function(expansion)
        return function(self.kernel, self.prepared(X, function.offset))

    # ------------------------------------------------------------------ scores of rows
    def score_samples(self, X: Array) -> Array:
        """How normal each row is, (rows,): minus its reconstruction error. Higher is more normal, as in scikit-learn's outlier detectors.

        With `contamination`, outliers are the rows with `score_samples(X) < offset_`.

        Examples
        --------
        >>> import numpy as np
        >>> from dekpca import DecentralizedKernelPCA
        >>> X = np.random.default_rng(0).normal(size=(600, 3)) * [3, 1, 0.1]
        >>> model = DecentralizedKernelPCA(2, network=3, contamination=0.01, random_state=0).fit(X)
        >>> node = model.node_models_[1]
        >>> bool((node.score_samples(X) < node.offset_).mean() <= 0.01)
        True
        >>> (node.score_samples([[0.0, 0.0, 0.0], [0.0, 0.0, 5.0]]) < node.offset_).tolist()
        [False, True]
        """
        return -self.reconstruction_error(X)

    def reconstruction_error(self, X: Array) -> Array:
        """What the components leave of each row in feature space, (rows,): `|phi(x) - mean|^2` - sum of the squared component values (Q, SPE)."""
        return self._with_errors(X)[1]

    def hotelling_t2(self, X: Array) -> Array:
        """How far out each row is within the components, (rows,): the sum of squared component values, each over its variance over all rows of the
        fit (Hotelling's T2)."""
        return self._t2(self.transform(X))

    def scores(self, X: Array) -> tuple[Array, Array, Array]:
        """Component values, reconstruction errors and Hotelling's T2 of each row, all from one evaluation of the kernel."""
        values, errors = self._with_errors(X)
        return values, errors, self._t2(values)

    def _with_errors(self, X: Array) -> tuple[Array, Array]:
        if self.mean is None:
            why = f"its components are centred by the mean of {self.name}'s own rows or of others, not of all rows"
            raise ValueError(f"node {self.name}: no reconstruction error: {why}; use solver='auto'")
        function = self.function()
        return function.with_errors(self.mean, self.kernel, self.prepared(X, function.offset))

    def _t2(self, values: Array) -> Array:
        if not self.n_rows:
            raise ValueError(
                f"node {self.name}: no T2: the variances of its components are not known; use solver='auto'"
            )
        xp, there = aac.array_namespace(values), self.eigenvalues_ > 0
        variance = xp.where(there, self.eigenvalues_ / self.n_rows, xp.ones_like(self.eigenvalues_))
        return xp.sum(values * values / variance, axis=1)

    @property
    def offset_(self) -> float:
        if self.histogram is None or self.contamination is None:
            raise AttributeError(f"node {self.name}: no threshold; fit with contamination=, such as 0.01")
        return -self.histogram.quantile(1.0 - self.contamination)

    def prepared(self, X: Array, like: Array) -> Array:
        """Rows as input of the functions, in the library and dtype of `like`: columns in order, missing values filled, standardized."""
        who = f"node {self.name}"
        names = self.features.names
        if names is not None and is_frame(X):
            for name in {*self.reading.get("ignore", ())}.intersection(frame_names(X)).difference(names):
                _, X = split_off(X, name, who)
            if all(isinstance(name, str) for name in frame_names(X)):  # before texts are refused: they may be unknown
                check_names(frame_names(X), who)
                check_same_names(frame_names(X), names, f"{who}: X", "the fit")
        samples = Samples.of(X, who)
        if (samples.names is None) != (names is None) and not isinstance(X, Samples):
            has, fitted = ("has no", "with") if samples.names is None else ("has", "without")
            text = f"{who}: X {has} column names, but the model was fitted {fitted} them"
            warnings.warn(f"{text}; columns are taken in the order of the fit", UserWarning, stacklevel=3)
        if samples.names is not None and names is not None:
            # A better message than that their number differs.
            check_same_names(samples.names, names, f"{who}: X", "the fit")
            if samples.names != names and not self._told_order:
                self._told_order = True
                log.info(f"{who}: X has the columns in another order than the fit; they are taken by name")
        X = self._checked(
            samples.X, "X", self.n_features_in_, like, samples.names, None if self.fill is None else "mean"
        )
        X = self.features.arrange(Samples(X, samples.names), who, "the fit")
        return prepared(X, self.fill, self.scales)

    def inverse_transform(self, Z: Array, alpha: float | None = None, expansion: str | None = None) -> Array:
        """Points (rows, n_features) that have about these component values: pre-images, learned from the points the model holds.

        Kernel ridge regression from component values to points, as scikit-learn's KernelPCA does, with an rbf kernel whose width is set by
        the spread of the values. The pre-image lacks what components do not carry, such as noise. Models of random
        features have no points to learn from.

        Parameters
        ----------
        Z : array (rows, n_components)
            Component values, as from `transform`.
        alpha : float, default=None
            Ridge: larger is smoother. None: a thousandth of the number of points, which suits rows with noise; a tenth of that is better without.

        Examples
        --------
        >>> import numpy as np
        >>> from dekpca import baselines
        >>> X = np.random.default_rng(0).normal(size=(60, 3))
        >>> central = baselines.central(X, 2, gamma=0.1)
        >>> central.inverse_transform(central.transform(X[:5])).shape
        (5, 3)
        """
        function = self.function(expansion)
        if function.fourier:
            why = "random features hold no points to learn pre-images from"
            raise ValueError(f"node {self.name}: {why}; fit with another kind of landmarks")
        if alpha is None:
            alpha = RIDGE * sum(p.shape[0] for p in function.points)
        if not isinstance(alpha, Real) or not 0 < float(alpha) < np.inf:
            raise ValueError(f"node {self.name}: alpha={alpha!r}; a ridge is a number above 0")
        Z = self._checked(Z, "Z", self.n_components, function.offset)
        key = (self.expansion if expansion is None else expansion, float(alpha))
        if key not in self._preimages:
            points = aac.array_namespace(Z).concat(function.points)
            try:
                self._preimages[key] = _learn_preimages(function(self.kernel, points), points, float(alpha))
            except np.linalg.LinAlgError as error:
                too_small = f"alpha={alpha!r} is too small for {points.dtype}"
                raise ValueError(f"node {self.name}: {too_small}; raise it") from error
        back, kernel = self._preimages[key]
        X = back(kernel, Z)
        return self.features.from_sorted(X if self.scales is None else self.scales.restored(X))

    def _checked(self, X: Array, what: str, width: int, like: Array, names: Any = None, missing: Any = None) -> Array:
        """Rows of numbers in the library and dtype of the model."""
        if not aac.is_array_api_obj(X):  # lists, data frames
            X = np.asarray(X, dtype=np.float64)
        if len(X.shape) != 2 or X.shape[1] != width:
            raise ValueError(f"node {self.name}: {what} has shape {tuple(X.shape)}, expected rows of {width} columns")
        if X.shape[0] == 0:
            raise ValueError(f"node {self.name}: {what} has no rows; at least one is needed")
        xp = aac.array_namespace(X)
        if xp is not aac.array_namespace(like):
            both = f"{what} is of {type(X).__module__}, the model of {type(like).__module__}"
            raise ValueError(f"node {self.name}: {both}; use one library")
        check_finite(Samples(X, names), f"node {self.name}, {what}", missing)
        return xp.astype(X, like.dtype, copy=False)

    def function(self, expansion: str | None = None) -> Function:
        """The components as functions, in one of the expansions of this model."""
        wanted = self.expansion if expansion is None else expansion
        if wanted not in self.functions:
            holds = f"expansion={wanted!r} is not in this model, which holds {', '.join(sorted(self.functions))}"
            raise ValueError(f"node {self.name}: {holds}; fit with a larger expansion to have more")
        return self.functions[wanted]

    def own_function(self) -> Function:
        """The node's own function w_j, for the paper's similarity (with `expansion="landmarks"` only its landmark part)."""
        return self.functions.get("node", self.functions.get("landmarks", self.functions[self.expansion]))

    # ------------------------------------------------------------------ files
    def save(self, path: str | PathLike[str]) -> None:
        """To one `.npz` file, readable by its owner only: arrays and a JSON header, no pickle. Of a callable kernel only the name is stored.

        The file holds the points of the model, which `contents` and the header list: landmarks; the samples of the
        node, unless `expansion` is "landmarks"; with "neighborhood" also those of its neighbors. Fit with the
        smallest expansion that you want to publish.
        """
        from .model_file import save

        save(self, path)

    @staticmethod
    def load(
        path: str | PathLike[str], kernel: Any = None, kernel_params: Mapping[str, Any] | None = None
    ) -> NodeModel:
        """From a file written by `save`; ModelFileError describes a bad file. A model fitted with a callable kernel
        needs the same function here."""
        from .model_file import load

        return load(path, kernel, kernel_params)


def _learn_preimages(values: Array, points: Array, alpha: float) -> tuple[Function, Kernel]:
    """Kernel ridge regression from component values (P, k) to points (P, M): a function of component values, and its kernel."""
    xp = aac.array_namespace(values)
    spread = float(xp.sum(xp.var(values, axis=0)))
    kernel = Rbf(gamma=1.0 / spread if spread > 0 else 1.0)
    ridge = alpha * xp.eye(values.shape[0], dtype=values.dtype, device=aac.device(values))
    mean = xp.mean(points, axis=0)
    coefficients = xp.linalg.solve(kernel.gram(values, values) + ridge, points - mean)
    return Function((values,), (coefficients,), -mean), kernel


class NodeModels(Sequence[NodeModel]):
    """The models of all nodes by place or, a text, by name (of an MPI rank: of its nodes); each is built on first use."""

    owner_column: str | None = None  # of DataFrames: no feature

    def __init__(
        self,
        answers: Sequence[Answer],
        share_rows: bool,
        features: Features,
        ledger: Ledger | None = None,
        contamination: float | None = None,
    ):
        self._network = answers[0].site.network
        self._common = share_rows, features, ledger, contamination
        kept = [answer.without_rows() for answer in answers]
        self._answers = {int(j): answer for answer in kept for j in answer.site.nodes}
        self._numbers = sorted(self._answers)
        self._made: dict[int, NodeModel] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def names(self) -> list[str]:
        """Of the nodes, in the order of the models."""
        return [self._network.names[j] for j in self._numbers]

    @overload
    def __getitem__(self, index: int | str) -> NodeModel: ...
    @overload
    def __getitem__(self, index: slice) -> list[NodeModel]: ...
    def __getitem__(self, index: int | str | slice) -> NodeModel | list[NodeModel]:
        if isinstance(index, slice):
            return [self._at(number) for number in self._numbers[index]]
        if isinstance(index, str):
            if (node := self._network.number.get(index)) not in self._answers:
                raise KeyError(f"node_models_[{index!r}]: no node here has that name; there are {listing(self.names)}")
            return self._at(node)
        named = self._network.number.get(str(index))
        if named in self._answers and self._numbers[index : index + 1 or None] != [named]:
            other = f"{index} may be the node of that name or the place of another"
            raise ValueError(
                f"node_models_[{index}]: {other}; use node_models_['{index}'] or list(node_models_)[{index}]"
            )
        if not -len(self) <= index < len(self):
            many = f"there are {len(self)} nodes here, counted from 0"
            raise IndexError(f"node_models_[{index}]: {many}; for another number of nodes fit with network=")
        return self._at(self._numbers[index])

    def _at(self, node: int) -> NodeModel:
        if node not in self._made:
            self._made[node] = _make(self._answers[node], node, *self._common)
            if self.owner_column is not None:
                self._made[node].reading = {"ignore": [self.owner_column]}
        return self._made[node]

    def __iter__(self) -> Iterator[NodeModel]:
        return map(self._at, self._numbers)

    def __reversed__(self) -> Iterator[NodeModel]:
        return map(self._at, reversed(self._numbers))

    def index(self, value: Any, *between: int) -> int:
        return list(self).index(value, *between)

    def __repr__(self) -> str:
        return f"NodeModels({len(self)} nodes)"


# Of each kind of landmarks: what they are, and whether they are rows; None: they are if rows may leave their nodes.
LANDMARK_KINDS: dict[str, tuple[str, bool | None]] = {
    "means": (f"landmarks (means of at least {LEAST_CLUSTER} rows of the network)", False),
    "rows": ("landmarks (rows of the nodes)", True),
    "synthetic": ("landmarks (drawn from noisy sums, nobody's rows)", False),
    "points": ("landmarks (points given to all nodes)", False),
    "earlier": ("landmarks (of the earlier run that was resumed)", None),
}


def _make(
    answer: Answer, node: int, share_rows: bool, features: Features, ledger: Ledger | None, contamination: float | None
) -> NodeModel:
    """Fold landmark coordinates and means of one node's functions into coefficients and offsets."""
    expansions = answer.expansions(node)
    functions = {name: answer.function(terms) for name, terms in expansions.items()}
    *_, (expansion, largest) = expansions.items()
    contents = [] if answer.marks is None else _held_landmarks(answer.marks, share_rows)
    contents += [Held(int(p.shape[0]), owner, True) for p, owner in zip(largest.points, largest.owners, strict=True)]
    centering = "local" if largest.centre is not None else "global" if answer.mean is not None else None
    return NodeModel(
        answer.site.network.names[node], answer.kernel, functions, expansion, answer.eigenvalues, centering, contents, answer.scales, features,
        answer.fill, accuracy=answer.accuracy, privacy_=ledger, transcript=None if answer.transcript is None else answer.transcript.digest,
        mean=answer.mean_function(largest, functions[expansion]), n_rows=answer.n_rows, histogram=answer.histogram, contamination=contamination,
    )  # fmt: skip


def _held_landmarks(marks: Landmarks | RandomFeatures, share_rows: bool) -> list[Held]:
    """The landmarks by kind; consecutive ones of a kind together."""
    if isinstance(marks, RandomFeatures):
        return [Held(marks.size // 2, "frequencies (drawn from a seed)", False)]
    found: list[Held] = []
    for kind, count in marks.kinds:
        what, rows = LANDMARK_KINDS[kind]
        if found and found[-1].what == what:
            found[-1] = replace(found[-1], rows=found[-1].rows + count)
        elif count:
            found.append(Held(count, what, share_rows if rows is None else rows))
    return found
