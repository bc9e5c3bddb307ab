"""The Dask engine: the partitions of a collection are the nodes, or hold them. Their rows stay on the workers of the current `Client`.

A round is one task for each worker that has rows, and a tree of additions. The client concludes: it runs the program of a site that has no rows, and
asks the workers for the total of each sum. A task is a pure function of partitions and of the transcript, so a worker that is lost is replaced by
another one that replays: there are no ports, actors or locks. Only terms and the transcript move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import uuid4

import dask
import numpy as np
from distributed import Client, Future, get_client, wait

from ..data.checks import NOTHING_LEFT, check_finite, checked, complete_rows
from ..data.columns import ColumnError, Features, Samples, check_known, split_off
from ..data.frames import is_null
from ..data.owners import make_network, named_network
from ..draws import numbered
from ..network import Network, listing
from ..parameters import Parameters, seed_of, settings_of
from ..plan import Outcome, Plan, Watch, make_plan
from ..rounds import Arrays
from ..settings import Settings
from ..solvers.sums import Basis, SiteRows, Stream
from ..solvers.sums.stream import Addition, Summed, added
from .local import NO_ROW_LEFT, Before, began_with, drive, working
from .local import run as run_here
from .workers import About, ClientDelivery, Program, add

Array = Any

CANNOT = dict.fromkeys(("projection", "privacy"), "workers of one cluster only add terms of sums; use engine='local'")
CANNOT |= dict.fromkeys(("memory_limit", "device"), "set the limits of the workers; leave it at None")
FAN_IN = 8  # terms that one task adds
NO_WORKERS = 20.0  # seconds without any worker until a fit gives up
LOOK = 1.0  # seconds between two looks at the workers


def run(plan: Plan, watch: Watch | None = None, client: Client | None = None) -> Outcome:
    """Run the program on the workers of `client` (default: the current one). The parts of the plan are arrays or `Partition`s."""
    options = plan.options
    client = client or current_client()
    if options.exact:  # one partition of few rows
        (part,) = plan.parts
        rows = result_of(part.rows, client).X if isinstance(part, Partition) else part
        return run_here(replace(plan, parts=[rows]), watch)
    delivery = WorkerDelivery(plan, client)
    return drive([delivery.site], options, delivery, watch)


def current_client() -> Client:
    try:
        return get_client()
    except ValueError as error:
        remedy = "make one first, such as client = distributed.Client()"
        raise ValueError(f"engine='dask': there is no Dask client; {remedy}") from error


# ---------------------------------------------------------------------- at the workers
@dataclass(frozen=True, eq=False)
class Checked:
    """The rows of a partition as numbers, ordered by owner, if a column names the owners; and how many rows each owner has."""

    X: Array
    owners: dict[str, int] | None = None

    @classmethod
    def of(
        cls, block: Any, who: str, features: Features, dtype: Any, missing: str, owner: str | None, other: str
    ) -> Checked:
        """With columns as of `features`, which are those of `other`."""
        labels = None
        if owner is not None:
            labels, block = split_off(block, owner, who)
            if any(is_null(label) for label in labels):
                raise ColumnError(f"{who}: a row has no value in column {owner!r}; give every row its owner")
        samples = checked(block, who, dtype, least=0)
        check_finite(samples, who, missing)
        if missing == "drop":
            there = complete_rows(samples.X)
            samples, labels = samples[there], None if labels is None else labels[there]
        X = features.arrange(samples, who, other)
        if labels is None:
            return cls(X)
        names = labels.astype(str)
        order, (names, counts) = np.argsort(names, kind="stable"), np.unique(names, return_counts=True)
        return cls(X[order], dict(zip(names.tolist(), counts.tolist(), strict=True)))

    def __sizeof__(self) -> int:
        return int(self.X.nbytes)  # for Dask, which balances the memory of its workers

    def about(self) -> tuple[tuple[int, ...], Any, dict[str, int] | None]:
        return self.X.shape, self.X.dtype, self.owners


@dataclass(frozen=True, eq=False)
class Place:
    """The nodes of the rows of a partition: (nodes, rows of each), ordered by node; or the number of the first row, of rows that go to the nodes in
    turn. And the number of rows that each node of the network has before them."""

    owners: Any
    before: np.ndarray

    def at(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(count,) the node of each row, and its number there."""
        in_turn = isinstance(self.owners, int)
        node = (self.owners + np.arange(count)) % len(self.before) if in_turn else np.repeat(*self.owners)
        return node, numbered(node, self.before)


