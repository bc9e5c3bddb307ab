"""What a node ends with: functions it can evaluate anywhere, in a file without pickle.

A component is a function f(x) = sum_p k(x, p) c_p - offset over points p: the landmarks, the node's own samples, its
neighbors'. All that the algorithm does with means and landmark coordinates folds into the coefficients and the offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import Any, overload

import array_api_compat as aac
import numpy as np

from .answer import Answer
from .core.landmarks import Landmarks
from .core.spectrum import to_numpy, transposed
from .kernels import KERNELS, TILE_BYTES, Kernel, row_tiles

Array = Any

EXPANSIONS = ("neighborhood", "node", "landmarks")
FILE_FORMAT = "dekpca-node-model"
FILE_VERSION = 1


@dataclass(frozen=True, eq=False)
class Function:
    """k functions over several sets of points: coefficients (P_i, k) for each set, one offset (k,)."""

    points: tuple[Array, ...]
    coefficients: tuple[Array, ...]
    offset: Array

    def __call__(self, kernel: Kernel, X: Array) -> Array:
        """Values at the rows of X, (rows, k), computed in tiles."""
        xp = aac.array_namespace(X, self.offset)
        widest = max(p.shape[0] for p in self.points)
        tile = max(256, TILE_BYTES // (8 * widest))
        pieces = []
        for rows in row_tiles(X.shape[0], tile):
            x = X[rows, :]
            values = kernel.gram(x, self.points[0]) @ self.coefficients[0]
            for points, coefficients in zip(self.points[1:], self.coefficients[1:], strict=True):
                values += kernel.gram(x, points) @ coefficients
            pieces.append(values - self.offset)
        return xp.concat(pieces) if len(pieces) > 1 else pieces[0]


class NodeModel:
    """The components as one node knows them.

    Attributes
    ----------
    name : str
        Of the node.
    expansion : {"neighborhood", "node", "landmarks"}
        Through what `transform` answers by default: the samples of the node and its neighbors, the node's own, or the
        landmarks alone (the first two include the landmarks). Expansions smaller than this one are available too.
    eigenvalues_ : array (n_components,)
        Estimates of the eigenvalues of the whole network's centred kernel matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from dekpca import DecentralizedKernelPCA
    >>> X = np.random.default_rng(0).normal(size=(90, 3))
    >>> model = DecentralizedKernelPCA(2, gamma=0.1, network=3, random_state=0).fit(X)
    >>> node = model.node_models_[1]
    >>> node.name, node.transform(X[:5]).shape
    ('1', (5, 2))
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        functions: Mapping[str, Function],
        expansion: str,
        eigenvalues: Array,
        centering: str | None,
    ):
        self.name = name
        self.kernel = kernel
        self.expansion = expansion
        self.eigenvalues_ = eigenvalues
        self.centering = centering
        self.functions = dict(functions)

    @property
    def n_features_in_(self) -> int:
        return int(self.functions[self.expansion].points[0].shape[1])

    @property
    def n_components(self) -> int:
        return int(self.eigenvalues_.shape[0])

    def __repr__(self) -> str:
        held = sum(p.shape[0] for p in self.functions[self.expansion].points)
        return (
            f"NodeModel({self.name!r}, {self.n_components} components over {held} points, expansion {self.expansion!r})"
        )

    def transform(self, X: Array, expansion: str | None = None) -> Array:
        """Component values at the rows of X: (rows, n_components)."""
        function = self.function(expansion)
        if not aac.is_array_api_obj(X):  # lists, data frames
            X = np.asarray(X, dtype=np.float64)
        if len(X.shape) != 2 or X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"node {self.name}: X has shape {tuple(X.shape)}, expected rows of {self.n_features_in_} columns"
            )
        xp = aac.array_namespace(X)
        if xp is not aac.array_namespace(function.offset):
            raise ValueError(
                f"node {self.name}: X is of {type(X).__module__}, the model of {type(function.offset).__module__}; use one library"
            )
        if not bool(xp.all(xp.isfinite(X))):
            row = int(np.flatnonzero(~np.isfinite(to_numpy(X)).all(axis=1))[0])
            raise ValueError(f"node {self.name}: X has NaN or infinity in row {row}; remove or impute such rows")
        return function(self.kernel, xp.astype(X, function.offset.dtype, copy=False))

    def function(self, expansion: str | None = None) -> Function:
        """The components as functions, through one of the expansions this model holds."""
        wanted = self.expansion if expansion is None else expansion
        if wanted not in self.functions:
            raise ValueError(
                f"node {self.name}: expansion={wanted!r} is not in this model, which holds {', '.join(sorted(self.functions))}; "
                "fit with a larger expansion to have more"
            )
        return self.functions[wanted]

    def own_function(self) -> Function:
        """The node's own function w_j, which the paper's similarity is about (of what an `expansion="landmarks"` model has left of it)."""
        return self.functions.get("node", self.functions.get("landmarks", self.functions[self.expansion]))

    # ------------------------------------------------------------------ files
    def save(self, path: str | PathLike[str]) -> None:
        """To one `.npz` file: arrays and a JSON header, no pickle. A kernel that is a Python function is named, not stored.

        The file holds the points that the model is made of: landmarks, and unless `expansion` is "landmarks" the samples of the
        node, with "neighborhood" those of its neighbors too. Fit with the smallest expansion that you want to hand out.
        """
        largest = self.functions[self.expansion]
        names = [name for name in EXPANSIONS if name in self.functions]
        header = {
            "format": FILE_FORMAT,
            "version": FILE_VERSION,
            "name": self.name,
            "expansion": self.expansion,
            "expansions": names,
            "centering": self.centering,
            "kernel": {
                "name": self.kernel.label,
                "callable": not isinstance(self.kernel.name, str),
                "gamma": self.kernel.gamma,
                "degree": self.kernel.degree,
                "coef0": self.kernel.coef0,
                "normalize": self.kernel.normalize,
            },
            "sets": [int(p.shape[0]) for p in largest.points],
        }
        arrays = {
            "points": np.concatenate([to_numpy(p) for p in largest.points]),
            "eigenvalues": to_numpy(self.eigenvalues_),
        }
        for name in names:
            arrays[f"{name}_coefficients"] = np.concatenate([to_numpy(c) for c in self.functions[name].coefficients])
            arrays[f"{name}_offset"] = to_numpy(self.functions[name].offset)
        with open(path, "wb") as file:  # a file object: numpy would add .npz to a name without it
            np.savez(file, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)

    @classmethod
    def load(
        cls, path: str | PathLike[str], kernel: Any = None, kernel_params: Mapping[str, Any] | None = None
    ) -> NodeModel:
        """From a file written by `save`. A model fitted with a callable kernel needs the same function here."""
        try:
            with np.load(path, allow_pickle=False) as file:
                content = {key: file[key] for key in file.files}
            header = json.loads(str(content["header"]))
            if header["format"] != FILE_FORMAT:
                raise KeyError("format")
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path}: not a node model; expected a file that NodeModel.save wrote") from error
        if header["version"] != FILE_VERSION:
            raise ValueError(
                f"{path}: version {header['version']}, this dekpca reads version {FILE_VERSION}; update it"
            )
        settings = dict(header["kernel"])
        if settings.pop("callable"):
            if not callable(kernel):
                raise ValueError(
                    f"{path}: its kernel is the Python function {settings['name']}, which a file cannot hold; pass kernel="
                )
            settings.update(name=kernel, params=dict(kernel_params or {}))
        elif settings["name"] not in KERNELS:
            raise ValueError(f"{path}: unknown kernel {settings['name']!r}; known are {', '.join(sorted(KERNELS))}")
        functions = {name: _read_function(path, name, content, header["sets"]) for name in header["expansions"]}
        return cls(
            header["name"],
            Kernel(**settings),
            functions,
            header["expansion"],
            content["eigenvalues"],
            header["centering"],
        )


