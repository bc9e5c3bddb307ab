"""Damaged messages by the hundred thousand, for the code that a neighbor can reach. Run by `make fuzz`, and a little of it by `make test`.

    python tests/faults/fuzz.py --messages 100000 --over-tls 5000 --seed 0

Good messages of every kind are mutated (bits, lengths, fields, pieces in another order) and handed to the very functions that the server
and the links call, with a real database in a real folder; some go through a real TLS connection, from a node with a good certificate, in the
middle of a run. Passing means: every one of them is taken or draws a ProtocolError (over TLS: a refusal of the call), nothing else is ever raised,
neither memory nor files nor threads grow, and a good message is taken afterwards. The same seed sends the same bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import grpc

from dekpca.peers.errors import Disagreement, ProtocolError
from dekpca.peers.net.authority import init_ca, issue
from dekpca.peers.net.edge import SERVICE, Edge
from dekpca.peers.net.endpoint import Endpoint
from dekpca.peers.net.identity import Identity, load
from dekpca.peers.net.server import Server
from dekpca.peers.protocol import events
from dekpca.peers.protocol import wire_pb2 as wire
from dekpca.peers.protocol.checks import Limits, metadata, parse
from dekpca.peers.protocol.handshake import HandshakeSettings
from dekpca.peers.protocol.membership import Membership
from dekpca.peers.protocol.node import NodeProtocol, Timeouts
from dekpca.peers.protocol.view_messages import pack_status
from dekpca.peers.protocol.views import Lost, Quorum, Status, View, Views, Vote
from dekpca.peers.storage.folder import RunFolder

KINDS = ("landmarks", "data", "share", "view", "check", "spectrum", "values", "rho", "moments", "judge", "sizes")
EDGES = (0, 1, 2, 7, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
TEXTS = (
    "", "a", "b", "run", "другой", "\x00", "\x1b[2J\x1b[31m", "\n{}", "%s%n", "../../etc/passwd", "x" * 300, "y" * 70_000, "9" * 5000,
    "<f8", "|O", "V8", "object",
)  # fmt: skip


class Said(NamedTuple):
    data: bytes
    damaged: bool


class Mutator:
    """Damages messages; the same seed, the same damage."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def message(self, run: str, sender: str, round: int) -> Any:
        """A good message of some kind."""
        r = self.random
        which = r.randrange(9)
        if which < 4:
            return self.piece(run, sender, round)
        if which == 4:
            names = [*"abc", *(f"n{i}" for i in range(r.randrange(4)))]  # a triangle, and a chain that hangs on c
            around = {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]} | {name: [] for name in names[3:]}
            for one, other in pairwise(names[2:]):
                around[one].append(other)
                around[other].append(one)
            records = [
                wire.Record(name=n, neighbors=near, rows=r.randrange(1, 1000)) for n, near in around.items() if n != "a"
            ]
            return wire.Handshake(settings=[wire.Setting(name=w, value=v) for w, v in FACTS.items()], records=records)
        if which == 5:
            return wire.Acknowledgement(opening=r.random() < 0.5, held=[round, round + 1], rounds=[round])
        if which == 6:
            return wire.Refusal(status=r.choice(["INVALID_ARGUMENT", "ABORTED", "OK"]), text="it is wrong")
        return wire.Heartbeat(
            silence=r.random(),
            phase="iterating",
            iteration=r.randrange(100),
            finished=False,
            stop_reason="",
            stops_all=False,
            view="0",
            statuses=[pack_status(name, self.status()) for name in "bc" if r.random() < 0.5],
        )

    def status(self) -> Status:
        """What a node may say of views of the triangle a, b, c."""
        r = self.random
        later = View(r.randrange(1, 4), "b", (Lost("c", 1e9),) if r.random() < 0.5 else (), broken=(("b", "c"),))
        view = later if r.random() < 0.5 else View()
        vote = Vote(view.key, (0, "")) if r.random() < 0.2 else None
        return Status(r.randrange(1, 1000), view, View(), answered=(0, ""), vote=vote, down=("c",) * r.randrange(2))

    def piece(self, run: str, sender: str, round: int) -> wire.Chunk:
        r = self.random
        shape = [r.randrange(1, 6) for _ in range(r.randrange(1, 4))]
        size = 8
        for n in shape:
            size *= n
        head = wire.Head(
            run=run, sender=sender, round=round + r.randrange(3), kind=r.choice(KINDS), dtype="<f8", shape=shape
        )
        return wire.Chunk(head=head, offset=0, data=r.randbytes(size))

    def damaged(self, message: Any) -> bytes:
        """The bytes of a message after one to five mutations: of fields, then of bytes."""
        fields = self.random.randrange(3)
        for _ in range(fields):
            self._set_some_field(message)
        data = bytearray(message.SerializeToString())
        for _ in range(self.random.randrange(0 if fields else 1, 4)):
            data = self._damage(data)
        return bytes(data)

    def _set_some_field(self, message: Any) -> None:
        """An extreme value in some field, in a well-formed message."""
        r = self.random
        field = r.choice(message.DESCRIPTOR.fields)
        if field.message_type is not None:
            inner = getattr(message, field.name)
            if field.is_repeated:
                if inner and r.random() < 0.8:
                    self._set_some_field(r.choice(inner))
                else:
                    inner.extend([inner.add()] * self._many())
            elif r.random() < 0.1:
                message.ClearField(field.name)
            else:
                self._set_some_field(inner)
            return
        value = self._value(field)
        if not field.is_repeated:
            setattr(message, field.name, value)
            return
        values = getattr(message, field.name)
        if values and r.random() < 0.7:
            values[r.randrange(len(values))] = value
        else:
            values.extend([value] * (1 if isinstance(value, str) and len(value) > 8 else self._many()))

    def _many(self) -> int:
        """The last of these is about as much as gRPC lets through."""
        return self.random.choices((1, 5, 1000, 100_000), (50, 30, 18, 2))[0]

    def _value(self, field: Any) -> Any:
        r = self.random
        if field.cpp_type == field.CPPTYPE_STRING:
            return r.choice(TEXTS) if field.type == field.TYPE_STRING else r.randbytes(r.choice((0, 1, 8, 1000)))
        if field.cpp_type == field.CPPTYPE_DOUBLE:
            return r.choice((0.0, -1.0, 1e308, float("nan"), float("inf"), -float("inf")))
        return r.random() < 0.5 if field.cpp_type == field.CPPTYPE_BOOL else r.choice(EDGES)

    def _damage(self, data: bytearray) -> bytearray:
        r = self.random
        at = r.randrange(len(data) + 1)
        how = r.randrange(9)
        if how == 0 and data:
            data[at % len(data)] ^= 1 << r.randrange(8)
        elif how == 1 and data:
            data[at % len(data)] = r.choice((0, 1, 0x7F, 0x80, 0xFF, r.randrange(256)))
        elif how == 2:
            del data[at:]
        elif how == 3:
            del data[at : at + r.randrange(1, 9)]
        elif how == 4:
            data[at:at] = r.randbytes(r.randrange(1, 17))
        elif how == 5:
            data[at:at] = bytes([*[0xFF] * r.randrange(1, 12), r.randrange(128)])  # a long number
        elif how == 6:
            data += data[at:]  # fields twice
        elif how == 7:
            data[at:at] = bytes([r.randrange(1, 8) << 3 | 3]) * r.choice((1, 50, 2000))  # groups within groups
        else:
            data = bytearray(r.randbytes(r.choice((0, 1, 2, 10, 100, 5000))))
        return data

    def call(self, message: Any, run: str, sender: str, round: int) -> Iterable[Said]:
        """The messages of a call that begins like this."""
        if isinstance(message, wire.Chunk):
            return self.stream(run, sender, round)
        return [Said(self.damaged(message), True)]

    def stream(self, run: str, sender: str, round: int) -> Iterator[Said]:
        """The messages of one call: pieces, some of them good, cut, exchanged; most damaged."""
        r = self.random
        pieces = [self.piece(run, sender, round + i) for i in range(r.randrange(1, 4))]
        parts: list[wire.Chunk] = []
        for piece in pieces:
            whole = r.random() < 0.5  # else refused: all chunks but the last are of full size
            cut = len(piece.data) if whole else r.randrange(len(piece.data) + 1)
            parts.append(wire.Chunk(head=piece.head, offset=0, data=piece.data[:cut]))
            if not whole:
                parts.append(wire.Chunk(offset=cut, data=piece.data[cut:]))
        if r.random() < 0.3:
            r.shuffle(parts)
        for part in parts:
            damaged = r.random() < 0.4
            yield Said(self.damaged(part) if damaged else part.SerializeToString(), damaged)


