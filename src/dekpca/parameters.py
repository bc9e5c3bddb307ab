"""The parameters of a fit as users give them: signature, checks, and the resulting `Settings`.

`DecentralizedKernelPCA` documents each. MPI ranks and peers, which fit without that estimator, use them too.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state

# scikit-learn has no public API to check parameters; its own estimators declare them like this
from sklearn.utils._param_validation import Interval, RealNotInt, StrOptions, validate_parameter_constraints

from .arrays import to_numpy
from .data.checks import MISSING, checked
from .data.columns import Features, Samples
from .kernels import KERNELS, Kernel, make_kernel
from .memory import parse_size
from .network import Network
from .privacy.settings import FEATURES, POINTS, Privacy, refuse_unaccounted
from .settings import MAX_LANDMARKS, RANDOM_FEATURES, LandmarkSource, Settings
from .solvers.projection import Projection

SECURE_SUMS = "secure-sums"


@dataclass(eq=False, repr=False)  # scikit-learn compares and shows estimators
class Parameters(BaseEstimator):
    """The parameters of a fit: the constructor of `DecentralizedKernelPCA`. They are unchecked before `check`."""

    _parameter_constraints = {
        "n_components": [Interval(Integral, 1, None, closed="left"), Interval(RealNotInt, 0, 1, closed="neither")],
        "kernel": [StrOptions(KERNELS.keys()), callable],
        "gamma": [Interval(Real, 0, None, closed="neither"), StrOptions({"scale"}), None],
        "degree": [Interval(Real, 0, None, closed="left")],
        "coef0": [Interval(Real, None, None, closed="neither")],
        "kernel_params": [dict, None],
        "normalize": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "landmarks": [StrOptions({"auto", RANDOM_FEATURES}), Interval(Integral, 1, None, closed="left"), "array-like"],
        "max_landmarks": [Interval(Integral, 1, None, closed="left")],
        "share_rows": ["boolean"],
        "solver": [StrOptions({"auto"}), Projection],
        "standardize": ["boolean"],
        "missing": [StrOptions(set(MISSING))],
        "contamination": [Interval(Real, 0, 0.5, closed="right"), None],
        "network": [Network, Interval(Integral, 1, None, closed="left"), None],
        "engine": [str],  # checked by dekpca.engines
        "privacy": [StrOptions({SECURE_SUMS, "none"}), Privacy, dict, None],
        "dtype": "no_validation",
        "device": [str, None],
        "memory_limit": [Interval(Integral, 1, None, closed="left"), str, None],
        "copy_X": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    n_components: Any = 2
    _: KW_ONLY
    kernel: Any = "rbf"
    gamma: Any = "scale"
    degree: Any = 3
    coef0: Any = 1.0
    kernel_params: Any = None
    normalize: Any = False
    tol: Any = 1e-3
    landmarks: Any = "auto"
    max_landmarks: Any = MAX_LANDMARKS
    share_rows: Any = True
    solver: Any = "auto"
    standardize: Any = False
    missing: Any = "error"
    contamination: Any = None
    network: Any = None
    engine: Any = "local"
    privacy: Any = None
    dtype: Any = None
    device: Any = None
    memory_limit: Any = None
    copy_X: Any = True
    random_state: Any = None
    verbose: Any = False


def projection_of(given: Parameters) -> Projection | None:
    return given.solver if isinstance(given.solver, Projection) else None


def noise_of(given: Parameters) -> Privacy | None:
    return None if given.privacy is None or isinstance(given.privacy, str) else Privacy.of(given.privacy)


def float_types(given: Parameters) -> list[Any]:
    """The dtypes to compute in; the first is for data that is not float."""
    return [np.float64, np.float32] if given.dtype is None else [np.dtype(given.dtype).type]


def seed_of(given: Parameters) -> int:
    """An integer unchanged; from any other random state a new draw with each call."""
    if isinstance(given.random_state, Integral):
        return int(given.random_state)
    return int(check_random_state(given.random_state).randint(2**31 - 1))


def kernel_of(given: Parameters, n_features: int = 1) -> Kernel:
    """The kernel; gamma="scale" is 1 / n_features."""
    numbers = given.gamma, given.degree, given.coef0
    return make_kernel(given.kernel, *numbers, given.kernel_params, given.normalize, n_features)


def check(given: Parameters) -> None:
    """Refuse parameters that are wrong for any data."""
    if given.n_components is None:
        remedy = "give a number, or a share of the variance such as 0.95"
        raise ValueError(f"n_components=None: all components of N rows are N columns at every node; {remedy}")
    if isinstance(given.kernel, str) and given.kernel == "precomputed":
        raise ValueError(
            "kernel='precomputed': a node must compare its rows with landmarks and neighbors, which a matrix given to it cannot do. Where one "
            "process has the whole matrix K, give row numbers as samples, X = numpy.arange(len(K))[:, None], and a kernel that looks them up: "
            "lambda A, B: K[numpy.ix_(A[:, 0].astype(int), B[:, 0].astype(int))]"
        )
    validate_parameter_constraints(given._parameter_constraints, given.get_params(deep=False), "DecentralizedKernelPCA")
    parse_size(given.memory_limit)
    if given.engine != "local" and (given.memory_limit is not None or given.device is not None):
        raise ValueError(f"memory_limit and device are for engine='local', not {given.engine!r}; leave them at None")
    if given.dtype not in (None, "float32", "float64", np.float32, np.float64):
        raise ValueError(f"dtype={given.dtype!r}: known are 'float32', 'float64' and None")
    features = isinstance(given.landmarks, str) and given.landmarks == RANDOM_FEATURES
    if not kernel_of(given).has_features and features:
        those = ", ".join(sorted(name for name, kind in KERNELS.items() if kind.has_features))
        what = f"landmarks={RANDOM_FEATURES!r} with kernel={given.kernel!r}"
        raise ValueError(f"{what}, which has none; kernels that have them: {those}")
    asked = projection_of(given)
    fixed = {
        "solver=Projection(...)": asked is not None,
        "privacy=Privacy(...)": noise_of(given) is not None,
        f"landmarks={RANDOM_FEATURES!r}": features,
    }
    if not isinstance(given.n_components, Integral) and any(fixed.values()):
        what = next(name for name, there in fixed.items() if there)
        why = "it must know the number of components before it begins"
        raise ValueError(f"n_components={given.n_components:g} with {what}: {why}; give a whole number")
    if asked is not None:
        _check_projection(given, asked, features)
    if given.privacy not in (None, "none"):
        _check_private(given)
    if given.contamination is not None and (asked is not None or noise_of(given) is not None):
        what, why = (
            "solver=Projection(...)",
            "its nodes have components of their own, and one threshold would not fit all",
        )
        if asked is None:
            what, why = "privacy=Privacy(...)", "the histogram of all rows would be told without noise"
        raise ValueError(f"contamination={given.contamination:g} with {what}: {why}; leave one of both out")


def check_stream(given: Parameters, what: str = "partial_fit, refresh and forget", sealed: bool = False) -> None:
    """Refuse parameters with which rows cannot come in parts. `sealed`: sums may be secure."""
    if projection_of(given) is not None:
        raise ValueError(f"{what} with solver=Projection(...): it iterates over all rows; use solver='auto'")
    if isinstance(given.landmarks, str) and given.landmarks == RANDOM_FEATURES:
        raise ValueError(f"{what} with landmarks={RANDOM_FEATURES!r}: power iterations need all rows; use 'auto'")
    if given.privacy not in (None, "none", *([SECURE_SUMS] if sealed else [])):
        raise ValueError(f"{what} with privacy: the sums of a stream are kept in clear; leave privacy at None")
    if given.contamination is not None:
        raise ValueError(
            f"{what} with contamination={given.contamination:g}: the histogram needs all rows again; leave it at None, or use fit"
        )


def _check_projection(given: Parameters, asked: Projection, features: bool) -> None:
    if features or isinstance(given.landmarks, Integral):
        remedy = "leave it at 'auto'" if features else f"give Projection(n_landmarks={given.landmarks})"
        raise ValueError(f"landmarks={given.landmarks!r} with solver=Projection(...): {remedy}")
    if not isinstance(given.landmarks, str) and asked.n_landmarks == 0:
        raise ValueError("landmarks were given, but Projection(n_landmarks=0) takes none; leave one of both out")
    if given.max_landmarks != MAX_LANDMARKS:
        what = f"max_landmarks={given.max_landmarks} with solver=Projection(...)"
        raise ValueError(f"{what}, which does not add landmarks; give Projection(n_landmarks=...)")


def _check_private(given: Parameters) -> None:
    asked = noise_of(given)
    what = f"privacy={SECURE_SUMS!r}" if asked is None else "privacy=Privacy(...)"
    if given.engine != "local" or given.device is not None:
        raise ValueError(
            f"{what} with engine={given.engine!r}, device={given.device!r}: ranks or workers of one owner have no need of it; use engine='local', "
            "which simulates it on the host, or `dekpca node run`"
        )
    if projection_of(given) is not None:
        raise ValueError(f"{what} with solver=Projection(...): its nodes exchange rows; use solver='auto'")
    if asked is not None:
        refuse_unaccounted(
            gamma=given.gamma, kernel=kernel_of(given), landmarks=given.landmarks, standardize=given.standardize, missing=given.missing,
            norm=asked.norm, ranges=asked.ranges,
        )  # fmt: skip


def settings_of(given: Parameters, features: Features, seed: int) -> Settings:
    """The settings for samples with these columns."""
    kernel, asked, landmarks = kernel_of(given, features.count), noise_of(given), given.landmarks
    source = LandmarkSource()
    count: int | Literal["auto"] = "auto"
    if isinstance(landmarks, Integral):
        count = int(landmarks)
    elif not isinstance(landmarks, str):
        source = LandmarkSource("points", _points(given, features))
    elif landmarks == RANDOM_FEATURES:
        source = LandmarkSource("random-features")
        count = int(given.max_landmarks) if asked is None else min(FEATURES, int(given.max_landmarks))
    if asked is not None and source.kind == "auto":
        source, count = LandmarkSource("synthetic"), POINTS if count == "auto" else count
    return Settings(
        n_components=int(given.n_components) if isinstance(given.n_components, Integral) else float(given.n_components),
        kernel=kernel,
        gamma_by_variance=isinstance(given.gamma, str) and kernel.has_gamma,
        tol=float(given.tol),
        landmarks=source,
        n_landmarks=count,
        max_landmarks=int(given.max_landmarks),
        share_rows=bool(given.share_rows),
        projection=projection_of(given),
        impute=given.missing == "mean",
        standardize=bool(given.standardize),
        seed=seed,
        secure_sums=given.privacy == SECURE_SUMS if isinstance(given.privacy, str) else False,
        privacy=None if asked is None else asked.with_columns(features),
        contamination=None if given.contamination is None else float(given.contamination),
    )


def _points(given: Parameters, features: Features) -> np.ndarray:
    """Given landmarks, with columns in internal order."""
    samples = checked(given.landmarks, "landmarks")
    points = check_array(to_numpy(samples.X), dtype=np.float64, input_name="landmarks")
    if points.shape[1] != features.count:
        raise ValueError(f"landmarks: {points.shape[1]} columns, but the samples have {features.count}; use the same")
    points = features.arrange(Samples(points, samples.names), "landmarks", "the samples")
    _, first, counts = np.unique(points, axis=0, return_index=True, return_counts=True)
    if (counts > 1).any():
        row = int(first[counts > 1][0])
        raise ValueError(f"landmarks: row {row} comes {counts[counts > 1][0]} times; give each point once")
    return points
