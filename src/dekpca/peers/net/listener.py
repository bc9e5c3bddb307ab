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

import contextlib
import ipaddress
import itertools
import logging
import os
import resource
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

log = logging.getLogger("dekpca.peer")

HANDSHAKE = 10.0  # seconds until a neighbor's call must be admitted; its client has the same limit
CALM = 32  # descriptors of pending connections up to which new ones are accepted at once
RATE = 500.0  # connections accepted per second beyond that
TICK = 0.01  # seconds between two batches at that rate
BACKLOG = 4096  # connections that wait in the kernel; Linux allows as many by default
RECORD = 5 + (1 << 14)  # bytes of the first TLS record with its header, at most
HELLO = 22  # the type of the first TLS record: handshake
CONNECTIONS = 4  # of one neighbor: it uses two, and two more may be broken but not detected yet
REPORT = 10.0  # seconds between two log lines about closed connections
PATH = 100  # bytes in the path of a Unix socket; Linux allows 107, macOS 103

# File descriptors. A node used 27, and 8 for each neighbor (tests/faults/attacks.py counts them).
OWN = 128  # for the node's files, gRPC's own, name resolution, metrics
PER_NEIGHBOR = 3 * CONNECTIONS + 4  # two connections in each direction, and as many while they are replaced
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


class End:
    """One end of a connection: a socket, and its send buffer."""

    def __init__(self, connection: Connection, sock: socket.socket):
        self.connection, self.sock = connection, sock
        self.other: End | None = None
        self.backlog: bytes | memoryview = b""
        self.read = True  # False while the other end has a backlog
        self.events = 0  # registered with the selector


class Connection:
    """One connection: to the caller and, after its handshake has begun, to gRPC."""

    def __init__(self, number: int, sock: socket.socket, address: tuple[Any, ...]):
        self.name = f"{number}.socket"  # its name in gRPC
        self.address, self.origin = f"{address[0]}:{address[1]}", _origin(address[0])
        self.since = time.monotonic()
        self.ends = [End(self, sock)]
        self.begun = b""  # bytes received before gRPC is connected
        self.cost = 1  # descriptors
        self.neighbor: str | None = None  # None until admitted
        self.ended = False  # one end is closed; the other will be when its backlog is sent


