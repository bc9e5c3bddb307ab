"""The transport: server and links of a node on an event loop in a thread of its own, so that computing never holds them up."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

from .errors import PeerError
from .identity import Identity
from .links import Link
from .server import Server
from .station import FAREWELL, POLL, Station

log = logging.getLogger("dekpca.peer")

START = 30.0  # seconds until the server listens


class Transport:
    """Carries the station's messages as long as it is open (a context manager)."""

    def __init__(self, station: Station, facts: dict[str, str], identity: Identity | None, listen: str):
        self.station, self.facts, self.identity, self.listen = station, facts, identity, listen
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._failed: BaseException | None = None
        self._links: dict[str, Link] = {}
        self._thread = threading.Thread(target=self._run, name="transport", daemon=True)

    def __enter__(self) -> Transport:
        self._thread.start()
        if not self._started.wait(START):
            raise RuntimeError(f"listen {self.listen}: the server did not start within {START:g} s")
        if self._failed is not None:
            raise self._failed
        self.station.wake = self._wake
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._say_farewell(error)
        if self._thread.is_alive() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=5.0)

    def open_doors(self) -> None:
        """The network is known: messages of the program are taken from now on."""
        self._loop.call_soon_threadsafe(lambda: self._server.ready.set())

    def _say_farewell(self, error: BaseException) -> None:
        """Tell the neighbors why, as far as they listen."""
        text = "stopped by its owner" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
        contagious = isinstance(error, PeerError) and error.contagious
        self.station.fail(error, text if contagious else f"node {self.station.name}: {text}")
        for neighbor in self.station.neighbors.values():
            neighbor.told_done = False
        self._wake(None)
        deadline = time.monotonic() + FAREWELL
        with self.station.changed:
            while time.monotonic() < deadline:
                if all(n.told_done or not n.up for n in self.station.neighbors.values()):
                    return
                self.station.changed.wait(POLL)

    def _wake(self, name: str | None) -> None:
        def ring() -> None:
            for link in self._links.values() if name is None else [self._links[name]]:
                link.news.set()
                if name is None:
                    link.beat_now.set()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(ring)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._started.set()
            self._loop.close()

    async def _main(self) -> None:
        self._server = Server(self.station, self.facts, self.identity)
        try:
            self.address = await self._server.start(self.listen)
        except BaseException as error:
            self._failed = error
            return
        self._links = {
            n.name: Link(self.station, self._server, n, self.identity) for n in self.station.neighbors.values()
        }
        tasks = [asyncio.ensure_future(link.run()) for link in self._links.values()]
        for task in tasks:
            task.add_done_callback(self._link_ended)
        self._started.set()
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.stop()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # calls that were being answered
        for other in left:
            other.cancel()
        await asyncio.wait(left, timeout=1.0) if left else None
        await self._loop.shutdown_asyncgens()

    def _link_ended(self, task: Any) -> None:
        """A link never ends by itself: whatever ended it is a bug, and must not be waited for."""
        if not task.cancelled() and task.exception() is not None:
            self.station.fail(task.exception())
