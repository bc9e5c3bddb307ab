"""What noise costs: epsilon for a delta, for adding or removing one row. The numbers are dp-accounting's.

Everything released is a sum with Gaussian noise. The noise multiplier z of a release is its standard deviation over the L2 sensitivity. Releases
with multipliers z_1, z_2, ..., also adaptive ones, cost together what one with 1 / z^2 = 1 / z_1^2 + 1 / z_2^2 + ... costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def _package():
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError(f"private sums need dp-accounting ({error}); pip install 'dekpca[privacy]'") from error
    return dp_accounting


def composed(multipliers: Iterable[float]) -> float:
    """The noise multiplier of several releases together."""
    total = sum(z**-2 for z in multipliers)
    return math.inf if total == 0 else total**-0.5


def epsilon_of(multiplier: float, delta: float) -> float:
    """Epsilon of a Gaussian mechanism.

    Examples
    --------
    >>> round(epsilon_of(4.2247, 1e-6), 4)
    1.0
    """
    return float(_package().get_epsilon_gaussian(multiplier, delta))


def multiplier_for(epsilon: float, delta: float) -> float:
    """The least noise multiplier for this epsilon and delta.

    Examples
    --------
    >>> round(multiplier_for(1.0, 1e-6), 4)
    4.2247
    """
    return float(_package().get_sigma_gaussian(epsilon, delta))


def discreteness(epsilon: float, numbers: int, sigma: float) -> float:
    """What discrete noise of deviation `sigma` on a number of integers adds to delta.

    A rounded continuous Gaussian is a function of the continuous one, whose guarantee it has. The discrete Gaussian differs from it by less
    than 1 / sigma^2 in total variation, for each number; a sum of discrete Gaussian shares differs from one discrete Gaussian by less than
    10 exp(-2 pi^2 sigma^2 / 2) a share (Kairouz, Liu, Steinke 2021), which is nothing from sigma = 10 on.
    """
    return (1.0 + math.exp(epsilon)) * numbers / sigma**2
