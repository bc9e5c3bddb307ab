"""Agreement when nodes are lost (on_loss = "continue"): the survivors agree on a view, and at the end on the final answer.

A view is a set of nodes that compute together, and the edges they use. View 0 is the whole network. Views are
ordered by number, then by the name of the proposer. Every node publishes a `Status`, with the newest view that it
has accepted. Neighbors forward statuses, the newest of each node counts, and a status is on disk before it is sent.
So lost, repeated and late heartbeats do no harm, and a restarted node keeps its promises.

docs/reference/protocol.md has the rules by which a status changes, and why two groups never finish with different answers: this
is Paxos with views as ballots. Three states at the end, in this order:

    `answered`  this node has the answer of a view; a later view may replace it
    `final`     that answer is the answer of the run; saved, then the model is written
    `finished`  a neighbor may leave: it knows the final answer, and all its messages are acknowledged (in heartbeats)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import networkx as nx
import numpy as np

from ...network import Network, listing, natural_key
from ..errors import BelowQuorum, Disagreement, Excluded, PeerError, ProtocolError
from .membership import Record, network_of

Key = tuple[int, str]  # of a view: its number, and the name of its proposer
Edge = tuple[str, str]  # sorted by name
GONE = "the others may have finished or stopped without this node: ask their owners"
NOTHING_TO_DO = (
    "Nothing can be done in this run: delete the folder; to take part, agree with the others on a new run, "
    "with another run id and other folders"
)


class Lost(NamedTuple):
    name: str
    since: float  # seconds of the Unix epoch: when it was declared lost


class Vote(NamedTuple):
    ballot: Key  # the view in which the node votes
    answer: Key  # the view whose answer it votes for


@dataclass(frozen=True)
class View:
    """Nodes that compute together: all except `lost`, along all edges except `broken`, and along `fallback` edges."""

    number: int = 0
    proposer: str = ""
    lost: tuple[Lost, ...] = ()
    broken: tuple[Edge, ...] = ()
    fallback: tuple[Edge, ...] = ()

    @property
    def key(self) -> Key:
        return self.number, self.proposer

    def __str__(self) -> str:
        return f"{self.number} {self.proposer}".strip()

    @cached_property
    def without(self) -> frozenset[str]:
        return frozenset(lost.name for lost in self.lost)

    @property
    def content(self) -> tuple[frozenset[str], tuple[Edge, ...], tuple[Edge, ...]]:
        return self.without, self.broken, self.fallback


@dataclass(frozen=True)
class Status:
    """The published state of a node. The latest version counts."""

    version: int = 0
    view: View = field(default_factory=View)  # the newest that it has accepted
    entered: View = field(default_factory=View)  # the newest that it has entered
    answered: Key | None = None  # the view whose answer it has
    vote: Vote | None = None  # its last
    final: Key | None = None  # the view whose answer is final
    down: tuple[str, ...] = ()  # neighbors that are silent, or hang (liveness.py)
    fallback: tuple[str, ...] = ()  # fallback neighbors that it has called, and that answer
    proof: bytes = field(default=b"", compare=False, repr=False)  # that the node has said this (proofs.py)


UNHEARD = Status()  # of a node that nothing was heard of


@dataclass(frozen=True)
class Kept:
    """State that must be on disk before it is sent."""

    status: Status = field(default_factory=Status)
    program: View = field(default_factory=View)  # the view in which its program runs, or has run
    accepted: tuple[Key, ...] = ()  # all views that it has accepted


@dataclass(frozen=True)
class Quorum:
    """The required remainder: so many nodes (default: more than half), and this share of all rows."""

    nodes: int | None = None
    rows: float = 0.0


def contradict(one: Status, other: Status) -> bool:
    """Whether no node that keeps its promises says both: it lies, or ran in an older copy of its folder.

    >>> voted = Status(4, answered=(0, ""), vote=Vote((0, ""), (0, "")))
    >>> contradict(Status(3), voted), contradict(Status(5), voted)  # a vote is never taken back
    (False, True)
    """
    old, new = sorted((one, other), key=lambda status: status.version)
    if old.version == new.version:
        return old != new
    answers = old.answered in (None, new.answered) or old.entered.key != new.entered.key
    votes = old.vote == new.vote or (new.vote is not None and new.vote.ballot >= old.view.key)  # as it had promised
    votes = votes and (old.vote is None or (new.vote is not None and new.vote.answer == old.vote.answer))
    return new.view.key < old.view.key or new.entered.key < old.entered.key or not (answers and votes)


class ViewChanged(Exception):
    """The program must restart in another view. Not an error: the driver of the program catches it."""


class Views:
    """The views that a node knows. `update` applies the rules until nothing changes.

    Examples
    --------
    >>> records = {"a": (("b", "c"), 30), "b": (("a", "c"), 20), "c": (("a", "b"), 10)}
    >>> a, b = Views("a", Quorum()), Views("b", Quorum())
    >>> a.begin(records), b.begin(records)
    (None, None)
    >>> b.update({"c"}, (), 100.0, 0.0), list(a.add({"b": b.own})[0])
    (None, ['b'])
    >>> a.update({"c"}, (), 100.0, 0.0)  # neither has heard from c: a, the first by name, proposes to go on without it
    >>> a.own.view.number, [lost.name for lost in a.own.view.lost], a.own.entered.number
    (1, ['c'], 0)
    >>> heard, _ = b.add({"a": a.own})
    >>> b.update({"c"}, (), 100.0, 0.0), b.own.entered.number  # b accepts, and knows that all have
    (None, 1)
    >>> heard, _ = a.add({"b": b.own})
    >>> a.update({"c"}, (), 101.0, 1.0), a.kept.program.number
    (None, 1)
    """

    def __init__(
        self, name: str, quorum: Quorum, kept: Kept | None = None, settle: float = 0.0, seen: Mapping[str, Status] | None = None
    ):  # fmt: skip
        self.name, self.quorum, self.settle = name, quorum, settle
        self.kept = self.saved = kept or Kept()  # `saved`: what is on disk
        if self.own.version:  # after a restart: nodes that were down may be up
            self._say(version=self.own.version + 1, down=(), fallback=())
        self.statuses: dict[str, Status] = {}  # of the others
        # The latest that this node, or an earlier process of it, has heard of each: on disk before anything is concluded from them.
        self.seen = dict(seen or {})
        self.records: Mapping[str, Record] = {}
        self.reach: set[str] = set()  # neighbors and fallback neighbors that this node can use
        self.tell_rows = True  # errors may name numbers of rows; with privacy no node knows those of others
        self.unreachable = False  # the loss disconnects other nodes: fallback neighbors are called
        # Since when others are cut off, too few are left, or a node that would be excluded has a new status.
        self._since: dict[str, float] = {}
        self._news: dict[str, tuple[int, float]] = {}  # the versions of statuses, and when they arrived

    @property
    def waits(self) -> bool:
        """Whether time alone can trigger a rule."""
        return bool(self._since)

    def _settled(self, what: str, holds: bool, now: float) -> bool:
        """Whether this has held for long enough."""
        if not holds:
            self._since.pop(what, None)
            return False
        return now - self._since.setdefault(what, now) >= self.settle

    @property
    def own(self) -> Status:
        return self.kept.status

    @property
    def begun(self) -> bool:
        return bool(self.records)

    def begin(self, records: Mapping[str, Record]) -> None:
        """The network is known. Raises Disagreement if two groups could have the quorum."""
        least, given = len(records) // 2 + 1, self.quorum.nodes
        if given is not None and not least <= given <= len(records):
            why = "two groups of nodes could both go on" if given < least else "there are not so many"
            remedy = f"set quorum at all nodes to {least} to {len(records)}, or leave it out"
            raise Disagreement(f"quorum = {given} of {len(records)} nodes: {why}; {remedy}")
        self.records = records
        self._quorum_nodes = least if given is None else given
        self._edges = {_edge(a, b) for a, (around, _) in records.items() for b in around}
        self.reach |= set(records[self.name][0])
        self._total = sum(rows for _, rows in records.values())
        self.statuses = {name: status for name, status in self.statuses.items() if self.knows(name, status)}
        self.seen = {name: status for name, status in self.seen.items() if self.knows(name, status)}

    # ------------------------------------------------------------------ views
    def members(self, view: View) -> set[str]:
        return self.records.keys() - view.without

    def rows(self, names: Iterable[str]) -> int:
        return sum(self.records[name][1] for name in names)

    def edges(self, view: View) -> set[Edge]:
        """The edges that the members of a view use."""
        without = view.without
        inside = {edge for edge in self._edges if not without.intersection(edge)}
        return inside.difference(view.broken).union(view.fallback)

    def around(self, view: View) -> set[str]:
        """This node's neighbors in a view."""
        return {b if a == self.name else a for a, b in self.edges(view) if self.name in (a, b)}

    def fallbacks(self) -> set[str]:
        """Fallback neighbors that a view of this node uses."""
        edges = {*self.own.view.fallback, *self.own.entered.fallback, *self.kept.program.fallback}
        return {name for edge in edges if self.name in edge for name in edge} - {self.name}

    def network(self, view: View) -> tuple[Network, np.ndarray]:
        """The network of a view, nodes in natural order of their names, and the rows of each."""
        near: dict[str, list[str]] = {name: [] for name in self.members(view)}
        for a, b in self.edges(view):
            near[a].append(b)
            near[b].append(a)
        return network_of(near, self.records)

    def has_quorum(self, names: set[str]) -> bool:
        return len(names) >= self._quorum_nodes and self.rows(names) >= self.quorum.rows * self._total

    def status(self, name: str) -> Status:
        return self.own if name == self.name else self.statuses.get(name, UNHEARD)

    def add(self, statuses: Mapping[str, Status]) -> tuple[dict[str, Status], set[str]]:
        """Add forwarded statuses. Returns those that are new, and nodes that contradict themselves: what was heard of them first counts.

        Raises ProtocolError if they name nodes that are not in this run.
        """
        if self.begun and not all(self.knows(name, status) for name, status in statuses.items()):
            raise ProtocolError("a status of a node, or about nodes, that are not in the network")
        new, false = {}, set()
        for name, status in statuses.items():
            before = self.seen.get(name, UNHEARD)
            latest = status if status.version > before.version else before
            if contradict(before, status):
                false.add(name)
                latest = before
            if name != self.name and latest != self.statuses.get(name, UNHEARD):
                new[name] = latest
        self.statuses |= new
        self.seen |= new
        return new, false

    def knows(self, name: str, status: Status) -> bool:
        """Whether all nodes and edges of a status are in the network."""
        views = (status.view, status.entered)
        edges = [edge for view in views for edge in (*view.broken, *view.fallback)]
        named = {name, *status.down, *status.fallback, *(end for edge in edges for end in edge)}
        return named.union(*(view.without for view in views)) <= self.records.keys()

    # ------------------------------------------------------------------ rules
    def update(self, down: Iterable[str], fallback: Iterable[str], wall: float, now: float) -> None:
        """Apply the rules. `down`, `fallback`: as in a status; `wall`: seconds of the Unix epoch. Raises errors that end the run for this node."""
        if self.own.final is not None or not self.begun:
            return
        before = self.kept
        self._say(down=tuple(sorted(down)), fallback=tuple(sorted(fallback)))
        self._accept()
        self._enter()
        self._vote()
        self._conclude()
        if self.own.final is None:
            self._propose(wall, now)
            self._enter()  # a view of this node alone, or one that all others accept already
        if self.kept != before:
            self._say(version=before.status.version + 1)

    def answer(self, view: Key) -> None:
        """The program has ended in this view. Ignored if it must restart in another one."""
        if view == self.kept.program.key and view != self.own.answered:
            self._say(answered=view, version=self.own.version + 1)

    def _say(self, **changes: object) -> None:
        self.kept = replace(self.kept, status=replace(self.own, **changes))  # type: ignore[arg-type]

    def _acceptable(self, view: View) -> bool:
        members = self.members(view)
        later = view.key > self.own.view.key and self.name in members and members <= self.members(self.own.entered)
        if not later or not self.has_quorum(members):
            return False
        edges = self.edges(view)  # a malicious member may have proposed it
        return self.around(view) <= self.reach and _component(self.name, edges) == members

    def _latest(self) -> View:
        """The latest view that a node has entered. Its members have accepted it, so this node has if it is one of them; else that is a lie."""
        said = {status.entered.key: status.entered for status in self.statuses.values()}
        mine = (v for v in said.values() if v.key in self.kept.accepted or self.name in v.without)
        known = (v for v in mine if all(self.status(name).view.key >= v.key for name in self.members(v)))
        return max((self.own.entered, *known), key=lambda view: view.key)

    def _accept(self) -> None:
        """Later views. They leave out only nodes that cannot be reached: whoever proposes them may lie."""
        latest = self._latest()
        reached, *_ = self._reached(latest if self.name in self.members(latest) else self.own.entered)
        views = [status.view for status in self.statuses.values() if reached <= self.members(status.view)]
        offered = [view for view in views if self._acceptable(view)]
        if offered:
            self._promise(max(offered, key=lambda view: view.key))

    def _promise(self, view: View) -> None:
        self.kept = replace(self.kept, accepted=(*self.kept.accepted, view.key))
        self._say(view=view)

    def _enter(self) -> None:
        """If a member has voted for the answer that this node has, it votes for it, too; else it computes one. (What is voted for, all have; a vote
        for another answer is a lie.)"""
        view = self.own.view
        members = [self.status(name) for name in self.members(view)]
        if view.key == self.own.entered.key or any(status.view.key != view.key for status in members):
            return
        answer = self.own.answered
        if answer is not None and any(status.vote is not None and status.vote.answer == answer for status in members):
            self._say(entered=view, vote=Vote(view.key, answer))
        else:
            self.kept = replace(self.kept, program=view)
            self._say(entered=view, answered=None)

    def _vote(self) -> None:
        """Vote in the view that this node has entered, unless it has accepted a later one."""
        view = self.own.entered
        if self.own.view.key != view.key or (self.own.vote is not None and self.own.vote.ballot == view.key):
            return
        if all(self.status(name).answered == view.key for name in self.members(view)):
            self._say(vote=Vote(view.key, view.key))

    def _conclude(self) -> None:
        """Whether there is a final answer; and whether this node has it, or is left out. As many nodes as the quorum must say so, each for itself: a
        node votes for one answer only, in whatever views, and what one member claims has no effect."""
        said = [self.own, *self.statuses.values()]
        votes = Counter(status.vote.answer for status in said if status.vote is not None)
        for answer, count in votes.items():
            if count >= self._quorum_nodes:
                if answer != self.own.answered:
                    raise Excluded(self._finished_without(answer))
                self._say(final=answer)
                return
        without = [status for status in said if self.name in status.entered.without]
        # Those that vote for this node's answer leave it out of the vote only.
        without = [s for s in without if s.vote is None or s.vote.answer != self.own.answered]
        if len(without) >= self._quorum_nodes:
            latest = max((status.entered for status in without), key=lambda view: view.key)
            raise Excluded(self._left_out("go on", latest))

    def awaited(self) -> set[str]:
        """The nodes whose statuses the next rule waits for: also the one that is to propose a view, and those that have gone on without this node."""
        own = self.own
        said = {name: self.status(name) for name in self.members(own.view) - {self.name}}
        if own.view.key != own.entered.key:
            late = {name for name, status in said.items() if status.view.key != own.view.key}
        elif own.vote is not None:
            late = {name for name, status in said.items() if status.vote is None or status.vote.answer != own.answered}
        else:
            late = {name for name, status in said.items() if own.answered and status.answered != own.view.key}
        if self.name in self.members(entered := self._latest()):
            reached, wanted, _ = self._reached(entered)
            late |= {self._proposer(reached, wanted, entered)} - {self.name, ""}
        return late | {name for name, status in self.statuses.items() if self.name in status.entered.without}

    def between(self, names: set[str]) -> set[str]:
        """The nodes that every way from here to one of these leads over: what one of them keeps back, this node does not hear."""
        up, fallback = self._ways(self.own.entered)
        graph = nx.Graph([*up, *fallback, (self.name, self.name)])
        before, found = nx.immediate_dominators(graph.to_directed(), self.name), set[str]()
        last = names & before.keys() - {self.name}
        while last := {before[name] for name in last} - {self.name}:
            found |= last
        return found

    def _finished_without(self, answer: Key) -> str:
        said = (self.own, *self.statuses.values())
        known = {view.key: view for status in said for view in (status.view, status.entered)} | {View().key: View()}
        if answer not in known or self.name in known[answer].without:
            return self._left_out("have finished", known.get(answer))
        why = "with an answer that it no longer has: it had begun anew with other nodes; its rows are in their answer"
        return f"the other nodes have finished without node {self.name}, {why}. {NOTHING_TO_DO}"

    def _left_out(self, what: str, view: View | None) -> str:
        who = ""
        if view is not None:
            members: list[str] = sorted(self.members(view), key=natural_key)
            who = f" ({len(members)} of {len(self.records)}: {listing(members)})"
        rows = "nothing of it is in their answer, and its rows are deleted there"
        return f"the other nodes{who} {what} without node {self.name}, which they had not heard from; {rows}. {NOTHING_TO_DO}"

    # ------------------------------------------------------------------ proposals
    def _ways(self, entered: View) -> tuple[set[Edge], set[Edge]]:
        """The edges of a view that work, and the fallback edges that do."""
        members, edges = self.members(entered), self.edges(entered)
        down = {_edge(name, other) for name in members for other in self.status(name).down}
        fallback = {
            _edge(name, other)
            for name in members
            for other in self.status(name).fallback
            if other in members and name in self.status(other).fallback and _edge(name, other) not in edges | down
        }
        return edges - down, fallback

    def _reached(self, entered: View) -> tuple[set[str], View, bool]:
        """Members that this node can reach, the view of them, and whether the loss disconnects other nodes."""
        members, edges = self.members(entered), self.edges(entered)
        up, fallback = self._ways(entered)
        reached = _component(self.name, up)
        near, reached = reached, _component(self.name, up | fallback)
        used = {e for e in fallback if reached.issuperset(e)} if reached != near else set()
        inside = {edge for edge in edges - up if reached.issuperset(edge)}
        missing = members - reached
        silent = {other for edge in edges if reached.intersection(edge) for other in edge} - reached
        view = View(
            broken=tuple(sorted({e for e in entered.broken if reached.issuperset(e)} | inside)),
            fallback=tuple(sorted({e for e in entered.fallback if reached.issuperset(e)} - inside | used)),
            lost=(*entered.lost, *(Lost(name, 0.0) for name in sorted(missing, key=natural_key))),
        )
        return reached, view, bool(missing - silent)

    def _talks(self, names: Iterable[str], now: float) -> bool:
        """Whether one of these nodes has published a new status recently: its neighbor may hang, which other nodes will detect."""
        for name, status in self.statuses.items():
            if self._news.get(name, (0, 0.0))[0] != status.version:
                self._news[name] = status.version, now
        return any(name in self._news and now - self._news[name][1] < self.settle for name in names)

    def _propose(self, wall: float, now: float) -> None:
        entered = self._latest()
        # Else it waits for the votes of the others, as long as statuses arrive.
        member = self.name in self.members(entered)
        reached, wanted, self.unreachable = self._reached(entered if member else self.own.entered)
        cut = self._settled("cut", self.unreachable, now)
        talking = self._talks(wanted.without - entered.without, now)
        talked = self._settled("talk", talking, now)
        enough = self.has_quorum(reached)
        if self._settled("below", not enough, now):
            raise self._too_few(reached)
        settling = (self.unreachable and not cut) or (talking and not talked)
        if not enough or not member or settling or self.name != self._proposer(reached, wanted, entered):
            return
        number = 1 + max(status.view.number for status in (self.own, *self.statuses.values()))
        known = {lost.name: lost for lost in (*self.own.view.lost, *entered.lost)}
        lost = tuple(known.get(lost.name, Lost(lost.name, wall)) for lost in wanted.lost)
        self._promise(replace(wanted, number=number, proposer=self.name, lost=lost))

    def _proposer(self, reached: set[str], wanted: View, entered: View) -> str:
        """The first by name of the nodes that can be reached, if the latest view of them is another one than they need; else nobody."""
        latest = max((self.status(name).view for name in reached), key=lambda view: view.key)
        proposed = latest.content == wanted.content and latest.key in (entered.key, self.own.view.key)
        return "" if proposed else min(reached, key=natural_key)

    def _too_few(self, reached: set[str]) -> PeerError:
        here: list[str] = sorted(reached, key=natural_key)
        missing = sorted(self.records.keys() - reached, key=natural_key)
        share = f" and {self.quorum.rows:.0%} of the rows" if self.quorum.rows else ""
        rows = f" with {self.rows(reached)} of {self._total} rows" if self.tell_rows else ""
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        left = f"{len(reached)} of {len(self.records)} nodes ({listing(here)}){rows} remain"
        quorum = f"the quorum is {self._quorum_nodes} nodes{share}"
        down = [(name, other) for name in self.records for other in self.status(name).down]
        cut = [f"node {a} counts node {b} as lost" for a, b in sorted(down) if (a in reached) != (b in reached)]
        why = f" ({', '.join(cut[:8])})" if cut else ""
        return BelowQuorum(
            f"node {', node '.join(missing[:8])}{more} cannot be reached{why}; {left}, where {quorum}; {GONE}"
        )


def _edge(a: str, b: str) -> Edge:
    return (a, b) if a < b else (b, a)


def _component(start: str, edges: set[Edge]) -> set[str]:
    """The connected component of a node along these edges."""
    return set(nx.node_connected_component(nx.Graph([*edges, (start, start)]), start))
