"""Attacks on a node in the middle of a run, with real processes, sockets and certificates: each is refused, logged, and changes nothing.

Nodes a, b and c run; c is stopped for a while, so that a waits in some iteration, and a is attacked. Then c goes on (with a certificate of
another CA, as when CAs are changed), and the models must be those of a run that nobody attacked, bit for bit. Whoever holds a
neighbor's certificate may send wrong numbers, of course (docs/explanation/security.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import numpy as np
import pytest
from typer.testing import CliRunner

from dekpca.cli import app
from dekpca.peers.app.config import free_addresses
from dekpca.peers.app.session import Session
from dekpca.peers.errors import ProtocolError
from dekpca.peers.net.authority import init_ca, issue
from dekpca.peers.net.edge import SERVICE
from dekpca.peers.protocol import wire_pb2 as wire
from dekpca.peers.protocol.checks import CHUNK, metadata
from dekpca.peers.protocol.events import MessageStored
from dekpca.peers.protocol.node import Timeouts
from faults import fuzz
from faults.supervisor import Nursery, until
from peer_nodes import place, stored

RUN = "security"
PATIENCE = 300  # seconds for anything that should happen: a busy machine may be very slow
Code = grpc.StatusCode
METHODS = ("Handshake", "Deliver", "Collect", "Heartbeat", "Refuse", "Check")


# ---------------------------------------------------------------------- a run under attack
@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """Node certificates a to d; under old/ an expired one of b, under other/ one of b by a CA of the same name that nobody believes,
    under next/ one of c by a CA that all nodes believe too."""
    folder = tmp_path_factory.mktemp("certs")
    init_ca(folder, "group", 300)
    for name, days in (("a", 90), ("b", 90), ("c", 2), ("d", 90)):
        issue(folder, name, days)
    (folder / "old").mkdir()
    for file in ("ca.crt", "ca.key"):
        shutil.copy(folder / file, folder / "old")
    issue(folder / "old", "b", 1, start=datetime.now(UTC) - timedelta(days=9))
    init_ca(folder / "other", "group", 300)
    issue(folder / "other", "b", 90)
    init_ca(folder / "next", "group", 300)
    issue(folder / "next", "c", 90)
    (folder / "both.crt").write_bytes((folder / "ca.crt").read_bytes() + (folder / "next" / "ca.crt").read_bytes())
    return folder


class Nodes:
    """Processes of nodes in a folder; all are gone when it is left."""

    def __init__(self, folder: Path, certs: Path, addresses: dict[str, str], nursery: Nursery | None = None):
        self.folder, self.addresses, self.nursery, self.keys = folder, addresses, nursery, {}
        rng = np.random.default_rng(0)
        for name in addresses:
            np.save(folder / f"{name}.npy", rng.normal(size=(30, 5)))
            neighbors = "\n".join(f'{other} = "{addresses[other]}"' for other in addresses if other != name)
            (folder / f"{name}.toml").write_text(
                f'name = "{name}"\nrun = "{RUN}"\nlisten = "{addresses[name]}"\ndata = "{name}.npy"\nfolder = "{name}-run"\n'
                f'out = "{name}.npz"\ncertificate = "{certs}/{name}.crt"\nkey = "{certs}/{name}.key"\nca = "{certs}/both.crt"\n'
                f"peer_timeout = 600\n[neighbors]\n{neighbors}\n"
                "[model]\nn_components = 2\nshare_rows = true\ngamma = 0.1\n[model.solver]\nmax_iter = 40\ntol = 0.0\n"
            )

    def start(self, *names: str) -> None:
        for name in names:
            command = ["node", "run", self.folder / f"{name}.toml", "--yes", "--json"]
            self.keys[name] = self.nursery.start(command, self.folder / f"{name}.log")

    def signal(self, name: str, number: int) -> None:
        self.nursery.signal(self.keys[name], number)

    def pid(self, name: str) -> int:
        return self.nursery.pids[self.keys[name]]

    def code(self, name: str) -> int | None:
        """The exit code of a node, None while it runs."""
        return self.nursery.ended.get(self.keys[name], (None,))[0]

    def ended(self, name: str) -> int:
        until(lambda: self.keys[name] in self.nursery.ended, f"node {name} ends", PATIENCE)
        return self.code(name)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"  # the process makes it, a moment after it was started
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, condition, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            for name in self.keys:
                assert self.code(name) is None, f"node {name} has ended:\n{self.log(name)[-3000:]}"
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s\n{self.log('a')[-3000:]}"
            time.sleep(0.005)

    def finish(self) -> dict[str, bytes]:
        """The models of all nodes, when they have ended."""
        for name in self.keys:
            assert self.ended(name) in (0, 3), self.log(name)[-3000:]  # 3: no convergence was asked for
        models = {name: np.load(self.folder / f"{name}.npz") for name in self.keys}
        return {name: {key: found[key] for key in found.files} for name, found in models.items()}

    def renew(self, name: str, certs: Path) -> None:
        """In the middle of the run: kill the node, give it a certificate of the next CA, and start it again."""
        assert "certificate expires soon" in self.log(name)
        self.signal(name, signal.SIGKILL)
        self.ended(name)
        config = self.folder / f"{name}.toml"
        config.write_text(config.read_text().replace(f"{certs}/{name}.", f"{certs}/next/{name}."))
        (self.folder / f"{name}.log").unlink()
        self.start(name)
        self.wait_for(lambda: "listening" in self.log(name), "the renewed node")
        assert "certificate expires soon" not in self.log(name)

    def close(self) -> None:
        for name in self.keys:
            self.signal(name, signal.SIGKILL)  # also where it is stopped
            self.ended(name)


@contextlib.contextmanager
def nodes(folder: Path, certs: Path, nursery: Nursery):
    folder.mkdir()
    addresses = dict(zip("abc", free_addresses(3), strict=True))
    started = Nodes(folder, certs, addresses, nursery)
    try:
        yield started
    finally:
        started.close()


# ---------------------------------------------------------------------- attackers
class Attacker:
    """Calls node a with the certificate `name` of `folder`, if any, claiming to be `claims`."""

    def __init__(
        self, address: str, certs: Path, folder: str = "", name: str | None = "b", claims: str = "b", run: str = RUN
    ):
        roots = (certs / "ca.crt").read_bytes()
        own = [] if name is None else [(certs / folder / f"{name}.{end}").read_bytes() for end in ("key", "crt")]
        self.address, self.credentials, self.metadata = (
            address,
            grpc.ssl_channel_credentials(roots, *own),
            metadata(run, claims),
        )

    def call(
        self, method: str, *messages: bytes, compression: grpc.Compression | None = None
    ) -> tuple[Code, str, list[bytes]]:
        """How the call ended, why, and what was answered before. Without messages none is ever sent: the call stays open."""
        options = [("grpc.ssl_target_name_override", "a"), ("grpc.max_send_message_length", -1)]
        heard: list[bytes] = []
        over = threading.Event()

        def said():
            yield from messages
            if not messages:
                over.wait(2 * PATIENCE)

        with grpc.secure_channel(self.address, self.credentials, options, compression) as channel:
            try:
                heard.extend(
                    channel.stream_stream(f"/{SERVICE}/{method}")(said(), metadata=self.metadata, timeout=PATIENCE)
                )
            except grpc.RpcError as error:
                return error.code(), error.details(), heard
            finally:
                over.set()
        return Code.OK, "", heard


def piece(**changes) -> bytes:
    """A message of b to a, as far as nothing is changed."""
    head = {"run": RUN, "sender": "b", "round": 1, "kind": "share", "dtype": "<f8", "shape": [2, 2]} | changes
    return wire.Chunk(head=wire.Head(**head), offset=0, data=bytes(32)).SerializeToString()


def plaintext(address: str, data: bytes) -> bytes:
    """What a server answers to bytes that are no TLS."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(data)
        heard = b""
        try:
            while more := connection.recv(4096):
                heard += more
        except ConnectionResetError:
            pass
    return heard


