"""Server, edges and clients of a node, on an event loop in a separate thread, so that computation does not delay them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from pathlib import Path
from typing import Any

from ..protocol import events
from .client import Client
from .edge import Edge
from .endpoint import Endpoint
from .identity import Identity
from .server import Server

log = logging.getLogger("dekpca.peer")

START, END = 30.0, 10.0  # seconds until the server listens, and until it has stopped
# Seconds for cancelled clients to end, longer each time: they may be closing connections. The sum is less than END, since the server must stop too.
CANCEL = (0.5, 0.5, 1.0, 2.0, 4.0)

_first = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []


def event_loop() -> asyncio.AbstractEventLoop:
    """The one event loop of this process: gRPC binds itself to the first loop that it sees."""
    with _first:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[0].run_forever, name="transport", daemon=True).start()
        return _loops[0]


class Transport:
    """Carries the endpoint's messages as long as it is open (a context manager)."""

    server: type[Server] = Server
    client: type[Client] = Client

    def __init__(self, endpoint: Endpoint, folder: Path, identity: Identity | None, listen: str | None):
        self.endpoint, self.identity, self.listen = endpoint, identity, listen
        self.address = ""
        self._loop = event_loop()
        self.edges = {name: Edge(endpoint, name) for name in endpoint.protocol.neighbors}
        self._server = self.server(endpoint, self.edges, folder, identity)
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Transport:
        self.endpoint.wake = self._wake  # first: neighbors may call at once
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(START)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            with contextlib.suppress(KeyboardInterrupt):  # a further Ctrl-C ends the wait
                self.endpoint.say_farewell(error)
        try:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(END)
        except TimeoutError:  # the process ends anyway, and an earlier error must not be hidden
            log.warning("connections did not close in time", extra={"seconds": END})

    def acknowledge_at_once(self, at_once: bool = True) -> None:
        """The program has ended: from now on acknowledgements are not delayed. (After a restart of the program they are.)"""
        for edge in self.edges.values():
            self._loop.call_soon_threadsafe(edge.at_once.set if at_once else edge.at_once.clear)

    def _wake(self, send: events.Send) -> None:
        """There is something to send."""

        def ring() -> None:
            for name in send.names:
                self.edges[name].news.ring()
                if send.heartbeat:
                    self.edges[name].beat_now.ring()

        if send.names:
            self._loop.call_soon_threadsafe(ring)

    async def _start(self) -> None:
        self.address = await self._server.start(self.listen)
        for name in filter(self.endpoint.can_call, self.edges):
            task = asyncio.create_task(self.client(self.edges[name], self.identity).run())
            task.add_done_callback(self._client_ended)
            self._tasks.append(task)

    async def _stop(self) -> None:
        for edge in self.edges.values():
            edge.leaving = True
        going = set(self._tasks)
        for seconds in CANCEL:  # more than once: a gRPC call loses a cancellation if it ends at that moment
            for task in going:
                task.cancel()
            if going:
                _, going = await asyncio.wait(going, timeout=seconds)
        if going:
            log.warning("clients did not end", extra={"tasks": len(going)})
        await self._server.stop()  # in any case: a node that has left must refuse calls

    def _client_ended(self, task: Any) -> None:
        """A client never ends by itself: an error there is a bug, and must stop the node."""
        if not task.cancelled() and task.exception() is not None:
            self.endpoint.fail(task.exception())
