"""The settings of a run: `Settings` as requested, which nodes must agree on before they know each other's sizes, and `Options`, complete.

`settle` computes what follows from the sizes of the nodes; `Options.solver_options` are the options of one solver.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from .kernels import Kernel
from .network import Network
from .privacy.settings import Privacy
from .solvers.features import RANDOM_FEATURES, columns_seen
from .solvers.private import PrivateOptions
from .solvers.projection import USUAL_LANDMARKS, Projection, ProjectionOptions
from .solvers.sums import SumsOptions
from .solvers.sums.judging_rows import BESIDE, GROUPS, JUDGES
from .solvers.sums.moments import EXTRA
from .solvers.sums.options import LEAST_CLUSTER

FIRST_LANDMARKS = 100  # of the first stage of the default solver
MAX_LANDMARKS = 2500  # default limit of their growth
SMALL_TABLE = 4096  # rows of the network up to which all may become landmarks, which makes the answer exact
EXACT_ROWS = 1000  # rows up to which a single node decomposes its kernel matrix


@dataclass(frozen=True, eq=False)
class LandmarkSource:
    """Where landmarks come from: a kind, and the points themselves (m, columns) if they were given ("points").

    "auto": from the rows of all nodes; "synthetic": drawn from noisy sums, with differential privacy.
    """

    kind: Literal["auto", "synthetic", "random-features", "points"] = "auto"
    points: Any = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The requested settings."""

    n_components: int | float  # a float below 1: a share of the variance, from which the network finds the number
    kernel: Kernel
    gamma_by_variance: bool = False  # gamma="scale": from a network sum
    tol: float = 1e-3
    landmarks: LandmarkSource = LandmarkSource()
    n_landmarks: int | Literal["auto"] = "auto"
    max_landmarks: int = MAX_LANDMARKS
    share_rows: bool = True  # rows may leave their node: to neighbors, and as landmarks to all
    projection: Projection | None = None  # None: the default solver
    impute: bool = False  # NaN is a missing value, replaced by the column's mean over all nodes
    standardize: bool = False
    seed: int
    secure_sums: bool = False  # network sums under masks
    privacy: Privacy | None = None  # sums with noise
    # more rows will come (`partial_fit`): landmarks in any case, even where few rows have an exact answer
    stream: bool = False
    resume: str | None = None  # the earlier run whose landmarks this one starts with; its nodes have them
    owners_apart: bool = False  # a node's neighbors belong to others, who see its terms of sums in clear
    contamination: float | None = None  # share of all rows beyond the threshold, which a sum of a histogram finds

    @property
    def random_features(self) -> bool:
        return self.landmarks.kind == RANDOM_FEATURES

    @property
    def sealed(self) -> bool:
        """Whether every node seals its terms of sums."""
        return self.secure_sums or self.privacy is not None

    def private_options(self) -> PrivateOptions:
        """Of a fit with differential privacy."""
        assert self.privacy is not None
        kind, points = self.landmarks.kind, self.landmarks.points
        common = int(self.n_components), self.kernel, self.privacy, self.seed
        count = len(points) if points is not None else int(self.n_landmarks)
        return PrivateOptions(*common, kind, count, points, self.standardize)


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Complete settings: the input of the program."""

    n_landmarks: int = 0  # to begin with, if `grow`
    grow: bool = False  # landmarks, until the tolerance is met
    exact: bool = False  # one node alone, with few rows or with `Projection`: central kernel PCA
    n_columns: int = 0  # of the projection solver: components, and those besides them
    private_seed: int | None = None  # secret of this node, for its private random numbers
    earlier: Any = None  # (m, columns) landmarks of the resumed run, at a node of that run
    store_grams: bool = True  # of the projection solver: kernel matrices fit into memory

    @cached_property
    def solver_options(self) -> SumsOptions | ProjectionOptions | PrivateOptions:
        """The options of the solver that runs."""
        if self.privacy is not None:
            return self.private_options()
        asked = self.projection
        noise = asked is not None and asked.noisy
        sums = SumsOptions(
            n_components=self.n_components, kernel=self.kernel, seed=self.seed, tol=self.tol, first=self.n_landmarks,
            max_landmarks=self.max_landmarks if self.grow else self.n_landmarks, points=self.landmarks.points, resume=self.resume,
            earlier=self.earlier, share_rows=self.share_rows and not noise,  # else a landmark would be a row without noise
            centered=asked is None or asked.centering is not None, gamma_by_variance=self.gamma_by_variance, impute=self.impute,
            standardize=self.standardize, sealed=self.sealed, stream=self.stream, owners_apart=self.owners_apart,
        )  # fmt: skip
        if asked is None or self.exact:
            return sums
        return ProjectionOptions(asked, sums, self.n_columns, self.private_seed, self.store_grams)


def settle(settings: Settings, network: Network, sizes: np.ndarray) -> Options:
    """Compute the options that depend on the sizes of the nodes, and refuse settings that cannot work with them."""
    total, k = int(sizes.sum()), settings.n_components
    usual = settings.landmarks.kind == "auto" and settings.n_landmarks == "auto" and not settings.sealed
    exact = len(network) == 1 and (
        settings.projection is not None or (usual and total <= EXACT_ROWS and not settings.stream)
    )
    asked = {f.name: getattr(settings, f.name) for f in fields(Settings)}
    options = Options(**asked | {"n_landmarks": 0, "exact": exact})
    check_histogram(settings)
    if not exact:
        check_rows_stay(settings)
        options = _settle_landmarks(options, settings, sizes)
    elif settings.projection is not None and settings.projection.expansion == "landmarks":
        what = "Projection(expansion='landmarks') on a network of one node"
        raise ValueError(f"{what}: there are no landmarks to expand in; use expansion='node'")
    limit, why = _most_columns(options, network, sizes)
    if k > limit:
        more = " or raise max_landmarks" if options.grow else ", or give more landmarks"
        if settings.projection is not None and settings.projection.update == "paper":  # which knows none
            more = ", or give larger nodes"
        if not exact and limit == most_landmarks(settings, sizes):
            why = "the rows of all nodes but the largest, with secure sums and without sharing rows,"
            more = ", or use share_rows=True if rows may leave their nodes"
        remedy = "lower n_components" + ("" if limit >= total - 1 or exact else more)
        remedy += ", or give the first call of partial_fit more rows" if settings.stream else ""
        raise ValueError(f"n_components={k}, but {why} allow{'s' * ('=' in why)} at most {limit}; {remedy}")
    if settings.projection is None:
        return options
    return replace(options, n_columns=_columns(settings.projection, int(k), limit, why))


def _columns(asked: Projection, k: int, limit: int, why: str) -> int:
    """How many columns the projection solver has: the components, and those besides them."""
    if asked.update == "paper":
        return k
    extra = min(max(4, k), limit - k) if asked.n_oversamples == "auto" else int(asked.n_oversamples)
    if k + extra > limit:
        what = f"n_components={k} and n_oversamples={extra} make {k + extra} columns"
        raise ValueError(f"{what}, but {why} allow at most {limit}; lower n_oversamples")
    return k + extra


def _settle_landmarks(options: Options, settings: Settings, sizes: np.ndarray) -> Options:
    """The number of landmarks, or of the first stage."""
    given, total, room = settings.n_landmarks, int(sizes.sum()), most_landmarks(settings, sizes)
    if options.landmarks.points is not None:
        if (m := len(options.landmarks.points)) > room:
            what = f"landmarks: {m} points, with share_rows=False, secure sums and {total - sizes.max()} rows besides those of the largest node"
            raise ValueError(f"{what}: the root could compute each row from their products; give at most {room} points")
        return replace(options, n_landmarks=m)
    if settings.projection is not None:
        wanted = settings.projection.n_landmarks
        count = min(USUAL_LANDMARKS, max(1, total // 10)) if wanted == "auto" else min(int(wanted), total)
        return replace(options, n_landmarks=count)
    if given != "auto":
        # the number of rows may be secret; random features do not depend on it
        free = options.privacy is not None or options.random_features
        if options.random_features and columns_seen(int(given), int(options.n_components)) > room:
            what = f"{given} random features, with share_rows=False, secure sums and {total - sizes.max()} rows besides those of the largest node"
            remedy = f"set max_landmarks to at most {room}, or use landmarks='auto'"
            raise ValueError(f"{what}: the root could compute each row from their products; {remedy}")
        return replace(options, n_landmarks=int(given) if free else min(int(given), total, room))
    most = min(options.max_landmarks, room)
    if most == MAX_LANDMARKS and total <= SMALL_TABLE and options.share_rows:
        # beside those of an earlier run there is room for all rows
        most = total if settings.resume is None else 2 * total
    first = min(max(FIRST_LANDMARKS, 4 * int(options.n_components)), most)
    return replace(options, n_landmarks=first, max_landmarks=most, grow=True)


def most_landmarks(settings: Settings, sizes: np.ndarray) -> int:
    """Where rows may not leave their nodes: half as many as the rows of all nodes but the largest, less BESIDE. The root can take its own rows off
    the totals, and could find each of the others from the products of more coordinates than there are rows and columns."""
    if not settings.secure_sums or settings.share_rows or len(sizes) == 1:
        return int(np.iinfo(np.int64).max)

    def others(least: int = 0) -> int:
        """Rows of all nodes but the largest, if these have at least so many: of smaller ones some sums have no rows."""
        return int(max(sizes[sizes >= least].sum() - sizes.max(), 0))

    rows, k = others(LEAST_CLUSTER) or others(), settings.n_components
    room = rows // 2 - BESIDE
    if sizes.sum() > 4 * JUDGES and (judging := others(GROUPS * LEAST_CLUSTER)):
        # of so many rows each judges in one of GROUPS groups, whose features times functions it follows from likewise
        most = judging // (2 * GROUPS)
        room = min(room, most) if k < 1 or most < k + EXTRA else room
    if room < 1:
        few = f" in nodes of at least {LEAST_CLUSTER}" if rows < others() else ""
        what = f"secure sums with share_rows=False and {rows} rows{few} besides those of the largest node"
        remedy = "join nodes, or use share_rows=True if rows may leave their nodes"
        raise ValueError(f"{what}: the root could compute each; {remedy}")
    return room


def _most_columns(options: Options, network: Network, sizes: np.ndarray) -> tuple[int, str]:
    """The smallest number of independent functions at a node, and why."""
    total, m, asked = int(sizes.sum()), options.n_landmarks, options.projection
    if options.exact:
        return total, f"the {total} samples"
    if options.privacy is not None:  # the number of rows is secret
        check_private_rank(options)
        return m, f"{m} landmarks"
    everything = total if asked is not None and asked.centering is None else total - 1  # centred data spans one less
    if options.stream and options.landmarks.points is not None:
        everything = m
    if asked is None:
        most = options.max_landmarks if options.grow else m
        limit, why = most, f"max_landmarks={most}" if options.grow else f"{most} landmarks"
    else:
        room = sizes - int(asked.centering == "local" and m == 0)  # a centred node of n samples spans n - 1 dimensions
        own, ends, paper = room.copy(), network.directed_edges, asked.update == "paper"
        # each component of the paper's takes a dimension of every node, not of the neighborhood
        (np.maximum if paper else np.add).at(room, ends[:, 0], own[ends[:, 1]])
        poorest = int(np.argmin(room))
        name, limit = network.names[poorest], m + int(room[poorest])
        if limit == 0:
            raise ValueError(
                f"Projection(centering='local'): node {name} and its neighbors have one row each, which is zero once it is centred by the mean of "
                "its node; give larger nodes, or use centering='global' (Projection() has it, with landmarks)"
            )
        where = "largest node around" if paper else "neighborhood of"
        why = f"the {room[poorest]} dimensions of the {where} node {name}"
        why += f" and the {m} landmarks" if m else ""
    return (limit, why) if limit <= everything else (everything, f"{total} samples in all")


# ---------------------------------------------------------------------- what cannot be had together
def check_rows_stay(settings: Settings) -> None:
    """Refuse settings by which rows would leave their nodes, if rows may not."""
    if settings.projection is not None and not settings.share_rows:
        remedy = "use solver='auto', or share_rows=True if rows may leave their nodes"
        raise ValueError(f"solver=Projection(...) with share_rows=False: its nodes exchange rows; {remedy}")


def check_histogram(settings: Settings) -> None:
    """Refuse a histogram in which a neighbor of another owner would see single rows, if rows may not leave their nodes."""
    if settings.contamination is not None and settings.owners_apart and not (settings.sealed or settings.share_rows):
        what = f"contamination={settings.contamination:g} with share_rows=False and sums in clear"
        raise ValueError(f"{what}: a neighbor would see the errors of single rows; use privacy='secure-sums'")


def check_private_rank(settings: Settings) -> None:
    """Refuse more components than a private fit keeps coordinates."""
    privacy, k = settings.privacy, settings.n_components
    if privacy is not None and not settings.random_features and k > privacy.rank:
        remedy = f"lower n_components, or give Privacy(..., rank={k})"
        raise ValueError(f"n_components={k}, but privacy keeps rank={privacy.rank} coordinates; {remedy}")


def check_resume(settings: Settings) -> None:
    """Refuse settings with which a run cannot start from the landmarks of an earlier one."""
    if settings.resume is None:
        return
    taken = {
        "solver=Projection(...)": settings.projection is not None,
        f"landmarks={settings.landmarks.kind!r}": settings.landmarks.kind in ("points", RANDOM_FEATURES),
        f"landmarks={settings.n_landmarks}": settings.n_landmarks != "auto",
        "privacy": settings.privacy is not None,
    }
    what = [name for name, given in taken.items() if given]
    if what:
        why = "a resumed run begins with the landmarks of the earlier run and adds as many as tol asks for"
        raise ValueError(f"resume={settings.resume!r} with {what[0]}: {why}; leave one of both out")
