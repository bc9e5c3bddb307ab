"""The listening socket of a node, and who may hold a connection to it.

gRPC accepts every connection that it is offered: 1,500 connections that say nothing take all file descriptors of the process. A cap within
gRPC shuts out the neighbors together with the strangers. So this module accepts the connections, and relays their bytes to gRPC over a Unix
socket in a folder that only the owner can enter. TLS passes unread: gRPC checks every certificate, as without the relay.

    accepted (1 descriptor) -> first TLS record is complete: relayed (3 descriptors) -> a neighbor's call is admitted

Until then a connection is pending. Pending connections have HANDSHAKE seconds each, and together a number of descriptors. If a new one needs
room, the oldest connection from the address with the most connections is closed, so that a flood from one address leaves the others alone.
While many are pending, they are accepted at a limited rate: each has time for its handshake, and the rest waits in the kernel, in order of
arrival and without a descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import os
import resource
import shutil
import socket
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

log = logging.getLogger("dekpca.peer")

HANDSHAKE = 10.0  # seconds until a neighbor's call must be admitted: a neighbor tries as long to connect
CALM = 32  # descriptors of pending connections up to which new ones are accepted at once
RATE = 500.0  # connections accepted per second beyond that
BACKLOG = 4096  # connections that wait in the kernel; Linux allows as many by default
RECORD = 5 + (1 << 14)  # bytes of the first TLS record with its header, at most
HELLO = 22  # the type of the first TLS record: handshake
WINDOW = 1 << 19  # bytes that may wait in a relay, in each direction
CONNECTIONS = 4  # of one neighbor: it uses two, and two more may not have noticed yet that they are cut
REPORT = 10.0  # seconds between two log lines about closed connections
PATH = 100  # bytes in the path of a Unix socket; Linux allows 107, macOS 103

# File descriptors. tests/faults/attacks.py counts those of a node with two neighbors: about 30 of its own and 5 for each connection.
OWN = 128  # for the node's files, gRPC's own, name resolution, metrics
PER_NEIGHBOR = (
    3 * CONNECTIONS + 4
)  # called by it, and calling it: two connections, and two more while they are replaced
MOST_PENDING, LEAST_PENDING = 384, 96


def descriptors(neighbors: int) -> int:
    """Raise the soft limit of open files to the hard one; returns how many descriptors pending connections may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else max(soft, 1 << 16)
    if soft < most:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = OWN + PER_NEIGHBOR * neighbors
    if soft < kept + LEAST_PENDING:
        raise ValueError(
            f"{soft} open files are allowed, but a node with {neighbors} neighbors needs {kept + LEAST_PENDING}; "
            "raise the hard limit (ulimit -Hn, or LimitNOFILE= of a service)"
        )
    return min(soft - kept, MOST_PENDING)


