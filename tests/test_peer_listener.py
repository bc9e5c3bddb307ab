"""The listening socket of a peer: strangers have little room and little time, neighbors get in all the same, and bytes pass unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dekpca import Network
from dekpca.peers.app import logs
from dekpca.peers.net import listener as listening
from dekpca.peers.net.listener import Listener
from dekpca.peers.net.transport import event_loop
from peer_nodes import ASKED, PATIENCE, Nodes, problem

RECORD = b"\x16\x03\x01\x00\x04abcd"  # a whole TLS record; of what is in it the listener knows nothing


class Echo:
    """In place of gRPC: answers every connection with what it is sent, and knows the names of its callers."""

    def __init__(self, path):
        self.names, self.sock = [], socket.socket(socket.AF_UNIX)
        self.sock.bind(str(path))
        self.sock.listen(4096)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, name = self.sock.accept()
                self.names.append(name)
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)


def in_loop(work):
    """Its result, from the event loop in which a listener runs."""
    return asyncio.run_coroutine_threadsafe(work, event_loop()).result(PATIENCE)


@pytest.fixture
def listen(tmp_path, monkeypatch):
    monkeypatch.setattr(listening, "REPORT", 1e9)  # tests count what was closed
    opened = []

    def start(room=96, tls=True):
        listener = Listener(tmp_path, room, tls)
        echo = Echo(listener.inside)
        opened.append((listener, echo))
        return listener, echo, in_loop(listener.open("127.0.0.1", 0))

    yield start
    for listener, echo in opened:
        in_loop(listener.close())
        echo.sock.close()
    assert not list(tmp_path.iterdir())


def connect(port, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0))


def answered(sock, data=RECORD):
    """Whether a connection is relayed: what goes out comes back."""
    try:
        sock.sendall(data)
        return sock.recv(len(data)) == data
    except OSError:
        return False


def closed(sock):
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def wait_for(what):
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, "this never happens"
        time.sleep(0.01)


def test_bytes_pass_unchanged_also_to_who_reads_slowly(listen):
    _, _, port = listen()
    data = RECORD + os.urandom(20 << 20)  # more than all buffers on the way have room for
    with connect(port) as sock:
        sending = threading.Thread(target=sock.sendall, args=(data,), daemon=True)
        sending.start()
        time.sleep(0.3)
        assert sending.is_alive()  # nothing is read, so nothing more is taken
        heard = bytearray()
        while len(heard) < len(data):
            heard += sock.recv(1 << 20)
        sending.join(PATIENCE)
    assert heard == data


def test_an_end_that_closes_ends_the_other(listen):
    listener, echo, port = listen()
    with connect(port) as sock:
        assert answered(sock)
        assert len(echo.names) == 1
    wait_for(lambda: not listener._relayed and not listener._pending)
    echo._answer = lambda connection: connection.close()
    with connect(port) as sock:
        sock.sendall(RECORD)
        assert closed(sock)


def test_strangers_get_no_more_than_their_room(listen):
    """At c6f9cc8 gRPC accepted all of them."""
    listener, _, port = listen(room=96)
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(connect(port)) for _ in range(300)]
        wait_for(lambda: listener._closed["no room"] + listener._used >= len(strangers))
        assert len(os.listdir("/proc/self/fd")) - before - len(strangers) <= 96
        assert listener._used <= 96
        late = stack.enter_context(connect(port))  # as many may come as like, each gets its turn
        assert answered(late)


def test_a_flood_from_one_address_does_not_close_what_comes_from_another(listen, monkeypatch):
    monkeypatch.setattr(listening, "RATE", 1e5)
    listener, _, port = listen(room=30)
    with connect(port, "127.0.0.7") as quiet, contextlib.ExitStack() as stack:
        wait_for(lambda: listener._used == 1)
        for _ in range(200):
            stack.enter_context(connect(port, "127.0.0.8"))
        wait_for(lambda: listener._closed["no room"] >= 150)
        assert answered(quiet)  # it took its time


def test_strangers_have_little_time_whatever_they_do(listen, monkeypatch):
    monkeypatch.setattr(listening, "HANDSHAKE", 2.0)
    _, _, port = listen()
    since = time.monotonic()
    with connect(port) as silent, connect(port) as slow, connect(port) as stranger:
        slow.sendall(RECORD[:3])
        assert answered(stranger)  # relayed, and never admitted
        for sock in (silent, slow, stranger):
            assert closed(sock)
    assert 1.9 < time.monotonic() - since < 20


def test_who_is_admitted_stays_and_the_oldest_of_too_many_goes(listen, monkeypatch):
    monkeypatch.setattr(listening, "HANDSHAKE", 2.0)
    listener, echo, port = listen()
    socks = []
    for count in range(listening.CONNECTIONS + 1):
        socks.append(connect(port))
        assert answered(socks[-1])
        connection = listener.connection(f"unix:{echo.names[count]}")
        assert connection.address == f"127.0.0.1:{socks[-1].getsockname()[1]}"
        for _ in range(2):  # with every call
            event_loop().call_soon_threadsafe(listener.admit, connection, "b")
    assert closed(socks[0])
    time.sleep(2.5)
    assert all(answered(sock) for sock in socks[1:])
    assert listener._used == 0
    for sock in socks:
        sock.close()
    wait_for(lambda: not any(c.neighbor == "b" for c in listener._relayed.values()))


@pytest.mark.parametrize("tls", [True, False])
def test_what_is_not_tls_is_closed_unless_there_is_none(listen, tls):
    _, _, port = listen(tls=tls)
    with connect(port) as sock:
        assert answered(sock, b"GET / HTTP/1.1\r\n\r\n") != tls


def test_addresses_of_one_owner_are_counted_together():
    assert listening._origin("192.0.2.1") == "192.0.2.1" == listening._origin("::ffff:192.0.2.1")
    assert (
        listening._origin("2001:db8::1") == listening._origin("2001:db8::2:3") != listening._origin("2001:db8:0:1::1")
    )
    assert listening._origin("fe80::1%eth0") == "fe80::/64"


@pytest.mark.parametrize("folder", ["odd name % é", "a" * 120])
def test_any_folder_will_do(tmp_path, folder):
    network = Network.path(2)
    parts, options = problem(network, projection=replace(ASKED, max_iter=2))
    Nodes(tmp_path / folder, network, parts, options).run()


def run_limited(limit, code):
    script = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {limit})\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.slow
def test_the_soft_limit_is_raised_and_too_few_descriptors_are_refused():
    code = """
