"""The Dask engine: the partitions of a collection are the nodes, or hold them. Their rows stay on the workers of the current `Client`.

A round is one task for each worker that has rows, and a tree of additions. The client concludes: it runs the program of a site that has no rows, and
asks the workers for the total of each sum. A task is a pure function of partitions and of the transcript, so a worker that is lost is replaced by
another one that replays: there are no ports, actors or locks. Only terms and the transcript move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import dask
import numpy as np
from distributed import Client, Future, get_client, wait

from ..data.checks import NOTHING_LEFT, check_finite, checked, complete_rows
from ..data.columns import ColumnError, Features, Samples, check_known, split_off
from ..data.frames import is_null
from ..data.owners import make_network, named_network
from ..network import listing
from ..parameters import Parameters, seed_of, settings_of
from ..plan import Outcome, Plan, Watch
from ..settings import settle
from .local import drive
from .local import run as run_here
from .workers import ClientDelivery, Program, add

Array = Any

FAN_IN = 8  # terms that one task adds
NO_WORKERS = 20.0  # seconds without any worker until a fit gives up
LOOK = 1.0  # seconds between two looks at the workers


def run(plan: Plan, watch: Watch | None = None, client: Client | None = None) -> Outcome:
    """Run the program on the workers of `client` (default: the current one). The parts of the plan are arrays or `Partition`s."""
    options = plan.options
    if options.projection is not None or options.sealed:
        what = "solver=Projection(...)" if options.projection is not None else "privacy"
        raise ValueError(
            f"engine='dask' with {what}: workers of one cluster only add terms of sums; use engine='local'"
        )
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
    def of(cls, block: Any, who: str, features: Features, dtype: Any, missing: str, owner: str | None) -> Checked:
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
        X = features.arrange(samples, who, "the collection")
        if labels is None:
            return cls(X)
        names = labels.astype(str)
        order, (names, counts) = np.argsort(names, kind="stable"), np.unique(names, return_counts=True)
        return cls(X[order], dict(zip(names.tolist(), counts.tolist(), strict=True)))

    def __sizeof__(self) -> int:
        return int(self.X.nbytes)  # for Dask, which balances the memory of its workers

    def about(self) -> tuple[tuple[int, ...], Any, dict[str, int] | None]:
        return self.X.shape, self.X.dtype, self.owners


def same(value: Any) -> Any:
    return value


# ---------------------------------------------------------------------- at the client
class WorkerDelivery(ClientDelivery):
    """Asks the workers for the total of every sum, and tells them the conclusions."""

    def __init__(self, plan: Plan, client: Client):
        super().__init__(plan)
        self.client = client
        about = self.keep((plan.network, plan.sizes, plan.options))
        parts = [self.held(part, i) for i, part in enumerate(plan.parts)]
        programs = [self.program(home, own, about) for home, own in self.together(parts, plan.options.owners_apart)]
        finished(programs, client)
        for part in parts:
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
        rows, nodes = [part.rows for part in parts], np.concatenate([part.nodes for part in parts])
        return self.client.submit(Program, rows, about, nodes, pure=False, key=_key("rows"), **where)

    def keep(self, value: Any) -> Future:
        """Something that every task may use. It is part of the graph, so that it outlives the workers that hold it."""
        return self.client.submit(same, value, pure=False, key=_key("told"))

    def workers_total(self, kind: str, transcript: Sequence[Any]) -> np.ndarray:
        """Each program computes its term at the worker that has it: elsewhere it would compute all of its rounds again, so that tasks which Dask
        moves to idle workers cost more than they save. Terms whose worker was lost are asked for again."""
        terms: dict[Future, Future] = {}
        while True:
            if not all(self.homes.values()):
                self.find_homes()
            for program, home in self.homes.items():
                if program not in terms:
                    ask = {"pure": False, "key": _key(kind), "workers": home}
                    terms[program] = self.client.submit(Program.term, program, [*transcript], **ask)
            tree = list(terms.values())
            while len(tree) > 1:
                some = (tree[i : i + FAN_IN] for i in range(0, len(tree), FAN_IN))
                tree = [self.client.submit(add, group, pure=False, key=_key("add")) for group in some]
            if finished(tree, self.client, set(self.homes.values()) - {None}):
                return tree[0].result()
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


def result_of(future: Future, client: Client) -> Any:
    finished([future], client)
    return future.result()


def _key(what: str) -> str:
    """Of a task: Dask's dashboard shows what stands before the number."""
    return f"dekpca {what}-{uuid4().hex}"


# ---------------------------------------------------------------------- collections
@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of some nodes on a worker: the `Checked` of a task."""

    rows: Future
    shape: tuple[int, ...]
    dtype: Any
    nodes: np.ndarray


def plan_collection(parameters: Parameters, X: Any, owner: Any = None) -> Plan:
    """A plan for the rows of a Dask array or DataFrame.

    The partitions are the nodes; those without rows are left out. With `owner`, a column of a DataFrame, its values are the nodes.
    """
    client, seed, missing = current_client(), seed_of(parameters), parameters.missing
    features, blocks = _blocks(X, owner)
    who = [f"partition {i}" for i in range(len(blocks))]
    check = dask.delayed(Checked.of)
    tasks = [
        check(block, name, features, parameters.dtype, missing, owner) for block, name in zip(blocks, who, strict=True)
    ]
    futures = client.compute(tasks)
    described = [client.submit(Checked.about, future, pure=False, key=_key("about")) for future in futures]
    found = result_of(client.submit(list, described, pure=False, key=_key("about")), client)
    there = [i for i, (shape, *_) in enumerate(found) if shape[0]]
    if not there:
        raise ValueError("X: no rows in any partition" + (f"; {NOTHING_LEFT}" if missing == "drop" else ""))
    types = {str(found[i][1]) for i in there}
    if len(types) > 1:
        raise ValueError(
            f"X: partitions of {listing(sorted(types))}; give dtype=, or convert the collection to one dtype"
        )
    if owner is None:
        network = make_network(parameters.network, len(there), seed)
        if len(network) != len(there):
            remedy = "repartition X, or leave network at None"
            raise ValueError(f"X: {len(there)} partitions with rows for a network of {len(network)} nodes; {remedy}")
        sizes = [{name: found[i][0][0]} for name, i in zip(network.names, there, strict=True)]
    else:
        sizes = [found[i][2] for i in there]
        network = named_network(parameters.network, [name for own in sizes for name in own], seed)
    numbers = [np.array([network.number[name] for name in own]) for own in sizes]
    total = np.zeros(len(network), dtype=np.int64)
    for number, own in zip(numbers, sizes, strict=True):
        total[number] = list(own.values())
    parts = [Partition(futures[i], found[i][0], found[i][1], number) for i, number in zip(there, numbers, strict=True)]
    options = settle(settings_of(parameters, features, seed), network, total)
    return Plan(network, total, parts, options, np.arange(len(network)), features)


def _blocks(X: Any, owner: Any) -> tuple[Features, list[Any]]:
    """The columns of a collection, and its partitions as delayed values; with `owner`, all rows of an owner in one partition."""
    if hasattr(X, "to_bag"):  # a DataFrame
        known = list(X.columns)
        if owner is not None:
            if not isinstance(owner, str):
                raise ValueError(
                    "nodes of a Dask DataFrame: give the name of a column with the owners, or leave it at None"
                )
            check_known(owner, known, f"nodes={owner!r}")
            X = X.shuffle(owner)
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
