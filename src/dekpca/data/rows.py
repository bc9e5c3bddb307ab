"""`Rows`: the rows of a file that need not fit into memory. They are read in blocks, in their order, once for each pass."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from .checks import MISSING, NOTHING_LEFT, Missing, check_finite, complete_rows, like_ids
from .formats import LABELS, NO_ROWS, Block, DataError, Made, Source, counted_from, errors_of, open_source
from .frames import ColumnError
from .reading import Chosen, Data, Roles, check_owners_left, choose, source_categories

log = logging.getLogger("dekpca")

# Of the numbers of a block; texts of a csv file, and what is computed from a block, are a few times that
BLOCK_BYTES = 2**23
AGAIN = "start again when nobody writes to it"
SAY_EVERY = 5.0  # seconds between two lines about how far a pass is


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a file, or of all files of a folder, that are read in blocks: `fit` and `transform` take them in the place of an array.

    Memory holds a block of rows, samples of them, and about 20 bytes for each row. The answer is that of `fit` of the same rows as an array, to
    rounding, with the same `network`; without a network, and without an owner of each row, all rows are on one node. Make it by one of the methods
    `from_...`, whose options say what the columns are, as on the command line (docs/howto/data.md).

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> import dekpca
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.npy"
    >>> np.save(path, np.random.default_rng(0).normal(size=(5000, 4)))
    >>> rows = dekpca.Rows.from_npy(path, block_rows=1000)
    >>> model = dekpca.DecentralizedKernelPCA(2, gamma=0.1, random_state=0).fit(rows)
    >>> model.transform(rows).shape
    (5000, 2)
    """

    source: Source
    roles: Roles
    who: str  # the file, in messages
    block_rows: int | None = None

    @classmethod
    def from_parquet(cls, path: str | Path, *, block_rows: int | None = None, **columns: Any) -> Rows:
        """Rows of a parquet file, or of all parquet files in a folder.

        Parameters
        ----------
        path : str or Path
        block_rows : int, optional
            The number of rows of a block; default: as many as take 8 MB.
        owner : str, optional
            The column that names each row's node. The nodes are its values.
        columns, drop : sequence of str, optional
            The features, or columns to leave out; default: all columns are features, except those with another role.
        one_hot : sequence of str, or mapping of str to sequence of str, optional
            Columns of categories, each of which becomes a feature of zeros and ones. Without the categories the column is read once to find them.
        label, id : str, optional
            Columns to leave out. (On the command line a column called y, label, labels or target is a label by default; not here.)

        Examples
        --------
        >>> import tempfile, pathlib
        >>> import pandas
        >>> import dekpca
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.parquet"
        >>> pandas.DataFrame({"island": list("aab"), "bill": [1.5, 2.0, 2.5], "mass": [3, 4, 5]}).to_parquet(path)
        >>> rows = dekpca.Rows.from_parquet(path, owner="island")
        >>> rows.names, [block.X.tolist() for block in rows.blocks()]
        (('bill', 'mass'), [[[1.5, 3.0], [2.0, 4.0], [2.5, 5.0]]])
        """
        return cls.from_file(path, _roles(columns), block_rows, (".parquet", ""))

    @classmethod
    def from_csv(cls, path: str | Path, *, block_rows: int | None = None, **columns: Any) -> Rows:
        """Rows of a .csv or .tsv file, with or without a header; options as of `from_parquet`. It is read far more slowly than parquet."""
        return cls.from_file(path, _roles(columns), block_rows, (".csv", ".tsv"))

    @classmethod
    def from_npy(cls, path: str | Path, *, block_rows: int | None = None, **columns: Any) -> Rows:
        """Rows of a matrix in an .npy file; options as of `from_parquet`, columns being called "0", "1" and so on."""
        return cls.from_file(path, _roles(columns), block_rows, (".npy",))

    @classmethod
    def from_blocks(cls, make: Callable[[], Any], **columns: Any) -> Rows:
        """Rows that a function makes: it is called for each pass over the rows, and must return the same blocks in the same order.

        Parameters
        ----------
        make : callable
            Returns an iterable of arrays (rows, columns) or DataFrames. Options as of `from_parquet`.

        Examples
        --------
        >>> import numpy as np
        >>> import dekpca
        >>> def batches():
        ...     for seed in range(5):
        ...         yield np.random.default_rng(seed).normal(size=(1000, 3))
        >>> rows = dekpca.Rows.from_blocks(batches)
        >>> dekpca.DecentralizedKernelPCA(2, gamma=0.1, random_state=0).fit(rows).node_sizes_
        array([5000])
        """
        return cls._opened(Made(make), _roles(columns), "blocks of rows", None)

    @classmethod
    def from_file(
        cls, path: str | Path, roles: Roles | None = None, block_rows: int | None = None, endings: Sequence[str] = ()
    ) -> Rows:
        """Rows of a file with one of these endings, by default of any format that `dekpca.data.read` knows."""
        path, roles = Path(path), roles or Roles()
        if endings and (path.suffix.lower() not in endings) and path.is_file():
            raise DataError(
                f"{path}: the ending is {path.suffix or 'missing'}, not {' or '.join(filter(None, endings))}"
            )
        with errors_of(path):
            return cls._opened(open_source(path, set(roles.mentioned)), roles, str(path), block_rows)

    @classmethod
    def _opened(cls, source: Source, roles: Roles, who: str, block_rows: int | None) -> Rows:
        if block_rows is not None and not (isinstance(block_rows, Integral) and block_rows >= 1):
            raise ValueError(f"block_rows={block_rows!r}: give a whole number of at least 1")
        source.interface = roles.interface
        one_hot = {n: sorted(source_categories(source, n, who)) if c is None else c for n, c in roles.one_hot.items()}
        made = cls(source, replace(roles, one_hot=one_hot), who, block_rows)
        made.chosen  # noqa: B018  # refuses columns that are not there
        made.stamps  # noqa: B018
        return made

    @cached_property
    def chosen(self) -> Chosen:
        return choose(self.who, self.source, self.roles)

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """Of the features; None if the columns have no names."""
        none: Any = {name: np.zeros(0) for name in self.chosen.values}
        return self.chosen.data(Block(np.zeros((0, len(self.chosen.numbers))), none, counted_from(0))).names

    @property
    def columns(self) -> int:
        """How many features."""
        return len(self.chosen.numbers) + sum(len(categories or ()) for categories in self.roles.one_hot.values())

    @property
    def owner_names(self) -> list[str]:
        """The values of the column of owners."""
        return sorted(source_categories(self.source, str(self.roles.owner), self.who))

    @property
    def ignored(self) -> tuple[str, ...]:
        """Columns that are neither features nor ids."""
        return self.chosen.ignored

    @property
    def bytes(self) -> float:
        """What all rows would take as numbers in memory; of a csv file an estimate."""
        return 8.0 * self.columns * self.source.estimated_rows

    @cached_property
    def stamps(self) -> list[tuple[int, int]]:
        """Sizes and times of the files, as they were when these rows were first seen."""
        return self._stamps()

    def owned_by(self, column: str) -> Rows:
        """With another column of owners."""
        return self._opened(self.source, replace(self.roles, owner=column), self.who, self.block_rows)

    def blocks(self, missing: Missing = "error", most_bytes: int | None = BLOCK_BYTES, say: str = "") -> Iterator[Data]:
        """One pass: blocks of rows, in their order, checked; or, if `most_bytes` is None, all rows as one. `say` is what log lines call the pass."""
        if missing not in MISSING:
            raise ValueError(f"missing={missing!r}: known are {', '.join(MISSING)}")
        chosen, source = self.chosen, self.source
        with nullcontext() if isinstance(source, Made) else errors_of(Path(self.who)):
            if self._stamps() != self.stamps:
                raise DataError(f"has changed since it was opened; {AGAIN}")
            size = self.block_rows or max(1, (most_bytes or 0) // (8 * self.columns))
            blocks, total = source.blocks(chosen.numbers, chosen.values, size), source.rows
            if most_bytes is None:
                whole = source.read(chosen.numbers, chosen.values)
                blocks, total = iter([whole]), len(whole.X)
            done, dropped, since = 0, 0, time.monotonic()
            owners: tuple[set[Any], set[Any]] = set(), set()  # of all rows, and of those that are not dropped
            for block in blocks:
                data, done = chosen.data(block), done + len(block.X)
                seen = str(done) if done == total else f"the first {done}"
                check_finite(data.samples, self.who, missing, block.where, seen)
                if missing == "drop":
                    before, data = data, data.at(np.flatnonzero(complete_rows(data.X)))
                    dropped += data.dropped
                    for known, some in zip(owners, (before, data), strict=True):
                        known.update([] if some.owners is None else some.owners.tolist())
                if done == len(block.X) and self.roles.columns is None:
                    for said in like_ids(data.samples, self.who, "every row" if done == total else f"{seen} rows"):
                        log.warning(f"{said}: name it as the id, or drop it; list the columns to keep it")
                yield data
                if time.monotonic() - since > SAY_EVERY:
                    since = time.monotonic()
                    of = "" if total is None else f" of {total:,}"
                    log.info(f"{self.who}: {say}{done:,}{of} rows")
            if not done:
                raise DataError(NO_ROWS)
            if dropped == done:
                raise ColumnError(f"{self.who}: {NOTHING_LEFT}")
            check_owners_left(self.who, *owners)
            if done != (total or done) or self._stamps() != self.stamps:
                raise DataError(f"has changed while it was read; {AGAIN}")
            if dropped:
                log.info(f"{self.who}: {dropped} of {done} rows lack a value and are left out")

    def _stamps(self) -> list[tuple[int, int]]:
        return [(found.st_size, found.st_mtime_ns) for found in map(Path.stat, self.source.files)]


def read(path: str | Path, roles: Roles | None = None, missing: Missing = "error") -> Data:
    """The samples of a file, by its ending.

    Parameters
    ----------
    path : str or Path
        .npz (arrays "X" and, for labels, "y"; "columns" may name the columns of X), .npy (memory-mapped), .csv or .tsv (comma, semicolon or
        tab, with or without a header) or .parquet.
    roles : Roles, optional
        The roles of the columns.
    missing : {"error", "drop", "mean"}
        For rows with missing values: refuse the file, leave the rows out, or keep NaN, which the network's mean will replace.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.csv"
    >>> _ = path.write_text("hospital,age,weight\\noslo,41,80\\nrome,38,75\\nrome,,70\\n")
    >>> data = read(path, Roles(owner="hospital"), missing="drop")
    >>> data.X.tolist(), data.names, data.owners.tolist(), data.dropped
    ([[41.0, 80.0], [38.0, 75.0]], ('age', 'weight'), ['oslo', 'rome'], 1)
    """
    (data,) = Rows.from_file(path, roles).blocks(missing, most_bytes=None)
    return data


def _roles(columns: Mapping[str, Any]) -> Roles:
    known = {"owner", "label", "id", "columns", "drop", "one_hot"}
    if not columns.keys() <= known:
        raise TypeError(
            f"Rows: unknown option {', '.join(sorted(columns.keys() - known))}; known are {', '.join(sorted(known))}"
        )
    one_hot = columns.get("one_hot", {})
    categories = one_hot if isinstance(one_hot, (Mapping, str)) else dict.fromkeys(one_hot)
    return Roles(**{**columns, "one_hot": categories}, keep=LABELS)  # a label has to be named here
