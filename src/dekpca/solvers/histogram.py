"""The last round of a fit with `contamination`: a histogram of the reconstruction errors of all rows, so that all nodes have the same threshold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..answer import Answer
from ..arrays import on_host
from ..chunks import row_tiles
from ..data.blocks import blocks_of
from ..rounds import Arrays, BadConclusion, Round, Shapes, Solver
from ..scores import BINS, Histogram

AT_ONCE = 2**16  # rows that are prepared at a time


@dataclass(frozen=True, eq=False)
class Errors(Round):
    """How many rows have a reconstruction error in each bin."""

    answer: Answer
    kind = "scores"

    @property
    def scale(self) -> float:
        return self.answer.trace / self.answer.n_rows if self.answer.trace > 0 else 1.0

    def term(self) -> Arrays:
        answer, X = self.answer, self.answer.site.X
        (*_, terms) = answer.expansions(int(answer.site.nodes[0])).values()
        function, counts = answer.function(terms), np.zeros(BINS)
        mean = answer.mean_function(terms, function)
        assert mean is not None
        for _, block in blocks_of(X):
            for rows in row_tiles(block.shape[0], AT_ONCE) if block.shape[0] else ():
                _, errors = function.with_errors(mean, answer.kernel, answer.prepared(block[rows, :]))
                counts += Histogram.of(on_host(errors).astype(np.float64), self.scale).counts
        return {"counts": counts}

    def bounds(self) -> dict[str, Any]:
        return {"counts": 1.1 * self.answer.n_rows}

    def implausible(self, total: Arrays, rows: int) -> str | None:
        if (why := super().implausible(total, rows)) is not None:
            return why
        counts = total["counts"]
        if (counts < -0.5).any() or counts.sum() > rows + 0.5:
            return (
                f"a histogram of {counts.sum():.6g} rows with a bin of {counts.min():.6g}, where there are {rows} rows"
            )
        return None

    def told(self) -> Shapes:
        return {"counts": (BINS,)}

    def conclude(self, total: Arrays) -> Arrays:
        return {"counts": np.rint(total["counts"])}

    def check(self, told: Arrays) -> None:
        super().check(told)
        if (told["counts"] < 0).any() or not told["counts"].any():
            raise BadConclusion("the root tells a histogram without rows, or with fewer than 0; start all anew")


def with_histogram(answer: Answer) -> Solver:
    """The answer with a histogram of all rows. Components must be the same at all nodes, and centred by the mean of all rows."""
    round_ = Errors(answer)
    told = yield round_
    return replace(answer, histogram=Histogram(round_.scale, told["counts"]))
