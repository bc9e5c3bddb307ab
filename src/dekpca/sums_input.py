"""The input of the default solver, from a block and the options of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .block import Block, FlatRows
from .options import Options
from .solvers.sums import SumsOptions
from .solvers.sums.clusters import LEAST_CLUSTER
from .solvers.sums.rows import Rows, like, on_host, row_keys
from .space import Known

Array = Any


def rows_of(block: Block, options: Options) -> Rows:
    """The rows of the nodes of a block."""
    flat = FlatRows(block, block.samples)
    keys, node = row_keys(options.seed, block.names, block.own_sizes), np.repeat(block.nodes, block.own_sizes)
    if flat.order is not None:
        back = np.empty_like(flat.order)
        back[flat.order] = np.arange(len(back))
        keys, node = keys[back], node[back]
    seen = options.owners_apart and not options.share_rows and block.sealer is None
    return Rows(flat.X, keys, node, int(block.sizes.sum()), len(block.sizes), LEAST_CLUSTER if seen else 1)


def sums_options(options: Options) -> SumsOptions:
    """The options of the default solver."""
    return SumsOptions(
        n_components=options.n_components,
        kernel=options.kernel,
        seed=options.seed,
        tol=options.tol,
        first=options.n_landmarks,
        max_landmarks=options.max_landmarks if options.grow else options.n_landmarks,
        points=options.landmarks.points,
        resume=options.resume,
        earlier=options.earlier,
        share_rows=options.share_rows,
        centered=options.centering is not None,
        gamma_by_variance=options.gamma_by_variance,
        impute=options.impute,
        standardize=options.standardize,
        sealed=options.sealed,
    )


def landmark_options(options: Options, known: Known) -> SumsOptions:
    """For the landmarks of a run that iterates, whose rows are prepared already."""
    points = options.landmarks.points
    if points is not None and known.columns is not None:
        points = on_host(known.columns.standardized(like(known.columns.mean, points)))
    made = replace(sums_options(options), kernel=known.kernel(options), points=points)
    share = options.share_rows and not options.exchange_noise  # a landmark would be a row without noise
    return replace(made, share_rows=share, gamma_by_variance=False, impute=False, standardize=False)
