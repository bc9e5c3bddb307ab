"""The parameters of a fit as users give them: signature, checks, and the resulting `Settings`.

`DecentralizedKernelPCA` documents each. Peers and `engines.mpi.fit`, which fit without that estimator, use them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
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
POSITIVE = Interval(Integral, 1, None, closed="left")


def default(value: Any, *allowed: Any) -> Any:
    """The default of a parameter, and what is allowed, as scikit-learn declares it; nothing: anything."""
    return field(default=value, metadata={"allowed": list(allowed) or "no_validation"})


@dataclass(eq=False, repr=False)  # scikit-learn compares and shows estimators
class Parameters(BaseEstimator):
    """The parameters of a fit: the constructor of `DecentralizedKernelPCA`. They are unchecked before `check`."""

    n_components: Any = default(2, POSITIVE, Interval(RealNotInt, 0, 1, closed="neither"))
    _: KW_ONLY
    kernel: Any = default("rbf", StrOptions(KERNELS.keys()), callable)
    gamma: Any = default("scale", Interval(Real, 0, None, closed="neither"), StrOptions({"scale"}), None)
    degree: Any = default(3, Interval(Real, 0, None, closed="left"))
    coef0: Any = default(1.0, Interval(Real, None, None, closed="neither"))
    kernel_params: Any = default(None, dict, None)
    normalize: Any = default(False, "boolean")
    tol: Any = default(1e-3, Interval(Real, 0, 1, closed="both"))  # of a squared sine
    landmarks: Any = default("auto", StrOptions({"auto", RANDOM_FEATURES}), POSITIVE, "array-like")
    max_landmarks: Any = default(MAX_LANDMARKS, POSITIVE)
    share_rows: Any = default(True, "boolean")
    solver: Any = default("auto", StrOptions({"auto"}), Projection)
    standardize: Any = default(False, "boolean")
    missing: Any = default("error", StrOptions(set(MISSING)))
    contamination: Any = default(None, Interval(Real, 0, 0.5, closed="right"), None)
    network: Any = default(None, Network, POSITIVE, None)
    engine: Any = default("local", str)  # checked by dekpca.engines
    privacy: Any = default(None, StrOptions({SECURE_SUMS, "none"}), Privacy, dict, None)
    dtype: Any = default(None)  # checked below
    device: Any = default(None, str, None)
    memory_limit: Any = default(None, POSITIVE, str, None)
    random_state: Any = default(None, "random_state")
    verbose: Any = default(False, "verbose")


Parameters.__init__.__qualname__ = "DecentralizedKernelPCA.__init__"  # in Python's errors about arguments


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
    allowed = {parameter.name: parameter.metadata["allowed"] for parameter in fields(given)}
    validate_parameter_constraints(allowed, given.get_params(deep=False), "DecentralizedKernelPCA")
    parse_size(given.memory_limit)
    if given.dtype not in (None, "float32", "float64", np.float32, np.float64):
        raise ValueError(f"dtype={given.dtype!r}: known are 'float32', 'float64' and None")
    asked = chosen(given)
    if not kernel_of(given).has_frequencies and "features" in asked:
        those = ", ".join(sorted(name for name, kind in KERNELS.items() if kind.has_frequencies))
        raise ValueError(
            f"{asked['features']} with kernel={given.kernel!r}, which has none; kernels that have them: {those}"
        )
    if "share" in asked:
        why = "it must know the number of components before it begins; give a whole number"
        refuse(given, asked["share"], dict.fromkeys(("projection", "noise", "features"), why))
    if "projection" in asked:
        _check_projection(given, given.solver)
    if "privacy" in asked:
        _check_private(given)
    if "contamination" in asked:
        refuse(given, asked["contamination"], {
            "projection": "its nodes have components of their own, and one threshold would not fit all; leave one of both out",
            "noise": "the histogram of all rows would be told without noise; leave one of both out",
        })  # fmt: skip


def chosen(given: Parameters) -> dict[str, str]:
    """What the user chose that some solver, engine or method refuses: the text of the choice, by a word for it (see `refuse`)."""
    noise = given.privacy is not None and not isinstance(given.privacy, str)
    features = isinstance(given.landmarks, str) and given.landmarks == RANDOM_FEATURES
    found = {
        "projection": ("solver=Projection(...)", projection_of(given) is not None),
        "noise": ("privacy=Privacy(...)", noise),
        "privacy": (
            "privacy=Privacy(...)" if noise else f"privacy={given.privacy!r}",
            given.privacy not in (None, "none"),
        ),
        "features": (f"landmarks={RANDOM_FEATURES!r}", features),
        "share": (f"n_components={given.n_components}", not isinstance(given.n_components, Integral)),
        "contamination": (f"contamination={given.contamination}", given.contamination is not None),
        "engine": (f"engine={given.engine!r}", given.engine != "local"),
        "device": (f"device={given.device!r}", given.device is not None),
        "memory_limit": (f"memory_limit={given.memory_limit!r}", given.memory_limit is not None),
    }
    return {word: written for word, (written, there) in found.items() if there}


def refuse(given: Parameters, who: str, why: Mapping[str, str]) -> None:
    """Refuse what `who` cannot be had with: a reason and a remedy for each word of `chosen`."""
    asked = chosen(given)
    for word, reason in why.items():
        if word in asked:
            raise ValueError(f"{who} with {asked[word]}: {reason}")


def check_stream(given: Parameters, what: str = "partial_fit, refresh and forget", sealed: bool = False) -> None:
    """Refuse parameters with which rows cannot come in parts. `sealed`: sums may be secure."""
    refuse(given, what, {
        "projection": "it iterates over all rows; use solver='auto'",
        "features": "power iterations need all rows; use 'auto'",
        "noise" if sealed else "privacy": "the sums of a stream are kept in clear; leave privacy at None",
        "contamination": "the histogram needs all rows again; leave it at None, or use fit",
    })  # fmt: skip


def _check_projection(given: Parameters, asked: Projection) -> None:
    features = "features" in chosen(given)
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
    refuse(given, chosen(given)["privacy"], {
        "device": "it is simulated on the host; leave device at None",
        "projection": "its nodes exchange rows; use solver='auto'",
    })  # fmt: skip
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
        source = LandmarkSource(RANDOM_FEATURES)
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
