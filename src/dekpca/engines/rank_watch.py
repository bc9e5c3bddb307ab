"""Ranks that are lost: killed, or on a host that is down. MPI then ends the job or waits forever, and does not say which rank it was.

Rank 0 starts a process (_rank_watcher.py) that all ranks are connected to. A process that is killed loses its connection at once; a host that is
down does not answer keepalives. The watcher says which rank is lost and which nodes it hosts, and tells the others, who end the job. It is a
process of its own since mpiexec kills the ranks without delay when one is gone. A rank that comes to its end, or reports an error itself, says
goodbye before.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mpi4py import MPI

from . import _rank_watcher
from ._rank_watcher import FAILED, GOODBYE, LOST, keep_alive
from .rank_agreement import Ranks

CONNECT = 10.0  # seconds


@contextlib.contextmanager
def watching(ranks: Ranks, hosts: Sequence[str], end: Callable[[], object]) -> Iterator[None]:
    """`hosts`: the nodes of each rank. `end()` ends the job, and is called in a thread when a rank is lost. Every rank must enter this."""
    link = _connect(ranks, hosts) if ranks.size > 1 else None
    if link is None:
        yield
        return
    ended = threading.Event()

    def listen() -> None:
        try:
            said = link.recv(1)
            text = (
                "" if said else f"dekpca: rank {ranks.rank} is no longer watched: if it is lost, only mpiexec says so\n"
            )
        except OSError:  # the watcher's host does not answer keepalives: that is the host of rank 0
            said, text = (
                LOST,
                f"dekpca: rank 0, hosting {hosts[0]}, is lost: its host is down; ending the job on all ranks\n",
            )
        if ended.is_set() or said == GOODBYE:
            return
        if text:
            sys.stderr.write(text)
            sys.stderr.flush()
        if said == LOST:
            end()

    threading.Thread(target=listen, name="rank watch", daemon=True).start()
    last = FAILED
    try:
        yield
        last = GOODBYE
    finally:
        ended.set()
        with contextlib.suppress(OSError):  # the watcher may be gone
            link.sendall(last)
            link.shutdown(socket.SHUT_WR)


def _connect(ranks: Ranks, hosts: Sequence[str]) -> socket.socket | None:
    """To the watcher; None, and a line on standard error, where the hosts do not let it through."""
    here = MPI.Get_processor_name()
    names = ranks.texts(here)
    one_host = len(set(names)) == 1
    address = json.dumps(_start(hosts, "127.0.0.1" if one_host else "")) if ranks.rank == 0 else ""
    port, token = json.loads(ranks.texts(address)[0])
    if not port:
        return None
    try:
        link = socket.create_connection(("127.0.0.1" if one_host else names[0], port), CONNECT)
        link.sendall(token.encode() + ranks.rank.to_bytes(4, "big"))
    except OSError as error:
        sys.stderr.write(
            f"dekpca: rank {ranks.rank} on {here} cannot reach {names[0]}, port {port} ({error}): if it is lost, only mpiexec says so\n"
        )
        return None
    link.settimeout(None)
    keep_alive(link)
    return link


def _start(hosts: Sequence[str], bind: str) -> tuple[int, str]:
    """The watcher; returns its port, 0 if it cannot be started, and the token that it wants to hear."""
    token = secrets.token_hex(16)
    try:
        watcher = subprocess.Popen(
            [sys.executable, "-E", "-S", Path(_rank_watcher.__file__)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        sys.stderr.write(f"dekpca: ranks are not watched ({error}): if one is lost, only mpiexec says so\n")
        return 0, token
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    with watcher.stdin as given, watcher.stdout as said:
        given.write(json.dumps({"token": token, "hosts": list(hosts), "bind": bind}).encode() + b"\n")
        given.flush()
        return int(said.readline()), token
