"""The rows of a fit in blocks: what a solver has in the place of an array, if the rows do not fit into memory.

What costs is a pass over the file. The first one, `survey`, checks the rows, counts them by owner, finds means and variances of the columns, and
keeps the random samples for which a fit will ask. A fit then makes one more pass, if all goes well: the last, over all rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..draws import keys_from, numbered, row_keys, start_of, uniform_by_key
from ..network import Network
from .columns import Features
from .formats import DataError
from .frames import is_null
from .owners import Wanted, deal_rows, make_network, name_labels, named_network
from .rows import AGAIN, BLOCK_BYTES, Rows

Array = Any
Draws = Sequence[tuple[str, int]]  # the purpose of a random sample, and how many rows it has at most

log = logging.getLogger("dekpca")

POOL_BYTES = 2**26  # of rows kept for later: enough for all samples of a fit of 20 columns


class Reader:
    """Passes over the rows, and rows that are kept in memory for later."""

    def __init__(self, rows: Rows, features: Features, dtype: Any, missing: Any, limit: int | None):
        kind = np.float32 if rows.source.float32 >= {*rows.chosen.numbers, *rows.roles.one_hot} else np.float64
        self.rows, self.features, self.missing = rows, features, missing
        self.dtype = np.dtype(kind if dtype is None else dtype)
        self.block_bytes = BLOCK_BYTES if limit is None else max(1, min(BLOCK_BYTES, limit // 32))
        self.pool_bytes = POOL_BYTES if limit is None else min(POOL_BYTES, limit // 4)
        self.cuts: list[tuple[int, bytes]] = []  # rows and their sum, of each block, as the first pass found them
        self.passes, self.seconds, self.dropped = 0, 0.0, 0
        self.block: np.ndarray = np.zeros((0, features.count), dtype=self.dtype)  # that was read last
        self.start = 0
        self.forget()

    def each(self, why: str) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
        """The number of the first row, the rows and their owners, of each block."""
        self.passes += 1
        began, count, first = time.perf_counter(), 0, not self.cuts
        for number, data in enumerate(
            self.rows.blocks(self.missing, self.block_bytes, f"pass {self.passes} ({why}), ")
        ):
            X = self.features.to_sorted(data.X).astype(self.dtype, copy=False)
            cut = len(X), np.add.reduce(X, axis=None).tobytes()
            if first:
                self.cuts.append(cut)
                self.dropped += data.dropped
            elif number >= len(self.cuts) or self.cuts[number] != cut:
                raise DataError(f"{self.rows.who}: other rows than in the first pass; {AGAIN}")
            self.start, self.block = count, X
            if len(X):
                yield count, X, data.owners
            count += len(X)
        if len(self.cuts) != number + 1:
            raise DataError(f"{self.rows.who}: fewer rows than in the first pass; {AGAIN}")
        self.seconds += time.perf_counter() - began
        log.info(f"{self.rows.who}: pass {self.passes} ({why}): {count:,} rows in {time.perf_counter() - began:.1f} s")

    # ------------------------------------------------------------------ rows in memory
    def forget(self) -> None:
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []  # places, in order, and rows

    def keep(self, there: np.ndarray) -> None:
        """Keep some rows of the block that was read last."""
        places = np.flatnonzero(there)
        if len(places):
            self.kept.append((self.start + places, self.block[places]))

    @property
    def full(self) -> bool:
        return sum(rows.nbytes for _, rows in self.kept) > self.pool_bytes

    def take(self, places: np.ndarray) -> np.ndarray:
        """Rows at these places, which are in order: from memory, or by a pass."""
        if len(self.kept) > 1:
            self.kept = [(np.concatenate([at for at, _ in self.kept]), np.concatenate([rows for _, rows in self.kept]))]
        if self.kept and len(places):
            here, rows = self.kept[0]
            found = np.minimum(np.searchsorted(here, places), len(here) - 1)
            if (here[found] == places).all():
                return rows[found]
        self.forget()
        if len(places):
            for start, X, _ in self.each("rows that were drawn"):
                low, high = np.searchsorted(places, (start, start + len(X)))
                there = np.zeros(len(X), dtype=bool)
                there[places[low:high] - start] = True
                self.keep(there)
        return np.concatenate([self.block[:0], *(rows for _, rows in self.kept)])


class Blocks:
    """Rows (n, columns) of a file, columns in internal order, with the key and the number of the node of each.

    Iteration is a pass: the number of the first row, and the rows, of each block.
    """

    def __init__(self, reader: Reader, keys: np.ndarray, node: np.ndarray, moments: Any = None, prepare: Any = None):
        self.reader, self.keys, self.node, self.prepare = reader, keys, node, prepare
        # of each column: count, mean, squared deviations
        self.moments: tuple[np.ndarray, np.ndarray, np.ndarray] = moments
        self.shape, self.dtype = (len(keys), reader.features.count), reader.dtype

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        for start, X, _ in self.reader.each("all rows"):
            yield start, self._prepared(X)

    def take(self, places: np.ndarray) -> np.ndarray:
        """The rows at these places, which are in order, in memory."""
        return self._prepared(self.reader.take(places))

    def mapped(self, f: Callable[[np.ndarray], np.ndarray]) -> Blocks:
        """f of each row. `moments` stay those of the rows as they are in the file."""
        before = self._prepared
        return Blocks(self.reader, self.keys, self.node, self.moments, lambda X: f(before(X)))

    def _prepared(self, X: np.ndarray) -> np.ndarray:
        return X if self.prepare is None else self.prepare(X)

    @property
    def none(self) -> np.ndarray:
        """No rows, as an array."""
        return np.zeros((0, self.shape[1]), dtype=self.dtype)

    @property
    def bytes(self) -> int:
        """What it holds in memory, at most, beside the keys: rows that are kept, a block as it is read and as numbers."""
        return self.reader.pool_bytes + 4 * self.reader.block_bytes


def blocks_of(X: Array) -> Iterator[tuple[int, Array]]:
    """The number of the first row, and the rows, of each block; an array is one block."""
    return iter(X) if isinstance(X, Blocks) else iter([(0, X)])


def array_of(X: Array) -> Array:
    """X, or no rows of it if it is in blocks: an array of the same library and dtype."""
    return X.none if isinstance(X, Blocks) else X


# ---------------------------------------------------------------------- the first pass
def survey(
    rows: Rows, features: Features, wanted: Wanted, seed: int, dtype: Any, missing: Any, draws: Draws, moments: bool, limit: int | None
) -> tuple[Blocks, Network, np.ndarray]:  # fmt: skip
    """The rows in blocks, checked; their network, and how many rows each node has. Owners as in `owners.deal`, except that without owners and
    without a network all rows are on one node. `draws`: samples to keep. `moments`: whether means and variances are needed."""
    reader = Reader(rows, features, dtype, missing, limit)
    dealer: Any = ByOwner(seed) if rows.roles.owner is not None else OneNode(seed, wanted)
    if rows.roles.owner is None and len(make_network(1 if wanted is None else wanted, 1, seed)) > 1:
        total = rows.source.rows
        if total is None or missing == "drop":
            total = sum(len(X) for _, X, _ in reader.each("number of rows"))
        dealer = Dealer(seed, wanted, total)
    known = None if missing == "drop" else rows.source.rows
    left, found, count = list(draws), None, 0
    for start, X, owners in reader.each("checks, columns, samples"):
        count += len(X)
        keys = dealer.keys(start, len(X), owners)
        there = np.zeros(len(X), dtype=bool)
        for purpose, size in left:
            # the total is at least what was counted so far
            there |= uniform_by_key(keys, purpose) < size / (known or count)
        reader.keep(there)
        if reader.full and left:
            left.pop()  # what is not kept will take another pass
        if moments:
            found = added(found, column_moments(X, missing == "mean"))
    if count < 2:
        raise ValueError(f"{rows.who}: {count} sample(s), but at least 2 needed; add rows")
    network, keys, node, sizes, same = dealer.end(wanted)
    if not same:  # owners turned out to be called otherwise
        reader.forget()
    return Blocks(reader, keys, node, found), network, sizes


class OneNode:
    """All rows on one node."""

    def __init__(self, seed: int, wanted: Wanted):
        self.network = make_network(1 if wanted is None else wanted, 1, seed)
        self.found: list[np.ndarray] = []
        self.begin = start_of(seed, self.network.names[0])

    def keys(self, start: int, count: int, owners: Any) -> np.ndarray:
        self.found.append(keys_from(self.begin, np.arange(start, start + count)))
        return self.found[-1]

    def end(self, wanted: Wanted) -> tuple[Network, np.ndarray, np.ndarray, np.ndarray, bool]:
        keys = np.concatenate(self.found)
        node = np.broadcast_to(np.zeros(1, dtype=np.int32), (len(keys),))  # takes no memory
        return self.network, keys, node, np.array([len(keys)]), True


class Dealer:
    """A seeded permutation of the rows, dealt evenly, as for an array."""

    def __init__(self, seed: int, wanted: Wanted, total: int):
        self.network, parts = deal_rows(wanted, total, seed)
        self.sizes = parts.sizes
        self.all, self.node = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int32)
        self.all[parts.order] = row_keys(seed, self.network.names, self.sizes)
        self.node[parts.order] = np.repeat(np.arange(len(parts), dtype=np.int32), self.sizes)

    def keys(self, start: int, count: int, owners: Any) -> np.ndarray:
        return self.all[start : start + count]

    def end(self, wanted: Wanted) -> tuple[Network, np.ndarray, np.ndarray, np.ndarray, bool]:
        return self.network, self.all, self.node, self.sizes, True


class ByOwner:
    """Each row on the node that its label names."""

    def __init__(self, seed: int):
        self.seed, self.numbers = seed, True
        self.number: dict[Any, int] = {}  # by label
        self.texts: dict[str, int] = {}  # by label as text, which is the same for all types of labels
        self.begin, self.counts = np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
        self.found: list[np.ndarray] = []
        self.codes: list[np.ndarray] = []

    def keys(self, start: int, count: int, owners: Any) -> np.ndarray:
        self.numbers = self.numbers and np.issubdtype(owners.dtype, np.integer)
        number, labels = self.number, owners.tolist()
        for label in dict.fromkeys(labels):
            if label not in number:
                if is_null(label):
                    row = start + next(i for i, other in enumerate(labels) if is_null(other))
                    raise ValueError(f"nodes: no label in row {row}; give every row its node")
                text = str(np.asarray([label], dtype=owners.dtype).astype(str)[0])
                number[label] = self.texts.setdefault(text, len(self.texts))
        code = np.fromiter(map(number.__getitem__, labels), dtype=np.int32, count=count)
        new = [start_of(self.seed, text) for text in list(self.texts)[len(self.begin) :]]
        self.begin = np.concatenate([self.begin, np.array(new, dtype=np.uint64)])
        self.counts = np.concatenate([self.counts, np.zeros(len(new), dtype=np.int64)])
        self.codes.append(code)
        self.found.append(self._of(code))
        return self.found[-1]

    def _of(self, code: np.ndarray) -> np.ndarray:
        """Keys of the next rows."""
        place = numbered(code, self.counts)
        self.counts = self.counts + np.bincount(code, minlength=len(self.counts))
        return keys_from(self.begin[code], place)

    def end(self, wanted: Wanted) -> tuple[Network, np.ndarray, np.ndarray, np.ndarray, bool]:
        texts = list(self.texts)
        names = name_labels(texts, self.numbers, wanted)
        network, sizes = named_network(wanted, names, self.seed), self.counts
        if names != texts:
            self.begin = np.array([start_of(self.seed, name) for name in names], dtype=np.uint64)
            self.counts = 0 * self.counts
            self.found = [self._of(code) for code in self.codes]
        number = np.array([network.number[name] for name in names], dtype=np.int32)
        own = np.zeros(len(network), dtype=np.int64)
        own[number] = sizes
        node = np.concatenate([number[code] for code in self.codes])
        return network, np.concatenate(self.found), node, own, names == texts


def column_moments(X: np.ndarray, gaps: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each column the number of values, their mean, and the sum of their squared deviations from it. `gaps`: NaN is no value."""
    X = X.astype(np.float64, copy=False)
    there = ~np.isnan(X) if gaps else None
    count = np.full(X.shape[1], float(len(X))) if there is None else there.sum(axis=0).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # a solver refuses what overflows
        mean = (X if there is None else np.where(there, X, 0.0)).sum(axis=0) / np.maximum(count, 1.0)
        away = X - mean if there is None else np.where(there, X - mean, 0.0)
        return count, mean, np.einsum("ij,ij->j", away, away)


def added(one: Any, two: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The moments of columns of two sets of rows together (Chan, Golub and LeVeque)."""
    if one is None:
        return two
    (n, mean, squares), (m, other, more) = one, two
    total, away = np.maximum(n + m, 1.0), other - mean
    return n + m, mean + away * (m / total), squares + more + away * away * (n * m / total)