from dekpca.peers.net.listener import descriptors
print(descriptors(3), resource.getrlimit(resource.RLIMIT_NOFILE))
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
try:
    print(descriptors(3))
except ValueError as error:
    print(error)
"""
    raised, refused = run_limited((256, 1024), code).splitlines()
    assert raised == f"{listening.MOST_PENDING} (1024, 1024)"
    assert refused.startswith("256 open files are allowed, but a node with 3 neighbors needs 272; raise the hard limit")


def test_a_port_that_is_taken_says_so_and_nothing_else(tmp_path, capfd):
    """At c6f9cc8 a line of gRPC's own came before it."""
    network = Network.path(2)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options)
    with socket.create_server(("127.0.0.1", int(nodes.places["0"].listen.split(":")[1]))):
        thread = nodes.start("0")
        thread.join(PATIENCE)
    assert str(nodes.errors["0"]) == (
        f"listen {nodes.places['0'].listen}: cannot be bound (Address already in use); choose another address or port"
    )
    assert capfd.readouterr().err == ""


def test_the_figures_in_the_docs():
    text = " ".join(
        (Path(__file__).parent.parent / "docs" / "explanation" / "security.md").read_text(encoding="utf-8").split()
    )
    figures = [
        f"| {listening.HANDSHAKE:g} s, whatever it sends |",
        f"| {listening.MOST_PENDING}, or fewer if fewer are left (at least {listening.LEAST_PENDING})",
        f"at most {listening.CALM} descriptors, else {listening.RATE:g} a second; up to {listening.BACKLOG:,} wait",
        f"| {listening.CONNECTIONS}; a fifth closes the oldest |",
        f"| {listening.OWN} for the node's own files, and {listening.PER_NEIGHBOR} for each neighbor |",
        f"fewer than {listening.OWN + listening.LEAST_PENDING} + {listening.PER_NEIGHBOR} for each neighbor",
        f"| {logs.BURST} in {logs.WINDOW:g} s;",
    ]
    for figure in figures:
        assert figure in text, figure