class Listener:
    """Accepts connections in its own thread, and relays them to gRPC, which listens at `inside`.

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
        self._throttled = False
        self._closed: Counter[str] = Counter()  # pending connections closed since the last report, by reason
        self._told = 0.0  # time of the last report
        self._buffer = memoryview(bytearray(1 << 17))
        self._selector = selectors.DefaultSelector()
        self._stop_read, self._stop_write = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._lock = threading.Lock()  # the server admits from another thread
        self._pending: dict[str, dict[Connection, None]] = {}  # by origin, the oldest first
        self._used = 0  # descriptors of pending connections
        self._relayed: dict[str, Connection] = {}  # by name
        self._neighbors: dict[str, list[Connection]] = {}  # admitted, the oldest first

    def open(self, host: str, port: int) -> int:
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
        for one in (*self._listening, self._stop_read):
            self._selector.register(one, selectors.EVENT_READ)
        self._thread.start()
        return port

    def close(self) -> None:
        self._stop_write.close()
        if self._thread.is_alive():
            self._thread.join()
        for connection in [*(c for near in self._pending.values() for c in near), *self._relayed.values()]:
            self._close(connection)
        for one in (*self._listening, self._stop_read):
            one.close()
        self._selector.close()
        self.inside.unlink(missing_ok=True)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    # ------------------------------------------------------------------ for the server
    def connection(self, peer: str) -> Connection | None:
        """The connection that gRPC calls `peer`."""
        return self._relayed.get(peer.rpartition("/")[2])

    def admit(self, connection: Connection, neighbor: str) -> None:
        """A call of this neighbor was admitted."""
        with self._lock:
            if self._leave(connection):
                connection.neighbor = neighbor
                near = self._neighbors.setdefault(neighbor, [])
                near.append(connection)
                if len(near) > CONNECTIONS:
                    with contextlib.suppress(OSError):
                        near[0].ends[0].sock.shutdown(socket.SHUT_RDWR)  # the thread closes it

    # ------------------------------------------------------------------ the thread
    def _run(self) -> None:
        looked = time.monotonic()
        while True:
            if self._throttled != (self._used > CALM):
                self._throttled = not self._throttled
                for one in self._listening:
                    self._selector.unregister(one) if self._throttled else self._selector.register(
                        one, selectors.EVENT_READ
                    )
            for key, events in self._selector.select(TICK if self._throttled else HANDSHAKE / 20):
                if isinstance(key.data, End):
                    self._serve(key.data, events)
                elif key.fileobj is self._stop_read:
                    return
                else:
                    self._accept(key.fileobj)
            now = time.monotonic()
            if self._throttled and now - looked >= TICK:
                for one in self._listening:
                    for _ in range(round(RATE * TICK)):
                        self._accept(one)
            if now - looked >= TICK:
                looked = now
                self._look(now)

    def _accept(self, listening: Any) -> None:
        try:
            sock, address = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:  # closed before it was accepted; or, unexpectedly, no descriptor is left
            self._closed[f"not accepted: {error.strerror}"] += 1
            return
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(next(self._numbers), sock, address)
        with self._lock:
            self._pending.setdefault(connection.origin, {})[connection] = None
        self._watch(connection.ends[0])
        self._use(connection.cost)

    def _serve(self, end: End, events: int) -> None:
        """A socket is readable or writable."""
        if end.sock.fileno() < 0:
            return  # closed since the call of select
        try:
            if events & selectors.EVENT_WRITE:
                self._send(end, end.backlog)
            if events & selectors.EVENT_READ and end.read:
                size = end.sock.recv_into(self._buffer)
                if not size:
                    self._end(end)
                elif end.other is None:
                    self._begin(end.connection, bytes(self._buffer[:size]))
                else:
                    self._send(end.other, self._buffer[:size])
        except BlockingIOError:
            pass
        except OSError:
            self._close(end.connection)

    def _send(self, end: End, data: bytes | memoryview) -> None:
        """Send as much as possible. The rest waits, and meanwhile the other end is not read."""
        try:
            sent = end.sock.send(data)
        except BlockingIOError:
            sent = 0
        end.backlog = bytes(data[sent:]) if sent < len(data) else b""
        if end.other is not None and end.other.read == bool(end.backlog):
            end.other.read = not end.backlog
            self._watch(end.other)
            self._watch(end)
        if end.connection.ended and not end.backlog:
            self._close(end.connection)

    def _end(self, end: End) -> None:
        """This end sends no more."""
        if end.other is not None and end.other.backlog:
            end.connection.ended, end.read = True, False
            self._watch(end)
        else:
            self._close(end.connection)

    def _watch(self, end: End) -> None:
        ended = end.connection.ended
        events = (selectors.EVENT_READ if end.read and not ended else 0) | (selectors.EVENT_WRITE if end.backlog else 0)
        if events and end.events:
            self._selector.modify(end.sock, events, end)
        elif events:
            self._selector.register(end.sock, events, end)
        elif end.events:
            self._selector.unregister(end.sock)
        end.events = events

    # ------------------------------------------------------------------ pending connections
    def _begin(self, connection: Connection, data: bytes) -> None:
        """The first bytes of a connection."""
        connection.begun += data
        begun = connection.begun
        if self.tls and begun[0] != HELLO:
            self._refuse(connection, "not TLS")
        elif not self.tls or len(begun) >= min(5 + int.from_bytes(begun[3:5]), RECORD):
            self._relay(connection)

    def _relay(self, connection: Connection) -> None:
        """Connect it to gRPC."""
        more, connection.cost = 3 - connection.cost, 3  # the two ends of the relay, and gRPC's
        self._use(more)
        (outside,) = connection.ends
        if outside.sock.fileno() < 0:  # closed to make room, as the oldest one
            return
        name, sock = self._folder / connection.name, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        inside = End(connection, sock)
        connection.ends.append(inside)
        outside.other, inside.other = inside, outside
        try:
            sock.setblocking(False)
            sock.bind(str(name))  # gRPC reports the name of the caller's socket
            sock.connect(str(self.inside))
        except OSError as error:
            self._refuse(connection, f"no relay: {error.strerror}")
            return
        finally:
            name.unlink(missing_ok=True)
        with self._lock:
            self._relayed[connection.name] = connection
        self._watch(inside)
        self._send(inside, connection.begun)
        connection.begun = b""

    def _use(self, count: int) -> None:
        """Take descriptors for a pending connection; close others if necessary."""
        with self._lock:
            self._used += count
        while self._used > self.room:
            with self._lock:
                most = max(self._pending.values(), key=len)
            self._refuse(next(iter(most)), "no room")

    def _look(self, now: float) -> None:
        """Close connections after their time limit, and report them at intervals."""
        with self._lock:
            late = [c for near in self._pending.values() for c in near if now - c.since > HANDSHAKE]
        for connection in late:
            self._refuse(connection, f"no neighbor called within {HANDSHAKE:g} s")
        if self._closed and now - self._told > REPORT:
            reasons = ", ".join(f"{why} ({count})" for why, count in self._closed.most_common(5))
            log.warning("connections of strangers closed", extra={"why": reasons, "pending": self._used})
            self._closed.clear()
            self._told = now

    def _refuse(self, connection: Connection, why: str) -> None:
        self._closed[why] += 1
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        with self._lock:
            self._leave(connection)
            self._relayed.pop(connection.name, None)
            near = self._neighbors.get(connection.neighbor or "", [])
            if connection in near:
                near.remove(connection)
        for end in connection.ends:
            if end.events:
                self._selector.unregister(end.sock)
                end.events = 0
            end.sock.close()

    def _leave(self, connection: Connection) -> bool:
        """Remove it from the pending ones; returns whether it was pending."""
        near = self._pending.get(connection.origin, {})
        if connection not in near:
            return False
        del near[connection]
        if not near:
            del self._pending[connection.origin]
        self._used -= connection.cost
        return True


def _origin(address: str) -> str:
    """Connections are counted by address; those of IPv6 by /64, since a host may have 2^64 addresses."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