# ---------------------------------------------------------------------- what is attacked
RUN, FACTS = "fuzz", {"dtype": "float64", "number of columns": "5"}
LIMITS = Limits(run=RUN, dtype="<f8", largest=8 * 5**3, ahead=32)
TURN = 250  # calls between two steps of the program under attack
LONGEST = 20_000  # characters of an error or of a line in the log
ALLOWED_GROWTH = 8e6  # bytes of memory; an interpreter's heap breathes by a few
ALLOWED_PEAK = 200e6  # bytes for a moment: a message of gRPC has 1 MiB, and lists of numbers take some times that


class Line:
    """One end of a call of the attacker; nobody reads what is answered."""

    def __init__(self, messages: AsyncIterator[bytes]):
        self._messages, self.heard = messages, asyncio.Event()

    def messages(self) -> AsyncIterator[bytes]:
        return self._messages

    async def write(self, message: Any) -> None:
        message.SerializeToString()


class Node:
    """Node a, between its program and its neighbors b and c: all of the engine but the program. Neighbor b is the attacker."""

    def __init__(self, folder: Path, identity: Identity | None = None):
        self.folder, self.identity = folder / "run", identity
        self.store = RunFolder(self.folder)
        self.store.open({"run": RUN})
        self.reached = self.meetings = 0  # round of its program
        self.meet()
        self.outcomes: Counter[str] = Counter()

    def meet(self) -> None:
        """As it is after the nodes have met; what an attacker's lies have changed is forgotten."""
        membership = Membership("a", ["b", "c"], 30)
        membership.add({"b": (("a", "c"), 20), "c": (("a", "b"), 10)}, "b")
        received = {name: self.store.messages.held(name) for name in "bc"}
        self.meetings += 1
        views = Views("a", Quorum()) if self.meetings % 2 else None  # the run goes on without lost nodes, or stops
        self.protocol = NodeProtocol(
            "a", RUN, HandshakeSettings(FACTS), membership, "bc", Timeouts(), time.monotonic(), received, views=views
        )
        self.protocol.check_meeting(time.monotonic())
        self.endpoint = Endpoint(self.protocol, self.store, dict.fromkeys("bc", "127.0.0.1:1"))
        self.endpoint.begin(LIMITS)
        self.protocol.rounds.round = self.reached
        self.edges = {name: Edge(self.endpoint, name) for name in "bc"}
        self.edge = self.edges["b"]
        self.edge.at_once.set()
        self.server = Server(self.endpoint, self.edges, self.folder, self.identity)

    def go_on(self) -> None:
        """The program is ten rounds further."""
        self.reached += 10
        self.protocol.rounds.round = self.reached

    async def each(self, messages: Iterable[Said]) -> AsyncIterator[bytes]:
        for data, damaged in messages:
            self.outcomes["messages read"] += 1
            self.outcomes["damaged"] += damaged
            yield data

    async def deliver(self, messages: Iterable[Said]) -> None:
        async for rounds in self.edge._acknowledgements(self.each(messages), (0, "")):
            self.outcomes["acknowledged"] += len(rounds)

    async def handshake(self, messages: Iterable[Said]) -> None:
        if self.outcomes["messages read"] % 2:  # a node that knows nothing yet believes more
            self.protocol.membership = Membership("a", ["b", "c"], 30)
        await self.edge._hear_records(Line(self.each(messages)))
        self.outcomes["handshakes"] += 1
        if not self.protocol.membership.missing():
            self.protocol.membership.network()

    async def beat(self, messages: Iterable[Said]) -> None:
        asked = [(self.endpoint.heartbeat("b"), asyncio.Event())]
        await self.edge._hear_beats(Line(self.each(messages)), asked)

    async def refusal(self, messages: Iterable[Said]) -> None:
        await self.edge.refused(Line(self.each(messages)))

    async def acknowledgement(self, messages: Iterable[Said]) -> None:
        async for data in self.each(messages):
            found = parse(wire.Acknowledgement, data)
            self.endpoint.receive("b", events.Opening(frozenset(found.held), self.protocol.view.key))
            self.endpoint.receive("b", events.Acknowledged(tuple(found.rounds), self.protocol.view.key))

    async def attack(self, mutator: Mutator) -> None:
        """One call full of damage. Anything but an error of the protocol goes through to the caller."""
        message = mutator.message(RUN, "b", self.protocol.rounds.round)
        take = {
            wire.Chunk: self.deliver, wire.Handshake: self.handshake, wire.Heartbeat: self.beat, wire.Acknowledgement: self.acknowledgement,
            wire.Refusal: self.refusal,
        }  # fmt: skip
        work = take[type(message)](mutator.call(message, RUN, "b", self.protocol.rounds.round))
        try:
            await work
        except (ProtocolError, Disagreement) as error:
            self.outcomes[type(error).__name__] += 1
            if len(str(error)) > LONGEST or not str(error).isprintable():
                raise AssertionError(f"an error that would mess up a terminal: {str(error)[:200]!r}") from error
        else:
            self.outcomes["calls without an error"] += 1

    def at_rest(self) -> tuple[int, int, int]:
        """What it holds when no message waits any more."""
        for _ in range(1 + LIMITS.ahead // 10):
            self.go_on()
        self.store.messages.sync().exception()
        return resources()

    async def still_works(self) -> None:
        """A good message is taken, whatever came before."""
        data = bytes(range(16))
        head = wire.Head(
            run=RUN, sender="b", round=self.protocol.rounds.round + 1, kind="share", dtype="<f8", shape=[2, 1]
        )
        await self.deliver([Said(wire.Chunk(head=head, offset=0, data=data).SerializeToString(), False)])
        into = bytearray(16)
        self.store.messages.read("b", self.protocol.rounds.round + 1, memoryview(into))
        assert bytes(into) == data


class CleanLog(logging.Handler):
    """Lines of the log must be short and printable, whatever a neighbor wrote into its message."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []
        self.lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += 1
        extra = [value for key, value in vars(record).items() if key in ("why", "caller", "peer")]
        text = " ".join([record.getMessage(), *map(str, extra)])
        if len(text) > LONGEST or not text.isprintable():
            self.bad.append(text[:200])


def peak() -> int:
    """The most bytes of memory since the last call."""
    most = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    Path("/proc/self/clear_refs").write_text("5")
    return most


def resources() -> tuple[int, int, int]:
    """Bytes of memory, open files, threads."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or what is free already would be counted
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), threading.active_count()


