"""The process that rank_watch.py starts. It imports nothing but the standard library, and is run as a file, so that it is there in a moment.

Standard input: {"token": a text that ranks say first, "hosts": what each rank hosts, "bind": address to listen on}. Standard output: the port.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import sys
import time
from collections.abc import Iterable

GOODBYE, FAILED, LOST = b".", b"x", b"!"
CONNECT = 30.0  # seconds in which all ranks must have come
# Seconds until a keepalive is sent, between two of them, and how many may go unanswered: a host that is down is noticed after 7 s.
KEEPALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 2}


def keep_alive(link: socket.socket) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def main() -> int:
    given = json.loads(sys.stdin.readline())
    token, hosts = given["token"].encode(), given["hosts"]
    links: dict[socket.socket, int] = {}
    with socket.create_server((given["bind"], 0), backlog=len(hosts)) as server:
        print(server.getsockname()[1], flush=True)
        deadline = time.monotonic() + CONNECT
        while len(links) < len(hosts) and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                link, _ = server.accept()
                link.settimeout(1.0)
                said, number = link.recv(len(token), socket.MSG_WAITALL), link.recv(4, socket.MSG_WAITALL)
            except OSError:
                continue
            if secrets.compare_digest(said, token) and int.from_bytes(number, "big") < len(hosts):
                links[link] = int.from_bytes(number, "big")
            else:
                link.close()
    return watch(links, hosts)


def watch(links: dict[socket.socket, int], hosts: list[str]) -> int:
    """Until all ranks have said goodbye, or one is lost."""
    with selectors.DefaultSelector() as selector:
        for link in links:
            link.setblocking(True)
            keep_alive(link)
            selector.register(link, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                link = next(one for one in links if one is key.fileobj)
                said = b""
                with contextlib.suppress(OSError):  # reset, or no answer to keepalives
                    said = link.recv(1)
                selector.unregister(link)
                if said == GOODBYE:
                    continue
                if said == FAILED:  # it has said why, and ends the job
                    tell(links, GOODBYE)
                    return 0
                rank = links[link]
                text = f"dekpca: rank {rank}, hosting {hosts[rank]}, is lost: killed, or its host is down; ending the job on all ranks\n"
                with contextlib.suppress(OSError):  # nobody reads standard error
                    os.write(2, text.encode())
                tell(links, LOST)
                return 1
    return 0


def tell(links: Iterable[socket.socket], what: bytes) -> None:
    for link in links:
        with contextlib.suppress(OSError):  # it may be gone
            link.sendall(what)


if __name__ == "__main__":
    sys.exit(main())