def program_of(
    rows: Sequence[Any], about: About, nodes: Sequence[np.ndarray], places: Sequence[Place | None]
) -> Program:
    """Of some partitions, with the nodes of each."""
    found = [place.at(part.X.shape[0]) for part, place in zip(rows, places, strict=True) if place is not None]
    if not found:
        return Program(rows, about, np.concatenate(nodes))
    node, number = (np.concatenate(values) for values in zip(*found, strict=True))
    return Program(rows, about, np.unique(node), (node, number))


def itself(value: Any) -> Any:
    return value


# ---------------------------------------------------------------------- at the client
class WorkerDelivery(ClientDelivery):
    """Asks the workers for the total of every sum, and tells them the conclusions."""

    def __init__(self, plan: Plan, client: Client):
        super().__init__(plan)
        self.client = client
        about = self.keep((plan.network, plan.sizes, plan.options))
        parts = [self.held(part, i) for i, part in enumerate(plan.parts)]
        # one gives the landmarks of an earlier fit
        later = self.keep((plan.network, plan.sizes, replace(plan.options, earlier=None)))
        groups = self.together(parts, plan.options.owners_apart)
        programs = [self.program(home, own, later if i else about) for i, (home, own) in enumerate(groups)]
        finished(programs, client)
        for part in parts:
            if part.place is None:  # rows of a stream are needed again
                part.rows.release()  # the programs have them; Dask makes them again for a program that is lost
        self.homes: dict[Future, str | None] = dict.fromkeys(programs)  # the worker of each program, if it is known

    def held(self, part: Any, number: int) -> Partition:
        """A part of the plan on a worker."""
        if isinstance(part, Partition):
            return part
        return Partition(self.keep(part), part.shape, part.dtype, np.array([number]))

    def together(self, parts: Sequence[Partition], apart: bool) -> list[tuple[str | None, list[Partition]]]:
        """The parts of each worker, of which one program computes one term; `apart`: each part has a program of its own."""
        finished([part.rows for part in parts], self.client)  # or nobody knows where they are
        at = self.client.who_has([part.rows for part in parts])
        found: dict[tuple[str | None, int], list[Partition]] = {}
        for i, part in enumerate(parts):
            home = next(iter(at[part.rows.key]), None)
            found.setdefault((home, i if apart else 0), []).append(part)
        return [(home, own) for (home, _), own in found.items()]

    def program(self, home: str | None, parts: Sequence[Partition], about: Future) -> Future:
        """The program of some parts, at the worker that has their rows; if it is lost, Dask makes it again at another one."""
        where = {"workers": home, "allow_other_workers": True} if home else {}
        rows, places = [part.rows for part in parts], [part.place for part in parts]
        nodes = [part.nodes for part in parts]
        return ask(self.client, "rows", program_of, rows, about, nodes, places, **where)

    def keep(self, value: Any) -> Future:
        """Something that every task may use. It is part of the graph, so that it outlives the workers that hold it."""
        return ask(self.client, "told", itself, value)

    def workers_total(self, kind: str, transcript: Sequence[Any]) -> np.ndarray:
        """Each program computes its term at the worker that has it: elsewhere it would compute all of its rounds again, so that tasks which Dask
        moves to idle workers cost more than they save. Terms whose worker was lost are asked for again."""
        terms: dict[Future, Future] = {}
        while True:
            if not all(self.homes.values()):
                self.find_homes()
            for program, home in self.homes.items():
                if program not in terms:
                    terms[program] = ask(self.client, kind, Program.term, program, [*transcript], workers=home)
            total = total_of_all(list(terms.values()), add, self.client)
            if finished([total], self.client, set(self.homes.values()) - {None}):
                return total.result()
            before = dict(self.homes)
            self.find_homes()
            terms = {program: term for program, term in terms.items() if before[program] in (None, self.homes[program])}

    def find_homes(self) -> None:
        alive, at = self.client.nthreads(), self.client.who_has([*self.homes])
        for program in self.homes:  # None: rows of a lost worker are made again at any other one
            self.homes[program] = next((home for home in at[program.key] if home in alive), None)


