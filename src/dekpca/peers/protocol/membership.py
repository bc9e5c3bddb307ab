"""Membership: a node collects the records of the network until they are complete.

Each node has one record, (name, neighbors, rows), and forwards all records it has. The network is known when there
is a record for every listed name: tree, depth and all sizes follow, the same at every node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ...network import Network, listing, natural_key
from ..errors import Disagreement, ProtocolError

MOST_NODES = 20_000
MOST_RECORDS = (1 << 20) - (1 << 16)  # bytes: all records fit into one handshake (one gRPC message), with the settings

Record = tuple[tuple[str, ...], int]  # neighbors, rows


class Membership:
    """The known records, starting with the node's own. `members`: all nodes of the run, if its owners have named them.

    Examples
    --------
    >>> membership = Membership("a", ["b"], 30)
    >>> membership.add({"b": (("a", "c"), 20)}, "b"), membership.missing()
    (True, {'c'})
    >>> membership.add({"c": (("b",), 10)}, "b"), membership.missing()
    (True, set())
    >>> network, sizes = membership.network()
    >>> network.names, sizes.tolist()
    (('a', 'b', 'c'), [30, 20, 10])
    """

    def __init__(self, name: str, neighbors: Sequence[str], rows: int, members: Iterable[str] | None = None):
        self.name, self.members = name, None if members is None else set(members)
        self.records: dict[str, Record] = {}
        self.told_by: dict[str, str] = {}
        self._missing: dict[str, set[str]] = defaultdict(set)  # name without a record -> nodes whose records list it
        self._bytes: Counter[str] = Counter()  # of the records, by the neighbor that sent them
        self.add({name: (tuple(sorted(neighbors, key=natural_key)), rows)}, name)

    def add(self, records: Mapping[str, Record], source: str) -> bool:
        """Add new records; returns whether there were any. Raises, and adds none, if records contradict each other, or are too many."""
        new = {name: record for name, record in records.items() if name not in self.records}
        for name, (around, rows) in records.items():
            known = self.records.get(name)
            if known in (None, (around, rows)):
                continue
            if known[1] != rows or sorted(known[0]) != sorted(around):
                said = f"{_said(known)} as node {self.told_by[name]} told, but {_said((around, rows))} as node {source} told"
                rule = "names must be different, and a node's data and neighbors must not change during a run"
                raise Disagreement(f"node {name} has {said}; {rule}")
        if not new:
            return False
        if self.records and not self._missing:
            why = "the network is known already and has no such node; no node may join a run, start a new one"
            raise Disagreement(f"node {source} tells of node {listing(sorted(new))}, but {why}")
        # At most so many bytes in a handshake.
        size = sum(24 + len(name) + sum(2 + len(other) for other in around) for name, (around, _) in new.items())
        told = new.keys() | {other for around, _ in new.values() for other in around}
        if source != self.name and self.members is not None and (strange := told - self.members):
            raise Disagreement(
                f"node {self.name}: its members are not those of the network: node {source} tells of node {listing(sorted(strange))}, too many; "
                "a node between adds some, or members in node.toml is wrong"
            )
        unheard = sum(name not in self.records and name not in self._missing for name in told)
        self._check_room(len(self.records) + len(self._missing) + unheard, size, source)
        listed_by: dict[str, set[str]] = defaultdict(set)
        for name, (around, _) in new.items():
            for other in around:
                listed_by[other].add(name)
        for name, (around, _) in new.items():
            lists = {other for other in around if other in self.records or other in new}
            for other in sorted(lists ^ (self._missing.get(name, set()) | listed_by.get(name, set()))):
                a, b = (name, other) if other in lists else (other, name)
                rule = f"but node {b} does not list {a}; list each at the other, or at neither"
                raise Disagreement(f"node {a} lists node {b} as a neighbor, {rule}")
        self.records |= new
        for name in told:
            if name in self.records:
                self._missing.pop(name, None)
            else:
                self._missing[name] |= listed_by[name]
        self.told_by |= dict.fromkeys(new, source)
        self._bytes[source] += size
        return True

    def _check_room(self, names: int, size: int, source: str) -> None:
        """Limits for all neighbors together: all records must fit into one handshake."""
        together = sum(self._bytes.values()) + size
        if names > MOST_NODES or together > MOST_RECORDS:
            worst = (self._bytes + Counter({source: size})).most_common(1)[0][0]
            limit = f"more than the {MOST_NODES} nodes and {MOST_RECORDS} bytes allowed"
            asked = f"with what node {source} tells there would be {names} nodes and {together} bytes of records"
            raise ProtocolError(f"{asked}, {limit}; most of it comes from node {worst}")

    def missing(self) -> set[str]:
        """Listed nodes without a record."""
        return set(self._missing)

    def network(self) -> tuple[Network, np.ndarray]:
        """The network, with nodes numbered in natural order of their names, and the rows of each node."""
        return network_of({name: around for name, (around, _) in self.records.items()}, self.records)


def network_of(near: Mapping[str, Iterable[str]], records: Mapping[str, Record]) -> tuple[Network, np.ndarray]:
    """The network of nodes with these neighbors, in natural order of their names, and the rows of each."""
    names = sorted(near, key=natural_key)
    network = Network({name: sorted(near[name], key=natural_key) for name in names})
    return network, np.array([records[name][1] for name in names], dtype=np.int64)


def _said(record: Record) -> str:
    return f"{record[1]} rows and the neighbors {listing(record[0])}"