def hello(address: str, certs: Path, version: str) -> str:
    """What openssl writes about a handshake with a neighbor's certificate, in this version of TLS alone."""
    command = ["openssl", "s_client", f"-{version}", "-cipher", "ALL:@SECLEVEL=0", "-msg", "-connect", address]
    command += ["-cert", certs / "b.crt", "-key", certs / "b.key", "-CAfile", certs / "ca.crt"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.stdout + done.stderr


HEARD = "SELECT 1 FROM chunk WHERE round > 20 LIMIT 1"


@pytest.mark.slow
def test_attacks_on_a_run(certs, nursery, tmp_path):
    with nodes(tmp_path / "quiet", certs, nursery) as quiet:
        quiet.start(*"abc")
        expected = quiet.finish()
    with nodes(tmp_path / "attacked", certs, nursery) as attacked:
        attacked.start(*"abc")
        attacked.wait_for(lambda: stored(attacked.folder / "a-run", HEARD), "messages of an iteration")
        attacked.signal("c", signal.SIGSTOP)
        memory = peak(attacked.pid("a"))
        attack_all(attacked, certs)
        assert all(attacked.code(name) is None for name in "abc"), "the run was to go on meanwhile"
        assert peak(attacked.pid("a")) - memory < 40e6
        attacked.signal("c", signal.SIGCONT)
        attacked.renew("c", certs)
        found = attacked.finish()
    for name, model in expected.items():
        assert model.keys() == found[name].keys()
        for key in model:
            assert np.array_equal(model[key], found[name][key]), (name, key)


def peak(pid: int) -> float:
    """Bytes of memory that a process ever had."""
    return 1024.0 * int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])


