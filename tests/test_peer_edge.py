"""One connection for an edge: nodes that open no port, behind firewalls and forwarders, with real processes in network namespaces."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from dekpca import Network
from dekpca.peers.app.config import write_nodes
from dekpca.peers.errors import ProtocolError
from dekpca.peers.net.authority import init_ca, issue
from dekpca.peers.net.edge import Edge
from faults.supervisor import until
from peer_nodes import Nodes, bits, join, problem

PATIENCE = 200  # seconds: a busy machine may be slow
NAMES = ["bonn", "genf", "lund", "oslo", "rome"]
EDGES = [("oslo", "rome"), ("rome", "bonn"), ("bonn", "genf"), ("genf", "lund"), ("lund", "oslo")]
MODEL = {"n_components": 2, "gamma": 0.1, "share_rows": True, "privacy": "none"}


# ---------------------------------------------------------------------- in one process
def places(nodes, **changes):
    """Change where nodes are: {name: (listen, addresses of neighbors)}."""
    for name, (listen, neighbors) in changes.items():
        place = nodes.places[f"{name}"]
        nodes.places[name] = replace(place, listen=listen, neighbors={**place.neighbors, **neighbors})


@pytest.mark.parametrize("secret", ["0", "1"])
def test_a_node_that_opens_no_port_takes_part(tmp_path, secret):
    """Node 1, or node 0, which is the first by name, opens no port; nobody has its address, and the answer is the usual one, bit for bit."""
    network = Network.path(3)
    parts, options = problem(network, max_iter=6)
    expected = Nodes(tmp_path / "open", network, parts, options).run()
    nodes = Nodes(tmp_path / "closed", network, parts, options)
    near = {network.names[q]: {secret: ""} for q in network.neighbors(network.number[secret])}
    places(nodes, **{secret: (None, {})}, **{name: (nodes.places[name].listen, none) for name, none in near.items()})
    assert bits(nodes.run()) == bits(expected)


def test_there_is_one_connection_of_an_edge_with_two_addresses(tmp_path):
    network = Network.path(2)
    parts, options = problem(network, max_iter=10)
    nodes, seen = Nodes(tmp_path, network, parts, options), []

    def look(about):
        if len(nodes.sessions) == 2:
            edges = [session.transport.edges[other] for session, other in zip(sessions(nodes), "10", strict=True)]
            seen.append([(edge.calling, dict(+edge.calls)) for edge in edges])

    nodes.run({"0": look})
    each = dict.fromkeys(("Heartbeat", "Handshake", "Deliver", "Collect"), 1)
    assert seen[-1] == [(True, {}), (False, each)]  # node 0 calls, node 1 is called


def sessions(nodes):
    return [nodes.sessions[name] for name in "01"]


def test_the_second_by_name_calls_if_it_is_not_called(tmp_path):
    """Node 0 has another address for node 1, where nobody is: a firewall would do the same."""
    network = Network.path(2)
    parts, options = problem(network, max_iter=4)
    expected = Nodes(tmp_path / "usual", network, parts, options).run()
    nodes = Nodes(tmp_path / "one-way", network, parts, options)
    places(nodes, **{"0": (nodes.places["0"].listen, {"1": "127.0.0.1:1"})})
    assert bits(nodes.run()) == bits(expected)


@pytest.mark.parametrize("wrong", ["0", "1"])
def test_what_the_protocol_does_not_allow_is_refused_in_both_directions(tmp_path, monkeypatch, wrong):
    """Node 0 calls: it refuses by a call of its own, node 1 by the status of the call. Whoever is refused stops, and so does the other."""
    chunks = Edge._chunks

    def damaged(self, message, data):
        return chunks(self, message._replace(kind="password") if self.endpoint.name == wrong else message, data)

    monkeypatch.setattr(Edge, "_chunks", damaged)
    network = Network.path(2)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options)
    join([nodes.start(name) for name in network.names])
    other = "1" if wrong == "0" else "0"
    assert {type(error) for error in nodes.errors.values()} == {ProtocolError}
    said = str(nodes.errors[wrong])
    assert said.startswith(f"node {other} does not take what this node sends: round ")
    assert "'password'" in said
    assert "no message of this protocol" in said
    assert f"says node {wrong}" in str(nodes.errors[other])


class Forwarder:
    """What `socat TCP-LISTEN TCP-LISTEN` does, again and again: joins a connection to one port with one to the other. It keeps what passes."""

    def __init__(self):
        self.listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.ports = [one.getsockname()[1] for one in self.listening]
        self.passed = bytearray()
        threading.Thread(target=self._join, daemon=True).start()

    def _join(self):
        while True:
            ends = [one.accept()[0] for one in self.listening]
            for a, b in (ends, ends[::-1]):
                threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, a, b):
        try:
            while data := a.recv(1 << 16):
                self.passed += data
                b.sendall(data)
        except OSError:
            pass
        for one in (a, b):
            one.close()


def test_two_nodes_without_ports_meet_at_a_forwarder_that_sees_ciphertext(tmp_path):
    network = Network.path(2)
    parts, options = problem(network, max_iter=6)
    init_ca(tmp_path / "certs", "two")
    expected = Nodes(tmp_path / "open", network, parts, options, certs=tmp_path / "certs").run()
    relay, nodes = Forwarder(), Nodes(tmp_path / "closed", network, parts, options, certs=tmp_path / "certs")
    calls, called = (f"127.0.0.1:{port}" for port in relay.ports)
    places(nodes, **{"0": (None, {"1": calls}), "1": (None, {"0": f"reverse {called}"})})
    assert bits(nodes.run()) == bits(expected)
    assert len(relay.passed) > sum(part.nbytes for part in parts)  # rows went through it
    assert not any(part[0].tobytes() in relay.passed for part in parts)


def test_a_forwarder_that_joins_the_wrong_nodes_is_noticed(tmp_path):
    """It is the certificate that counts, not the address: node 2 is where node 1 should be."""
    network = Network.path(2)
    parts, options = problem(network, max_iter=2)
    init_ca(tmp_path / "certs", "two")
    nodes = Nodes(tmp_path / "run", network, parts, options, certs=tmp_path / "certs")
    other = Nodes(tmp_path / "other", Network.from_edges([("0", "2")]), parts, options, certs=tmp_path / "certs")
    places(nodes, **{"0": (None, {"1": other.places["2"].listen})})
    threads = [nodes.start("0"), other.start("2", observer=None)]
    join(threads[:1])
    assert "no certificate with this neighbor's name" in str(nodes.errors["0"])
    other.sessions["2"].endpoint.fail(KeyboardInterrupt())
    join(threads[1:])


# ---------------------------------------------------------------------- on machines of their own
def sh(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


@pytest.fixture
def machines():
    """Five owners and a third party, each in a network namespace, joined by a switch: name -> namespace. Node i has the address 10.78.0.i + 1."""
    if shutil.which("socat") is None or shutil.which("nft") is None:
        pytest.skip("no socat or no nft here: apt-get install socat nftables")
    names = {name: f"dk{os.getpid()}-{name}" for name in (*NAMES, "relay", "switch")}
    inside = {name: ["ip", "-n", space] for name, space in names.items()}
    try:
        for space in names.values():
            sh("ip", "netns", "add", space)
        sh(*inside["switch"], "link", "add", "br0", "type", "bridge")
        sh(*inside["switch"], "link", "set", "br0", "up")
        for i, name in enumerate([*NAMES, "relay"]):
            sh(*inside["switch"], "link", "add", f"v{i}", "type", "veth", "peer", "name", "eth0", "netns", names[name])
            sh(*inside["switch"], "link", "set", f"v{i}", "master", "br0", "up")
            sh(*inside[name], "address", "add", f"10.78.0.{i + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                sh(*inside[name], "link", "set", device, "up")
        yield names
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    finally:
        for space in names.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def accept_nothing(space):
    """A firewall that drops every connection from outside."""
    for rule in (
        "add table inet f",
        "add chain inet f i { type filter hook input priority 0 ; }",
        "add rule inet f i iif != lo tcp flags syn / syn,ack drop",
    ):
        sh("ip", "netns", "exec", space, "nft", rule)


def configs(folder):
    """Lund opens no port and calls Oslo; Genf opens no port, calls Bonn, and is called by Lund through the forwarder; Rome has a port that its
    firewall closes, and calls."""
    at = {name: f"10.78.0.{i + 1}" for i, name in enumerate([*NAMES, "relay"])}
    neighbors = {name: {b if a == name else a: "" for a, b in EDGES if name in (a, b)} for name in NAMES}
    for a, b in (
        ("oslo", "rome"),
        ("rome", "oslo"),
        ("rome", "bonn"),
        ("bonn", "rome"),
        ("genf", "bonn"),
        ("lund", "oslo"),
    ):
        neighbors[a][b] = f"{at[b]}:7070"
    neighbors["lund"]["genf"], neighbors["genf"]["lund"] = f"{at['relay']}:7001", f"reverse {at['relay']}:7002"
    for name in NAMES:
        path = folder / f"{name}.toml"
        text = path.read_text().partition("[neighbors]")
        listen = "" if name in ("lund", "genf") else f'listen = "{at[name]}:7070"'
        head = re.sub(r'listen = ".*"', listen, text[0])
        table = "\n".join(f'{other} = "{where}"' for other, where in neighbors[name].items())
        path.write_text(f"{head}[neighbors]\n{table}\n[model]{text[2].partition('[model]')[2]}")


def run(path):
    return ["node", "run", path, "--yes"]


def arrays(folder):
    """The models of all nodes, as bytes; the header without what is different in each run."""
    found = {}
    for name in NAMES:
        with np.load(folder / name / f"{name}.npz", allow_pickle=False) as file:
            found[name] = {key: file[key].tobytes() for key in file.files if key != "header"}
    return found


@pytest.mark.slow  # ten processes, and 10 s until a connection counts as dropped; the tests above are of the same kind
def test_five_owners_of_whom_one_accepts_nothing_and_one_is_behind_a_forwarder(tmp_path, machines, nursery):
    init_ca(tmp_path / "certs", "five")
    for name in NAMES:
        issue(tmp_path / "certs", name)
    rng = np.random.default_rng(0)
    network = Network.from_edges(EDGES)
    parts = [rng.normal(size=(40, 3)) + j % 2 for j in range(len(NAMES))]
    started: list[subprocess.Popen] = []

    def start(space, *argv, cwd):
        argv = ["ip", "netns", "exec", space, *map(str, argv)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        started.append(
            subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    def check(name, seconds):
        argv = [sys.executable, "-m", "dekpca.cli", "node", "check", f"{name}.toml", "--json", "--seconds", seconds]
        return start(machines[name], *argv, cwd=tmp_path / "apart")

    def table(one):
        said = one.communicate(timeout=PATIENCE)[0]
        return one.returncode, {row["neighbor"]: row for row in json.loads(said.splitlines()[-1])["neighbors"]}

    try:
        for folder in ("together", "apart"):
            (tmp_path / folder).mkdir()
            write_nodes(tmp_path / folder, parts, network, "study", "../certs", MODEL, {"start_timeout": 100})
        undisturbed = [
            nursery.start(run(tmp_path / "together" / f"{name}.toml"), tmp_path / f"{name}.log") for name in NAMES
        ]
        until(lambda: all(key in nursery.ended for key in undisturbed), "the undisturbed run ends", PATIENCE)
        configs(tmp_path / "apart")
        for name in ("genf", "lund", "rome"):
            accept_nothing(machines[name])
        command = "while true; do socat TCP-LISTEN:7001,reuseaddr TCP-LISTEN:7002,reuseaddr; done"
        relay = start(machines["relay"], "sh", "-c", command, cwd=tmp_path)
        checks = {name: check(name, 60) for name in NAMES}
        found = {name: table(one) for name, one in checks.items()}
        assert {code for code, _ in found.values()} == {0}, found
        bonn, rome, lund = (found[name][1] for name in ("bonn", "rome", "lund"))
        assert [bonn["rome"][key] for key in ("we_reach_it", "it_reaches_us", "calls")] == ["no", "yes", "rome"]
        assert "a firewall at node rome may drop them" in bonn["rome"]["remark"]
        assert "a firewall at node rome (this one) may drop them" in rome["bonn"]["remark"]
        assert {other: row["calls"] for other, row in lund.items()} == {"oslo": "lund", "genf": "lund"}
        runs = [
            start(machines[name], sys.executable, "-m", "dekpca.cli", *run(f"{name}.toml"), cwd=tmp_path / "apart")
            for name in NAMES
        ]
        said = [one.communicate(timeout=PATIENCE)[0] for one in runs]
        assert all(one.returncode in (0, 3) for one in runs), said
        assert arrays(tmp_path / "apart") == arrays(tmp_path / "together")
        assert relay.poll() is None
    finally:
        for one in started:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)  # also the socat of a shell
            one.communicate()