# ---------------------------------------------------------------------- in the process
async def fuzz(node: Node, messages: int, seed: int) -> tuple[Counter[str], float]:
    """At least so many damaged messages; returns the outcomes, and by how many bytes memory has grown from the first to the last fifth."""
    mutator, calls, seen = Mutator(seed), 0, [node.at_rest()]
    peak()
    while node.outcomes["damaged"] < messages:
        await node.attack(mutator)
        calls += 1
        if calls % TURN == 0:
            node.go_on()
            if calls % (20 * TURN) == 0:
                node.meet()
        if node.outcomes["damaged"] >= messages * len(seen) / 25:
            seen.append(node.at_rest())
    await node.still_works()
    # The fewest of each fifth, because other threads of this process, such as those of Dask in another test, open and close files meanwhile.
    files, threads = (min(of[-5:]) - min(of[1:6]) for of in list(zip(*seen, strict=True))[1:])
    growth = median(memory for memory, *_ in seen[-5:]) - median(memory for memory, *_ in seen[1:6])
    assert max(files, threads) <= 0, f"memory, open files and threads, as they were: {seen}"
    assert growth < ALLOWED_GROWTH, f"memory grew by {growth / 1e6:.1f} MB"
    above = peak() - seen[-1][0]
    assert above < ALLOWED_PEAK, f"memory was {above / 1e6:.0f} MB higher for a moment"
    return node.outcomes, growth


