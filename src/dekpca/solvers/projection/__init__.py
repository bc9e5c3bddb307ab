"""The projection solver: the paper's algorithm (He, Yang, Shi, Huang, TPAMI 2025) and a variant of it that converges.

This file has its options; solve.py has the algorithm, node.py the formulas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from ..sums import SumsOptions
from .penalties import checked

EXPANSIONS = ("landmarks", "node", "neighborhood")
USUAL_LANDMARKS = 200  # by default; at most a tenth of the rows


def noise_level(exchange_noise: float | str, X: Any) -> float:
    """The standard deviation of Gaussian noise on the samples X that leave a node: as given, or from a signal to noise ratio in dB.

    >>> noise_level("20dB", np.array([3.0, -3.0])), noise_level(0.5, np.ones(2))
    (0.3, 0.5)
    """
    if isinstance(exchange_noise, str):
        match = re.fullmatch(r"\s*([-+]?\d+(?:\.\d*)?)\s*dB\s*", exchange_noise, re.IGNORECASE)
        if not match:
            what = "a standard deviation such as 0.1, or a signal to noise ratio such as '20dB'"
            raise ValueError(f"exchange_noise={exchange_noise!r}: give {what}")
        return float(np.sqrt(np.mean(X * X) * 10 ** (-float(match[1]) / 10)))
    if not isinstance(exchange_noise, Real) or not np.isfinite(exchange_noise) or exchange_noise < 0:
        raise ValueError(f"exchange_noise={exchange_noise!r}: a standard deviation is a number of at least 0")
    return float(exchange_noise)


@dataclass(frozen=True)
class Projection:
    """Options of the projection solver, for `solver=` of `DecentralizedKernelPCA`.

    It is the decentralized algorithm of the paper, made to converge: nodes exchange their rows with their neighbors once, and then iterate. What it
    does, and what differs from the paper, is in docs/explanation/algorithm.md. Bad values, and values that exclude each other, raise a ValueError
    here. On a network of one node nothing iterates: the answer is central kernel PCA.

    Parameters
    ----------
    update : {"proximal", "paper"}, default="proximal"
        How a node's estimate z follows from what its neighbors send. "proximal" converges, for all components at once. "paper" is that of the paper,
        which finds one component after the other and can diverge; it needs n_landmarks=0. `dekpca.PAPER` has all of the paper's settings.
    centering : {"global", "local", None}, default="global"
        In feature space, subtract the mean of all rows, for which landmarks are needed; or from each node's rows their own mean, as the paper does;
        or nothing.
    init : {"landmarks", "random", "local"}, default="landmarks"
        Begin with the principal directions of all rows in landmark coordinates (centering "global" or None), with random functions, or with each
        node's own solution; columns beyond either begin at random. After a start with landmarks the better of start and iterate is kept, and only
        then is the accuracy known.
    rho : {"auto", "paper-bound"}, float, sequence or callable, default="auto"
        Penalties on the differences between neighbors. "auto": from each node's spectrum, with which the augmented Lagrangian usually falls.
        "paper-bound": the paper's Assumption 2. A number: everywhere the same. A schedule: a sequence of (from iteration, penalty on the node's own
        constraint, on those of its neighbors), or a function of (iteration, whether it is the own constraint) that returns a penalty.
    n_oversamples : int or "auto", default="auto"
        Columns besides the components; without them the last component may converge slowly where eigenvalues lie close. "auto" is
        max(4, n_components), or fewer if the nodes are small. update="paper" has none.
    n_landmarks : int or "auto", default="auto"
        How many landmarks the nodes share: so many, or fewer if others would add nothing. "auto" is a tenth of the rows, at most 200. 0, as in the
        paper, needs another `centering` and `init`. `landmarks=` of the estimator may give the points themselves instead.
    expansion : {"neighborhood", "node", "landmarks"}, default="neighborhood"
        Over which points a node's functions are expanded, and which its model therefore holds: the samples of its neighborhood, its own, or the
        landmarks alone. The larger ones include the landmarks, and a model has the smaller expansions too.
    exchange_noise : float or str, default=0.0
        Gaussian noise on samples before they leave a node, drawn once: a standard deviation, or a signal to noise ratio such as "20dB"; with
        standardize=True in units of the scaled columns. Node models then hold noisy samples only, and no row becomes a landmark. Component values
        and sums are still those of the samples without noise: docs/explanation/privacy.md says what this hides.
    max_iter : int, default=100
        Largest number of iterations; with update="paper" for each component.
    tol : float, default=1e-3
        All nodes stop together when each has converged: the squares of its disagreement with its neighbors and of its change in five iterations, both
        relative to the size of the components, are at most `tol`. 0 runs all of max_iter. How accurate the answer then is is another question, to
        which the estimator's `tol` belongs.
    diagnostics : bool, default=False
        Record the augmented Lagrangian in `history_` too.

    Examples
    --------
    >>> import numpy as np
    >>> from dekpca import DecentralizedKernelPCA, Network, Projection
    >>> X = np.random.default_rng(0).normal(size=(90, 3))
    >>> model = DecentralizedKernelPCA(2, gamma=0.1, network=Network.ring(3), solver=Projection(max_iter=200), random_state=0)
    >>> model.fit(X).n_iter_ > 0
    True
    """

    update: Literal["proximal", "paper"] = "proximal"
    centering: Literal["global", "local"] | None = "global"
    init: Literal["landmarks", "random", "local"] = "landmarks"
    rho: str | float | Sequence[tuple[int, float, float]] | Callable[[int, bool], float] = "auto"
    n_oversamples: int | Literal["auto"] = "auto"
    n_landmarks: int | Literal["auto"] = "auto"
    expansion: Literal["neighborhood", "node", "landmarks"] = "neighborhood"
    exchange_noise: float | str = 0.0
    max_iter: int = 100
    tol: float = 1e-3
    diagnostics: bool = False

    @classmethod
    def of(cls, given: Any) -> Projection:
        """From a text or a table of a file: "projection", "paper", or options by name.

        Examples
        --------
        >>> Projection.of({"max_iter": 50}).max_iter, Projection.of("paper") == PAPER
        (50, True)
        """
        if isinstance(given, Projection):
            return given
        if isinstance(given, str) and given in ("projection", "paper"):
            return PAPER if given == "paper" else cls()
        known = [f.name for f in fields(cls)]
        if not isinstance(given, Mapping):
            raise ValueError(f"solver={given!r}: known are 'auto', 'projection', 'paper', and a table of its options")
        unknown = sorted(set(map(str, given)) - set(known))
        if unknown:
            raise ValueError(f"solver: {', '.join(unknown)} unknown; options of Projection are {', '.join(known)}")
        return cls(**given)

    def __post_init__(self) -> None:
        for name, known in (
            ("update", ("proximal", "paper")),
            ("centering", ("global", "local", None)),
            ("init", ("landmarks", "random", "local")),
            ("expansion", EXPANSIONS),
            ("diagnostics", (True, False)),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"Projection: {name}={getattr(self, name)!r}; known are {', '.join(map(repr, known))}")
        for name, least in (("max_iter", 1), ("n_oversamples", 0), ("n_landmarks", 0)):
            value = getattr(self, name)
            if isinstance(value, str) and value == "auto" and name != "max_iter":
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise ValueError(f"Projection: {name}={value!r}; it must be a whole number of at least {least}")
        if not isinstance(self.tol, Real) or not 0 <= self.tol < np.inf:
            raise ValueError(f"Projection: tol={self.tol!r}; it must be a number of at least 0")
        object.__setattr__(self, "rho", checked(self.rho, int(self.max_iter)))
        noise_level(self.exchange_noise, np.ones(1))
        self._check_together()

    @property
    def noisy(self) -> bool:
        """Whether samples leave their nodes with noise."""
        return self.exchange_noise != 0

    def __repr__(self) -> str:
        """With what differs from the defaults, as scikit-learn's estimators."""
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Projection({', '.join(f'{name}={getattr(self, name)!r}' for name in changed)})"

    def _check_together(self) -> None:
        if self.update == "paper" and self.n_landmarks != 0:
            raise ValueError(
                f"Projection: update='paper' with n_landmarks={self.n_landmarks!r}: the paper's iteration knows none; set n_landmarks=0 "
                "(dekpca.PAPER has all of its settings)"
            )
        if self.update == "paper" and self.n_oversamples not in ("auto", 0):
            what = f"n_oversamples={self.n_oversamples} with update='paper'"
            raise ValueError(f"Projection: {what}, which takes one component after the other; set it to 0")
        if self.n_landmarks == 0 and self.centering == "global":
            raise ValueError(
                "Projection: centering='global' with n_landmarks=0: the landmarks carry the network's mean; set n_landmarks above 0, or centering "
                "to 'local' or None"
            )
        if self.init == "landmarks" and (self.n_landmarks == 0 or self.centering == "local"):
            what = "init='landmarks' with " + ("n_landmarks=0" if self.n_landmarks == 0 else "centering='local'")
            raise ValueError(f"Projection: {what}: there is nothing to start from; set init to 'local' or 'random'")
        if self.expansion == "landmarks" and self.n_landmarks == 0:
            what = "expansion='landmarks' with n_landmarks=0"
            raise ValueError(f"Projection: {what}: there are no landmarks to expand in; use expansion='node'")


PAPER = Projection(
    update="paper",
    centering="local",
    init="local",
    rho=((0, 100.0, 10.0), (5, 100.0, 50.0), (10, 100.0, 100.0)),
    n_oversamples=0,
    n_landmarks=0,
)
"""The paper's settings (He et al. 2025), which normalize the kernel too: give the estimator normalize=True. The eigenvalues are those of the kernel
that each node has centred by its own mean. Stop early, such as by max_iter=20. solve.py lists what differs, also from the authors' scripts."""


@dataclass(frozen=True, eq=False)
class ProjectionOptions:
    """What the solver needs to know, the same at every node."""

    asked: Projection
    sums: SumsOptions  # of the rounds of sums before and after the iteration
    n_columns: int  # components, and those besides them
    private_seed: int | None = None  # secret of this node, for its noise
    store_grams: bool = True  # else kernel matrices are computed at each use

    @property
    def n_components(self) -> int:
        return int(self.sums.n_components)
