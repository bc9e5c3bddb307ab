"""The rounds of the program: what this node sends to its neighbors, and what it expects of them, in one view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import TooMuch
from . import wire_pb2 as wire
from .checks import BROKEN_OFF, UNSYNCED, WAITING, Limits, MessageHead, check_head
from .neighbor import Neighbor, SendWindow
from .views import View


class Rounds:
    """Of node `name`, from the messages of its neighbors that are on disk."""

    def __init__(self, name: str, neighbors: Mapping[str, Neighbor], view: View):
        self.name, self.neighbors, self.view = name, neighbors, view
        self.limits: Limits | None = None  # None: the program has not begun
        self.round = 0  # of the program
        self.expected: dict[str, MessageHead] = {}  # messages of this round, by neighbor
        # The round that the program had reached before a restart: neighbors may still be in it.
        self._before = max((r for n in neighbors.values() for r in n.received), default=0)

    @property
    def furthest(self) -> int:
        return max(self.round, self._before)

    @property
    def missing(self) -> set[str]:
        """Neighbors whose message of this round has not arrived."""
        return {name for name in self.expected if self.round not in self.neighbors[name].received}

    def restart(self, view: View) -> None:
        """The program restarts in this view. Messages of earlier views do not count."""
        self.view, self.round, self._before, self.expected = view, 0, 0, {}
        for n in self.neighbors.values():
            n.window, n.received, n.bytes_broken = SendWindow(), set(), 0

    def accept(self, name: str, head: wire.Head) -> tuple[MessageHead, bool]:
        """The header of a message that a neighbor begins to send, and whether it is new. Raises ProtocolError before memory or disk is allocated."""
        assert self.limits is not None
        n, expected = self.neighbors[name], self.expected.get(name)
        if expected is not None and expected.round != head.round:
            expected = None
        message = check_head(head, name, self.limits, expected, self.furthest)
        if message.round in n.received:
            return message, False
        if n.bytes_broken > BROKEN_OFF * self.limits.largest:
            text = f"{n.bytes_broken} bytes of messages that broke off, more than {BROKEN_OFF} of the largest"
            raise TooMuch(f"{text}; if the line is so bad, start node {self.name} and then node {name} again")
        return message, True

    def has_room(self, name: str, round: int) -> bool:
        """Whether a message of this round may be received now. A neighbor that is far ahead is not read until the program has caught up."""
        waiting = sum(r > self.furthest for r in self.neighbors[name].received)
        return round <= self.furthest or waiting < WAITING

    def late(self, round: int) -> list[Neighbor]:
        """Neighbors that must acknowledge messages before this round may begin."""
        due = [n for n in self.neighbors.values() if not n.finished]
        return [n for n in due if next(iter(n.window.unacknowledged), round) <= round - UNSYNCED]

    def start(
        self, round: int, sent: Iterable[tuple[str, Any]], expected: Mapping[str, MessageHead], now: float
    ) -> list[str]:
        """Begin a round: (neighbor, message) to send, and the messages expected. Returns the names of those that are sent to."""
        self.round, self.expected = round, dict(expected)
        names = []
        for name, message in sent:
            names.append(name)
            n = self.neighbors[name]
            if not n.window.unacknowledged:
                n.taken_at = now
            if not n.finished:
                n.window.put(round, message)
        return names

    def all_acknowledged(self) -> bool:
        """Whether the neighbors have all messages of this node on disk."""
        return not any(n.window.unacknowledged for n in self.neighbors.values() if not n.finished)
