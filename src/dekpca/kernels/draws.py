"""Random numbers that all nodes draw alike, whatever their machine and version of NumPy."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.special import ndtri

from ..arrays import integers, like


@lru_cache(maxsize=8)
def normal(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Normal numbers from `uniform` ones; cached, since fits with the same seed draw the same."""
    found = ndtri(uniform(shape, seed))
    found.setflags(write=False)
    return found


def normal_like(x: Any, shape: tuple[int, int], seed: int) -> Any:
    """The same numbers, up to rounding, in the library, on the device and in the dtype of x; a GPU makes them of the bits, which is far faster."""
    if not aac.is_torch_array(x):
        return like(x, normal(shape, seed))
    from torch.special import ndtri as on_device

    words = integers(x, (np.random.PCG64(seed).random_raw(math.prod(shape)) >> np.uint64(11)).view(np.int64))
    return like(x, on_device((words.double() + 0.5) * 2.0**-53)).reshape(shape)


def uniform(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Numbers between 0 and 1, both excluded, from raw bits: NumPy keeps that stream stable."""
    words = np.random.PCG64(seed).random_raw(shape[0] * shape[1]) >> np.uint64(11)
    return ((words.astype(np.float64) + 0.5) * 2.0**-53).reshape(shape)


def signs(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Numbers 1 and -1, each with probability one half."""
    words = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    return np.where(words >> np.uint64(63), 1.0, -1.0).reshape(shape)
