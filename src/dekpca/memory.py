"""The memory of a run, if it is limited: how many landmarks fit, and whether kernel matrices of the projection solver are stored."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from numbers import Integral
from pathlib import Path

from .chunks import STRIPES, SUMMED_BYTES, item_bytes, row_bytes, threads
from .data.blocks import Blocks
from .settings import Options
from .site import Site
from .solvers.projection.node import TILE
from .solvers.sums import LEAST_SAMPLE, SAMPLE
from .solvers.sums.judge import judging_bytes
from .solvers.sums.moments import EXTRA

UNITS = {"": 1, "B": 1} | {f"{prefix}B": 10 ** (3 * i) for i, prefix in enumerate("KMGT", 1)}
UNITS |= {f"{prefix}IB": 2 ** (10 * i) for i, prefix in enumerate("KMGT", 1)}

CONTAINER = Path("/sys/fs/cgroup/memory.max")
PASS_BYTES = 2**22  # what a pass over the rows works on at a time
ITERATES = 12  # live arrays of an iteration, for each sample of a neighborhood and each landmark


def parse_size(limit: int | str | None) -> int | None:
    """Bytes from a number or a text such as "2GB" or "512 MiB".

    >>> parse_size("2GB"), parse_size("0.5 KiB")
    (2000000000, 512)
    """
    if limit is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?i?b?)\s*", str(limit), re.IGNORECASE)
    unit = match[2].upper() if match else None
    if isinstance(limit, bool) or not isinstance(limit, (Integral, str)) or unit not in UNITS or float(match[1]) <= 0:  # type: ignore[index]
        raise ValueError(f"memory_limit={limit!r}: give bytes, or a text such as '2GB' or '512MiB'")
    return int(float(match[1]) * UNITS[unit])  # type: ignore[index]


def machine_bytes() -> int:
    """The memory that this process may use: of the machine, or of its container, if that has a limit."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**62
    try:
        return min(most, int(CONTAINER.read_text(encoding="ascii")))
    except (OSError, ValueError):  # there is none, or it has no limit
        return most


def fitting(site: Site, options: Options, limit: int, joined: bool = False) -> Options:
    """The options, with at most as many landmarks as fit into the limit, and kernel matrices stored only if they fit. `joined`: the rows of the site
    are a copy of those of several parts."""
    in_blocks = isinstance(site.X, Blocks)
    rows = site.X.bytes if in_blocks else copies(site, options, joined) * site.X.shape[0] * row_bytes(site.X)
    most = options.max_landmarks
    while options.grow and most > options.n_landmarks and rows + needed(site, options, most) > limit:
        most = max(options.n_landmarks, int(0.8 * most))
    options = replace(options, max_landmarks=most)
    least = rows + needed(site, options, options.n_landmarks)
    if least > limit:
        narrower = ", use dtype='float32'" if item_bytes(site.like) > 4 else ""
        others = "" if in_blocks else ", or spread the nodes over more processes (engine='mpi')"
        raise ValueError(
            f"memory_limit={limit / 1e9:.3g} GB: the samples of these {len(site.nodes)} nodes and {options.n_landmarks} landmarks take about "
            f"{least / 1e9:.3g} GB; raise it{narrower}{others}"
        )
    return replace(options, store_grams=least + grams(site) <= limit)


def copies(site: Site, options: Options, joined: bool) -> int:
    """How many copies of the rows a fit has at a time."""
    if options.projection is None or options.exact:
        return int(joined or options.exact or options.standardize or options.impute)
    # that of the models; of parts that are joined, or of rows in the order of the nodes; and with noise
    return 1 + (joined or site.order is not None) + options.projection.noisy


def needed(site: Site, options: Options, m: int) -> int:
    """Bytes that a fit with m landmarks takes besides the rows and, with the projection solver, besides matrices between neighbors."""
    n, columns = int(site.own_sizes.sum()), int(site.X.shape[1])
    # a share of the variance: all that the landmarks see
    k = m if options.n_components < 1 else int(options.n_components)
    item = item_bytes(site.like)
    if options.exact:
        return 4 * n * n * 8
    if options.random_features:
        return 3 * n * m * item
    asked, as_points = options.projection, not options.kernel.has_sketch
    moments = 8 * (6 * m * m + min(STRIPES * m * m, max(2 * m * m, SUMMED_BYTES // 8)))
    besides = PASS_BYTES + moments
    started = m > 0 and asked is not None and asked.init == "landmarks"
    if (asked is None and options.share_rows) or (not as_points and (asked is None or started)):
        besides += judging_bytes(n, columns, m, k, max(k, options.n_columns) + EXTRA, as_points, item)
    if asked is None:
        apart = (options.owners_apart or options.sealed) and not options.share_rows
        # where others see sums, a sample has up to twice as many rows, or all of a node rather than more than half (`sample_size`, `sampled`)
        sample = min(n, (4 if apart else 1) * max(SAMPLE * m, LEAST_SAMPLE)) * columns
        return besides + 4 * n * 8 + sample * item
    matrices = 8 if asked.noisy else 6  # of each node's own samples
    own = sum(matrices * int(size) ** 2 + int(size) * m for size in site.own_sizes)
    sizes = neighborhoods(site)
    near = sum(size * (2 * m + ITERATES * options.n_columns) for size in sizes)
    if started and not as_points:  # `better_of` has the landmark coordinates of all rows, and the values of functions
        besides += 2 * n * (m + max(k, options.n_columns) + EXTRA) * item
    # the rows of a neighborhood while its kernel matrix is made, and a part of the matrix where it is made again
    making = at_once(site) * max(sizes) * columns + 3 * min(TILE, int(site.sizes.max())) * max(sizes)
    return besides + (own + near + making) * item


def grams(site: Site) -> int:
    """Bytes of the kernel matrices of all neighborhoods, and of those that are being made."""
    sizes = neighborhoods(site)
    return (sum(size**2 for size in sizes) + 2 * at_once(site) * max(sizes) ** 2) * item_bytes(site.like)


def at_once(site: Site) -> int:
    """Nodes whose kernel matrices are made at the same time: one in each thread."""
    with threads(site.X.shape[0]) as count:
        return min(count, len(site.nodes))


def neighborhoods(site: Site) -> list[int]:
    """The samples of each node here and of its neighbors together."""
    return [int(site.sizes[[j, *site.network.neighbors(j)]].sum()) for j in site.nodes.tolist()]
