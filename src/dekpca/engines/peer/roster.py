"""The roster: what a node has heard about the network, record by record, until it knows all of it.

Each node has one record, (name, neighbors, rows), and passes on whatever records it has. A node that has the record of every
name mentioned knows the network: tree, depth and all sizes follow, the same at every node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...network import Network, listing, natural_key
from .errors import Disagreement
from .letters import MOST_NODES

Record = tuple[tuple[str, ...], int]  # neighbors, rows


class Roster:
    """The records known so far, beginning with the node's own.

    Examples
    --------
    >>> roster = Roster("a", ["b"], 30)
    >>> roster.add({"b": (("a", "c"), 20)}, "b"), roster.missing()
    (True, {'c'})
    >>> roster.add({"c": (("b",), 10)}, "b"), roster.complete
    (True, True)
    >>> network, sizes = roster.network()
    >>> network.names, sizes.tolist()
    (('a', 'b', 'c'), [30, 20, 10])
    """

    def __init__(self, name: str, neighbors: Sequence[str], rows: int):
        self.name = name
        self.records: dict[str, Record] = {name: (tuple(sorted(neighbors, key=natural_key)), rows)}
        self.told_by = {name: name}

    def add(self, records: Mapping[str, Record], source: str) -> bool:
        """Take over what is new; returns whether anything was. Raises Disagreement where records contradict each other."""
        new = {name: record for name, record in records.items() if name not in self.records}
        for name, (around, rows) in records.items():
            known = self.records.get(name)
            if known is not None and (sorted(known[0]), known[1]) != (sorted(around), rows):
                raise Disagreement(
                    f"node {name} has {_said(known)} as node {self.told_by[name]} told, but {_said((around, rows))} as node {source} told; "
                    "no two nodes may have the same name, and a node's data and neighbors must not change during a run"
                )
        if new and self.complete:
            raise Disagreement(
                f"node {source} tells of node {listing(sorted(new))}, but the network is known already and has no such node; "
                "no node may join a run, start a new one"
            )
        together = self.records | new
        if len(together) > MOST_NODES:
            raise Disagreement(f"node {source} tells of {len(together)} nodes, more than the {MOST_NODES} allowed")
        mentions = [(name, other) for name, (around, _) in together.items() for other in around if other in together]
        pairs = set(mentions)
        for name, other in mentions:
            if (other, name) not in pairs:
                raise Disagreement(_one_sided(name, other))
        self.records = together
        self.told_by |= dict.fromkeys(new, source)
        return bool(new)

    def missing(self) -> set[str]:
        """Nodes that somebody mentions and nobody has described."""
        return {name for around, _ in self.records.values() for name in around} - self.records.keys()

    @property
    def complete(self) -> bool:
        return not self.missing()

    def network(self) -> tuple[Network, np.ndarray]:
        """The network, with nodes numbered in natural order of their names, and the rows of each node."""
        names = sorted(self.records, key=natural_key)
        network = Network({name: self.records[name][0] for name in names})
        return network, np.array([self.records[name][1] for name in names], dtype=np.int64)


def _said(record: Record) -> str:
    return f"{record[1]} rows and the neighbors {listing(record[0])}"


def _one_sided(name: str, other: str) -> str:
    return f"node {name} lists node {other} as a neighbor, but node {other} does not list {name}; list each at the other, or at neither"
