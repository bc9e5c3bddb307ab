"""The listening socket of a node, and limits on the connections to it.

gRPC accepts every connection: 1,500 silent connections take all file descriptors of the process. A limit within gRPC
excludes the neighbors together with strangers. So this module accepts the connections, and relays their bytes to
gRPC over a Unix socket in a folder that only the owner can enter. It does not decrypt TLS: gRPC checks every
certificate, as without the relay.

    accepted (1 descriptor) -> first TLS record is complete: relayed (3 descriptors) -> a neighbor's call is admitted

Until then a connection is pending. Pending connections have HANDSHAKE seconds each, and a limited number of
descriptors together. If a new one needs room, the oldest connection from the address with the most connections is
closed, so that a flood from one address does not affect the others. While many are pending, connections are accepted
at a limited rate: each has time for its handshake, and the others wait in the kernel, in order of arrival and
without a descriptor.
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
from collections import Counter
from pathlib import Path
from typing import Any

log = logging.getLogger("dekpca.peer")

HANDSHAKE = 10.0  # seconds until a neighbor's call must be admitted; its client has the same limit
CALM = 32  # descriptors of pending connections up to which new ones are accepted at once
RATE = 500.0  # connections accepted per second beyond that
BACKLOG = 4096  # connections that wait in the kernel; Linux allows as many by default
RECORD = 5 + (1 << 14)  # bytes of the first TLS record with its header, at most
HELLO = 22  # the type of the first TLS record: handshake
CONNECTIONS = 4  # of one neighbor: it uses one, and others may be broken but not detected yet, or of dekpca node check
REDIAL = 0.5  # seconds before a forwarder is connected to again
REPORT = 10.0  # seconds between two log lines about closed connections
PATH = 100  # bytes in the path of a Unix socket; Linux allows 107, macOS 103

# File descriptors. A node used 27, and 8 for each neighbor (tests/faults/attacks.py counts them).
OWN = 128  # for the node's files, gRPC's own, name resolution, metrics
PER_NEIGHBOR = 3 * CONNECTIONS + 4  # connections of it, and to it
MOST_PENDING, LEAST_PENDING = 384, 96


def descriptors(neighbors: int) -> int:
    """Raise the soft limit of open files to the hard limit; returns the number of descriptors for pending connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else max(soft, 1 << 16)
    if soft < most:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than the limit they report
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = OWN + PER_NEIGHBOR * neighbors
    if soft < kept + LEAST_PENDING:
        raise ValueError(
            f"{soft} open files are allowed, but a node with {neighbors} neighbors needs {kept + LEAST_PENDING}; "
            "raise the hard limit (ulimit -Hn, or LimitNOFILE= of a service)"
        )
    return min(soft - kept, MOST_PENDING)


class Connection:
    """One connection: to the caller and, after its handshake has begun, to gRPC."""

    limit: asyncio.TimerHandle  # of the time in which it is pending

    def __init__(
        self, number: int, caller: tuple[asyncio.StreamReader, asyncio.StreamWriter], address: str, origin: str
    ):
        self.name = f"{number}.socket"  # its name in gRPC
        self.address, self.origin = address, origin
        self.reader, self.writer = caller
        self.neighbor: str | None = None  # None until admitted