def finished(futures: Sequence[Future], client: Client, needed: Collection[str | None] = ()) -> bool:
    """Wait for tasks as long as there are workers: without any Dask would wait for ever. False if one of the `needed` workers is lost."""
    since = None
    while True:
        try:
            wait(futures, timeout=LOOK)
        except TimeoutError:
            now, alive = time.monotonic(), client.nthreads()
            since = None if alive else since or now
            if since is not None and now - since > NO_WORKERS:
                why = f"engine='dask': there has been no worker for {NO_WORKERS:g} s"
                raise RuntimeError(f"{why}; start workers and call fit again") from None
            if alive and not alive.keys() >= set(needed):
                return False
        else:
            return True


def total_of_all(terms: list[Future], plus: Callable[..., Any], client: Client) -> Future:
    """By tasks that add a few terms each."""
    while len(terms) > 1:
        some = (terms[i : i + FAN_IN] for i in range(0, len(terms), FAN_IN))
        terms = [ask(client, "add", plus, group) for group in some]
    return terms[0]


def result_of(future: Future, client: Client) -> Any:
    finished([future], client)
    return future.result()


def ask(client: Client, what: str, task: Callable[..., Any], *given: Any, **where: Any) -> Future:
    """A task of its own; Dask's dashboard shows what stands before the number of its key."""
    return client.submit(task, *given, pure=False, key=f"dekpca {what}-{uuid4().hex}", **where)


