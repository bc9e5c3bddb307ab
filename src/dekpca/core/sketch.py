"""Random features of what the landmarks miss: r(x) = z(x) - z(L)' K_LL^-1 k(L, x), where z are the random Fourier features of the kernel.

E r(x)'r(y) = k(x, y) - psi(x)'psi(y) for rows at any nodes, so sums of r over the nodes give products that no node can compute from its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat as aac
import numpy as np

from ..kernels import Kernel
from .landmarks import Landmarks, shared_seed
from .spectrum import transposed

Array = Any

FEW_COLUMNS = 8
WIDER = (1.0, 1.5, 2.2)  # times the kernel's own frequencies


@dataclass(frozen=True, eq=False)
class Sketch:
    """One set of random features, the same at every node: frequencies (F, M), and their weights, if not 1.

    Landmarks miss high frequencies. In few dimensions the kernel's own distribution rarely draws them, so
    frequencies are also drawn from wider distributions, with weights that keep the features unbiased (importance
    sampling). In many dimensions this is neither needed nor possible.
    """

    kernel: Kernel
    frequencies: Array
    weights: Array | None = None

    @classmethod
    def drawn(cls, kernel: Kernel, like: Array, count: int, seed: int, purpose: str) -> Sketch:
        """`count` frequencies for samples like these (n, M)."""
        xp = aac.array_namespace(like)
        like_these = {"dtype": like.dtype, "device": aac.device(like)}
        found = kernel.frequencies(like.shape[1], count, shared_seed(seed, purpose))
        weights = None
        if kernel.name == "rbf" and like.shape[1] <= FEW_COLUMNS:
            wider = np.array(WIDER)[np.arange(count) % len(WIDER)]
            found = found * wider[:, None]
            square = (found * found).sum(axis=1) / (2.0 * kernel.gamma)
            drawn = np.mean([np.exp(-0.5 * square / c**2) / c ** like.shape[1] for c in WIDER], axis=0)
            weights = xp.asarray(np.sqrt(np.exp(-0.5 * square) / drawn), **like_these)
        # rounded to float32, so that features in float32 have the same frequencies
        return cls(kernel, xp.asarray(found.astype(np.float32), **like_these), weights)

    @property
    def size(self) -> int:
        """Features: a cosine and a sine of each frequency."""
        return 2 * int(self.frequencies.shape[0])

    def features(self, samples: Array) -> Array:
        """z of each sample: (n, 2 F), in the dtype of the samples."""
        xp = aac.array_namespace(samples)
        found = self.kernel.features(samples, xp.astype(self.frequencies, samples.dtype, copy=False))
        if self.weights is None:
            return found
        return found * xp.astype(xp.concat([self.weights, self.weights]), samples.dtype, copy=False)

    def on_landmarks(self, marks: Landmarks, dtype: Any = None) -> Array:
        """A (m, 2 F) with r(x) = z(x) - A'psi(x); z is computed in `dtype`, if one is given."""
        xp = aac.array_namespace(marks.points)
        z = self.features(xp.astype(marks.points, dtype or marks.points.dtype, copy=False))
        return transposed(marks.root) @ xp.astype(z, marks.root.dtype, copy=False)

    def weighted(self, coefficients: Array) -> Array:
        """Coefficients of weighted features, as coefficients of unweighted ones."""
        if self.weights is None:
            return coefficients
        return coefficients * aac.array_namespace(coefficients).concat([self.weights, self.weights])[:, None]