class Connection(asyncio.BufferedProtocol):
    """One connection: to the caller, and, once it has begun a handshake, to gRPC."""

    def __init__(self, listener: Listener, address: tuple[Any, ...]):
        self.listener, self.address, self.origin = listener, f"{address[0]}:{address[1]}", _origin(address[0])
        self.name = f"{next(listener.numbers)}.socket"  # as gRPC knows it
        self.since = time.monotonic()
        self.cost = 1  # descriptors
        self.neighbor: str | None = None  # once admitted
        self.outside: Any = None  # transport to the caller
        self.inside: Any = None  # transport to gRPC
        self._begun = b""  # what came before gRPC is connected

    def connection_made(self, transport: Any) -> None:
        self.outside = transport
        transport.set_write_buffer_limits(WINDOW)
        self.listener.arrived(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.listener.buffer

    def buffer_updated(self, size: int) -> None:
        data = bytes(self.listener.buffer[:size])
        if self.inside is not None:
            self.inside.write(data)
            return
        self._begun += data
        if self.listener.tls and self._begun[0] != HELLO:
            self.listener.refuse(self, "not TLS")
        elif not self.listener.tls or len(self._begun) >= min(5 + int.from_bytes(self._begun[3:5]), RECORD):
            self.outside.pause_reading()
            self.listener.relay(self)

    def relayed(self, transport: Any) -> None:
        """gRPC is connected."""
        self.inside = transport
        transport.set_write_buffer_limits(WINDOW)
        transport.write(self._begun)
        self._begun = b""
        if self.outside.is_closing():
            transport.abort()
        else:
            self.outside.resume_reading()

    def eof_received(self) -> bool:
        return False  # close

    def connection_lost(self, error: Exception | None) -> None:
        self.listener.forget(self)
        if self.inside is not None:
            self.inside.abort() if error else self.inside.close()

    def pause_writing(self) -> None:
        if self.inside is not None:
            self.inside.pause_reading()

    def resume_writing(self) -> None:
        if self.inside is not None:
            self.inside.resume_reading()

    def abort(self) -> None:
        for transport in (self.outside, self.inside):
            if transport is not None:
                transport.abort()


class Inside(asyncio.BufferedProtocol):
    """The other end of a relay, at gRPC."""

    def __init__(self, connection: Connection):
        self.connection = connection

    def connection_made(self, transport: Any) -> None:
        self.connection.relayed(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connection.listener.buffer

    def buffer_updated(self, size: int) -> None:
        self.connection.outside.write(bytes(self.connection.listener.buffer[:size]))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.connection.outside.abort() if error else self.connection.outside.close()

    def pause_writing(self) -> None:
        self.connection.outside.pause_reading()

    def resume_writing(self) -> None:
        self.connection.outside.resume_reading()


class Listener:
    """Accepts connections, and relays them to gRPC, which listens at `inside`. Everything runs on the event loop.

    `room` is how many descriptors pending connections may have; without `tls` their first bytes are not looked at.
    """

    def __init__(self, folder: Path, room: int, tls: bool):
        self.room, self.tls = room, tls
        self.numbers = itertools.count(1)
        self.buffer = memoryview(bytearray(1 << 17))  # for all: a read and its write are one step of the event loop
        short = len(os.fsencode(folder)) + len("/grpc.socket") <= PATH
        self._temporary = None if short else tempfile.mkdtemp(prefix="dekpca-")
        self._folder = folder if self._temporary is None else Path(self._temporary)
        self.inside = self._folder / "grpc.socket"
        self._pending: dict[str, dict[Connection, None]] = {}  # by origin, the oldest first
        self._used = 0  # descriptors of pending connections
        self._relayed: dict[str, Connection] = {}  # by name
        self._neighbors: dict[str, list[Connection]] = {}  # admitted, the oldest first
        self._closed: Counter[str] = Counter()  # pending connections that were closed since the last report, by reason
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def open(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses if 0 was asked for."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, _, _, address in found:
            one = socket.socket(family, kind)
            self._sockets.append(one)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
            one.bind((address[0], port, *address[2:]))
            one.listen(BACKLOG)
            port = one.getsockname()[1]
        for one in self._sockets:
            self._start(self._accept(one))
        self._start(self._watch())
        return port

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for one in self._sockets:
            one.close()
        pending = [connection for near in self._pending.values() for connection in near]
        for connection in [*pending, *self._relayed.values()]:
            connection.abort()
        self.inside.unlink(missing_ok=True)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    # ------------------------------------------------------------------ for the server
    def connection(self, peer: str) -> Connection | None:
        """The connection that gRPC calls `peer`."""
        return self._relayed.get(peer.rpartition("/")[2])

    def admit(self, connection: Connection, neighbor: str) -> None:
        """A call of this neighbor was admitted."""
        if self._leave(connection):
            connection.neighbor = neighbor
            near = self._neighbors.setdefault(neighbor, [])
            near.append(connection)
            if len(near) > CONNECTIONS:
                near[0].abort()

    # ------------------------------------------------------------------ for the connections
    def arrived(self, connection: Connection) -> None:
        self._pending.setdefault(connection.origin, {})[connection] = None
        self._use(connection.cost)

    def relay(self, connection: Connection) -> None:
        """Connect it to gRPC."""
        more, connection.cost = 3 - connection.cost, 3  # the two ends of the relay, and gRPC's
        self._use(more)
        if connection.outside.is_closing():  # there was no room, and it was the oldest
            return
        name, inner = self._folder / connection.name, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            inner.setblocking(False)
            inner.bind(str(name))  # gRPC tells the name of the caller's socket
            inner.connect(str(self.inside))
        except OSError as error:
            inner.close()
            self.refuse(connection, f"no relay: {error.strerror}")
            return
        finally:
            name.unlink(missing_ok=True)
        self._relayed[connection.name] = connection
        loop = asyncio.get_running_loop()
        self._start(loop.create_unix_connection(lambda: Inside(connection), sock=inner))

    def refuse(self, connection: Connection, why: str) -> None:
        self._leave(connection)
        self._closed[why] += 1
        connection.abort()

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._leave(connection)
        self._relayed.pop(connection.name, None)
        if connection.neighbor is not None:
            self._neighbors[connection.neighbor].remove(connection)

    # ------------------------------------------------------------------ pending connections
    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._used > CALM:
                await asyncio.sleep(1 / RATE)
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:  # closed before it was accepted; or no descriptor is left, against all reckoning
                self._closed[f"not accepted: {error.strerror}"] += 1
                await asyncio.sleep(0.1)
                continue
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(self, address)
            await loop.connect_accepted_socket(lambda made=connection: made, accepted)  # type: ignore[misc]

    def _use(self, count: int) -> None:
        """Take descriptors for a pending connection, from others if need be."""
        self._used += count
        while self._used > self.room:
            most = max(self._pending.values(), key=len)
            self.refuse(next(iter(most)), "no room")

    async def _watch(self) -> None:
        """Close connections whose time is over, and tell the owner now and then."""
        told = 0.0
        while True:
            await asyncio.sleep(HANDSHAKE / 20)
            now = time.monotonic()
            for connection in [c for near in self._pending.values() for c in near if now - c.since > HANDSHAKE]:
                self.refuse(connection, f"no neighbor called within {HANDSHAKE:g} s")
            if self._closed and now - told > REPORT:
                reasons = ", ".join(f"{why} ({count})" for why, count in self._closed.most_common(5))
                log.warning("connections of strangers closed", extra={"why": reasons, "pending": self._used})
                self._closed.clear()
                told = now

    def _leave(self, connection: Connection) -> bool:
        """It is not pending any more; returns whether it was."""
        near = self._pending.get(connection.origin, {})
        if connection not in near:
            return False
        del near[connection]
        if not near:
            del self._pending[connection.origin]
        self._used -= connection.cost
        return True

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _origin(address: str) -> str:
    """Whose connections are counted together: those of an address; of IPv6, where everybody has 2^64 of them, those of a /64."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
