"""The parameters of a fit as users give them: defaults, checks, and the resulting `Settings`.

`DecentralizedKernelPCA` documents each. MPI ranks and peers, which fit without that estimator, use them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
from sklearn.utils import check_array, check_random_state

# scikit-learn has no public API to check parameters; its own estimators declare them like this
from sklearn.utils._param_validation import Interval, StrOptions, validate_parameter_constraints

from .choices import RANDOM_FEATURES, LandmarkSource, Noise, PenaltyRule, penalty_rule
from .columns import Features, Samples
from .core.spectrum import to_numpy
from .kernels import FREQUENCIES, KERNELS, make_kernel
from .memory import parse_size
from .network import Network
from .node_model import EXPANSIONS
from .options import MAX_LANDMARKS, Settings
from .privacy.settings import FEATURES, POINTS, Privacy, refuse_unaccounted
from .samples import foreign_samples, is_foreign

CONSTRAINTS: dict[str, Any] = {
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
    "rho": "no_validation",  # choices.penalty_rule has better messages
    "n_oversamples": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
    "max_landmarks": [Interval(Integral, 1, None, closed="left")],
    "landmarks": [StrOptions({"auto", RANDOM_FEATURES}), Interval(Integral, 0, None, closed="left"), "array-like"],
    "share_rows": ["boolean"],
    "missing": [StrOptions({"error", "mean"})],
    "standardize": ["boolean"],
    "expansion": [StrOptions(set(EXPANSIONS))],
    "exchange_noise": [Interval(Real, 0, None, closed="left"), str],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "network": [Network, Interval(Integral, 1, None, closed="left"), None],
    "engine": [str],  # checked by dekpca.engines
    "dtype": "no_validation",
    "copy_X": ["boolean"],
    "device": [str, None],
    "memory_limit": [Interval(Integral, 1, None, closed="left"), str, None],
    "secure_sums": ["boolean"],
    "privacy": [dict, None],
    "random_state": ["random_state"],
    "diagnostics": ["boolean"],
    "verbose": ["verbose"],
}


@dataclass(frozen=True, eq=False)
class Parameters:
    """The parameters of a fit with their defaults; unchecked before `check`."""

    n_components: int = 2
    kernel: str | Callable[..., Any] = "rbf"
    gamma: float | str | None = "scale"
    degree: float = 3
    coef0: float = 1.0
    kernel_params: Mapping[str, Any] | None = None
    normalize: bool = False
    solver: str = "auto"
    update: str = "proximal"
    centering: str | None = "global"
    init: str = "landmarks"
    rho: Any = "auto"
    n_oversamples: int | str = "auto"
    max_landmarks: int = MAX_LANDMARKS
    landmarks: Any = "auto"
    share_rows: bool = True
    missing: str = "error"
    standardize: bool = False
    expansion: str = "neighborhood"
    exchange_noise: float | str = 0.0
    max_iter: int = 100
    tol: float = 1e-3
    network: Network | int | None = None
    engine: str = "local"
    dtype: Any = None
    copy_X: bool = True
    device: str | None = None
    memory_limit: int | str | None = None
    secure_sums: bool = False
    privacy: Mapping[str, Any] | None = None
    random_state: Any = None
    diagnostics: bool = False
    verbose: bool | int = False

    @classmethod
    def of(cls, estimator: Any) -> Self:
        """Those of an estimator."""
        return cls(**estimator.get_params(deep=False))

    def as_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def rule(self) -> PenaltyRule:
        return penalty_rule(self.rho, self.max_iter)

    @cached_property
    def noise(self) -> Noise:
        return Noise.of(self.exchange_noise)

    @property
    def source(self) -> LandmarkSource:
        """The source of landmarks; points are checked later, when the columns of the samples are known."""
        return LandmarkSource.of(self.landmarks)

    @property
    def float_types(self) -> list[Any]:
        """The dtypes to compute in; the first is for data that is not float."""
        return [np.float64, np.float32] if self.dtype is None else [np.dtype(self.dtype).type]

    @property
    def allow_nan(self) -> bool:
        return self.missing == "mean"

    def seed(self) -> int:
        """An integer unchanged; from any other random state a new draw with each call."""
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def check(self) -> None:
        """Refuse parameters that are wrong for any data."""
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
        validate_parameter_constraints(CONSTRAINTS, self.as_dict(), "DecentralizedKernelPCA")
        parse_size(self.memory_limit)
        if self.engine != "local" and (self.memory_limit is not None or self.device is not None):
            raise ValueError(
                f"memory_limit and device are for engine='local', but engine={self.engine!r}; leave them at None"
            )
        if self.dtype not in (None, "float32", "float64", np.float32, np.float64):
            raise ValueError(f"dtype={self.dtype!r}: known are 'float32', 'float64' and None")
        if self.solver == "landmarks" and self.update == "paper":
            raise ValueError(
                "solver='landmarks' has no z to update, so update='paper' means nothing; leave it at 'proximal'"
            )
        if self.source.kind == RANDOM_FEATURES:
            self._check_random_features()
        _ = self.rule, self.noise
        if self.privacy is not None or self.secure_sums:
            self._check_private()

    def _check_private(self) -> None:
        what = "secure_sums" if self.privacy is None else "privacy"
        if self.engine == "mpi" or self.device is not None:
            raise ValueError(
                f"{what} with engine={self.engine!r}, device={self.device!r}: ranks of one owner have no need of it; use engine='local', which "
                "simulates it on the host, or engine='peer'"
            )
        if self.solver == "projection" or self.update == "paper" or self.diagnostics:
            raise ValueError(f"{what} with solver='projection': its nodes exchange rows; use solver='landmarks'")
        if self.privacy is not None:
            kernel = make_kernel(
                self.kernel, self.gamma, self.degree, self.coef0, self.kernel_params, self.normalize, 1
            )
            asked = Privacy.of(self.privacy)
            refuse_unaccounted(
                gamma=self.gamma, kernel=kernel, landmarks=self.landmarks, solver=self.solver, standardize=self.standardize, missing=self.missing,
                centering=self.centering, norm=asked.norm, exchange_noise=self.exchange_noise, ranges=asked.ranges,
            )  # fmt: skip

    def _check_random_features(self) -> None:
        if self.solver == "projection":
            raise ValueError(
                f"landmarks={RANDOM_FEATURES!r} with solver={self.solver!r}: random features need solver='landmarks'"
            )
        if self.kernel not in FREQUENCIES:
            raise ValueError(
                f"landmarks={RANDOM_FEATURES!r} with kernel={self.kernel!r}, which has none; kernels "
                f"that have them: {', '.join(sorted(FREQUENCIES))}"
            )

    def settings(self, features: Features, seed: int) -> Settings:
        """The settings for samples with these columns."""
        kernel = make_kernel(
            self.kernel, self.gamma, self.degree, self.coef0, self.kernel_params, self.normalize, features.count
        )
        source = self.source if self.source.points is None else LandmarkSource.of(self._points(features))
        sealed, private = self.privacy is not None or bool(self.secure_sums), self.privacy is not None
        n_landmarks = int(self.landmarks) if isinstance(self.landmarks, Integral) else "auto"
        if private and source.kind == "auto":
            source, n_landmarks = LandmarkSource("synthetic"), POINTS if n_landmarks == "auto" else n_landmarks
        elif source.kind == RANDOM_FEATURES:
            n_landmarks = min(FEATURES, int(self.max_landmarks)) if private else int(self.max_landmarks)
        return Settings(
            n_components=int(self.n_components),
            n_oversamples=_count(self.n_oversamples),
            kernel=kernel,
            gamma_by_variance=isinstance(self.gamma, str) and kernel.has_gamma,
            solver="landmarks" if sealed else self.solver,  # type: ignore[arg-type]
            update=self.update,  # type: ignore[arg-type]
            centering=self.centering,  # type: ignore[arg-type]
            init=self.init,  # type: ignore[arg-type]
            rho=self.rule,
            n_landmarks=n_landmarks,  # type: ignore[arg-type]
            landmarks=source,
            max_landmarks=int(self.max_landmarks),
            share_rows=bool(self.share_rows),
            impute=self.missing == "mean",
            standardize=bool(self.standardize),
            exchange_noise=self.noise,
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            seed=seed,
            diagnostics=bool(self.diagnostics),
            secure_sums=bool(self.secure_sums),
            privacy=None if self.privacy is None else Privacy.of(self.privacy).with_columns(features),
        )

    def _points(self, features: Features) -> np.ndarray:
        """Given landmarks, with columns in internal order."""
        samples = Samples.of(self.landmarks, "landmarks")
        points = samples.X
        if is_foreign(points):
            points = foreign_samples(points, "landmarks", None)
        points = check_array(to_numpy(points), dtype=np.float64, input_name="landmarks")
        if points.shape[1] != features.count:
            raise ValueError(
                f"landmarks: {points.shape[1]} columns, but the samples have {features.count}; use the same"
            )
        points = features.arrange(Samples(points, samples.names), "landmarks", "the samples")
        _, first, counts = np.unique(points, axis=0, return_index=True, return_counts=True)
        if (counts > 1).any():
            row = int(first[counts > 1][0])
            raise ValueError(f"landmarks: row {row} comes {counts[counts > 1][0]} times; give each point once")
        return points


def _count(given: Any) -> int | Literal["auto"]:
    return "auto" if given == "auto" else int(given)