def attack_all(attacked: Nodes, certs: Path) -> None:
    address = attacked.addresses["a"]

    def logged(*words: str) -> None:
        """Some line of a's log, not seen before, has all these words."""

        def there() -> bool:
            for number, line in enumerate(attacked.log("a").splitlines()):
                if number not in seen and all(word in line for word in words):
                    seen.add(number)
                    return True
            return False

        attacked.wait_for(there, f"a line with {words} in the log")

    seen: set[int] = set()

    # no handshake, no call
    for attacker, reason in (
        (Attacker(address, certs, name=None), "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        (Attacker(address, certs, "old"), "certificate has expired"),
        (Attacker(address, certs, "other"), "CERTIFICATE_VERIFY_FAILED"),
    ):
        code, _, heard = attacker.call("Handshake", b"x")
        assert (code, heard) == (Code.UNAVAILABLE, [])
        logged("Handshake failed", reason)
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), bytes(200)):
        assert plaintext(address, data) == b""
    logged("connections of strangers closed", "not TLS")
    if shutil.which("openssl"):
        old, new = hello(address, certs, "tls1_1"), hello(address, certs, "tls1_2")
        assert "ClientHello" in old  # openssl was willing
        assert "ServerHello" not in old
        assert "ServerHello" in new
        logged("Handshake failed", "UNSUPPORTED_PROTOCOL")

    # who is no neighbor, or not the one that the call is said to be of, is refused before it has said anything
    for attacker, words in (
        (Attacker(address, certs, name="d", claims="d"), ["node 'd' is not a neighbor of node a"]),
        (Attacker(address, certs, name="d", claims="b"), ["node 'd' is not a neighbor of node a"]),
        (Attacker(address, certs, name="c", claims="b"), ["the certificate is that of node c, but the call says 'b'"]),
        (Attacker(address, certs, name="a", claims="b"), ["node 'a' is not a neighbor of node a"]),
    ):
        for method in METHODS:
            code, why, heard = attacker.call(method)
            assert (code, heard) == (Code.PERMISSION_DENIED, [])
            assert words[0] in why
            logged("refused", words[0], "127.0.0.1")
    for method in METHODS:
        code, _, heard = Attacker(address, certs, run="last year").call(method)
        assert (code, heard) == (Code.FAILED_PRECONDITION, [])
        logged("refused", "run: node a has 'security', node b has 'last year'")

    # a neighbor that says what the protocol does not allow
    neighbor = Attacker(address, certs)
    endless = wire.Chunk(offset=32, data=bytes(32)).SerializeToString()
    for messages, words in (
        ([b"\xff" * 100], "that is no Chunk"),
        ([piece(run="last year")], "a message of another run, 'last year'"),
        ([piece(sender="c")], "a message of node 'c', but the certificate is that of 'b'"),
        ([piece(kind="password")], "no message of this protocol"),
        ([piece(dtype="|O")], "no message of this protocol"),
        ([piece(shape=[1 << 40])], "where no message of this run has more than"),
        ([piece(shape=[1 << 63, 2, 1 << 63])], "where no message of this run has more than"),
        ([piece(shape=[1] * 5)], "no message of this protocol"),
        ([piece(round=1 << 63)], "nobody can be so far from it"),
        ([piece(round=10_000)], "nobody can be so far from it"),
        ([piece(shape=[2]), endless], "a chunk of 32 bytes at byte 0 of 16"),
        ([endless], "a chunk without a message"),
    ):
        code, why, heard = neighbor.call("Deliver", fuzz.OPENING, *messages)
        assert code == Code.INVALID_ARGUMENT, (words, code, why)
        receipts = [wire.Acknowledgement.FromString(data) for data in heard]
        assert receipts[0].opening
        assert {round for receipt in receipts[1:] for round in receipt.rounds} <= {1}  # which b had said long ago
        assert words in why
        logged("refused", "node b", words)
    for method in ("Handshake", "Heartbeat"):
        code, _, heard = neighbor.call(method, b"\xff" * 100)
        assert (code, heard) == (Code.INVALID_ARGUMENT, [])
        logged("refused", "node b", "a message of 100 bytes that is no")
    for method in METHODS:  # gRPC itself refuses these, before the node sees them
        assert neighbor.call(method, bytes(2 << 20))[0] == Code.RESOURCE_EXHAUSTED
        bomb = neighbor.call(method, bytes(16 << 20), compression=grpc.Compression.Gzip)  # a few kilobytes on the way
        assert bomb[0] in (Code.RESOURCE_EXHAUSTED, Code.UNIMPLEMENTED)

    # what b has said long ago, again: acknowledged, and dropped
    code, why, heard = neighbor.call("Deliver", fuzz.OPENING, piece(round=1))
    receipts = [wire.Acknowledgement.FromString(data) for data in heard]
    assert (code, receipts[0].opening, list(receipts[1].rounds)) == (Code.OK, True, [1]), why