# ---------------------------------------------------------------------- collections
@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of some nodes on a worker: the `Checked` of a task."""

    rows: Future
    shape: tuple[int, ...]
    dtype: Any
    nodes: np.ndarray
    place: Place | None = None  # of its rows, if other partitions have rows of the same nodes

    @property
    def node(self) -> np.ndarray:
        """(rows,) the node of each row."""
        assert self.place is not None
        return self.place.at(self.shape[0])[0]


class Survey(NamedTuple):
    """The partitions of a collection that have rows: their checked rows on the workers; shape, dtype and rows of each owner of each."""

    features: Features
    rows: list[Future]
    about: list[tuple[tuple[int, ...], Any, dict[str, int] | None]]


def survey(
    given: Parameters, X: Any, owner: Any, client: Client, known: Features | None = None, apart: bool = True
) -> Survey:
    """Check the rows of a collection; `known` are the columns that they must have. With `owner` and `apart`, all rows of an owner are in one
    partition."""
    features, blocks = _blocks(X, owner, apart)
    features = features if known is None else known
    check = dask.delayed(Checked.of)
    tasks = [
        check(block, f"partition {i}", features, given.dtype, given.missing, owner, "the collection" if known is None else "the first rows")
        for i, block in enumerate(blocks)
    ]  # fmt: skip
    futures = client.compute(tasks)
    described = [ask(client, "about", Checked.about, future) for future in futures]
    found = result_of(ask(client, "about", list, described), client)
    there = [i for i, (shape, *_) in enumerate(found) if shape[0]]
    if not there:
        raise ValueError("X: no rows in any partition" + (f"; {NOTHING_LEFT}" if given.missing == "drop" else ""))
    types = {str(found[i][1]) for i in there}
    if len(types) > 1:
        raise ValueError(
            f"X: partitions of {listing(sorted(types))}; give dtype=, or convert the collection to one dtype"
        )
    return Survey(features, [futures[i] for i in there], [found[i] for i in there])


def plan_collection(parameters: Parameters, X: Any, owner: Any = None) -> Plan:
    """A plan for the rows of a Dask array or DataFrame.

    The partitions are the nodes; those without rows are left out. With `owner`, a column of a DataFrame, its values are the nodes.
    """
    seed, (features, rows, about) = seed_of(parameters), survey(parameters, X, owner, current_client())
    if owner is None:
        network = make_network(parameters.network, len(rows), seed)
        if len(network) != len(rows):
            remedy = "repartition X, or leave network at None"
            raise ValueError(f"X: {len(rows)} partitions with rows for a network of {len(network)} nodes; {remedy}")
        sizes = [{name: shape[0]} for name, (shape, *_) in zip(network.names, about, strict=True)]
    else:
        sizes = [owners or {} for *_, owners in about]
        network = named_network(parameters.network, [name for own in sizes for name in own], seed)
    numbers = [np.array([network.number[name] for name in own]) for own in sizes]
    total = np.zeros(len(network), dtype=np.int64)
    for number, own in zip(numbers, sizes, strict=True):
        total[number] = list(own.values())
    found = zip(rows, about, numbers, strict=True)
    parts = [Partition(future, shape, dtype, number) for future, (shape, dtype, _), number in found]
    settings = settings_of(parameters, features, seed)
    return make_plan(parameters, settings, network, parts, features, range(len(network)), total)


def _blocks(X: Any, owner: Any, apart: bool) -> tuple[Features, list[Any]]:
    """The columns of a collection, and its partitions as delayed values; with `owner` and `apart`, all rows of an owner in one partition."""
    if hasattr(X, "to_bag"):  # a DataFrame
        known = list(X.columns)
        if owner is not None:
            if not isinstance(owner, str):
                raise ValueError(
                    "nodes of a Dask DataFrame: give the name of a column with the owners, or leave it at None"
                )
            check_known(owner, known, f"nodes={owner!r}")
            X = X.shuffle(owner) if apart else X
        names = Samples.of(X._meta.drop(columns=[] if owner is None else [owner]), "X").names
        return Features(len(known) - (owner is not None), names), X.to_delayed()
    if getattr(X, "ndim", 0) != 2 or not hasattr(X, "rechunk"):
        raise ValueError(f"X: a Dask {type(X).__name__} of shape {getattr(X, 'shape', None)}; give rows and columns")
    if owner is not None:
        raise ValueError(
            "nodes with a Dask array: its partitions are the nodes; use a Dask DataFrame with a column of owners"
        )
    if np.isnan(X.shape[1]):
        raise ValueError("X: the number of columns is unknown; call X.compute_chunk_sizes() first")
    X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
    return Features(int(X.shape[1])), X.to_delayed().ravel().tolist()


# ---------------------------------------------------------------------- rows that keep coming
def new_rows(given: Parameters, X: Any, nodes: Any, before: Before | None, what: str) -> NewRows:
    """As `local.new_rows`, of rows that stay on the workers. Rows have the nodes that they would have in one process."""
    client, (seed, wanted, ever) = current_client(), began_with(given, before, what)
    found = survey(given, X, nodes, client, None if before is None else before.features, apart=False)
    if nodes is None:
        network = make_network(wanted, 1, seed)
    else:
        names = {name for *_, owners in found.about for name in owners or {}}
        network = named_network(wanted, sorted(names), seed, all_nodes=False)
    first, ever, parts = int(ever.sum()), ever if len(ever) else np.zeros(len(network), dtype=np.int64), []
    for rows, (shape, dtype, owners) in zip(found.rows, found.about, strict=True):
        whose: Any = first
        if owners is not None:
            whose = np.array([network.number[name] for name in owners]), np.array(list(owners.values()))
        place = Place(whose, ever)
        node, _ = place.at(shape[0])
        parts.append(Partition(rows, shape, dtype, np.unique(node), place))
        ever, first = ever + np.bincount(node, minlength=len(network)), first + shape[0]
    return NewRows(client, parts, network, found.features, seed)


@dataclass(frozen=True, eq=False)
class NewRows:
    """As `local.NewRows`. The stream is at the client. A task is a function of a partition, of its place and of what all rows of the stream have in
    common; it returns sums, rows that may judge, and fingerprints."""

    client: Client
    parts: list[Partition]
    network: Network
    features: Features
    seed: int
    node_of = None
    lazy = True

    def run(self, plan: Plan, watch: Watch | None = None) -> Outcome:
        return run(plan, watch, self.client)

    def plan(self, given: Parameters, settings: Settings, basis: Basis | None = None) -> Plan:
        parts = self.parts
        if basis is not None:
            common = self._keep(basis)
            parts = [replace(part, rows=ask(self.client, "rows", prepare_part, part.rows, common)) for part in parts]
        sizes = np.sum([np.bincount(part.node, minlength=len(self.network)) for part in parts], axis=0)
        return make_plan(given, settings, self.network, parts, self.features, range(len(self.network)), sizes)

    def sizes(self, stream: Stream) -> np.ndarray:
        return stream.sizes

    def add_to(self, stream: Stream) -> None:
        basis, common = stream.basis, self._keep(stream.basis)
        sums = [
            ask(self.client, "sums", summed, part.rows, common, part.place, f"partition {i}")
            for i, part in enumerate(self.parts)
        ]
        total = self._total(sums)
        most = replace(stream.summed, kept=()).plus(Summed(total), basis.options).most  # tells how many rows may judge
        kept, prints = [], []
        found = [
            ask(self.client, "judges", judges, some, part.rows, common, most)
            for some, part in zip(sums, self.parts, strict=True)
        ]
        for rows, left, codes in self._results(found):
            kept += [] if rows is None else [basis.kept(rows, left)]
            prints.append(codes)
        after = stream.summed.plus(Summed(total, tuple(kept)), basis.options)
        node = np.concatenate([part.node for part in self.parts])
        stream.take(Addition(after, stream.waiting, stream.waits, np.concatenate(prints), node))

    def take_from(self, stream: Stream, by_node: bool) -> int:
        """Forget these rows; returns how many of them are landmarks, and stay as such."""
        common = self._keep(stream.basis)
        about = self._results([ask(self.client, "find", known_rows, part.rows, common) for part in self.parts])
        wanted = np.concatenate([part.node for part in self.parts])
        node, number = stream.find(np.concatenate([codes for codes, _ in about]), wanted if by_node else None)
        if len(node) == stream.sizes.sum():
            raise ValueError(NO_ROW_LEFT)
        there, cuts = stream.in_sums(node, number), np.cumsum([part.shape[0] for part in self.parts])[:-1]
        pieces = zip(self.parts, *(np.split(x, cuts) for x in (there, node, number)), strict=True)
        total = self._total([ask(self.client, "sums", total_of, part.rows, common, *piece) for part, *piece in pieces])
        stream.forget(node, number, total)
        return sum(landmarks for _, landmarks in about)

    def _keep(self, value: Any) -> Future:
        return ask(self.client, "told", itself, value)

    def _total(self, sums: list[Future]) -> Arrays:
        """Of the sums of some partitions."""
        totals = [ask(self.client, "add", attrgetter("total"), some) for some in sums]
        return result_of(total_of_all(totals, added, self.client), self.client)

    def _results(self, futures: list[Future]) -> list[Any]:
        return result_of(ask(self.client, "gather", list, futures), self.client)


def prepare_part(rows: Checked, basis: Basis) -> Checked:
    return replace(rows, X=basis.prepared(rows.X))


def summed(rows: Checked, basis: Basis, place: Place, who: str) -> Summed:
    """What a stream takes from the rows of a partition."""
    with working(rows.X.shape[0]):
        return basis.summed(basis.rows(basis.checked(rows.X, who), *place.at(rows.X.shape[0])))


def judges(
    some: Summed, rows: Checked, basis: Basis, most: tuple[float, float]
) -> tuple[SiteRows | None, np.ndarray, np.ndarray]:
    """Those rows that may judge, if there are so many in all, and what the landmarks miss of each; and a fingerprint of every row."""
    kept = replace(some, most=most).drawn(basis.options).kept
    few = (kept[0].rows, kept[0].left) if kept else (None, np.zeros(0))
    return *few, basis.fingerprints(rows.X)


def known_rows(rows: Checked, basis: Basis) -> tuple[np.ndarray, int]:
    """The fingerprints of the rows, and how many are landmarks."""
    return basis.fingerprints(rows.X), basis.landmarks_among(rows.X)


def total_of(rows: Checked, basis: Basis, there: np.ndarray, node: np.ndarray, number: np.ndarray) -> Summed:
    """The sums of some rows of a partition, which have these numbers at these nodes."""
    with working(rows.X.shape[0]):
        found = basis.rows(basis.prepared(rows.X), node, number).at(np.flatnonzero(there))
        return Summed(basis.summed(found).total)


def each_partition(f: Callable[[Any], np.ndarray], X: Any, columns: str | Sequence[str]) -> Any:
    """f of each partition as a lazy collection: a matrix with these columns, or numbers of this name, one for each row."""
    one = isinstance(columns, str)
    if not hasattr(X, "to_bag"):
        X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
        kind = X.dtype if X.dtype in (np.float32, np.float64) else np.float64
        if one:
            return X.map_blocks(f, dtype=kind, drop_axis=1, meta=np.empty(0, dtype=kind))
        chunks = X.chunks[0], (len(columns),)
        return X.map_blocks(f, dtype=kind, chunks=chunks, meta=np.empty((0, len(columns)), dtype=kind))
    make, series = type(X._meta), type(X._meta.iloc[:, 0])

    def part(block: Any) -> Any:
        values = f(block) if len(block) else np.empty(0 if one else (0, len(columns)))
        if one:
            return series(values, name=columns, index=block.index)
        return make(values, columns=list(columns), index=block.index)

    return X.map_partitions(part, meta=part(X._meta))
