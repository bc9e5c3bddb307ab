"""Checks that the ranks of an MPI run agree, before the first message.

Every check has the same outcome on all ranks: either all go on, or all raise an error that names the rank and its
problem, so that no rank waits forever. Only here does a rank communicate with all others. Texts and numbers are sent
as typed arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from ..data.columns import ColumnError, check_same_names
from ..network import Network, listing


class RankError(RuntimeError):
    """An error on another rank; the message names the rank and the problem."""


class Ranks:
    """All ranks of a communicator (default: of the job); every rank must call the same methods in the same order."""

    def __init__(self, comm: Any = MPI.COMM_WORLD):
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    @contextmanager
    def checking(self) -> Iterator[None]:
        """An error inside on one rank is raised on all."""
        problem: Exception | None = None
        try:
            yield
        except Exception as error:
            problem = error
        said = self.texts("" if problem is None else f"{type(problem).__name__}: {problem}")
        if problem is not None:
            if self.size > 1:
                problem.add_note(f"on rank {self.rank} of {self.size}")
            raise problem
        for rank, text in enumerate(said):
            if text:
                raise RankError(f"rank {rank}: {text}")

    def counts(self, n_parts: int) -> np.ndarray:
        """The number of nodes of each rank; zero is an error."""
        counts = np.empty(self.size, dtype=np.int64)
        self.comm.Allgather(np.array([n_parts], dtype=np.int64), counts)
        idle = np.flatnonzero(counts == 0)
        if len(idle):
            what = f"rank {listing(idle)} hosts no node ({self.size} ranks, {counts.sum()} nodes)"
            raise ValueError(f"{what}; every rank needs at least one: start fewer ranks, or give it a node")
        return counts

    def from_first(self, number: int) -> int:
        """Rank 0's number."""
        held = np.array([number], dtype=np.int64)
        self.comm.Bcast(held, root=0)
        return int(held[0])

    def agree(self, facts: Mapping[str, str]) -> None:
        """Require the same facts on all ranks; an error names the ranks that differ, the fact, and both values."""
        text = json.dumps(dict(facts))
        digests = np.empty((self.size, hashlib.sha256().digest_size), dtype=np.uint8)
        self.comm.Allgather(np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint8), digests)
        if (digests == digests[0]).all():
            return
        held = [json.loads(said) for said in self.texts(text)]
        differing = [line for fact in held[0] for line in _disagreement(fact, [h.get(fact, "") for h in held])]
        missing = [f"rank {r} knows other settings" for r, h in enumerate(held) if h.keys() != held[0].keys()]
        raise ValueError("; ".join(differing + missing) + "; give all ranks the same")

    def agree_on_columns(self, names: Sequence[str] | None) -> None:
        """Require the same column names on all ranks (in any order), or no names; the number of columns is compared elsewhere."""
        said = [json.loads(text) for text in self.texts(json.dumps(None if names is None else list(names)))]
        if all(held == said[0] for held in said):
            return
        for rank, held in enumerate(said):
            if (held is None) != (said[0] is None):
                named, bare = (0, rank) if held is None else (rank, 0)
                what = f"rank {bare}: its columns have no names, but those of rank {named} have"
                raise ColumnError(f"{what}; give all named columns, or none")
            if held is not None:
                check_same_names(held, said[0], f"rank {rank}", "rank 0")

    def hosts(self, network: Network, nodes: Sequence[int], sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The rank of each node, and its number of samples; every node must be hosted exactly once."""
        counts = self.counts(len(nodes))
        mine = np.column_stack([nodes, sizes]).astype(np.int64)
        everyone = np.empty((int(counts.sum()), 2), dtype=np.int64)
        self.comm.Allgatherv(np.ascontiguousarray(mine), [everyone, 2 * counts])
        ranks = np.repeat(np.arange(self.size), counts)
        hosts, all_sizes = np.full(len(network), -1), np.zeros(len(network), dtype=np.int64)
        for rank, (node, size) in zip(ranks, everyone, strict=True):
            if hosts[node] >= 0:
                where = f"rank {rank} twice" if hosts[node] == rank else f"rank {hosts[node]} and by rank {rank}"
                raise ValueError(f"node {network.names[node]} is hosted by {where}; give each node to one rank")
            hosts[node], all_sizes[node] = rank, size
        nowhere = np.flatnonzero(hosts < 0)
        if len(nowhere):
            lost = listing(network.names[j] for j in nowhere)
            hosted = f"{len(everyone)} of {len(network)} nodes are hosted"
            raise ValueError(f"no rank hosts node {lost}; {hosted}: give each node to one rank")
        return hosts, all_sizes

    def total(self, counts: np.ndarray) -> np.ndarray:
        """The sum of the whole numbers of all ranks."""
        found = np.empty(counts.shape, dtype=np.int64)
        self.comm.Allreduce(np.ascontiguousarray(counts, dtype=np.int64), found)
        return found

    def claims(self, network: Network, mine: np.ndarray) -> np.ndarray:
        """The rank of each node: the one that claims it, of which there may be one. Nodes that none claims go to ranks without nodes, then to rank
        0."""
        said = np.empty((self.size, len(network)), dtype=np.int64)
        self.comm.Allgather(np.ascontiguousarray(mine, dtype=np.int64), said)
        twice = np.flatnonzero(said.sum(axis=0) > 1)
        if len(twice):
            who = listing(np.flatnonzero(said[:, twice[0]]))
            what = f"rows of node {network.names[twice[0]]} come from rank {who}"
            raise ValueError(f"{what}; all rows of a node, of this call and of those before, belong to one rank")
        hosts = np.where(said.any(axis=0), said.argmax(axis=0), -1)
        idle = iter(np.flatnonzero(~said.any(axis=1)).tolist())
        for node in np.flatnonzero(hosts < 0):
            hosts[node] = next(idle, 0)
        return hosts

    def texts(self, text: str) -> list[str]:
        """The text of each rank."""
        mine = np.frombuffer(text.encode(), dtype=np.uint8)
        lengths = np.empty(self.size, dtype=np.int64)
        self.comm.Allgather(np.array([len(mine)], dtype=np.int64), lengths)
        everything = np.empty(int(lengths.sum()), dtype=np.uint8)
        if len(everything):
            self.comm.Allgatherv(mine, [everything, lengths])
        return [piece.tobytes().decode() for piece in np.split(everything, np.cumsum(lengths)[:-1])]


def _disagreement(fact: str, held: Sequence[str]) -> Iterator[str]:
    """One phrase for each rank whose value differs from the majority's (ties: from the lowest rank's)."""
    usual, count = Counter(held).most_common(1)[0]
    kept = [rank for rank, value in enumerate(held) if value == usual]
    others = f"rank {kept[0]} has" if count == 1 else f"rank {listing(kept)} have"
    for rank, value in enumerate(held):
        if value == usual:
            continue
        lines, usual_lines = value.splitlines(), usual.splitlines()
        if max(len(lines), len(usual_lines)) <= 1:
            yield f"rank {rank} has {fact}={value}, but {others} {usual}"
        else:
            extra = listing(line for line in lines if line not in usual_lines) or "nothing"
            lacking = listing(line for line in usual_lines if line not in lines) or "nothing"
            yield f"rank {rank} has another {fact}: {extra}, where {others} {lacking}"