# ---------------------------------------------------------------------- over a real connection
METHODS = {
    wire.Chunk: "Deliver",
    wire.Handshake: "Handshake",
    wire.Heartbeat: "Heartbeat",
    wire.Acknowledgement: "Collect",
    wire.Refusal: "Refuse",
}
OPENING = wire.Chunk(view="0").SerializeToString()  # of a delivery
REFUSALS = {
    "INVALID_ARGUMENT",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "ABORTED",
}  # UNKNOWN would be an exception in the server


def fuzz_over_tls(folder: Path, messages: int, seed: int) -> Counter[str]:
    """The same through gRPC and TLS, with the certificate of a neighbor; then a good beat is answered."""
    init_ca(folder / "certs", "fuzz", 2)
    own, attacker = (identity(folder / "certs", name) for name in ("a", "b"))
    node, mutator, outcomes = Node(folder / "a", own), Mutator(seed), Counter[str]()
    with serving(node) as address:
        options = [("grpc.ssl_target_name_override", "a"), ("grpc.max_send_message_length", -1)]
        with grpc.secure_channel(address, attacker.channel_credentials(), options) as channel:
            for turn in range(messages):
                if outcomes["damaged"] >= messages:
                    break
                message = mutator.message(RUN, "b", node.protocol.rounds.round)
                said = list(mutator.call(message, RUN, "b", node.protocol.rounds.round))
                method = (
                    METHODS[type(message)]
                    if mutator.random.random() < 0.9
                    else mutator.random.choice([*METHODS.values()])
                )
                opening = [OPENING] if method == "Deliver" and mutator.random.random() < 0.9 else []
                outcomes[call(channel, method, [*opening, *(one.data for one in said)])] += 1
                outcomes["damaged"] += sum(one.damaged for one in said)
                if turn % 50 == 0:
                    node.go_on()
            unexpected = outcomes.keys() - REFUSALS - {"OK", "damaged"}
            assert not unexpected, f"answers that no refusal has: {unexpected}"
            assert call(channel, "Heartbeat", [wire.Heartbeat(phase="iterating").SerializeToString()]) == "OK"
    return outcomes