class Listener:
    """Accepts connections, and relays them to gRPC, which listens at `inside`. All calls come from one event loop.

    `room` is the number of descriptors for pending connections; without `tls` their first bytes are not checked.
    """

    def __init__(self, folder: Path, room: int, tls: bool):
        self.room, self.tls = room, tls
        short = len(os.fsencode(folder)) + len("/grpc.socket") <= PATH
        self._temporary = None if short else tempfile.mkdtemp(prefix="dekpca-socket-")
        self._folder = folder if self._temporary is None else Path(self._temporary)
        self.inside = self._folder / "grpc.socket"
        self._numbers = itertools.count(1)
        self._listening: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: dict[Connection, int] = {}  # and its descriptors; the oldest first
        self._used = 0  # descriptors of pending connections
        self._relayed: dict[str, Connection] = {}  # by name, the oldest first
        self._closed: Counter[str] = Counter()  # pending connections closed since the last report, by reason
        self._told = 0.0  # time of the last report
        self._report: asyncio.TimerHandle | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses for 0."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, _, _, address in found:
            one = socket.socket(family, kind)
            self._listening.append(one)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
            one.bind((address[0], port, *address[2:]))
            one.listen(BACKLOG)
            port = one.getsockname()[1]
        for one in self._listening:
            self.start(self._accept(one))
        return port

    async def close(self) -> None:
        for connection in [*self._pending, *self._relayed.values()]:
            connection.writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._listening:
            one.close()
        if self._report is not None:
            self._report.cancel()
        self.inside.unlink(missing_ok=True)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    async def dial(self, address: str) -> None:
        """Connect to a forwarder, again and again: what comes over these connections is treated like what comes to the port."""
        host, _, port = address.rpartition(":")
        while True:
            with contextlib.suppress(OSError):
                caller = await asyncio.open_connection(host.strip("[]"), int(port))
                await self._serve(self._made(caller, address, address))
            await asyncio.sleep(REDIAL)

    # ------------------------------------------------------------------ for the server
    def connection(self, peer: str) -> Connection | None:
        """The connection that gRPC calls `peer`."""
        return self._relayed.get(peer.rpartition("/")[2])

    def admit(self, connection: Connection, neighbor: str) -> None:
        """A call of this neighbor was admitted."""
        if self._leave(connection):
            connection.neighbor = neighbor
            near = [other for other in self._relayed.values() if other.neighbor == neighbor]
            if len(near) > CONNECTIONS:
                near[0].writer.transport.abort()

    # ------------------------------------------------------------------ pending connections
    def start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._used > CALM:
                await asyncio.sleep(1 / RATE)
            try:
                sock, address = await loop.sock_accept(listening)
                caller = await asyncio.open_connection(sock=sock)
                self.start(self._serve(self._made(caller, f"{address[0]}:{address[1]}", _origin(address[0]))))
            except OSError as error:  # closed before it was accepted; or, unexpectedly, no descriptor is left
                self._closed[f"not accepted: {error.strerror}"] += 1
                await asyncio.sleep(1 / RATE)

    def _made(self, caller: tuple[asyncio.StreamReader, asyncio.StreamWriter], address: str, origin: str) -> Connection:
        connection = Connection(next(self._numbers), caller, address, origin)
        self._pending[connection] = 0
        why = f"no neighbor called within {HANDSHAKE:g} s"
        connection.limit = asyncio.get_running_loop().call_later(HANDSHAKE, self._refuse, connection, why)
        self._use(connection, 1)
        return connection

    async def _serve(self, connection: Connection) -> None:
        """From its first bytes to its end."""
        try:
            begun = await connection.reader.readexactly(1)
            if self.tls and begun[0] != HELLO:
                self._refuse(connection, "not TLS")
            elif self.tls:
                begun += await connection.reader.readexactly(4)
                begun += await connection.reader.readexactly(min(int.from_bytes(begun[3:]), RECORD - 5))
            if connection in self._pending:
                self._use(connection, 2)  # the other end of the relay, and gRPC's
            if connection in self._pending:  # it was not closed to make room, as the oldest one
                await self._relay(connection, begun)
        except (OSError, asyncio.IncompleteReadError):  # closed, by either side
            pass
        finally:
            self._forget(connection)
            connection.writer.close()

    async def _relay(self, connection: Connection, begun: bytes) -> None:
        """Connect it to gRPC, until one of the two ends."""
        name, sock = self._folder / connection.name, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.bind(str(name))  # gRPC reports the name of the caller's socket
            sock.connect(str(self.inside))
        except OSError as error:
            sock.close()
            self._refuse(connection, f"no relay: {error.strerror}")
            return
        finally:
            name.unlink(missing_ok=True)
        self._relayed[connection.name] = connection
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        writer.write(begun)
        await asyncio.gather(_pass(connection.reader, writer), _pass(reader, connection.writer))

    def _use(self, connection: Connection, count: int) -> None:
        """Take descriptors for a pending connection; close others if necessary."""
        self._pending[connection] += count
        self._used += count
        while self._used > self.room:
            ((most, _),) = Counter(connection.origin for connection in self._pending).most_common(1)
            self._refuse(next(connection for connection in self._pending if connection.origin == most), "no room")

    def _refuse(self, connection: Connection, why: str) -> None:
        self._closed[why] += 1
        self._forget(connection)
        connection.writer.transport.abort()
        if self._report is None:
            loop = asyncio.get_running_loop()
            self._report = loop.call_at(max(loop.time(), self._told + REPORT), self._tell)

    def _tell(self) -> None:
        reasons = ", ".join(f"{why} ({count})" for why, count in self._closed.most_common(5))
        log.warning("connections of strangers closed", extra={"why": reasons, "pending": self._used})
        self._closed.clear()
        self._told, self._report = asyncio.get_running_loop().time(), None

    def _forget(self, connection: Connection) -> None:
        """It is closed, or will be at once."""
        self._leave(connection)
        self._relayed.pop(connection.name, None)

    def _leave(self, connection: Connection) -> bool:
        """Remove it from the pending ones; returns whether it was pending."""
        if pending := connection in self._pending:
            self._used -= self._pending.pop(connection)
            connection.limit.cancel()
        return pending


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What arrives at one end is written to the other. While that is busy, the one is not read."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()  # after the bytes that it must still send


def _origin(address: str) -> str:
    """Connections are counted by address; those of IPv6 by /64, since a host may have 2^64 addresses."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
