"""`python flood.py PORT HOW COUNT CERTS`: hold COUNT TLS connections that never come to anything, until killed; opened again when closed.

    idle      say nothing
    hello     send a whole ClientHello
    loris     send a ClientHello, one byte a second
    stranger  finish the handshake with the certificate "stranger" of the folder CERTS

Every second, how many have been opened so far is written to standard output.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import sys
import time
from pathlib import Path


def flood(port: int, how: str, count: int, certs: Path) -> None:
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    context.check_hostname = False
    context.load_cert_chain(certs / "stranger.crt", certs / "stranger.key")
    poll, opened, told = select.epoll(), 0, time.monotonic()
    held: dict[int, Attacker] = {}
    print(opened, flush=True)
    while True:
        while len(held) < count:
            one = Attacker(port, how, context)
            held[one.sock.fileno()] = one
            poll.register(one.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
            opened += 1
        for handle, events in poll.poll(0.2):
            try:
                held[handle].act(events)
            except (OSError, ssl.SSLError):
                poll.unregister(handle)
                held.pop(handle).sock.close()
            else:
                poll.modify(handle, select.EPOLLIN)
        if time.monotonic() - told > 1:
            told = time.monotonic()
            print(opened, flush=True)
            for one in held.values() if how == "loris" else ():
                with contextlib.suppress(OSError):
                    one.drip()


class Attacker:
    """One connection."""

    def __init__(self, port: int, how: str, context: ssl.SSLContext):
        self.how, self.sock = how, socket.socket()
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.sock.connect(("127.0.0.1", port))
        self.incoming, self.outgoing, self.sent = ssl.MemoryBIO(), ssl.MemoryBIO(), 0
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="a")
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        self.hello = self.outgoing.read()

    def act(self, events: int) -> None:
        if events & (select.EPOLLHUP | select.EPOLLERR):
            raise ConnectionError
        if events & select.EPOLLIN:
            data = self.sock.recv(1 << 16)
            if not data:
                raise ConnectionError
            if self.how == "stranger":
                self.incoming.write(data)
                with contextlib.suppress(ssl.SSLWantReadError):
                    self.tls.do_handshake()
                self.sock.send(self.outgoing.read())
        if events & select.EPOLLOUT and not self.sent and self.how in ("hello", "stranger"):
            self.sent = self.sock.send(self.hello)

    def drip(self) -> None:
        self.sent += self.sock.send(self.hello[self.sent : self.sent + 1])


if __name__ == "__main__":
    flood(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
