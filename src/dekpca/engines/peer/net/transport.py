"""The transport: server and links of a node on an event loop in a thread of its own, so that computing never holds them up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from concurrent.futures import Future
from functools import cache
from typing import Any

from ....network import listing
from ..errors import PeerError
from ..protocol.handshake import Terms
from .client import Link
from .endpoint import FAREWELL, LATE, POLL, Station
from .identity import Identity
from .server import Server

log = logging.getLogger("dekpca.peer")

START, END = 30.0, 10.0  # seconds until the server listens, and until it has stopped
# Seconds in which links that are told to end do so, each time: longer, since they must not be kept from tidying up; together less than END,
# since the server must stop, too.
CANCEL = (0.5, 0.5, 1.0, 2.0, 4.0)


_first = threading.Lock()


def event_loop() -> asyncio.AbstractEventLoop:
    """The one event loop of this process: gRPC binds itself to the first that it meets."""
    with _first:
        return _event_loop()


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="transport", daemon=True).start()
    return loop


class Transport:
    """Carries the station's messages as long as it is open (a context manager)."""

    def __init__(self, station: Station, terms: Terms, identity: Identity | None, listen: str):
        self.station, self.identity, self.listen = station, identity, listen
        self.address = ""
        self._loop = event_loop()
        self._server = Server(station, terms, identity)
        self._links: dict[str, Link] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Transport:
        self._call(self._start(), START)
        self.station.wake = self._wake
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._say_farewell(error)
        try:
            self._call(self._stop(), END)
        except TimeoutError:  # the process ends anyway, and what went wrong before must not be hidden
            log.warning("connections did not close in time", extra={"seconds": END})

    def open_doors(self) -> None:
        """The network is known: messages of the program are taken from now on."""
        self._loop.call_soon_threadsafe(self._server.ready.set)

    def hurry(self) -> None:
        """The program has ended: neighbors get their receipts at once."""
        self._loop.call_soon_threadsafe(self._server.hurry)

    def _say_farewell(self, error: BaseException) -> None:
        """Tell the neighbors why, as far as they listen. If this node cannot go on, those that have not come yet would wait for it in vain."""
        self.station.fail(error)
        self._wake(None)
        neighbors, seconds, late = list(self.station.neighbors.values()), FAREWELL, []
        if isinstance(error, PeerError) and not error.resumable:
            late = [n for n in neighbors if n.may_come]
        if late:
            seconds = min(LATE, self.station.timeouts.start)
            whom = listing([n.name for n in late])
            log.warning(
                f"stopping; waiting up to {seconds:g} s to tell node {whom} why", extra={"why": self.station.cause}
            )
        deadline = time.monotonic() + seconds
        with self.station.changed, contextlib.suppress(KeyboardInterrupt):  # the owner knows already
            while time.monotonic() < deadline:
                if all(n.told_done or not ((n in late and n.may_come) or n.up) for n in neighbors):
                    return
                self.station.changed.wait(POLL)

    def _wake(self, names: list[str] | None) -> None:
        """There is something to say to these; None: to all, and it is worth a sign of life."""

        def ring() -> None:
            for name in self._links if names is None else names:
                self._links[name].news.set()
                if names is None:
                    self._links[name].beat_now.set()

        if names != []:
            self._loop.call_soon_threadsafe(ring)

    def _call(self, work: Any, timeout: float) -> None:
        running: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        running.result(timeout)

    async def _start(self) -> None:
        self.address = await self._server.start(self.listen)
        for neighbor in self.station.neighbors.values():
            link = self._links[neighbor.name] = Link(self.station, self._server, neighbor, self.identity)
            for task in link.start():
                task.add_done_callback(self._link_ended)
                self._tasks.append(task)

    async def _stop(self) -> None:
        going = set(self._tasks)
        for seconds in CANCEL:  # more than once: calls of gRPC lose a cancellation when they end just then
            for task in going:
                task.cancel()
            if going:
                _, going = await asyncio.wait(going, timeout=seconds)
        if going:
            log.warning("links did not end", extra={"tasks": len(going)})
        await self._server.stop()  # in any case: nobody may call a node that has left

    def _link_ended(self, task: Any) -> None:
        """A link never ends by itself: whatever ended it is a bug, and must not be waited for."""
        if not task.cancelled() and task.exception() is not None:
            self.station.fail(task.exception())