def _read_function(path: Any, name: str, content: Mapping[str, np.ndarray], sets: Sequence[int]) -> Function:
    try:
        points, coefficients = content["points"], content[f"{name}_coefficients"]
        offset, k = content[f"{name}_offset"], content["eigenvalues"].shape[0]
    except KeyError as error:
        raise ValueError(f"{path}: a node model without {error}; the file is damaged") from error
    ends = np.cumsum([0, *sets])
    used = int(np.searchsorted(ends, len(coefficients)))  # a smaller expansion uses the first few sets
    whole = used < len(ends) and ends[used] == len(coefficients) and ends[-1] == len(points)
    if not whole or coefficients.shape[1:] != (k,) or offset.shape != (k,):
        raise ValueError(
            f"{path}: {len(points)} points, {coefficients.shape} coefficients and sets of {sets} do not fit; the file is damaged"
        )
    slices = [slice(a, b) for a, b in pairwise(ends[: used + 1])]
    return Function(tuple(points[s] for s in slices), tuple(coefficients[s] for s in slices), offset)


class NodeModels(Sequence[NodeModel]):
    """The models of all nodes by number or name; each is put together when it is asked for."""

    def __init__(self, answers: Sequence[Answer], expansion: str, centering: str | None):
        self._answers = list(answers)
        self._expansion = expansion
        self._centering = centering
        self._home = {int(j): (i, b) for i, answer in enumerate(answers) for b, j in enumerate(answer.block.nodes)}
        self._numbers = sorted(self._home)
        self._made: dict[int, NodeModel] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int | str) -> NodeModel: ...
    @overload
    def __getitem__(self, index: slice) -> list[NodeModel]: ...
    def __getitem__(self, index: int | str | slice) -> NodeModel | list[NodeModel]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if isinstance(index, str):
            index = self._numbers.index(self._answers[0].block.network.number[index])
        node = self._numbers[index]
        if node not in self._made:
            i, b = self._home[node]
            self._made[node] = _make(self._answers[i], b, self._expansion, self._centering)
        return self._made[node]

    def __iter__(self) -> Iterator[NodeModel]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"NodeModels({len(self)} nodes)"


