"""The settings of a run: `Settings` as requested, `Options` as the program uses them, complete and the same at every node.

`settle` resolves "auto" in `Settings` from the sizes of the nodes alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any, Literal

import numpy as np

from .choices import RANDOM_FEATURES, LandmarkSource, Noise, PenaltyRule, penalty_rule
from .kernels import Kernel
from .network import Network

CHECK_EVERY = 5  # iterations between two checks of the stop rule: a check goes up and down the tree
PROJECTION_LANDMARKS = 200  # default of solver="projection"; at most a tenth of the rows
FIRST_LANDMARKS = 100  # of the first stage of the default solver
MAX_LANDMARKS = 2500  # default limit of their growth
SMALL_TABLE = 4096  # rows of the network up to which all may become landmarks, which makes the answer exact
EXACT_ROWS = 1000  # rows up to which a single node decomposes its kernel matrix

# The paper's settings (He et al. 2025, and the authors' scripts): from iteration t on, the penalties on the own constraint and on a neighbor's.
PAPER: dict[str, Any] = {
    "solver": "projection",
    "update": "paper",
    "centering": "local",
    "rho": ((0, 100.0, 10.0), (5, 100.0, 50.0), (10, 100.0, 100.0)),
    "init": "local",
    "normalize": True,
    "landmarks": 0,
    "n_oversamples": 0,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The requested settings: all that nodes must agree on before they know each other's sizes."""

    n_components: int
    n_oversamples: int | Literal["auto"] = "auto"
    kernel: Kernel
    gamma_by_variance: bool = False  # gamma="scale": from a network sum
    solver: Literal["auto", "projection", "landmarks"] = "auto"
    update: Literal["proximal", "paper"] = "proximal"
    centering: Literal["global", "local"] | None = "global"
    init: Literal["landmarks", "random", "local"] = "landmarks"
    rho: PenaltyRule
    n_landmarks: int | Literal["auto"] = "auto"
    landmarks: LandmarkSource
    max_landmarks: int = MAX_LANDMARKS
    share_rows: bool = True  # rows may leave their node: to neighbors, and as landmarks to all
    impute: bool = False  # NaN is a missing value, replaced by the column's mean over all nodes
    standardize: bool = False
    exchange_noise: Noise
    max_iter: int = 100
    tol: float = 1e-3
    seed: int
    diagnostics: bool = False
    secure_sums: bool = False  # network sums under masks
    privacy: Any = None  # privacy.settings.Privacy: sums with noise
    resume: str | None = None  # the earlier run whose landmarks this one starts with; its nodes have them
    owners_apart: bool = False  # a node's neighbors belong to others, who see its terms of sums in clear

    @classmethod
    def of(
        cls, *, rho: Any = "auto", landmarks: Any = "auto", exchange_noise: float | str = 0.0, max_iter: int = 100, **others: Any
    ) -> Settings:  # fmt: skip
        """From the parameters of users."""
        if isinstance(landmarks, Integral):
            others["n_landmarks"] = int(landmarks)
        return cls(
            rho=penalty_rule(rho, max_iter),
            landmarks=LandmarkSource.of(landmarks),
            exchange_noise=Noise.of(exchange_noise),
            max_iter=max_iter,
            **others,
        )

    @property
    def random_features(self) -> bool:
        return self.landmarks.kind == RANDOM_FEATURES

    @property
    def sealed(self) -> bool:
        """Whether every node seals its terms of sums."""
        return bool(self.secure_sums) or self.privacy is not None

    @property
    def anchored(self) -> bool:
        """Whether z is updated from its previous value (the proximal update) or computed from scratch (the paper's)."""
        return self.update == "proximal"

    @property
    def iterates(self) -> bool:
        """Whether the projection solver is requested, by name or by a setting that only it has."""
        return asks_to_iterate(self, self.n_landmarks)


