"""Secure sums in the simulator: members that tell others different things, and an observer who holds the secrets of all nodes but two.

The program of a node is that of app/keys.py in small: some sums along the tree of its view, sealed by the real `Sealer`, of which the root tells all
the total; then everybody's signature of all that it was told. A liar tells a child something else than it should, as the root or on the way, and
something else again when a message is sent once more.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from dekpca.peers.errors import RunFailed
from dekpca.privacy.masks import BadMasks, Sealer

from .world import KeyedProofs, Node, World

SUMS = 2
BOUND = 2.0**40
SLOT = 32  # bytes of a signature
CONTENT = 1 << 64  # a message is two words: the sum, and how many nodes are in it


@dataclass(frozen=True)
class Sent:
    """What a node has sealed: what is left when all masks but that with node `other` are taken off, beside the truth."""

    number: tuple[str, int]  # the view, and the number of the sum
    told: tuple[int, ...]  # everything that the node was told before
    plain: int
    left: dict[str, int]  # by the other node


class MaskedNode(Node):
    """`tells(child, told)`: what it says to a child, which may be a lie."""

    world: MaskedWorld

    def begin_program(self) -> None:
        self.network = (
            self.core.views.network(self.core.view)[0]
            if self.core.views is not None
            else self.core.membership.network()[0]
        )
        self.me, view = self.network.number[self.name], str(self.core.view)
        self.up, self.down = int(self.network.parents[self.me]), self.network.children[self.me].tolist()
        self.level, self.depth = int(self.network.levels[self.me]), self.network.depth
        others = [other for other in self.network.names if other != self.name]
        keys = {other: hashlib.sha256(f"{view} {sorted((self.name, other))}".encode()).digest() for other in others}
        agreed = hashlib.sha256(f"{view} {self.network.names}".encode()).digest()
        self.sealer = Sealer(self.name, keys, agreed)
        self.begun_in, self.total, self.told = 0, 0, 0
        self.heard: tuple[int, ...] = ()

    @property
    def last_round(self) -> int:
        return 2 * self.depth * (SUMS + 1)

    def say(self, round: int, other: str) -> int:
        """The message of a round: only those along the tree, when they are due, say anything."""
        step, to = (round - 1) % (2 * self.depth), self.network.number[other]
        if step == 0 and self.begun_in != round:
            self.begun_in = round
            self.begin_sum((round - 1) // (2 * self.depth))
        if step == self.depth - self.level and to == self.up:
            return self.total
        if step == self.depth + self.level and to in self.down:
            return self.told
        return 0

    def content(self, round: int, other: str, value: int) -> int:
        """A liar says something else to a child each time that it sends a message, also if it sends it again."""
        step = (round - 1) % (2 * self.depth)
        told = self.lies and step == self.depth + self.level and self.network.number[other] in self.down
        return self.tells(other, value) if told else value

    def begin_sum(self, number: int) -> None:
        if number == SUMS:
            signature = KeyedProofs(self.name).sign(self.sealer.history)
            self.total = int.from_bytes(signature, "little") << (8 * SLOT * self.me)
            return
        history, plain = self.sealer.history, self.rows * (number + 1 + self.told % 997)  # it depends on what was told
        self.total = packed(self.sealer.seal("simulated", np.array([plain], dtype=np.int64), BOUND))
        left = {}
        for other, key in self.sealer.keys.items():  # the observer has all other keys
            alone = Sealer(self.name, {other: key}, history)
            alone._sealed = number
            left[other] = int(alone.seal("simulated", np.array([plain], dtype=np.int64), BOUND)[0])
        self.world.sent[self.name].add_once(Sent((str(self.core.view), number), self.heard, plain, left))

    def hear(self, round: int, heard: dict[str, int]) -> None:
        step, number = (round - 1) % (2 * self.depth), (round - 1) // (2 * self.depth)
        for other, value in heard.items():
            to = self.network.number[other]
            if step == self.depth - self.level - 1 and to in self.down:
                self.total = self.total | value if number == SUMS else added(self.total, value)
            if step == self.depth + self.level - 1 and to == self.up:
                self.told = value
        if step == self.depth - 1 and self.up < 0:
            self.told = self.concluded(number)
        if step == 2 * self.depth - 1:
            self.conclude(number)

    def concluded(self, number: int) -> int:
        """At the root."""
        if number == SUMS:
            return self.total
        try:
            return int(self.sealer.open("simulated", words(self.total), BOUND, integers=True)[0])
        except BadMasks as error:
            if self.lies:
                return self.rows  # it goes on, with whatever
            raise RunFailed(str(error)) from error

    def conclude(self, number: int) -> None:
        if number < SUMS:
            self.sealer.hear(np.array([float(self.told % 2**53)]))
            self.heard = (*self.heard, self.told)
            return
        for other in self.network.names:
            place = 8 * SLOT * self.network.number[other]
            signature = ((self.told >> place) % 2 ** (8 * SLOT)).to_bytes(SLOT, "little")
            if signature != KeyedProofs(other).sign(self.sealer.history) and not self.lies:
                raise RunFailed(
                    f"node {other} has not signed that it was told the same: members were told different things"
                )
        self.value = int.from_bytes(self.sealer.history[:8], "little")

    lies = False

    def tells(self, child: str, told: int) -> int:
        return told


class Once(list[Any]):
    """What was sealed, each thing once."""

    def add_once(self, sent: Sent) -> None:
        if sent not in self:
            self.append(sent)


class MaskedWorld(World):
    def __init__(self, *given: Any, **more: Any):
        self.sent: dict[str, Once] = defaultdict(Once)
        super().__init__(*given, **more)

    def make(self, name: str, number: int) -> Node:
        return MaskedNode(self, name, self.edges[name], 3 + number, self.fallback.get(name, ()))

    def readable(self, liars: set[str]) -> list[str]:
        """What an observer reads who holds the secrets of all nodes but two, for each two nodes that do not lie."""
        found = []
        honest = sorted(self.nodes.keys() - liars)
        for a in honest:
            for b in (other for other in honest if other != a):
                mine, theirs = ([s for s in self.sent[n] if o in s.left] for n, o in ((a, b), (b, a)))
                for i, one in enumerate(mine):
                    if one.left[b] == one.plain:
                        found.append(f"a sum of node {a}, without any mask")
                    for two in mine[i + 1 :]:
                        if (one.left[b] - two.left[b] - one.plain + two.plain) % CONTENT == 0:
                            found.append(f"the difference of two sums of node {a}: {one.number} and {two.number}")
                    for two in theirs:
                        known = (one.left[b] + two.left[a] - one.plain - two.plain) % CONTENT == 0
                        if known != ((one.number, one.told) == (two.number, two.told)):
                            found.append(f"the sum of nodes {a} and {b}: {one.number} and {two.number}, {known}")
        return found


def packed(sealed: np.ndarray) -> int:
    return int(sealed[0]) | int(sealed[1]) << 64


def words(total: int) -> np.ndarray:
    return np.array([total % CONTENT, (total >> 64) % CONTENT], dtype=np.uint64)


def added(one: int, other: int) -> int:
    return (one + other) % CONTENT | (((one >> 64) + (other >> 64)) % CONTENT) << 64
