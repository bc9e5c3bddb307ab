"""What a user asks for with `privacy=`, checked; and what cannot be had with it, each with its remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import Any

import numpy as np

from ..data.columns import Features
from ..kernels import Kernel
from .errors import PublicError
from .ledger import NO_ROOM, BudgetSpent, Ledger, LedgerFile, Releases, cost
from .releases import Release, releases

RANK = 60  # coordinates that are kept: noise grows with the root of their number
POINTS = 1000  # synthetic points, where no number is given
MOST_RECORD = 1 << 14  # bytes of a key record with its certificates: four of RSA with 4096 bits
FEATURES = 200  # random features, all of which carry noise
MOMENTS = "mean, products and number of rows in landmark coordinates"
POINT_MOMENTS = "mean, products and number of rows, for synthetic points"


@dataclass(frozen=True)
class Privacy:
    """Differential privacy for each row, of whatever node: adding or removing one.

    Parameters
    ----------
    epsilon, delta : float
        What the fit may spend.
    colluding : int
        So many nodes may put together all they know, their own noise too. Default: 1, or 0 on a network of one node.
    rank : int
        Coordinates that are kept, the leading ones of the landmarks' own kernel matrix.
    norm : float or None
        A public bound on the norm of rows; longer ones are clipped to it. For synthetic landmarks, and kernels that are not bounded.
    points_share : float
        Of the budget, for synthetic landmarks.
    ledger, budget : path, float
        A file to which this fit is added, and the epsilon (for the same delta) at which it stops. Default: this fit's epsilon.
    ranges : pair, list of pairs, mapping or None
        Public (lowest, highest) values of the columns: one pair for all, one for each, or by name. With standardize=True columns are scaled by
        them, to -1 and 1.
    rows : int or None
        About how many rows all nodes have together, a public number. `dekpca node run` says what agreement to expect with so many.

    Examples
    --------
    >>> import numpy as np
    >>> from dekpca import DecentralizedKernelPCA, Privacy
    >>> rng = np.random.default_rng(0)
    >>> X, public = rng.normal(size=(5000, 3)), rng.normal(size=(50, 3))
    >>> privacy = Privacy(epsilon=1, delta=1e-6, rank=5)
    >>> model = DecentralizedKernelPCA(1, gamma=0.1, network=3, landmarks=public, privacy=privacy, tol=0.9).fit(X)
    >>> model.privacy_.epsilon <= 1
    True
    """

    epsilon: float
    delta: float
    colluding: int | None = None
    rank: int = RANK
    norm: float | None = None
    points_share: float = 0.5
    ledger: str | None = None
    budget: float | None = None
    rows: int | None = None
    ranges: Any = field(default=None, compare=False)  # (columns, 2), in the order of computing, after `with_columns`

    @classmethod
    def of(cls, given: Any) -> Privacy:
        """From a mapping.

        Examples
        --------
        >>> Privacy.of({"epsilon": 1, "delta": 1e-6}).rank
        60
        """
        if isinstance(given, Privacy):
            return given
        known = [f.name for f in fields(cls)]
        if not isinstance(given, Mapping) or not {"epsilon", "delta"} <= set(given):
            raise ValueError(f"privacy={given!r}: give a mapping with epsilon and delta, or dekpca.Privacy(...)")
        unknown = sorted(set(map(str, given)) - set(known))
        if unknown:
            raise ValueError(f"privacy: {', '.join(unknown)} unknown; known are {', '.join(known)}")
        return cls(**given)

    def __post_init__(self) -> None:
        limits = {"epsilon": 10, "delta": 0.1, "norm": np.inf, "points_share": 1, "budget": np.inf}
        for name, high in limits.items():
            value = getattr(self, name)
            if value is None and name in ("norm", "budget"):
                continue
            if not isinstance(value, (int, float, np.number)) or isinstance(value, bool) or not 0 < value < high:
                raise ValueError(f"privacy: {name}={value!r}; it must be a number above 0 and below {high:g}")
        for name, low in (("colluding", 0), ("rank", 1), ("rows", 2)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < low):
                raise ValueError(f"privacy: {name}={value!r}; it must be a whole number from {low} on")

    def with_columns(self, features: Features) -> Privacy:
        """With ranges as an array (columns, 2), in the order of computing."""
        given = self.ranges
        if given is None:
            return self
        if isinstance(given, Mapping):
            if features.sorted_names is None:
                raise ValueError("privacy: ranges by name, but the columns have no names; give a list of pairs")
            missing = sorted(set(features.sorted_names) ^ set(given))
            if missing:
                raise ValueError(f"privacy: ranges and columns differ: {', '.join(missing)}; give each column a range")
            pairs = [given[name] for name in features.sorted_names]
        else:
            pairs = given
        shape = (features.count, 2)
        try:
            ranges = np.asarray(pairs, dtype=np.float64)
            ranges = np.broadcast_to(ranges, shape) if ranges.shape == (2,) else ranges
            good = ranges.shape == shape and np.isfinite(ranges).all() and (ranges[:, 0] < ranges[:, 1]).all()
        except ValueError:
            good = False
        if not good:
            each = f"for all columns, or for each of the {features.count}"
            raise ValueError(f"privacy: ranges must be (lowest, highest) {each}, with lowest below highest")
        in_order = ranges if isinstance(given, Mapping) else features.to_sorted(ranges.T).T
        return replace(self, ranges=np.ascontiguousarray(in_order))

    def colluding_of(self, n_nodes: int) -> int:
        """How many nodes may collude on this network."""
        found = min(1, n_nodes - 1) if self.colluding is None else int(self.colluding)
        if found >= n_nodes:
            raise ValueError(f"privacy: colluding={found} of {n_nodes} nodes; at least one must be honest; lower it")
        return found

    def releases(self, kind: str, width: int, columns: int, n_nodes: int) -> tuple[Release, ...]:
        """What a fit releases, in order: moments of rows for synthetic points, if there are any, and of `width` coordinates."""
        widths, shares = {MOMENTS: width}, {MOMENTS: 1.0}
        if kind == "synthetic":
            widths = {POINT_MOMENTS: columns, MOMENTS: width}
            shares = {POINT_MOMENTS: self.points_share, MOMENTS: 1.0 - self.points_share}
        return releases(self.epsilon, self.delta, widths, shares, n_nodes, self.colluding_of(n_nodes))

    @property
    def ledger_file(self) -> LedgerFile | None:
        if self.ledger is None:
            return None
        return LedgerFile(self.ledger, self.epsilon if self.budget is None else self.budget, self.delta)

    def spend(self, planned: tuple[Release, ...], fit: str = "", before: Releases | None = None) -> Ledger:
        """The ledger of a fit with these releases, after it was added to the file; before anything is computed or sent.

        `fit`: the name of a fit that may be interrupted and gone on with. It is added once. `before`: what was released with nodes that are lost now,
        by such names. Without a file nothing would limit this, so it is refused.
        """
        entries, before = tuple(release.entry() for release in planned), before or {}
        everything = (*(entry for earlier in before.values() for entry in earlier), *entries)
        found = Ledger(everything, cost(everything, self.delta), self.delta)
        if self.ledger_file is not None:
            self.ledger_file.charge(entries, fit, before)
        elif before:
            raise BudgetSpent(
                f"nodes were lost after a release; going on would release a second one, epsilon {found.epsilon:.4g} in all, and no ledger limits "
                'that; give privacy a ledger and a budget with room for it and start this node again, or use on_loss = "stop"',
                told=NO_ROOM,
            )
        return found


def kernel_size(kernel: Kernel, norm: float | None) -> float:
    """A public bound on k(x, x) for rows of at most this norm; an error where there is none."""
    size = kernel.largest(np.inf if norm is None else float(norm))
    if not np.isfinite(size):
        clip = "" if np.isinf(kernel.largest(1.0)) else "privacy={..., 'norm': B} (rows are clipped to it), or "
        remedy = f"{clip}normalize=True"
        raise PublicError(
            f"privacy with kernel={kernel.label!r}: k(x, x) has no public bound, so one row could change a sum by any amount; give {remedy}, or use "
            "a bounded kernel such as rbf"
        )
    return size


def refuse_unaccounted(
    *, gamma: Any, kernel: Kernel, landmarks: Any, standardize: bool, missing: str, norm: Any, ranges: Any = None
) -> None:
    """Refuse what depends on the data and is not accounted for."""
    if isinstance(gamma, str) and kernel.has_gamma:
        remedy = "give gamma a number that does not come from these rows"
        raise ValueError(f"privacy with gamma='scale': the variance of all rows is not accounted for; {remedy}")
    if standardize and ranges is None:
        raise ValueError(
            "privacy with standardize=True: means and deviations of the columns are not accounted for; give public ranges, "
            "privacy={..., 'ranges': [(low, high), ...]}, or leave standardize at False"
        )
    if ranges is not None and not standardize:
        raise ValueError("privacy with ranges, but standardize=False: set standardize=True to scale columns by them")
    if missing == "mean":
        remedy = "put public values in the place of missing ones before fit"
        raise ValueError(f"privacy with missing={missing!r}: column means are not accounted for; {remedy}")
    if (isinstance(landmarks, Integral) or (isinstance(landmarks, str) and landmarks == "auto")) and norm is None:
        raise ValueError(
            f"privacy with landmarks={landmarks!r}: points are drawn from noisy sums of rows, which need a public bound on the norm of a row; give "
            "privacy={..., 'norm': B}, to which longer rows are clipped, or use public points (an array) or 'random-features'"
        )
    if kernel.is_definite is False:
        wrong = "which is not positive semi-definite with its parameters"
        raise ValueError(f"privacy with kernel={kernel.label!r}, {wrong}; use rbf or another that is")
    kernel_size(kernel, norm)
