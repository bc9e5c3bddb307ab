"""Messages to one neighbor, until it acknowledges them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

REMEMBERED = 64  # recent acknowledgements, to detect a neighbor that lost its folder


class SendWindow:
    """Sent messages, and which of them the neighbor has.

    Examples
    --------
    >>> window = SendWindow()
    >>> window.put(1, "a"), window.put(2, "b")
    (True, True)
    >>> window.acknowledge([1]), window.put(1, "a")  # a program that runs again says the same again
    ([1], False)
    >>> window.pending(0)
    [(2, 'b')]
    >>> window.reopen(0, frozenset({2}))  # the neighbor was restarted, and has lost round 1
    [1]
    >>> window.pending(0)  # round 2 need not be sent again
    []
    """

    def __init__(self) -> None:
        self.unacknowledged: OrderedDict[int, Any] = OrderedDict()  # round -> message
        self.acknowledged: set[int] = set()  # recent rounds
        self.through = 0  # the neighbor needs no messages up to this round

    def put(self, round: int, message: Any) -> bool:
        """Returns whether the neighbor needs this message."""
        if round <= self.through or round in self.acknowledged:
            return False
        self.unacknowledged[round] = message
        return True

    def pending(self, after: int) -> list[tuple[int, Any]]:
        """Messages of later rounds to send."""
        return [(round, message) for round, message in self.unacknowledged.items() if round > after]

    def acknowledge(self, rounds: Iterable[int]) -> list[int]:
        """Returns the rounds that were unacknowledged."""
        taken = [round for round in rounds if self.unacknowledged.pop(round, None) is not None]
        self.acknowledged.update(taken)
        return taken

    def reopen(self, through: int, held: frozenset[int]) -> list[int]:
        """Process the neighbor's opening; returns the rounds that it has acknowledged and lost since."""
        lost = sorted(round for round in self.acknowledged if round > through and round not in held)
        self.acknowledged |= held
        self.through = max(self.through, through)
        for round in [r for r in self.unacknowledged if r <= through or r in held]:
            del self.unacknowledged[round]
        return lost

    def forget(self) -> None:
        """Keep only the latest acknowledgements."""
        self.acknowledged = set(sorted(self.acknowledged)[-REMEMBERED:])