# ---------------------------------------------------------------------- the other direction
@pytest.mark.parametrize(
    ("taken", "folder", "shown", "says"),
    [("b", "other", "b", "not by a CA in our file"), ("c", "", "d", "no certificate with this neighbor's name")],
)
def test_a_node_says_nothing_to_an_impostor(certs, nursery, tmp_path, taken, folder, shown, says):
    """Somebody with one of b by another CA, or a good certificate of another name, listens where a neighbor should be. At commit 3d2594d the node
    waited for an hour, and then advised to start it again."""
    calls: list[str] = []

    class Everything(grpc.GenericRpcHandler):
        def service(self, details):
            calls.append(details.method)

    with nodes(tmp_path / "run", certs, nursery) as started:
        files = [(certs / folder / f"{shown}.{end}").read_bytes() for end in ("key", "crt")]
        ca = (certs / "ca.crt").read_bytes()
        credentials = grpc.ssl_server_credentials([tuple(files)], ca, require_client_auth=True)
        server = grpc.server(ThreadPoolExecutor(2), handlers=[Everything()])
        assert server.add_secure_port(started.addresses[taken], credentials)
        server.start()
        config = tmp_path / "run" / "a.toml"
        config.write_text("start_timeout = 1\n" + config.read_text())  # so long it stays to tell the others why
        started.start("a")
        until(lambda: started.code("a") is not None, "it stops", PATIENCE)
        assert started.code("a") == 2
        last = started.log("a").splitlines()[-1]
        assert last.startswith(f"error: node {taken} at {started.addresses[taken]}: ")
        assert says in last
        assert "compare both nodes' ca and certificate" in last
        server.stop(None)
    assert calls == []


def test_certificates_that_stop_a_node(certs, tmp_path):
    (tmp_path / "run").mkdir()
    Nodes(tmp_path / "run", certs, {"a": "127.0.0.1:1", "b": "127.0.0.1:1"})
    good = (tmp_path / "run" / "b.toml").read_text()
    for changed, says in (
        (good.replace(f"{certs}/b.crt", f"{certs}/none.crt"), "none.crt: there is no such file"),
        (
            good.replace(f"{certs}/b.crt", f"{certs}/old/b.crt").replace(f"{certs}/b.key", f"{certs}/old/b.key"),
            "b.crt: expired at",
        ),
        (good.replace(f"{certs}/b.crt", f"{certs}/other/b.crt"), "other/b.crt: not signed by the CA in"),
        (good.replace(f"{certs}/b.crt", f"{certs}/a.crt"), "a.crt: is for a, not for node b"),
        (good.replace(f"{certs}/b.key", f"{certs}/a.key"), "a.key: does not fit certificate"),
        (good.replace(f'ca = "{certs}/both.crt"\n', ""), "every node needs certificate, key and ca"),
    ):
        (tmp_path / "run" / "b.toml").write_text(changed)
        stopped = CliRunner().invoke(app, ["node", "run", str(tmp_path / "run" / "b.toml"), "--yes"])
        assert stopped.exit_code == 2
        assert says in stopped.stderr.replace("\n", "")
        assert stopped.stdout == ""


