"""Signs of components, which kernel PCA leaves open.

scikit-learn makes the largest value over all rows positive. A maximum is no sum, and sums of odd powers in its place change their sign with the few
rows of a tail. So a component is to correlate, over all rows, with a function of a row that is the same in every fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_compat as aac

from .arrays import like
from .draws import normal
from .kernels import Kernel, Linear

Array = Any

PAIRS = 4  # of random features; one would do, but with several no direction is left out
SEED = 0  # the same in every fit, whatever random_state is
LONGEST = 64.0  # times sqrt(k(x, x)), at most: a bound on the function, which is about as large as sqrt(k(x, x))


def reference(kernel: Kernel, beside: Array) -> Callable[[Array], Array]:
    """The function, of rows (n, columns) like `beside`: random features of the kernel, or of the linear one where it has none, with fixed weights."""
    features = (kernel if kernel.has_sketch else Linear()).random_map(beside.shape[1], PAIRS, 1, SEED)
    weights = like(beside, normal((2 * PAIRS, 1), SEED)[:, 0] / (2 * PAIRS) ** 0.5)
    return lambda X: features(X) @ weights


def signed(components: Array, along: Array) -> Array:
    """Components (., k) with signs such that their sums `along` (k,) with the reference are not negative."""
    xp = aac.array_namespace(components)
    return xp.where(along < 0, -components, components)
