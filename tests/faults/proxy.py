"""A TCP proxy between two nodes that can be told to misbehave while it runs.

It passes bytes and knows nothing of what they mean, so TLS goes through it unbroken. `Wires` is one thread with an event loop for any
number of wires; a `Wire` listens on a loopback port and carries what comes to one target. All methods may be called from any thread
and return when the fault is in force.

| fault | what the nodes see |
|---|---|
| `delay`, `rate` | bytes come later (seconds), or so many a second |
| `cut()` | all connections close in good order |
| `reset()`, `reset_after(n)` | they end in the middle of a message with a TCP reset, now or after n more bytes |
| `half_open()` | they stay open, but nothing passes any more; new ones work |
| `duplicate(True)` | the first bytes of a new connection reach the target twice, on two connections |
| `refuse()` | connections are reset, and nobody answers at the port |
| `drop()` | connections stay and new ones are accepted, but nothing passes until `heal()`, then all that was held |
| `heal()` | all is well for new connections; what `drop` held goes on |
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any

CHUNK = 1 << 14  # bytes; 0.13 s of 1 Mbit/s, so that a slow wire is slow smoothly
IN_FLIGHT = 256  # chunks on a delayed wire, 4 MiB: more than the kernel would hold
PATIENCE = 10.0  # seconds for an order to the proxy to be carried out


class Connection:
    """One client, its connection to the target, and the tasks that carry bytes between them."""

    def __init__(self, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.wire = wire
        self.near = (reader, writer)
        self.far: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.twin: asyncio.StreamWriter | None = None
        self.dead = False  # half-open: nothing passes, ever

    async def run(self) -> None:
        try:
            await self.wire.opened.wait()
            if self.wire.target is None:
                raise ConnectionRefusedError
            self.far = await asyncio.open_connection("127.0.0.1", self.wire.target)
            pumps = [self._pump(self.near[0], self.far[1], True), self._pump(self.far[0], self.near[1], False)]
            async with asyncio.TaskGroup() as group:
                for pump in pumps:
                    group.create_task(pump)
        except* (OSError, asyncio.IncompleteReadError):
            self.abort()
        finally:
            self.close()
            self.wire.connections.discard(self)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, outward: bool) -> None:
        queue: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(IN_FLIGHT)
        clock = asyncio.get_running_loop().time

        async def take() -> None:
            first = True
            while True:
                try:
                    chunk = await reader.read(CHUNK)
                except OSError:  # this end was reset: so must be the other
                    await queue.put((clock() + self.wire.delay, None))
                    return
                if first and outward and self.wire.twice:
                    await self._duplicate(chunk)
                first = False
                await queue.put((clock() + self.wire.delay, chunk))
                if not chunk:
                    return

        taking = asyncio.create_task(take())
        try:
            while True:
                due, chunk = await queue.get()
                await asyncio.sleep(max(0.0, due - clock()))
                if self.wire.rate and chunk:
                    await asyncio.sleep(len(chunk) / self.wire.rate)
                if self.dead:
                    await asyncio.Event().wait()  # until the connection is aborted
                await self.wire.opened.wait()
                if chunk is None:
                    raise ConnectionResetError
                if not chunk:
                    break
                allowed = self.wire.allowance(len(chunk))
                self.wire.passed += allowed  # before anybody can read it
                writer.write(chunk[:allowed])
                await writer.drain()
                if allowed < len(chunk):
                    raise ConnectionResetError
            if writer.can_write_eof():
                writer.write_eof()
        finally:
            taking.cancel()

    async def _duplicate(self, chunk: bytes) -> None:
        """The same first bytes to the target once more; what it answers is lost."""
        with contextlib.suppress(OSError):
            _, self.twin = await asyncio.open_connection("127.0.0.1", self.wire.target)
            self.twin.write(chunk)
            await self.twin.drain()
            self.wire.duplicated += 1

    def writers(self) -> list[asyncio.StreamWriter]:
        return [w for w in (self.near[1], self.far and self.far[1], self.twin) if w]

    def close(self) -> None:
        for writer in self.writers():
            writer.close()

    def abort(self) -> None:
        """A TCP reset to both ends, whatever is still under way."""
        for writer in self.writers():
            with contextlib.suppress(OSError):
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Wire:
    """Listens on `port` of the loopback and carries connections to port `target`, which may change; None: nobody is there."""

    def __init__(self, wires: Wires, target: int | None):
        self.wires = wires
        self.target = target
        self.port = 0
        self.delay = 0.0  # seconds, each way
        self.rate: float | None = None  # bytes a second, each way and connection
        self.twice = False
        self.passed = self.accepted = self.duplicated = self.resets = 0
        self.connections: set[Connection] = set()
        self.opened = asyncio.Event()
        self.opened.set()
        self._left: int | None = None  # bytes until a reset
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ orders, from any thread
    def cut(self) -> None:
        self._order(self._each(Connection.close))

    def reset(self) -> None:
        self._order(self._each(Connection.abort))

    def reset_after(self, n_bytes: int) -> None:
        """Once: when so many more bytes have passed, both ways and over all connections together."""
        self._left = n_bytes

    def half_open(self) -> None:
        def stop(connection: Connection) -> None:
            connection.dead = True

        self._order(self._each(stop))

    def duplicate(self, on: bool = True) -> None:
        self.twice = on

    def refuse(self) -> None:
        async def refuse() -> None:
            await self._stop_listening()
            await self._each(Connection.abort)

        self._order(refuse())

    def drop(self) -> None:
        async def drop() -> None:
            self.opened.clear()

        self._order(drop())

    def heal(self) -> None:
        async def heal() -> None:
            self.delay, self.rate, self.twice, self._left = 0.0, None, False, None
            self.opened.set()
            await self._listen()

        self._order(heal())

    # ------------------------------------------------------------------ inside the loop
    def allowance(self, wanted: int) -> int:
        """How many of these bytes may pass before a reset is due."""
        if self._left is None:
            return wanted
        if self._left <= wanted:
            allowed, self._left = max(0, self._left - 1), None
            self.resets += 1
            return min(allowed, wanted - 1)
        self._left -= wanted
        return wanted

    async def _listen(self) -> None:
        if self._server is None:
            # the port was ours before, and connections that were reset do not hold it
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, reuse_address=True)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        self.accepted += 1
        self.connections.add(connection)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await connection.run()
        except asyncio.CancelledError:
            pass  # the proxy ends
        finally:
            self._tasks.discard(task)

    async def _each(self, act: Any) -> None:
        for connection in list(self.connections):
            act(connection)

    async def _end(self) -> None:
        await self._stop_listening()
        await self._each(Connection.abort)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _order(self, what: Coroutine[Any, Any, None]) -> None:
        self.wires.do(what)


class Wires:
    """The thread in which wires live; a context manager that leaves nothing behind."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        self._all: list[Wire] = []

    def to(self, target: int | None) -> Wire:
        """A new wire to a port of the loopback."""
        wire = Wire(self, target)
        self.do(wire._listen())
        self._all.append(wire)
        return wire

    def do(self, what: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE)

    def __enter__(self) -> Wires:
        return self

    def __exit__(self, *unused: object) -> None:
        for wire in self._all:
            self.do(wire._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