def call(channel: grpc.Channel, method: str, said: list[bytes]) -> str:
    """The code of the answer."""
    try:
        for _ in channel.stream_stream(f"/{SERVICE}/{method}")(iter(said), metadata=metadata(RUN, "b"), timeout=30):
            pass
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def identity(certs: Path, name: str) -> Identity:
    certificate, key = issue(certs, name, 1)
    return load(certificate, key, certs / "ca.crt", name)


@contextmanager
def serving(node: Node) -> Iterator[str]:
    """The node's server, in a thread with a loop of its own; yields its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def there(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def start() -> str:
        node.meet()
        node.protocol.neighbors["b"].apply(events.Turn.JOINED)
        return await node.server.start("127.0.0.1:0")

    try:
        yield there(start())
    finally:
        there(node.server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder for a database: on disk, it would mostly be the disk that is measured."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000, help="given to the handlers directly")
    parser.add_argument("--over-tls", type=int, default=5_000, help="sent through a real connection besides")
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    lines = CleanLog()
    logging.getLogger("dekpca.peer").addHandler(lines)
    logging.getLogger("dekpca.peer").propagate = False
    with in_memory() as folder:
        begun = time.monotonic()
        outcomes, growth = asyncio.run(fuzz(Node(folder), a.messages, a.seed))
        print(f"seed {a.seed}: {dict(outcomes)} in {time.monotonic() - begun:.0f} s; memory {growth / 1e6:+.1f} MB")
    with in_memory() as folder:
        begun = time.monotonic()
        outcomes = fuzz_over_tls(folder, a.over_tls, a.seed)
        print(f"over TLS: {dict(outcomes)} in {time.monotonic() - begun:.0f} s; {lines.lines} lines of log")
    assert not lines.bad, f"lines of the log that are too long or would mess up a terminal: {lines.bad[:3]}"


if __name__ == "__main__":
    main()
