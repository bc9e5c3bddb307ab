"""Subtracting means in feature space. (The network's mean is subtracted in the landmark coordinates: core/landmarks.py.)"""

from __future__ import annotations

from typing import Any

import array_api_compat as aac

Array = Any


def center_rows(x: Array, mask: Array) -> Array:
    """Subtract from the rows of each block (..., n, m) their mean; padding stays zero."""
    xp = aac.array_namespace(x)
    count = xp.sum(mask, axis=-1)[..., None, None]
    return (x - xp.sum(x, axis=-2, keepdims=True) / count) * mask[..., None]


def center_blocks(blocks: Array, row_mask: Array, column_mask: Array) -> Array:
    """Double-centre each Gram block (..., a, b) by its own means: every node subtracts the mean of its own samples."""
    half = center_rows(blocks, row_mask)
    xp = aac.array_namespace(blocks)
    return xp.matrix_transpose(center_rows(xp.matrix_transpose(half), column_mask))
