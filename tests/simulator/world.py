"""Nodes, the links between them and the clock, all in one thread. `NodeProtocol` and the storage (in memory) are the real ones; what net/ and
app/ do is done here.

A link carries the calls of one node to another, as net/client.py makes them: a connection for handshakes and messages, another for heartbeats. On a
connection everything comes once and in order, late by a random time; a connection may break at any moment, and then what was under way is lost and
sent again. The program of a node is a toy: in each round it sends a number to its neighbors and mixes what it hears, so that the last number
depends on every message of every node. A disk holds what was committed before a node was killed.
"""

from __future__ import annotations

import heapq
import hmac
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dekpca.peers.errors import OlderCopy, PeerError
from dekpca.peers.protocol import events
from dekpca.peers.protocol import wire_pb2 as wire
from dekpca.peers.protocol.checks import Limits, MessageHead
from dekpca.peers.protocol.events import Refusal, Refused
from dekpca.peers.protocol.handshake import HandshakeSettings
from dekpca.peers.protocol.membership import Membership
from dekpca.peers.protocol.node import NodeProtocol, Timeouts
from dekpca.peers.protocol.proofs import Proofs
from dekpca.peers.protocol.views import Key, Quorum, View, ViewChanged, Views
from dekpca.peers.storage.database import Database
from dekpca.peers.storage.folder import RunFolder
from dekpca.peers.storage.messages import Chunk

TIMEOUTS = Timeouts(peer=8.0, start=40.0, beat=1.0, progress=20.0)
LIMITS = Limits("r", "<f8", 1000, 40)
SETTINGS = HandshakeSettings({"tol": "1"})
POLL = 0.5  # seconds between two looks of a program that waits
ANSWER = 2.0  # seconds until a call that is not answered has failed
SYNC = 0.02  # seconds until a message is on disk
FAREWELL = 3.0  # seconds, as in net/endpoint.py
PRIME = 1_000_003
SIZE = 224  # bytes of a message: a signature of each of seven nodes (masked.py); the program here needs a few


class DiskFull(OSError):
    pass


class Disk(Database):
    """What outlives a process: a database in memory, which may be full."""

    full = False

    def __init__(self) -> None:
        super().__init__(None)

    def write(self, statement: str, values: Sequence[Any] = ()) -> None:
        if self.full:
            raise DiskFull(28, "No space left on device", "run.db")
        super().write(statement, values)

    def copy(self) -> bytes:
        """What is committed."""
        self.commit()
        return self._connection.serialize()

    def restore(self, copied: bytes) -> None:
        self._connection.deserialize(copied)

    def lose_power(self) -> None:
        """What was not committed is gone."""
        self._connection.rollback()


class KeyedProofs(Proofs):
    """A keyed hash instead of a signature, by a secret of each node. `name` signs as itself only."""

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    def sign(self, message: bytes) -> bytes:
        return hmac.digest(f"secret of {self.name}".encode(), message, "sha256")

    def flaw(self, name: str, message: bytes, proof: bytes) -> str:
        return "" if proof == KeyedProofs(name).sign(message) else "the signature does not fit"