@pytest.mark.parametrize("address", ["0.0.0.0:7070", "192.0.2.1:7070", "localhost:7070", "[::]:7070", "[::1]:7070"])
def test_without_certificates_on_loopback_only(certs, tmp_path, address):
    (tmp_path / "run").mkdir()
    Nodes(tmp_path / "run", certs, {"a": "127.0.0.1:1", "b": address})
    for name in "ab":  # as the own address, and as a neighbor's
        refused = CliRunner().invoke(
            app, ["node", "run", str(tmp_path / "run" / f"{name}.toml"), "--yes", "--insecure-loopback"]
        )
        assert refused.exit_code == 2
        assert "within 127.0.0.0/8 only" in refused.stderr.replace("\n", "")


# ---------------------------------------------------------------------- a little of make fuzz
@pytest.fixture
def clean_log():
    lines, log = fuzz.CleanLog(), logging.getLogger("dekpca.peer")
    propagate, log.propagate = log.propagate, False
    log.addHandler(lines)
    yield lines
    log.removeHandler(lines)
    log.propagate = propagate
    assert not lines.bad


def test_damaged_messages(clean_log):
    with fuzz.in_memory() as folder:
        outcomes, _ = asyncio.run(fuzz.fuzz(fuzz.Node(folder), 1500, seed=7))
    assert outcomes["damaged"] >= 1500
    assert min(outcomes["ProtocolError"], outcomes["acknowledged"], outcomes["Disagreement"]) > 0


def test_damaged_messages_over_tls(clean_log):
    with fuzz.in_memory() as folder:
        outcomes = fuzz.fuzz_over_tls(folder, 300, seed=7)
    assert outcomes["INVALID_ARGUMENT"] > 100
    assert clean_log.lines > 100


def test_messages_that_break_off_do_not_fill_the_disk(tmp_path):
    """A neighbor that begins messages and never ends them is refused at last; a message that is complete forgives."""
    node = fuzz.Node(tmp_path)
    node.protocol.rounds.limits = replace(fuzz.LIMITS, largest=CHUNK + 8)
    head = wire.Head(run=fuzz.RUN, sender="b", round=1, kind="share", dtype="<f8", shape=[CHUNK // 8 + 1])
    begun = fuzz.Said(wire.Chunk(head=head, offset=0, data=bytes(CHUNK)).SerializeToString(), damaged=False)

    async def many():
        for _ in range(200):
            await node.deliver([begun])

    with pytest.raises(ProtocolError, match="bytes of messages that broke off, more than 100 of the largest"):
        asyncio.run(many())
    node.at_rest()
    assert node.store.database.read("SELECT count(*) FROM chunk") == [(0,)]  # nobody will send the rest
    node.protocol.receive("b", MessageStored(1), time.monotonic())
    asyncio.run(node.deliver([begun]))


def test_a_neighbor_does_not_take_the_calls_of_another(tmp_path):
    """It opens as many calls of every kind as its connections allow, and says nothing."""
    over = threading.Event()

    def silent():
        over.wait()
        yield from ()

    with contextlib.ExitStack() as stack:
        config = place("a", "r", "127.0.0.1:0", {"b": "", "c": ""}, tmp_path / "a", Timeouts(peer=1, start=60))
        address = stack.enter_context(Session(config, None, np.zeros((5, 2)), {})).transport.address
        stack.callback(over.set)

        def channel():
            pool = [("grpc.use_local_subchannel_pool", 1)]
            return stack.enter_context(grpc.insecure_channel(address, options=pool))

        def call(channel, name, method, said):
            return channel.stream_stream(f"/{SERVICE}/{method}")(said, metadata=metadata("r", name), timeout=PATIENCE)

        channels = [channel() for _ in range(4)]
        calls = [call(one, "b", method, silent()) for one in channels for method in METHODS * 2]
        calls += [call(one, "b", "Check", silent()) for one in channels for _ in range(4)]
        until(lambda: sum(one.is_active() for one in calls) <= 8 * len(METHODS), "calls of b are refused", 20)
        said = iter([wire.Handshake().SerializeToString()])
        assert next(call(channel(), "c", "Check", said))


def test_the_same_seed_damages_the_same_way():
    def some(seed):
        mutator = fuzz.Mutator(seed)
        return [one.data for _ in range(200) for one in mutator.call(mutator.message("r", "b", 1), "r", "b", 1)]

    assert some(1) == some(1) != some(2)
