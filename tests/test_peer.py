"""The peer engine: the same answers as local with real processes and TLS, and the same bits after any restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from dekpca import DecentralizedKernelPCA, Network, Projection
from dekpca.engines import local
from dekpca.peers.app.config import free_addresses
from dekpca.peers.app.delivery import PeerDelivery
from dekpca.peers.errors import Changed, Damaged, Disagreement, PeerLost, ProtocolError, RunFailed
from dekpca.peers.net import endpoint as endpoints
from dekpca.peers.net.authority import init_ca
from dekpca.peers.net.client import Client
from dekpca.peers.net.edge import NEWS, Edge
from dekpca.peers.net.transport import Transport
from dekpca.peers.protocol.node import Timeouts
from dekpca.peers.storage.database import FILE
from dekpca.plan import Plan
from dekpca.settings import LandmarkSource
from dekpca.solvers.projection import PAPER
from dekpca.testing import by_node, check_answers, check_engine
from peer_nodes import ASKED, PATIENCE, Nodes, Stop, bits, change, endpoint, join, problem


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    return init_ca(tmp_path_factory.mktemp("certs")).parent


@pytest.mark.slow
def test_conformance_with_certificates(certs, tmp_path):
    check_engine(Nodes.engine(tmp_path, certs))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"share_rows": False}, marks=pytest.mark.slow),
        {"solver": Projection(n_landmarks=30)},
    ],
    ids=["auto", "no rows", "projection"],
)
def test_models_and_traffic_are_those_of_the_local_engine(settings, certs, tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    parts = {"oslo": rng.normal(size=(30, 4)), "rome": rng.normal(size=(50, 4)), "bonn": rng.normal(size=(20, 4))}
    run_as_peers = Nodes.engine(tmp_path, certs)
    models = {}
    for name, run in (("local", local.run), ("peer", lambda plan, watch=None: run_as_peers(plan))):
        monkeypatch.setattr(local, "run", run)
        models[name] = DecentralizedKernelPCA(2, gamma=0.1, random_state=0, **settings).fit_parts(parts)
    np.testing.assert_allclose(models["peer"].eigenvalues_, models["local"].eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(models["peer"].accuracy_, models["local"].accuracy_, rtol=1e-6)
    for name, part in parts.items():
        values = [models[e].node_models_[name].transform(part) for e in ("peer", "local")]
        np.testing.assert_allclose(*values, atol=1e-8 * np.abs(values[1]).max())
        assert len({tuple(map(str, models[e].node_models_[name].contents)) for e in models}) == 1
    for key in ("bytes", "messages"):
        for kind, sent in models["local"].history_[key].items():
            assert (models["peer"].history_[key][kind] == sent).all(), (key, kind)
    assert (models["peer"].history_["edge_bytes"] == models["local"].history_["edge_bytes"]).all()


# ---------------------------------------------------------------------- restarts
SUMS = {"projection": None, "tol": 1e-4}
CASES = {
    "auto": (Network.ring(5, 2), SUMS),
    "no rows": (Network.ring(5, 2), {**SUMS, "share_rows": False}),
    "projection": (Network.ring(5, 2), {}),
    "sums before an iteration": (
        Network.path(4),
        {"gamma_by_variance": True, "standardize": True, "projection": replace(ASKED, n_landmarks=5, max_iter=20)},
    ),
    "deflation": (Network.ring(4), {"projection": replace(PAPER, max_iter=8)}),
    "random features": (
        Network.star(4),
        {"landmarks": LandmarkSource("random-features"), "n_landmarks": 40, "projection": None},
    ),
}
FEW = ("no rows", "sums before an iteration")


def stop_at(iteration):
    """A watch that ends its node there, the first time."""
    left = [iteration]

    def observe(about):
        if left and about.number >= left[0]:
            left.clear()
            raise Stop

    return observe


def stop_in_rounds(monkeypatch, rounds):
    """Ends nodes when they reach these rounds, each once; `rounds`: name -> list."""
    exchange = PeerDelivery.exchange

    def stopping(delivery, requests):
        left = rounds.get(delivery.endpoint.name)
        if left and delivery.round + 1 >= left[0]:
            del left[0]
            raise Stop
        return exchange(delivery, requests)

    monkeypatch.setattr(PeerDelivery, "exchange", stopping)


@pytest.mark.parametrize(
    "case", [case if case in FEW else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_nodes_that_stop_go_on_bit_for_bit(tmp_path, case, monkeypatch):
    """Three nodes end, one of them four times, and are started again while the others run."""
    network, changes = CASES[case]
    parts, options = problem(network, **changes)
    whole = Nodes(tmp_path / "whole", network, parts, options)
    expected = whole.run()
    check_answers(case, _by_name(expected), by_node(local.run(Plan.of(parts, network, options))))
    total = whole.sessions["1"].protocol.rounds.round
    assert total > 6
    rounds = {"1": [total * i // 5 + 1 for i in range(1, 5)], "2": [total // 2], "3": [total]}
    starts = {name: len(at) for name, at in rounds.items()}
    stop_in_rounds(monkeypatch, rounds)
    nodes = Nodes(tmp_path / "broken", network, parts, options)
    threads = {name: nodes.start(name) for name in network.names}
    while sum(starts.values()):
        wait_for(lambda: any(left and not threads[name].is_alive() for name, left in starts.items()))
        for name in [name for name, left in starts.items() if left and not threads[name].is_alive()]:
            assert isinstance(nodes.errors[name], Stop), nodes.errors
            starts[name] -= 1
            threads[name] = nodes.start(name)
    join(threads.values())
    assert not nodes.errors
    assert not any(rounds.values())  # all of them were stopped
    assert bits(nodes.answers) == bits(expected)
    assert {answer.accuracy for answer in nodes.answers.values()} == {answer.accuracy for answer in expected.values()}


def _by_name(answers):
    return {name: (a, a.expansions(int(a.site.nodes[0]))) for name, a in answers.items()}


def test_a_neighbor_that_lost_its_folder_stops_the_run(tmp_path):
    network = Network.path(2)
    parts, options = problem(network)
    nodes = Nodes(tmp_path / "one", network, parts, options)
    threads = [nodes.start("0"), nodes.start("1", stop_at(6))]
    join([threads[1]])
    nodes.places["1"] = replace(nodes.places["1"], folder=tmp_path / "other")
    join([nodes.start("1"), threads[0]])
    for name in "01":  # node 1 was told
        assert isinstance(nodes.errors[name], Damaged), nodes.errors
        assert "node 1 has lost what it had acknowledged" in str(nodes.errors[name])


def test_a_silent_neighbor_is_named_by_all_and_the_run_goes_on_later(tmp_path):
    network = Network.path(4)
    parts, options = problem(network)
    expected = Nodes(tmp_path / "whole", network, parts, options).run()
    nodes = Nodes(tmp_path / "broken", network, parts, options, timeouts=Timeouts(peer=3, start=60, beat=0.2))
    threads = {name: nodes.start(name, stop_at(5) if name == "3" else None) for name in network.names}
    join([threads["3"]])
    since = time.monotonic()
    join(threads.values())
    assert time.monotonic() - since < 3 + 5 + 10  # the last are for a busy machine
    for name in "012":
        assert isinstance(nodes.errors[name], PeerLost), nodes.errors
        assert "node 3 was not heard from for" in str(nodes.errors[name])
    assert bits(nodes.run()) == bits(expected)


def test_a_finished_node_can_be_started_again_when_all_others_have_left(tmp_path):
    network = Network.ring(3)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options)
    expected = bits(nodes.run())
    join([nodes.start("1")])
    assert not nodes.errors
    assert bits(nodes.answers) == expected


# ---------------------------------------------------------------------- agreement
def test_what_differs_is_said_by_both(tmp_path):
    network = Network.path(2)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options)
    join([nodes.start("0"), nodes.start("1", facts={"tol": "0.5", "projection max_iter": "7"})])
    for name in "01":
        assert isinstance(nodes.errors[name], Disagreement), nodes.errors  # also if only the other's farewell was heard
        text = str(nodes.errors[name])
        assert "tol: node" in text
        assert "0.5" in text
        assert "projection max_iter: node" in text
        assert "gamma" not in text  # only what differs


@pytest.mark.parametrize("what", ["number of columns", "dtype"])
def test_columns_and_dtype_are_compared(tmp_path, what):
    network = Network.path(2)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options)
    samples = parts[1][:, :4] if what == "number of columns" else parts[1].astype(np.float32)
    join([nodes.start("0"), nodes.start("1", samples=samples)])
    for name in "01":
        assert f"{what}: node" in str(nodes.errors[name])


def test_another_run_is_refused_by_whoever_is_called(tmp_path):
    """Whoever calls stops; whoever is called does not, since an old run of a neighbor must not end a new one."""
    network = Network.path(2)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options)
    nodes.places["1"] = replace(nodes.places["1"], run="other")
    threads = [nodes.start("0"), nodes.start("1")]
    wait_for(lambda: nodes.errors)
    (stopped,) = list(nodes.errors)[:1]
    assert "run: node" in str(nodes.errors[stopped])
    assert "'other'" in str(nodes.errors[stopped])
    (waits,) = set("01") - {stopped}
    said = nodes.sessions[waits].protocol.awaited()
    assert re.search(f"^{stopped}: its call was refused \\(run: node {waits} has .*give both the same\\), now: ", said)
    for session in list(nodes.sessions.values()):
        session.endpoint.fail(Stop())
    join(threads)


def wait_for(what):
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, "this never happens"
        time.sleep(0.01)


def test_whom_a_node_with_its_answer_still_waits_for_is_said_at_once(tmp_path, caplog, monkeypatch):
    """Nodes 1 and 2 never reach each other; node 0 connects them."""
    network = Network.complete(3)
    parts, options = problem(network, projection=None)
    nodes = Nodes(tmp_path, network, parts, options, timeouts=Timeouts(peer=6, start=60, beat=0.2))
    for name, other in ("12", "21"):
        near = {**nodes.places[name].neighbors, other: "127.0.0.1:1"}
        nodes.places[name] = replace(nodes.places[name], neighbors=near)
    caplog.set_level("INFO", logger="dekpca.peer")
    monkeypatch.setattr(logging.getLogger("dekpca.peer"), "propagate", True)
    nodes.run()
    said = [record.getMessage() for record in caplog.records if "model saved" in record.getMessage()]
    waits = "model saved; waiting up to 6 s to hear from node {}, which may lack its answer"
    assert sorted(said) == [waits.format(1), waits.format(2)]


def test_a_one_sided_edge_names_both(tmp_path):
    network = Network.path(3)
    parts, options = problem(network)
    # node 0 may wait for node 2, which has nothing to do with it, and has left, as long as `start`
    nodes = Nodes(tmp_path, network, parts, options, timeouts=Timeouts(peer=60, start=6, beat=0.2))
    nodes.places["0"] = replace(
        nodes.places["0"], neighbors={**nodes.places["0"].neighbors, "2": nodes.places["2"].listen}
    )
    join([nodes.start(name) for name in network.names])
    for name in "012":
        text = str(nodes.errors[name])
        seen = "node 0 lists node 2 as a neighbor, but node 2 does not" in text
        refused = "node '0' is not a neighbor of node 2" in text
        assert seen or refused, repr(nodes.errors[name])
        assert isinstance(nodes.errors[name], Disagreement)


def test_whoever_comes_late_is_told_why_and_whoever_was_told_can_start_again(tmp_path, caplog, monkeypatch):
    network = Network.path(3)
    parts, options = problem(network)
    nodes = Nodes(tmp_path / "run", network, parts, options)
    monkeypatch.setattr(logging.getLogger("dekpca.peer"), "propagate", True)
    first, middle = nodes.start("0", facts={"tol": "0.5"}), nodes.start("1")
    join([first])  # it has no other neighbor: it does not wait
    wait_for(lambda: re.search("stopping; waiting up to 60 s to tell node (0, )?2 why", caplog.text))
    nodes.places["0"] = replace(nodes.places["0"], folder=tmp_path / "corrected")
    del nodes.sessions["0"]
    first = nodes.start("0")
    wait_for(lambda: "0" in nodes.sessions and nodes.sessions["0"].protocol.neighbors["1"].up)
    assert middle.is_alive()
    since = time.monotonic()
    join([nodes.start("2"), middle])
    assert time.monotonic() - since < nodes.places["2"].timeouts.start / 2  # far sooner than it would give up by itself
    for name in "12":
        assert isinstance(nodes.errors[name], Disagreement), nodes.errors
        assert "tol: node" in str(nodes.errors[name])
    # nobody holds on to what it said before
    nodes.places["1"] = replace(nodes.places["1"], folder=tmp_path / "other rows")
    join([first, nodes.start("1", samples=parts[1][:15]), nodes.start("2")])
    assert not nodes.errors


def test_who_was_told_in_an_answer_says_that_it_knows(tmp_path):
    """Else whoever has told it stays on to do so."""
    network = Network.path(3)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options)
    (nowhere,) = free_addresses(1)
    nodes.places["1"] = replace(nodes.places["1"], neighbors={**nodes.places["1"].neighbors, "2": nowhere})
    threads = [nodes.start("0", facts={"tol": "0.5"}), nodes.start("1")]
    wait_for(lambda: "1" in nodes.sessions and nodes.sessions["1"].protocol.error is not None)
    since = time.monotonic()
    join([*threads, nodes.start("2")])
    assert time.monotonic() - since < endpoints.LATE / 2
    for name in "012":
        assert isinstance(nodes.errors[name], Disagreement), nodes.errors


def test_nobody_waits_for_ever_to_tell_who_never_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(endpoints, "LATE", 2.0)
    network = Network.path(3)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options)
    since = time.monotonic()
    join([nodes.start("0", facts={"tol": "0.5"}), nodes.start("1")])
    assert 2 <= time.monotonic() - since < 30  # it waits, but not for ever
    assert isinstance(nodes.errors["1"], Disagreement)


def test_who_gives_up_does_not_wait_on_to_say_so(tmp_path, caplog, monkeypatch):
    network = Network.path(2)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options, timeouts=Timeouts(peer=60, start=1, beat=0.2))
    monkeypatch.setattr(logging.getLogger("dekpca.peer"), "propagate", True)
    join([nodes.start("0")])
    assert isinstance(nodes.errors["0"], PeerLost)
    assert "waiting up to" not in caplog.text


def test_a_restart_with_other_data_or_settings_is_refused(tmp_path):
    network = Network.path(2)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options)
    threads = [nodes.start("0"), nodes.start("1", stop_at(4))]
    join([threads[1]])
    join([nodes.start("1", samples=parts[1] + 1)])
    assert "begun with other settings: data was 20 x 5" in str(nodes.errors["1"])
    join([nodes.start("1", facts={"tol": "0.5"})])
    assert "tol was" in str(nodes.errors["1"])
    join([nodes.start("1"), threads[0]])
    assert not nodes.errors


def stopped_in_the_middle(tmp_path):
    """Nodes 0 - 1 - 2, of which 2 has stopped; the others run and wait for it."""
    network = Network.path(3)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options)
    threads = {name: nodes.start(name, stop_at(6) if name == "2" else None) for name in network.names}
    join([threads["2"]])
    assert isinstance(nodes.errors["2"], Stop)
    return nodes, threads


def damage_message(folder):
    """Flip a bit of a message that is needed again."""
    ((row, data),) = change(folder, "SELECT id, data FROM chunk ORDER BY round DESC LIMIT 1")
    change(folder, "UPDATE chunk SET data = ? WHERE id = ?", bytes([data[0] ^ 1]) + data[1:], row)


def overwrite(path, at, data):
    content = path.read_bytes()
    path.write_bytes(content[:at] + data + content[at + len(data) :])


DAMAGES = {
    "message": damage_message,
    "settings": lambda folder: change(folder, "UPDATE fact SET value = '{}' WHERE name = 'run'"),
    "network": lambda folder: change(folder, "UPDATE fact SET value = '{}' WHERE name = 'network'"),
    "structure": lambda folder: overwrite(folder / FILE, 100, b"\xff" * 16),  # the root of the table of tables
}


# At c6f9cc8 a node that refused to resume told nobody (issue 17, point 8): the others waited for peer_timeout or start_timeout.
@pytest.mark.parametrize("what", DAMAGES)
def test_a_node_that_cannot_resume_says_so_and_nobody_waits(tmp_path, what):
    nodes, threads = stopped_in_the_middle(tmp_path)
    change(tmp_path / "2", "PRAGMA wal_checkpoint(TRUNCATE)")
    DAMAGES[what](tmp_path / "2")
    since = time.monotonic()
    join([nodes.start("2"), *threads.values()])
    assert time.monotonic() - since < nodes.places["0"].timeouts.peer / 2
    for name in "012":
        assert isinstance(nodes.errors[name], Damaged), nodes.errors
        assert str(tmp_path / "2" / FILE) in str(nodes.errors[name])
        assert "start all nodes anew" in str(nodes.errors[name])
    assert "node 2: " in str(nodes.errors["0"])  # whose file it is


def test_who_cannot_resume_says_so_to_those_that_are_started_after_it(tmp_path):
    nodes, threads = stopped_in_the_middle(tmp_path)
    for name in "01":
        nodes.sessions[name].endpoint.fail(Stop())
    join(threads.values())
    damage_message(tmp_path / "2")
    last = nodes.start("2")
    wait_for(lambda: "2" in nodes.sessions)
    join([nodes.start("0"), nodes.start("1"), last])
    assert all(isinstance(nodes.errors[name], Damaged) for name in "012"), nodes.errors


def test_who_was_changed_says_so_and_is_waited_for(tmp_path, caplog, monkeypatch):
    """Its owner can put it right; until then the others know why they wait."""
    monkeypatch.setattr(logging.getLogger("dekpca.peer"), "propagate", True)
    nodes, threads = stopped_in_the_middle(tmp_path)
    since = time.monotonic()
    for changed in ({"samples": nodes.parts[2] + 1}, {"facts": {"tol": "0.5"}}):
        join([nodes.start("2", **changed)])
        assert isinstance(nodes.errors["2"], Changed)
    assert time.monotonic() - since < endpoints.LATE / 2  # told, and done
    told = [r.why for r in caplog.records if r.message == "neighbor stops" and r.peer == "2"]
    assert any("begun with other settings, and not the same any more: data" in why for why in told), told
    assert any("not the same any more: tol" in why for why in told)
    assert not any("20 x 5" in why or "0.5" in why for why in told), (
        told
    )  # how many rows it has is not the neighbors' matter here
    assert threads["0"].is_alive()
    assert threads["1"].is_alive()
    join([nodes.start("2"), *threads.values()])
    assert not nodes.errors


def test_a_message_that_nobody_expected_ends_the_run_for_all(tmp_path, monkeypatch):
    """It is in the journal, so that a restart would end the same way. At c6f9cc8 the others waited, and were told to start again."""
    nodes, threads = stopped_in_the_middle(tmp_path)

    def other(sender, came, expected):
        raise ProtocolError("node 1 sent something else")

    with monkeypatch.context() as patched:
        patched.setattr(endpoints, "check_expected", other)
        join([nodes.start("2"), *threads.values()])
    for name in "012":
        assert isinstance(nodes.errors[name], ProtocolError), nodes.errors
        assert not nodes.errors[name].resumable


def test_a_problem_without_a_solution_ends_the_run_for_all(tmp_path):
    nodes, threads = stopped_in_the_middle(tmp_path)

    def hopeless(about):
        raise ValueError("no such components")

    join([nodes.start("2", hopeless), *threads.values()])
    for name in "012":
        assert isinstance(nodes.errors[name], RunFailed), nodes.errors
        assert "no such components" in str(nodes.errors[name])


def test_two_processes_cannot_share_a_folder(tmp_path):
    network = Network.path(2)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options)
    first = nodes.start("0")
    wait_for(lambda: "0" in nodes.sessions)
    second = Nodes(tmp_path, network, parts, options)
    join([second.start("0")])
    assert "another process runs this node" in str(second.errors["0"])
    join([first, nodes.start("1")])
    assert not nodes.errors


# ---------------------------------------------------------------------- privacy
def test_noise_is_drawn_from_a_seed_that_nobody_else_knows(tmp_path):
    network = Network.path(2)
    parts, options = problem(network, projection=replace(ASKED, exchange_noise=0.1, max_iter=20))
    seen = []
    for run in ("a", "b"):
        nodes = Nodes(tmp_path / run, network, parts, options, private=True)
        answers = nodes.run()
        near = answers["0"].expansions(0)["neighborhood"]
        seen.append(near.points[near.owners.index("samples of node 1 with noise")] - parts[1])
    from dekpca.draws import node_random

    public = 0.1 * node_random(options.seed, "1", "noise").standard_normal(parts[1].shape)
    for noise in seen:
        assert 0.05 < noise.std() < 0.2
        assert abs(np.corrcoef(noise.ravel(), public.ravel())[0, 1]) < 0.5
    assert np.abs(seen[0] - seen[1]).max() > 0.01


def test_a_client_that_misses_its_cancellation_is_cancelled_again(tmp_path):
    missed = []

    async def client():
        while len(missed) < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                missed.append(error)

    async def stop(here):
        transport = Transport(here, tmp_path, None, "127.0.0.1:0")
        transport._tasks = [asyncio.create_task(client())]
        await asyncio.sleep(0)  # so that it has begun
        await asyncio.wait_for(transport._stop(), PATIENCE)
        assert all(task.done() for task in transport._tasks)

    with endpoint(tmp_path) as here:
        asyncio.run(stop(here))
    assert len(missed) == 2


METHODS = ["Collect", "Deliver", "Handshake", "Heartbeat"]


@pytest.mark.parametrize("which", METHODS)
def test_no_call_of_a_client_is_left_if_only_it_misses_its_cancellation(tmp_path, monkeypatch, which):
    begun, ended = [], []

    async def connected(self, channel):
        pass

    async def forever(self, channel, method, work):
        begun.append(method)
        for _ in range(2 if method == which else 1):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        ended.append(method)
        raise asyncio.CancelledError

    monkeypatch.setattr(Client, "_connect", connected)
    monkeypatch.setattr(Client, "_again", forever)
    with endpoint(tmp_path, "b") as here, Transport(here, tmp_path, None, "127.0.0.1:0"):
        wait_for(lambda: len(begun) == 4)
    assert sorted(ended) == METHODS


def test_no_thread_and_no_file_is_left(tmp_path):
    """gRPC keeps its event loop, one for the process."""

    def left():
        files = [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        ]
        threads = [t.name.removesuffix("_0") for t in threading.enumerate() if t.name != "transport"]
        return threads, [f for f in files if str(tmp_path) in f]

    before, _ = left()
    network = Network.path(2)
    parts, options = problem(network, max_iter=3)
    nodes = Nodes(tmp_path, network, parts, options)
    during = []
    nodes.run({"0": lambda about: during.append(left())})
    assert any("storage" in threads and files for threads, files in during)  # this is what is looked for
    wait_for(lambda: sorted(left()[0]) == sorted(before))
    assert left()[1] == []
    assert sum(t.name == "transport" for t in threading.enumerate()) == 1


def test_messages_are_sent_when_another_node_has_told_the_news(tmp_path):
    """At c6f9cc8 a client waited for ever: the program had begun, and its wake-up call was lost while the client paused before a handshake."""

    class Line:
        """A stream to a neighbor that says nothing."""

        def __init__(self):
            self.heard, self.said = asyncio.Event(), []
            self.heard.set()

        async def write(self, message):
            self.said.append(type(message).__name__)

        async def messages(self):
            await asyncio.Event().wait()
            yield b""

    async def talk(here):
        edge, line = Edge(here, "b"), Line()
        tasks = [asyncio.ensure_future(work(line)) for work in (edge.greet, edge.send)]
        await asyncio.sleep(0.05)
        assert line.said == ["Handshake"]
        here.protocol.membership.add({"c": (("b",), 3)}, "b")
        edge.news.ring()
        await asyncio.sleep(
            NEWS / 2
        )  # it pauses before it tells b of c; meanwhile b tells the same, and the program begins
        here.protocol.neighbors["b"].knows |= here.protocol.membership.records.keys()
        here.protocol.rounds.limits = object()
        edge.news.ring()
        await asyncio.sleep(3 * NEWS)
        assert line.said == ["Handshake", "Chunk"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with endpoint(tmp_path, "b") as here:
        asyncio.run(talk(here))