def asks_to_iterate(given: Any, n_landmarks: Any) -> bool:
    """Whether settings or parameters ask for the projection solver, by name or by a setting that only it has."""
    if given.solver != "auto":
        return given.solver == "projection"
    landmarks_only = n_landmarks != 0 and given.init == "landmarks" and given.centering != "local"
    return not landmarks_only or given.update != "proximal" or given.diagnostics


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Complete settings: the input of the program."""

    n_oversamples: int = 0
    n_landmarks: int = 0  # to begin with, if `grow`
    grow: bool = False  # landmarks, until the tolerance is met
    private_seed: int | None = None  # secret of this node, for its private random numbers
    earlier: Any = None  # (m, columns) landmarks of the resumed run, at a node of that run

    @property
    def n_columns(self) -> int:
        return self.n_components + self.n_oversamples

    @property
    def sums_only(self) -> bool:
        """Whether nodes send only sums and landmarks: the assignment of nodes to blocks does not matter then."""
        return self.solver != "projection" and not self.random_features and not self.exchange_noise


def settle(settings: Settings, network: Network, sizes: np.ndarray) -> Options:
    """Compute the options that depend on the sizes of the nodes, and refuse settings that cannot work with them."""
    asked = {f.name: getattr(settings, f.name) for f in fields(Settings)}
    options = Options(**asked | {"n_landmarks": 0, "n_oversamples": 0})
    options = _settle_solver(options, settings, network, int(sizes.sum()))
    options = _settle_landmarks(options, settings, network, sizes)
    total, k, m = int(sizes.sum()), options.n_components, options.n_landmarks
    limit, why = _most_columns(options, network, sizes)
    if k > limit:
        remedy = "" if limit >= total - 1 else " or raise max_landmarks" if options.grow else _remedy(options, m)
        raise ValueError(
            f"n_components={k}, but {why} {'allows' if '=' in why else 'allow'} at most {limit}; lower n_components{remedy}"
        )
    return replace(options, n_oversamples=_extra_columns(settings, k, limit, why))


def _extra_columns(settings: Settings, k: int, limit: int, why: str) -> int:
    """How many columns there are besides the components."""
    wanted = settings.n_oversamples
    if settings.update == "paper":
        if wanted not in ("auto", 0):
            raise ValueError(
                f"n_oversamples={wanted} with update='paper', which takes one component after the other; set it to 0 or use update='proximal'"
            )
        return 0
    if wanted == "auto":
        return min(max(4, k), limit - k)
    if k + wanted > limit:
        raise ValueError(
            f"n_components={k} and n_oversamples={wanted} make {k + wanted} columns, but {why} allow at most {limit}; lower n_oversamples"
        )
    return wanted


def _settle_solver(options: Options, settings: Settings, network: Network, total: int) -> Options:
    """The solver for "auto": the landmark solver, unless a setting requires the iteration."""
    exact = len(network) == 1 and total <= EXACT_ROWS  # one node with few rows needs no iterations
    if settings.solver == "auto" and (settings.iterates or exact):
        return replace(options, solver="projection")
    return options


def check_rows_stay(settings: Settings) -> None:
    """Refuse settings by which rows would leave their nodes, if rows may not."""
    remedy = "or share_rows=True if rows may leave their nodes"
    if not settings.share_rows and settings.iterates:
        raise ValueError(
            f"solver='projection' with share_rows=False: its nodes exchange rows; use solver='landmarks', {remedy}"
        )
    if settings.exchange_noise and not settings.iterates:
        raise ValueError(
            "exchange_noise is for rows that neighbors exchange, but the default solver tells sums only; use solver='projection', "
            "or privacy= for sums with noise"
        )


def check_private_rank(settings: Settings) -> None:
    """Refuse more components than a private fit keeps coordinates."""
    privacy, k = settings.privacy, settings.n_components
    if privacy is not None and not settings.random_features and k > privacy.rank:
        raise ValueError(
            f"n_components={k}, but privacy keeps rank={privacy.rank} coordinates; lower n_components, or raise privacy={{..., 'rank': {k}}}"
        )


def check_resume(settings: Settings) -> None:
    """Refuse settings with which a run cannot start from the landmarks of an earlier one."""
    if settings.resume is None:
        return
    taken = {
        "solver='projection'": settings.iterates,
        f"landmarks={settings.landmarks.kind!r}": settings.landmarks.kind in ("points", RANDOM_FEATURES),
        f"landmarks={settings.n_landmarks}": settings.n_landmarks != "auto",
        "privacy": settings.privacy is not None,
    }
    for what, given in taken.items():
        if given:
            raise ValueError(
                f"resume={settings.resume!r} with {what}: a resumed run begins with the landmarks of the earlier run and adds as many "
                "as tol asks for; leave one of both out"
            )


def _settle_landmarks(options: Options, settings: Settings, network: Network, sizes: np.ndarray) -> Options:
    """The number of landmarks, or of the first stage."""
    total, n_landmarks = int(sizes.sum()), settings.n_landmarks
    alone = len(network) == 1 and options.solver == "projection"
    source, grow = options.landmarks, False
    if source.points is not None:
        m = len(source.points)
    elif options.random_features:
        m = int(n_landmarks) + int(n_landmarks) % 2  # cos and sin
    elif n_landmarks != "auto":
        m = n_landmarks if options.privacy is not None else min(n_landmarks, total)  # the number of rows is secret
    elif options.solver == "projection":
        m = min(PROJECTION_LANDMARKS, max(1, total // 10))
    else:
        grow = True
        if options.max_landmarks == MAX_LANDMARKS and total <= SMALL_TABLE and options.share_rows:
            options = replace(options, max_landmarks=2 * total)  # all rows, in addition to the means of clusters
        m = min(max(FIRST_LANDMARKS, 4 * options.n_components), options.max_landmarks)
    if not alone:
        check_rows_stay(settings)
    m = 0 if alone else m
    centering = options.centering
    if not alone:
        _check_landmarks(options, m)
    elif centering == "global":
        centering = "local"  # a node with all rows has the exact mean
    if options.update == "paper" and m:
        raise ValueError(
            f"update='paper' with {m} landmarks: the paper's iteration knows none; set landmarks=0 (dekpca.PAPER has all of its settings)"
        )
    return replace(options, n_landmarks=m, landmarks=source, grow=grow, centering=centering)


def _remedy(options: Options, m: int) -> str:
    if options.solver == "landmarks" or m:
        return " or raise landmarks"
    return ", or give the nodes more samples" + (", or use landmarks" if options.update != "paper" else "")


def _check_landmarks(options: Options, m: int) -> None:
    if options.solver == "landmarks" and options.centering == "local" and not options.random_features:
        raise ValueError(
            "solver='landmarks' with centering='local', which is the paper's; use centering='global' or None"
        )
    if m:
        return
    if options.solver != "projection":
        raise ValueError(
            "landmarks=0: the default solver has nothing to work with; give landmarks='auto' or a number above 0"
        )
    if options.centering == "global":
        raise ValueError(
            "centering='global' with landmarks=0: the landmarks carry the network's mean; set landmarks above 0, or centering to 'local' or None"
        )
    if options.init == "landmarks":
        raise ValueError(
            "init='landmarks' with landmarks=0: there is nothing to start from; set init to 'local' or 'random'"
        )


def _most_columns(options: Options, network: Network, sizes: np.ndarray) -> tuple[int, str]:
    """The smallest number of independent functions at a node, and why."""
    total, m = int(sizes.sum()), options.n_landmarks
    if len(network) == 1 and options.solver == "projection":
        return total, f"the {total} samples"
    everything = total - (options.centering is not None)  # centred data spans one dimension less
    if options.solver != "projection":
        most = options.max_landmarks if options.grow else m
        if options.privacy is not None:  # the number of rows is secret
            check_private_rank(options)
            return most, f"{most} landmarks"
        limit, why = most, f"max_landmarks={most}" if options.grow else f"{most} landmarks"
    else:
        lost = int(options.centering == "local" and m == 0)  # a centred node of n samples spans n - 1 dimensions
        ends = network.directed_edges
        room = (
            sizes
            - lost
            + np.bincount(ends[:, 0], weights=sizes[ends[:, 1]] - lost, minlength=len(sizes)).astype(np.int64)
        )
        poorest = int(np.argmin(room))
        limit = m + room[poorest]
        why = f"the {room[poorest]} dimensions of the neighborhood of node {network.names[poorest]}"
        why += f" and the {m} landmarks" if m else ""
    return (limit, why) if limit <= everything else (everything, f"{total} samples in all")
