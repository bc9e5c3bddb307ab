"""The settings of a run as the program sees them: complete, checked against the data's sizes, the same at every node.

What a user may leave open ("auto", None) is settled here, from sizes alone; the estimator checks each parameter by
itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from .core.clusters import LEAST_CLUSTER
from .kernels import Kernel
from .network import Network, listing

Schedule = Callable[[int, bool], float]

CHECK_EVERY = 5  # iterations between two checks of the stop rule: a check costs two ways through the tree
PROJECTION_LANDMARKS = 200  # of solver="projection", where nothing is said; at most a tenth of the rows
FIRST_LANDMARKS = 100  # of the first stage of the landmark solver
MAX_LANDMARKS = 2500  # to which they grow, where nothing is said
EXACT_ROWS = 1000  # a network of one node with at most so many rows has its kernel matrix's eigenvectors
RANDOM_FEATURES = "random-features"
AUTO_FEATURES = 4000  # random features know nothing of the data, so it takes many

# The paper's settings (He et al. 2025, and the authors' scripts): from iteration t on, penalty on the own and on a
# neighbor's constraint.
PAPER: dict[str, Any] = {
    "solver": "projection",
    "update": "paper",
    "centering": "local",
    "rho": ((0, 100.0, 10.0), (5, 100.0, 50.0), (10, 100.0, 100.0)),
    "init": "local",
    "normalize": True,
    "n_landmarks": 0,
    "n_oversamples": 0,
}


@dataclass(frozen=True)
class Options:
    """Everything that all nodes must agree on (but for `private_seed`)."""

    n_components: int
    n_oversamples: int
    kernel: Kernel
    gamma_by_variance: bool  # gamma="scale": a network sum settles it
    solver: Literal["auto", "projection", "landmarks"]
    update: Literal["proximal", "paper"]
    centering: Literal["global", "local"] | None
    init: Literal["landmarks", "random", "local"]
    rho: Any
    n_landmarks: int  # to begin with, if `grow`
    landmarks: Any  # "auto", "kmeans", "samples", "random-features" or points (m, M)
    standardize: bool
    exchange_noise: float | str
    max_iter: int
    tol: float
    seed: int
    grow: bool = False  # landmarks, as far as the tolerance asks
    max_landmarks: int = MAX_LANDMARKS
    share_rows: bool = True  # rows may leave their node: to neighbors, and as landmarks to all
    impute: bool = False  # NaN is a missing value: the column's mean over all nodes goes in its place
    diagnostics: bool = False
    private_seed: int | None = None  # of this node alone: what nobody else may know is drawn from it, if it is given

    @property
    def n_columns(self) -> int:
        return self.n_components + self.n_oversamples

    @property
    def random_features(self) -> bool:
        return isinstance(self.landmarks, str) and self.landmarks == RANDOM_FEATURES

    @property
    def sums_only(self) -> bool:
        """Whether nodes say nothing to their neighbors but sums and landmarks: how nodes are put together in blocks does not matter then."""
        return self.solver != "projection" and not self.random_features and noise_level(self.exchange_noise)[0] == 0

    @property
    def anchored(self) -> bool:
        """Whether z moves from where it was (the proximal update) or is made anew (the paper's)."""
        return self.update == "proximal"


def settle(
    options: Options, network: Network, sizes: np.ndarray, n_landmarks: int | str, n_oversamples: int | str
) -> Options:
    """Fill in what depends on the sizes of the nodes, and refuse what cannot work with them."""
    options = _settle_solver(options, network, int(sizes.sum()), n_landmarks)
    options = _settle_landmarks(options, network, sizes, n_landmarks)
    total, k, m = int(sizes.sum()), options.n_components, options.n_landmarks
    limit, why = _most_columns(options, network, sizes)
    if k > limit:
        remedy = "" if limit >= total - 1 else " or raise max_landmarks" if options.grow else _remedy(options, m)
        raise ValueError(
            f"n_components={k}, but {why} {'allows' if '=' in why else 'allow'} at most {limit}; lower n_components{remedy}"
        )
    if options.update == "paper":
        if n_oversamples not in ("auto", 0):
            raise ValueError(
                f"n_oversamples={n_oversamples} with update='paper', which takes one component after the other; set it to 0 or use update='proximal'"
            )
        extra = 0
    elif n_oversamples == "auto":
        extra = min(max(4, k), limit - k)
    else:
        extra = int(n_oversamples)
        if k + extra > limit:
            raise ValueError(
                f"n_components={k} and n_oversamples={extra} make {k + extra} columns, but {why} allow at most {limit}; lower n_oversamples"
            )
    return replace(options, n_oversamples=extra)


def _settle_solver(options: Options, network: Network, total: int, n_landmarks: int | str) -> Options:
    """What "auto" means here: the landmark solver, unless a setting asks for the iteration."""
    if options.solver != "auto":
        return options
    if iterates(options, n_landmarks):
        return replace(options, solver="projection")
    if len(network) == 1 and total <= EXACT_ROWS:
        return replace(options, solver="projection")  # one node with few rows needs no iterations
    return options


def iterates(options: Options, n_landmarks: int | str) -> bool:
    """Whether the projection solver is asked for, by name or by a setting that only it has."""
    if options.solver != "auto":
        return options.solver == "projection"
    landmarks_only = n_landmarks != 0 and options.init == "landmarks" and options.centering != "local"
    return not landmarks_only or options.update == "paper" or options.diagnostics


def check_rows_stay(options: Options, n_landmarks: int | str) -> None:
    """Refuse settings by which rows leave their nodes, where they may not."""
    remedy = "or share_rows=True if rows may leave their nodes"
    if not options.share_rows and iterates(options, n_landmarks):
        raise ValueError(
            f"solver='projection' with share_rows=False: its nodes exchange rows; use solver='landmarks', {remedy}"
        )
    if not options.share_rows and isinstance(options.landmarks, str) and options.landmarks == "samples":
        raise ValueError(
            f"landmarks='samples' with share_rows=False: samples are rows; use landmarks='auto' or 'kmeans', {remedy}"
        )


def _settle_landmarks(options: Options, network: Network, sizes: np.ndarray, n_landmarks: int | str) -> Options:
    """How many landmarks there are, or to begin with."""
    total = int(sizes.sum())
    alone = len(network) == 1 and options.solver == "projection"
    kind = options.landmarks if isinstance(options.landmarks, str) else "points"
    grow = False
    if kind == "points":
        m = len(options.landmarks)
    elif kind == RANDOM_FEATURES:
        m = AUTO_FEATURES if n_landmarks == "auto" else int(n_landmarks) + int(n_landmarks) % 2  # cos and sin
    elif n_landmarks != "auto":
        m = min(int(n_landmarks), total)
    elif options.solver == "projection":
        m = min(PROJECTION_LANDMARKS, max(1, total // 10))
    else:
        grow = True
        m = min(max(FIRST_LANDMARKS, 4 * options.n_components), options.max_landmarks)
    if options.solver == "projection" and kind == "auto":
        kind = "samples"
    if not alone:
        check_rows_stay(options, n_landmarks)
    if kind == "kmeans" and not alone and m and not (sizes >= LEAST_CLUSTER).any():
        raise ValueError(
            f"landmarks='kmeans': no node has the {LEAST_CLUSTER} rows that a cluster needs, the largest has {sizes.max()}; "
            "use larger nodes or another kind of landmarks"
        )
    m = 0 if alone else m
    centering = options.centering
    if not alone:
        _check_landmarks(options, m)
    elif centering == "global":
        centering = "local"  # a node that holds everything has the exact mean
    if options.update == "paper" and m:
        raise ValueError(
            f"update='paper' with {m} landmarks: the paper's iteration knows none; set n_landmarks=0 (dekpca.PAPER has all of its settings)"
        )
    landmarks = options.landmarks if kind == "points" else kind
    return replace(options, n_landmarks=m, landmarks=landmarks, grow=grow, centering=centering)


def _remedy(options: Options, m: int) -> str:
    if options.solver == "landmarks" or m:
        return " or raise n_landmarks"
    return ", or give the nodes more samples" + (", or use landmarks" if options.update != "paper" else "")


def _check_landmarks(options: Options, m: int) -> None:
    if options.solver == "landmarks" and options.centering == "local" and not options.random_features:
        raise ValueError(
            "solver='landmarks' with centering='local', which is the paper's; use centering='global' or None"
        )
    if m:
        return
    if options.solver != "projection":
        raise ValueError("solver='landmarks' with n_landmarks=0: it has nothing to work with; set n_landmarks above 0")
    if options.centering == "global":
        raise ValueError(
            "centering='global' with n_landmarks=0: the landmarks carry the network's mean; set n_landmarks above 0, or centering to 'local' or None"
        )
    if options.init == "landmarks":
        raise ValueError(
            "init='landmarks' with n_landmarks=0: there is nothing to start from; set init to 'local' or 'random'"
        )


def _most_columns(options: Options, network: Network, sizes: np.ndarray) -> tuple[int, str]:
    """How many independent functions the poorest node can hold, and why."""
    total, m = int(sizes.sum()), options.n_landmarks
    if len(network) == 1 and options.solver == "projection":
        return total, f"the {total} samples"
    everything = total - (options.centering is not None)  # centred data spans one dimension less
    if options.solver != "projection":
        most = options.max_landmarks if options.grow else m
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


def penalties(rho: Any, sizes_top: np.ndarray, cubes: np.ndarray, n_slots: int) -> np.ndarray | None:
    """Node penalties (B,) for the rules that depend on a node's own spectrum; None for those that do not.

    `sizes_top` is lam_1 of each K_j and `cubes` the sum of its lam^3.
    """
    if rho == "auto":
        return sizes_top * (1 + np.sqrt(1 + 8 * n_slots)) / n_slots
    if rho == "paper-bound":  # the paper's Assumption 2
        return (sizes_top**2 + np.sqrt(sizes_top**4 + 8 * n_slots * sizes_top * cubes)) / (n_slots * sizes_top)
    return None


def schedule(rho: Any) -> Schedule:
    """A number, a callable or steps (from iteration, own, neighbors) as a function of (iteration, own constraint or not)."""
    if callable(rho):
        return rho
    if isinstance(rho, (Sequence, np.ndarray)):
        return lambda t, own: next(step[1 if own else 2] for step in reversed(rho) if t >= step[0])
    return lambda t, own: rho


def check_rho(rho: Any, max_iter: int) -> None:
    """Refuse penalties that are not positive numbers."""
    if isinstance(rho, str):
        if rho not in ("auto", "paper-bound"):
            raise ValueError(f"rho={rho!r}: known are 'auto', 'paper-bound', a positive number, and a schedule")
        return
    if isinstance(rho, (Sequence, np.ndarray)):
        steps = [step for step in rho if isinstance(step, (Sequence, np.ndarray)) and len(step) == 3]
        if not len(rho) or len(steps) < len(rho):
            raise ValueError(
                f"rho={rho!r}: a schedule is a list of (from iteration, penalty of the node itself, penalty of its neighbors)"
            )
        starts = [step[0] for step in steps]
        if starts[0] != 0 or any(not a < b for a, b in pairwise(starts)):
            raise ValueError(
                f"rho={rho!r}: a schedule starts at iteration 0 and its iterations rise; they are {listing(starts)}"
            )
    rule = schedule(rho)
    for t in range(max_iter + 1):
        for own in (True, False):
            value = rule(t, own)
            number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
            if not number or not np.isfinite(value) or value <= 0:
                raise ValueError(f"rho={rho!r}: {value!r} in iteration {t}; penalties must be numbers above 0")
        if not callable(rho) and not isinstance(rho, (Sequence, np.ndarray)):
            return


def noise_level(exchange_noise: float | str) -> tuple[float | None, float | None]:
    """(standard deviation, None) or (None, signal to noise ratio in dB)."""
    if isinstance(exchange_noise, str):
        match = re.fullmatch(r"\s*([-+]?\d+(?:\.\d*)?)\s*dB\s*", exchange_noise, re.IGNORECASE)
        if not match:
            raise ValueError(
                f"exchange_noise={exchange_noise!r}: give a standard deviation such as 0.1, or a signal to noise ratio such as '20dB'"
            )
        return None, float(match[1])
    if not np.isfinite(exchange_noise) or exchange_noise < 0:
        raise ValueError(f"exchange_noise={exchange_noise!r}: a standard deviation is a number of at least 0")
    return float(exchange_noise), None
