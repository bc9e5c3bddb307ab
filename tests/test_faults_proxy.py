"""The misbehaving proxy itself, against a plain echo server: each fault is what it says, and what follows works again."""

from __future__ import annotations

import random
import socket
import socketserver
import struct
import threading
import time

import pytest

from faults.proxy import Wires

SOON = 10.0  # seconds; what should happen at once does so even on a busy machine
NEVER = 0.5  # seconds in which nothing is to come


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        self.server.seen.append(b"")
        here = len(self.server.seen) - 1
        try:
            while chunk := self.request.recv(1 << 16):
                self.server.seen[here] += chunk
                if self.server.resetting:
                    self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                self.request.sendall(chunk)
        except OSError:
            self.server.errors += 1


class EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Echo)
        self.seen, self.errors, self.resetting = [], 0, False

    def shutdown_request(self, request):
        self.close_request(request)  # no polite shutdown before: a reset is to be one


@pytest.fixture
def echo():
    with EchoServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def wire(echo):
    with Wires() as wires:
        yield wires.to(echo.server_address[1])


@pytest.fixture
def connect(wire):
    """A function that opens a connection through the wire; all are closed at the end."""
    opened = []

    def connect():
        opened.append(socket.create_connection(("127.0.0.1", wire.port), SOON))
        return opened[-1]

    yield connect
    for sock in opened:
        sock.close()


def receive(sock, n):
    got = b""
    while len(got) < n:
        chunk = sock.recv(n - len(got))
        if not chunk:
            break
        got += chunk
    return got


def read_to_the_end(sock):
    while sock.recv(1 << 16):
        pass


def says_and_hears(sock, text=b"hello"):
    sock.sendall(text)
    return receive(sock, len(text)) == text


def until(condition):
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def hears_nothing(sock):
    sock.settimeout(NEVER)
    with pytest.raises(TimeoutError):
        sock.recv(1)
    sock.settimeout(SOON)


def test_passes_all_bytes_both_ways_and_the_end(wire, connect):
    text = bytes(range(256)) * 4096
    sock = connect()
    sender = threading.Thread(target=sock.sendall, args=(text,))
    sender.start()
    assert receive(sock, len(text)) == text
    sender.join()
    sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1) == b""
    assert wire.passed == 2 * len(text)
    until(lambda: not wire.connections)


def test_delay(wire, connect):
    wire.delay = 0.2
    start = time.monotonic()
    assert says_and_hears(connect())
    assert time.monotonic() - start >= 0.4


def test_delay_is_not_a_limit(wire, connect):
    """A megabyte is 64 chunks: all are under way together."""
    wire.delay = 0.3
    sock, text = connect(), bytes(1 << 20)
    sender = threading.Thread(target=sock.sendall, args=(text,))
    start = time.monotonic()
    sender.start()
    assert receive(sock, len(text)) == text
    assert time.monotonic() - start < 64 * 0.3
    sender.join()


def test_rate(wire, connect):
    wire.rate = 125_000  # 1 Mbit/s
    sock = connect()
    start = time.monotonic()
    assert says_and_hears(sock, bytes(50_000))
    assert time.monotonic() - start >= 0.4


def test_cut(wire, connect):
    sock = connect()
    assert says_and_hears(sock)
    wire.cut()
    assert sock.recv(1) == b""
    assert says_and_hears(connect())


def test_reset_in_the_middle_of_a_message(wire, connect, echo):
    sock = connect()
    assert says_and_hears(sock, b"hello")
    before, text = wire.passed, random.Random(0).randbytes(4000)
    wire.reset_after(1000)
    sock.sendall(text)
    with pytest.raises(ConnectionResetError):
        read_to_the_end(sock)
    assert wire.resets == 1
    until(lambda: echo.errors == 1)  # the other end was reset too
    assert wire.passed - before == 999  # both ways together, in however many chunks; the next byte is the reset
    assert (b"hello" + text).startswith(
        echo.seen[0]
    )  # how much of what passed was read before the reset is the kernel's choice
    assert len(echo.seen[0]) <= 5 + 999
    assert says_and_hears(connect(), bytes(4000))


def test_reset_now(wire, connect):
    sock = connect()
    assert says_and_hears(sock)
    wire.reset()
    with pytest.raises(ConnectionResetError):
        sock.recv(1)
    assert says_and_hears(connect())


def test_a_reset_of_one_end_reaches_the_other(wire, connect, echo):
    sock = connect()
    assert says_and_hears(sock)
    echo.resetting = True
    sock.sendall(b"now")
    with pytest.raises(ConnectionResetError):
        read_to_the_end(sock)
    until(lambda: not wire.connections)


def test_half_open(wire, connect):
    sock = connect()
    assert says_and_hears(sock)
    wire.half_open()
    sock.sendall(b"anybody there?")
    hears_nothing(sock)
    assert says_and_hears(connect())
    wire.reset()
    with pytest.raises(ConnectionResetError):
        sock.recv(1)


def test_duplicate(wire, connect, echo):
    wire.duplicate()
    sock = connect()
    assert says_and_hears(sock, b"first")
    assert says_and_hears(sock, b"second")
    assert wire.duplicated == 1
    until(lambda: sorted(echo.seen) == [b"first", b"firstsecond"])


def test_refuse_and_heal(wire, connect):
    sock = connect()
    assert says_and_hears(sock)
    wire.refuse()
    with pytest.raises(ConnectionResetError):
        sock.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect()
    wire.heal()
    assert says_and_hears(connect())


def test_drop_and_heal(wire, connect):
    old = connect()
    assert says_and_hears(old)
    wire.drop()
    new = connect()
    old.sendall(b"held")
    new.sendall(b"too")
    hears_nothing(old)
    hears_nothing(new)
    wire.heal()
    assert receive(old, 4) == b"held"
    assert receive(new, 3) == b"too"


def test_a_target_that_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with Wires() as wires:
        wire = wires.to(port)
        with pytest.raises(ConnectionResetError):  # when connecting, or when reading: a matter of microseconds
            read_to_the_end(socket.create_connection(("127.0.0.1", wire.port), SOON))


def test_nothing_stays_behind(echo):
    before = threading.active_count()
    with Wires() as wires:
        wire = wires.to(echo.server_address[1])
        with socket.create_connection(("127.0.0.1", wire.port), SOON) as sock:
            assert says_and_hears(sock)
            wire.half_open()
            other = socket.create_connection(("127.0.0.1", wire.port), SOON)
            wire.drop()
    other.close()
    until(lambda: threading.active_count() <= before)