def _make(answer: Answer, b: int, expansion: str, centering: str | None) -> NodeModel:
    """Fold landmark coordinates and means of one node's functions into coefficients and offsets."""
    block = answer.block
    size = int(block.own_sizes[b])
    own = block.samples[b, :size, :]
    m = 0 if answer.root is None else answer.root.shape[0]
    w = answer.w[b, ...]
    functions: dict[str, Function] = {}
    if m:
        functions["landmarks"] = _fold(answer, centering, own, w[:m, :], [], [])
    if answer.sites is not None and answer.z is not None and expansion != "landmarks":
        sites = answer.sites
        rows = block.near_sizes[b]
        points = [sites.pools[sites.pool[b, s]][int(sites.row[b, s]), : int(rows[s]), :] for s in range(block.n_slots)]
        functions["node"] = _fold(answer, centering, own, w[:m, :], points[:1], [w[m : m + size, :]])
        if expansion == "neighborhood":
            coefficients = [answer.z.near[b, s, : int(rows[s]), :] for s in range(block.n_slots)]
            functions["neighborhood"] = _fold(answer, centering, own, answer.z.shared[b, ...], points, coefficients)
    held = expansion if expansion in functions else "landmarks"
    return NodeModel(block.names[b], answer.kernel, functions, held, answer.eigenvalues, centering)


def _fold(
    answer: Answer, centering: str | None, own: Array, shared: Array, points: list[Array], coefficients: list[Array]
) -> Function:
    xp = aac.array_namespace(own)
    if centering == "local":  # every set of samples is centred by its own mean
        coefficients = [c - xp.mean(c, axis=0, keepdims=True) for c in coefficients]
    offset = xp.zeros((answer.eigenvalues.shape[0],), dtype=own.dtype, device=aac.device(own))
    if answer.root is not None:
        marks = Landmarks(answer.known.points, answer.root)
        if (
            answer.known.mean is not None
        ):  # it lies in the span of the landmarks: only the shared part of a function meets it
            offset = answer.known.mean @ shared
        for p, c in zip(points, coefficients, strict=True):
            shared = shared - transposed(marks.coordinates(answer.kernel, p)) @ c
        points, coefficients = [marks.points, *points], [marks.root @ shared, *coefficients]
    function = Function(tuple(points), tuple(coefficients), offset)
    if centering == "local":  # a new point is centred by the mean of this node
        function = Function(function.points, function.coefficients, xp.mean(function(answer.kernel, own), axis=0))
    return function