class Node:
    """A node, as often as it is started. `result`: its answer, when it has ended well; `error`: what ended it otherwise."""

    def __init__(self, world: World, name: str, neighbors: Iterable[str], rows: int, fallback: Iterable[str] = ()):
        self.world, self.name, self.around, self.rows = world, name, sorted(neighbors), rows
        self.fallback = sorted(fallback)
        self.disk = Disk()
        self.process = 0  # changes with every start and end
        self.running = False
        self.frozen_until = 0.0
        self.hangs = False  # its program does nothing any more; its heartbeats go on
        self.result: int | None = None
        self.error: BaseException | None = None
        self.view = View()  # of the result
        self.starts = 0
        self.stopped_at = 0.0  # when it gave up
        self.links: dict[str, Link] = {}
        self.triggers: list[Callable[[Any], None]] = []  # see all events, before the protocol does
        self.lie: Callable[[str, events.Heartbeat], events.Heartbeat] = lambda other, beat: (
            beat
        )  # of what it says to a neighbor

    lies = False  # tells others different things

    @property
    def knows_network(self) -> bool:
        return self.disk.fact("network") is not None

    # ------------------------------------------------------------------ start and end
    def start(self) -> None:
        assert not self.running
        self.process += 1
        self.starts += 1
        self.running, self.error, self.result = True, None, None
        now = self.world.now
        self.farewell = False
        self.disk.lose_power()
        self.store = RunFolder(None, self.disk)
        try:
            self.store.open({"run": "r"})
        except (OSError, PeerError) as error:
            self.end(error)
            return
        membership = Membership(self.name, self.around, self.rows)
        membership.add(self.store.records, self.name)
        self.proofs = KeyedProofs(self.name)
        views = None
        if self.world.quorum is not None:
            views = Views(self.name, self.world.quorum, self.store.views, 3 * TIMEOUTS.beat, self.store.statuses)
            views.saved = self.proofs.signed(self.name, views.saved)
        held = {other: self.store.messages.held(other) for other in (*self.around, *self.fallback)}
        self.core = NodeProtocol(
            self.name, "r", SETTINGS, membership, self.around, TIMEOUTS, now, held, self.store.finished, views, self.fallback,
            self.process, 1e9,
        )  # fmt: skip
        self.begun = self.waiting = False
        self.round, self.value = 0, self.first_value()
        for neighbor in self.core.neighbors.values():
            if neighbor.called:
                self.links[neighbor.name].start()
        self.poll(self.process)

    def first_value(self) -> int:
        return self.rows

    def end(self, error: BaseException | None = None) -> None:
        """Of the process: what is not on disk is gone, and its connections break."""
        self.world.trace(self.name, f"ends: {error if error is not None else self.result}")
        self.running, self.error = False, error
        if isinstance(error, OlderCopy) and not self.disk.full:
            self.store.end(error)
        self.process += 1
        for link in self.links.values():
            link.stop()
        for other in self.world.nodes.values():
            if self.name in other.links:
                other.links[self.name].reset("the process there has ended")

    def kill(self) -> None:
        if self.running:
            self.result = None
            self.end()

    def fail(self, error: BaseException) -> None:
        """Say farewell, then end."""
        if self.farewell or not self.running:
            return
        self.farewell, self.stopped_at = True, self.world.now
        self.world.trace(self.name, f"stops: {error}")
        self.do(self.core.fail(error))
        error = self.core.error or error
        self.world.after(0.0, self.say_farewell, self.process, error, self.world.now + FAREWELL)

    def say_farewell(self, process: int, error: BaseException, deadline: float) -> None:
        if process == self.process:
            if self.world.now >= deadline or self.core.all_told([]):
                self.end(error)
            else:
                self.world.after(0.1, self.say_farewell, process, error, deadline)

    # ------------------------------------------------------------------ what net/endpoint.py does
    def receive(self, other: str, event: Any) -> None:
        for trigger in self.triggers:
            trigger(event)
        if isinstance(event, events.Heartbeat):
            event, refused = self.proofs.believed(other, event)
            self.do(refused)
        self.do(self.core.receive(other, event, self.world.now))

    def heartbeat(self, other: str) -> events.Heartbeat:
        self.guarded(self.check_losses)
        return self.core.heartbeat(other, self.world.now)

    def check_losses(self) -> None:
        self.do(self.core.check_losses(self.world.now))

    def do(self, actions: Iterable[events.Action]) -> None:
        for action in actions:
            if isinstance(action, events.SaveFinished):
                self.store.keep_finished(action.name)
                self.receive(action.name, events.FinishSaved())
            elif isinstance(action, events.SaveViews):
                self.store.keep_views(self.name, action.kept)
                self.do(self.core.views_saved(self.proofs.signed(self.name, action.kept)))
            elif isinstance(action, events.SaveStatuses):
                self.store.keep_statuses(action.statuses)
            elif isinstance(action, events.Send):
                for name in action.names:
                    if self.core.neighbors[name].called and not self.links[name].on:
                        self.links[name].start()  # a fallback neighbor, from now on
                    else:
                        self.links[name].news(action.heartbeat)
            elif isinstance(action, events.WakeProgram):
                self.world.after(0.0, self.step, self.process)
            else:
                self.world.trace(self.name, f"{action.text} {dict(action.about)}")

    def guarded(self, work: Callable[..., None], *given: Any) -> None:
        """Whatever ends the run ends this node."""
        try:
            work(*given)
        except ViewChanged:
            self.begin_anew()
        except (PeerError, OSError) as error:
            self.fail(error)

    # ------------------------------------------------------------------ the program
    def poll(self, process: int) -> None:
        if process == self.process:
            self.step(process)
            self.world.after(POLL, self.poll, process)

    def step(self, process: int) -> None:
        if process == self.process and not self.farewell and not self.hangs:
            self.guarded(self.work)

    def work(self) -> None:
        """As far as it comes without waiting."""
        now = self.world.now
        if not self.begun:
            records = self.core.check_meeting(now)
            if records is None:
                return
            self.store.keep_records(records)
            self.begin()
        near = self.neighbors()
        while self.round < self.last_round:
            if not self.waiting:
                if not self.core.check_window(self.round + 1, now):
                    return
                sent = [(other, self.say(self.round + 1, other)) for other in near]
                expected = {other: MessageHead(self.round + 1, "share", "<f8", (SIZE // 8,)) for other in near}
                self.do(self.core.start_round(self.round + 1, sent, expected, now))
                self.waiting = True
            if not all(self.core.check_waiting(other, now) for other in near):
                return
            self.round, self.waiting = self.round + 1, False
            self.hear(self.round, {other: self.held(other, self.round) for other in near})
            if self.round == self.last_round:
                self.core.start_finishing(now)
        self.leave()

    @property
    def last_round(self) -> int:
        return self.world.rounds

    def say(self, round: int, other: str) -> int:
        return self.value

    def hear(self, round: int, heard: Mapping[str, int]) -> None:
        self.value = mix(self.name, round, self.value, heard)

    def content(self, round: int, other: str, value: int) -> int:
        """What it sends, each time: a liar may change it."""
        return value

    def begin_program(self) -> None:
        """The network is known."""

    def begin(self) -> None:
        self.begun = True
        self.begin_program()
        self.do(self.core.begin(LIMITS, self.world.now))

    def begin_anew(self) -> None:
        """In another view, as app/session.py does it."""
        view = self.core.enter_view()
        self.world.trace(
            self.name, f"begins anew in view {view.number} of {view.proposer} without {sorted(view.without)}"
        )
        try:
            self.store.wipe(view)
        except OSError as error:
            self.fail(error)
            return
        self.waiting, self.round, self.value = False, 0, self.first_value()
        for link in self.links.values():
            link.another_view()
        self.begin()
        self.world.after(0.0, self.step, self.process)

    def neighbors(self) -> list[str]:
        return sorted(self.core.near)

    def held(self, other: str, round: int) -> int:
        into = bytearray(SIZE)
        self.store.messages.read(other, round, memoryview(into))
        return int.from_bytes(into, "little")

    def keep(self, chunk: Chunk) -> None:
        if self.store.messages.append(chunk):
            self.receive(chunk.sender, events.MessageStored(chunk.head.round))

    def leave(self) -> None:
        """It has its answer: stay until the neighbors have theirs."""
        self.sync()
        if self.result is None:
            actions, final = self.core.check_answer(self.world.now)
            self.do(actions)
            if not final:
                return
        self.result, self.view = self.value, self.core.view
        actions, gone = self.core.try_finish(self.world.now)
        self.do(actions)
        if gone is not None:
            self.end()

    def sync(self) -> None:
        """Returns when all that came is on disk."""
        self.store.messages.write()


def mix(name: str, round: int, value: int, heard: Mapping[str, int]) -> int:
    total = sum((i + 2) * heard[other] for i, other in enumerate(sorted(heard)))
    return (3 * value + total + sum(map(ord, name)) * round) % PRIME


def undisturbed(edges: Mapping[str, Iterable[str]], rows: Mapping[str, int], rounds: int) -> dict[str, int]:
    """The answers of nodes that nothing happens to."""
    values = {name: rows[name] for name in edges}
    for round in range(1, rounds + 1):
        values = {n: mix(n, round, values[n], {o: values[o] for o in edges[n]}) for n in edges}
    return values


class Link:
    """The calls of node `a` to node `b`."""

    def __init__(self, world: World, a: Node, b: Node):
        self.world, self.a, self.b = world, a, b
        self.on = False
        self.connection = self.beating = 0  # change whenever a connection begins or ends
        self.state = "closed"
        self.beat_under_way = self.beat_again = False

    def start(self) -> None:
        self.on = True
        self.connection, self.beating = self.world.fresh(), self.world.fresh()
        self.later(0.0, self.connect)
        self.beat_under_way = self.beat_again = False
        self.later(0.0, self.beat, beating=True)

    def stop(self) -> None:
        self.on = False
        self.connection, self.beating = self.world.fresh(), self.world.fresh()

    def later(
        self, delay: float, work: Callable[..., None], *given: Any, beating: bool = False, at: Node | None = None
    ) -> None:
        """Do this unless the connection ends before. `at`: the node where it happens, which may be frozen."""
        number = self.beating if beating else self.connection

        def due() -> None:
            if number != (self.beating if beating else self.connection) or not self.on:
                return
            where = at or self.a
            if where.frozen_until > self.world.now:
                self.world.after(where.frozen_until - self.world.now, due)
                return
            work(*given)

        self.world.after(delay, due)

    def latency(self, beating: bool = False) -> float:
        delay = self.world.latency()
        if not beating:  # in order
            self.arrival = max(getattr(self, "arrival", 0.0) + 1e-6, self.world.now + delay)
            delay = self.arrival - self.world.now
        return delay

    @property
    def open(self) -> bool:
        return self.b.running and self.world.passes(self.a.name, self.b.name)

    def reset(self, why: str) -> None:
        """Both connections break."""
        if self.on:
            self.broken(why)
            self.beating = self.world.fresh()
            self.beat_under_way = False
            self.later(self.world.rng.uniform(0.05, 0.5), self.beat, beating=True)

    def broken(self, why: str) -> None:
        self.connection = self.world.fresh()
        self.state = "closed"
        if not self.a.farewell or self.a.core.rounds.limits is not None:
            self.a.guarded(self.a.receive, self.b.name, events.Unreachable(why))
        self.later(self.world.rng.uniform(0.05, 0.5), self.connect)

    def refused(self, why: Refusal, text: str) -> None:
        self.connection = self.world.fresh()
        self.state = "closed"
        self.a.guarded(self.a.receive, self.b.name, events.TheyRefused(why, text))
        self.later(self.world.rng.uniform(0.05, 0.5), self.connect)

    def another_view(self) -> None:
        """A delivery is of one view. Acknowledgements of the last one may come until it is closed."""
        if self.on and self.state in ("opening", "delivering"):
            self.later(self.world.rng.uniform(0.0, 0.05), self.close_delivery)

    def close_delivery(self) -> None:
        self.connection = self.world.fresh()
        self.state = "closed"
        self.later(0.05, self.connect)

    def news(self, heartbeat: bool) -> None:
        if not self.on:
            return
        if heartbeat:
            self.beat_soon()
        if self.state == "waiting":
            self.state = "talking"
            self.later(0.02, self.talk)
        elif self.state == "delivering":
            self.later(0.0, self.send)

    # ------------------------------------------------------------------ handshakes
    def connect(self) -> None:
        if not self.open:
            self.later(0.05 if not self.b.running else ANSWER, self.broken, "no answer")
            return
        self.state = "talking"
        self.handshake()

    def talk(self) -> None:
        """The next handshake or the delivery, whichever is due."""
        if self.a.core.membership.records.keys() - self.a.core.neighbors[self.b.name].knows:
            self.state = "talking"
            self.handshake()
        elif self.a.core.rounds.limits is None:
            self.state = "waiting"
        else:
            self.state = "opening"
            self.later(self.latency(), self.open_delivery, self.a.core.view.key, at=self.b)

    def handshake(self) -> None:
        if self.a.core.silenced:
            return  # until the node has ended
        records = dict(self.a.core.membership.records)
        self.later(self.latency(), self.handshake_arrives, records, at=self.b)

    def handshake_arrives(self, records: dict[str, Any]) -> None:
        if not self.open:
            self.later(ANSWER, self.broken, "no answer to a handshake")
            return
        try:
            self.b.receive(self.a.name, events.HandshakeReceived(SETTINGS, records))
        except Refused as error:
            self.later(self.latency(), self.refused, error.why, str(error))
            return
        except PeerError as error:
            self.b.guarded(self.b.receive, self.a.name, events.WeRefused(error))
            self.later(self.latency(), self.refused, Refusal.SETTINGS, str(error))
            return
        answer = dict(self.b.core.membership.records)
        self.b.core.neighbors[self.a.name].knows |= answer.keys()
        self.later(self.latency(), self.handshake_answered, records, answer)

    def handshake_answered(self, records: dict[str, Any], answer: dict[str, Any]) -> None:
        if not self.open:
            self.later(ANSWER, self.broken, "no answer to a handshake")
            return
        try:
            self.a.receive(self.b.name, events.HandshakeReceived(SETTINGS, answer))
        except Refused:
            self.broken("this node stops")
            return
        except PeerError as error:
            self.a.fail(error)
            return
        self.a.core.neighbors[self.b.name].knows |= records.keys()
        self.a.receive(self.b.name, events.Answered())
        self.talk()

    # ------------------------------------------------------------------ messages
    def open_delivery(self, view: Key) -> None:
        self.view = view
        if not self.open:
            self.later(ANSWER, self.broken, "no answer to a delivery")
        elif not self.b.core.neighbors[self.a.name].joined:
            self.later(self.latency(), self.refused, Refusal.LATER, "a handshake comes first")
        elif self.b.core.rounds.limits is None or self.b.core.view.key < view:
            self.later(
                0.1, self.open_delivery, view, at=self.b
            )  # until the network is known there, and the view entered
        elif self.b.core.view.key != view:
            self.later(self.latency(), self.refused, Refusal.LATER, "another view")
        else:
            self.b.guarded(self.opening)

    def opening(self) -> None:
        self.b.sync()
        held = frozenset(self.b.store.messages.held(self.a.name))
        self.later(self.latency(), self.opening_arrives, held)

    def opening_arrives(self, held: frozenset[int]) -> None:
        if not self.open:
            self.later(ANSWER, self.broken, "no answer to a delivery")
            return
        self.a.receive(self.b.name, events.Answered())
        self.a.receive(self.b.name, events.Opening(held, self.view))
        self.state, self.sent = "delivering", 0
        self.send()

    def send(self) -> None:
        if self.state != "delivering" or self.a.core.view.key != self.view:
            return
        window = self.a.core.neighbors[self.b.name].window
        for round, value in window.pending(self.sent):
            self.a.receive(self.b.name, events.ChunkSent(SIZE))
            content = self.a.content(round, self.b.name, value)
            self.later(self.latency(), self.message_arrives, round, content, at=self.b)
            self.sent = round

    def message_arrives(self, round: int, value: int) -> None:
        if not self.open:
            self.later(ANSWER, self.broken, "a message is not acknowledged")
            return
        b = self.b
        if b.core.view.key != self.view:
            self.later(self.latency(), self.refused, Refusal.LATER, "another view")
            return
        head = wire.Head(run="r", sender=self.a.name, round=round, kind="share", dtype="<f8", shape=[SIZE // 8])
        try:
            accepted, new = b.core.rounds.accept(self.a.name, head)
        except PeerError as error:
            self.later(self.latency(), self.refused, Refusal.MESSAGE, str(error))
            return
        b.receive(self.a.name, events.ChunkReceived(SIZE, new))
        if new:
            b.guarded(b.keep, Chunk(self.a.name, accepted, 0, 0, value.to_bytes(SIZE, "little")))
        elif not self.a.lies:  # the same again, to the last bit
            assert b.held(self.a.name, round) == value, (
                f"round {round} of node {self.a.name} was sent with two contents"
            )
        self.later(self.world.rng.uniform(0.0, SYNC), self.acknowledge, round, at=self.b)

    def acknowledge(self, round: int) -> None:
        if not self.open:
            self.later(ANSWER, self.broken, "a message is not acknowledged")
            return
        self.b.guarded(self.sync_and_acknowledge, round)

    def sync_and_acknowledge(self, round: int) -> None:
        self.b.sync()
        self.later(self.latency(), self.acknowledged, round)

    def acknowledged(self, round: int) -> None:
        if self.open:
            self.a.receive(self.b.name, events.Answered())
            self.a.receive(self.b.name, events.Acknowledged((round,), self.view))
        else:
            self.later(ANSWER, self.broken, "a message is not acknowledged")

    # ------------------------------------------------------------------ heartbeats
    def beat_soon(self) -> None:
        if self.beat_under_way:
            self.beat_again = True
        else:
            self.beating = self.world.fresh()
            self.later(0.0, self.beat, beating=True)

    def beat(self) -> None:
        self.beat_under_way, self.beat_again = True, False
        said = self.a.heartbeat(self.b.name)
        if not self.open:
            delay = 0.05 if not self.b.running else ANSWER
            self.later(delay, self.beat_failed, beating=True)
            return
        told = self.a.lie(self.b.name, said)
        self.later(self.latency(True), self.beat_arrives, said, told, beating=True, at=self.b)

    def beat_failed(self) -> None:
        self.a.guarded(self.a.receive, self.b.name, events.Unreachable("no answer to a heartbeat"))
        self.beat_under_way = False
        self.later(self.world.rng.uniform(0.1, 1.0), self.beat, beating=True)

    def beat_arrives(self, said: events.Heartbeat, told: events.Heartbeat) -> None:
        if not self.open:
            self.later(ANSWER, self.beat_failed, beating=True)
            return
        self.b.guarded(self.b.receive, self.a.name, told)
        if self.b.running:
            answer = self.b.lie(self.a.name, self.b.heartbeat(self.a.name))
            self.later(self.latency(True), self.beat_answered, said, answer, beating=True)

    def beat_answered(self, said: events.Heartbeat, answer: events.Heartbeat) -> None:
        if not self.open:
            self.later(ANSWER, self.beat_failed, beating=True)
            return
        for event in (events.Answered(), answer, events.HeartbeatAnswered(said)):
            if self.a.running:
                self.a.guarded(self.a.receive, self.b.name, event)
        self.beat_under_way = False
        self.later(0.0 if self.beat_again else TIMEOUTS.beat, self.beat, beating=True)


class World:
    """All nodes and the clock. `edges`: the neighbors of each node."""

    def __init__(
        self, seed: int, edges: Mapping[str, Iterable[str]], rounds: int = 6, show: bool = False, quorum: Quorum | None = None,
        fallback: Mapping[str, Iterable[str]] | None = None,
    ):  # fmt: skip
        self.quorum = quorum  # None: the run stops when a node is lost
        self.fallback = fallback or {}
        self.rng = random.Random(seed)
        self.edges = {name: sorted(around) for name, around in edges.items()}
        self.rounds, self.show = rounds, show
        self.now = 1000.0
        self.slow = 0.02  # seconds, the longest that a message is under way
        self.blocked: set[tuple[str, str]] = set()  # calls that do not come through: who, whom
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count(1)
        self.nodes = {name: self.make(name, i) for i, name in enumerate(self.edges)}
        for node in self.nodes.values():
            node.links = {other: Link(self, node, self.nodes[other]) for other in (*node.around, *node.fallback)}

    def make(self, name: str, number: int) -> Node:
        return Node(self, name, self.edges[name], 3 + number, self.fallback.get(name, ()))

    def fresh(self) -> int:
        return next(self._count)

    def latency(self) -> float:
        return self.rng.uniform(0.001, self.slow)

    def passes(self, a: str, b: str) -> bool:
        return (a, b) not in self.blocked

    def trace(self, who: str, text: str) -> None:
        if self.show:
            print(f"{self.now - 1000:9.3f} {who}: {text}")

    def after(self, delay: float, work: Callable[..., None], *given: Any) -> None:
        heapq.heappush(self._queue, (self.now + delay, self.fresh(), work, given))

    def run(self, done: Callable[[], bool], seconds: float) -> bool:
        """Until `done`, or for so many seconds; returns whether it was done."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, work, given = heapq.heappop(self._queue)
            owner = getattr(work, "__self__", None)
            if isinstance(owner, Node) and owner.frozen_until > self.now:
                self.after(owner.frozen_until - self.now, work, *given)
                continue
            work(*given)
            if done():
                return True
        return False

    def report(self) -> str:
        lines = []
        for name, node in self.nodes.items():
            phase = node.core.phase.name if node.starts else "never started"
            how = "runs" if node.running else f"ended, {node.error!r}" if node.error else f"ended with {node.result}"
            lines.append(
                f"  {name}: {how}; round {node.round if node.starts else 0}, {phase}, started {node.starts} times"
            )
        return "\n".join(lines)


def is_finished(node: Node) -> bool:
    return not node.running and node.error is None and node.result is not None
