"""A neighbor that is alive but does nothing is not waited for without limit; one that computes is, and one that waits is not blamed."""

from __future__ import annotations

import threading
import time

import pytest

from dekpca import Network
from dekpca.peers.errors import Disagreement, PeerLost, ProtocolError
from dekpca.peers.net.endpoint import ThreadTime
from dekpca.peers.protocol import wire_pb2 as wire
from dekpca.peers.protocol.checks import CHUNK, Limits, MessageHead, check_chunk, check_heartbeat
from dekpca.peers.protocol.events import Acknowledged, Answered, ChunkSent, HandshakeReceived, Heartbeat, Unreachable
from dekpca.peers.protocol.handshake import HandshakeSettings
from dekpca.peers.protocol.liveness import CLAIMS, stuck
from dekpca.peers.protocol.node import Timeouts
from peer_nodes import PATIENCE, Nodes, Stop, bits, join, problem, protocol

LIMIT = 2.0


def once_at(iteration, do):
    """A watch that does something in one iteration."""
    left = [iteration]

    def observe(about):
        if left and about.number >= left[0]:
            left.clear()
            do()

    return observe


def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def test_a_node_that_hangs_is_named_by_all_and_the_run_goes_on_later(tmp_path):
    """At c6f9cc8 the others waited as long as it answered: there was no such limit."""
    network = Network.path(4)
    parts, options = problem(network)
    expected = Nodes(tmp_path / "whole", network, parts, options).run()
    nodes = Nodes(tmp_path / "hangs", network, parts, options, timeouts=Timeouts(60, 60, 0.2, LIMIT))
    hanging = threading.Event()

    def hang():
        hanging.wait(PATIENCE)
        raise Stop

    threads = {name: nodes.start(name, once_at(5, hang) if name == "3" else None) for name in network.names}
    join([threads[name] for name in "012"])
    for name in "012":  # node 2 waits for it; nodes 0 and 1 only for each other and for node 2
        assert isinstance(nodes.errors[name], PeerLost)
        assert str(nodes.errors[name]).startswith("node 3 has made no progress for "), nodes.errors
    hanging.set()
    join(threads.values())
    assert bits(nodes.run()) == bits(expected)


@pytest.mark.slow
def test_slow_computing_is_not_stuck(tmp_path):
    network = Network.path(3)
    parts, options = problem(network, max_iter=5)
    nodes = Nodes(tmp_path, network, parts, options, timeouts=Timeouts(60, 60, 0.2, LIMIT))
    nodes.run({"2": once_at(3, lambda: work(3 * LIMIT))})


def test_the_processor_time_of_a_thread_counts_and_that_of_others_does_not():
    begin, rest, go_on = (threading.Event() for _ in range(3))

    def compute_and_hang():
        begin.wait(PATIENCE)
        work(0.2)
        rest.set()
        go_on.wait(PATIENCE)

    thread = threading.Thread(target=compute_and_hang, daemon=True)
    thread.start()
    clock = ThreadTime(thread.ident)
    clock.advanced()
    begin.set()
    assert rest.wait(PATIENCE)
    assert clock.advanced()  # it has computed
    work(0.2)
    assert not clock.advanced()  # it hangs, while this thread computes
    go_on.set()
    thread.join()
    assert not clock.advanced()


# ---------------------------------------------------------------------- who is blamed
BEGIN = 10_000.0  # when the round begins, by a clock that only the test has
JOIN = HandshakeReceived(HandshakeSettings({}), {"a": (("b", "c"), 3), "c": (("a", "b"), 3)})


@pytest.fixture
def node():
    """Node b of the network a - b - c, a - c, in round 1, waiting for both."""
    made = protocol("b", "a", "c", now=BEGIN, timeouts=Timeouts(progress=100))
    for name in "ac":
        made.receive(name, Answered(), BEGIN)
        made.receive(name, JOIN, BEGIN)
    made.begin(Limits("r", "<f8", 1000, 32), BEGIN)
    made.start_round(1, [], {name: MessageHead(1, "share", "<f8", (1,)) for name in "ac"}, BEGIN)
    return made


def say(node, now, **said):
    """Neighbors say how long they have made no progress, and whom they wait for."""
    for name, (idle, *waits_for) in said.items():
        node.receive(name, Answered(), BEGIN + now)
        node.receive(name, Heartbeat(phase="iterating", idle=idle, waits_for=tuple(waits_for)), BEGIN + now)


def blamed(node, now):
    try:
        node.check_waiting("a", BEGIN + now)
    except PeerLost as error:
        return str(error).split()[1]
    return None


def test_the_node_that_waits_for_nobody_is_blamed(node):
    say(node, 1000, a=(150, "c"), c=(99,))
    assert blamed(node, 1000) is None
    assert blamed(node, 1002) == "c"


def test_a_node_that_is_down_is_not_stuck_and_nobody_else_is_for_waiting_for_it(node):
    """Silence has a limit of its own, which may be longer."""
    for now in range(0, 250, 10):
        say(node, now, a=(now, "c"))  # it says how long it waits
    node.receive("c", Unreachable("its machine restarts"), BEGIN + 1)
    assert blamed(node, 190) is None
    assert node.heartbeat("a", BEGIN + 250).idle == 0


def test_no_node_is_blamed_for_the_time_before_it_was_waited_for(node):
    say(node, 99, a=(5000,), c=(5000,))
    assert blamed(node, 99) is None


def test_a_node_that_claims_to_wait_for_us_must_have_something_to_wait_for(node):
    say(node, 150, a=(0,), c=(150, "b"))
    assert blamed(node, 150) == "c"  # it has acknowledged all that we have sent
    node.start_round(1, [("c", "message")], node.rounds.expected, BEGIN)
    node.receive("c", ChunkSent(8), BEGIN + 149)
    assert blamed(node, 150) is None
    say(node, 150, c=(150, "nobody", "d"))
    assert blamed(node, 150) == "c"  # these are no neighbors of it


def test_all_nodes_claim_to_wait(node):
    say(node, 199, a=(199, "c"), c=(199, "a"))
    assert blamed(node, 199) is None
    say(node, 201, c=(201, "a"))
    assert blamed(node, 201) in "ac"


def test_no_node_computes_for_ever():
    for others, times in (((), CLAIMS), (("c",), 2 * CLAIMS)):
        assert stuck(0, others, times * 100 - 1, 100, 0) is None
        assert "it says that something moves" in stuck(0, others, times * 100 + 1, 100, 0)


def test_what_a_node_says_of_its_progress(node):
    say(node, 70, a=(40,), c=(20,))
    assert node.heartbeat("a", BEGIN + 70).idle == 70  # it computes, and its thread has made no progress
    assert blamed(node, 70) is None  # from now on it waits
    said = node.heartbeat("a", BEGIN + 70)
    assert (said.idle, said.waits_for) == (20, ("a", "c"))  # of the nodes it waits for, c has made progress last
    node.receive("c", Unreachable("gone"), BEGIN + 70)
    assert node.heartbeat("a", BEGIN + 70).idle == 0  # silence has limits of its own
    node.start_round(2, [], {}, BEGIN + 71)
    assert node.heartbeat("a", BEGIN + 72).idle == 1


@pytest.mark.parametrize(
    "beat", [{"idle": float("nan")}, {"idle": -1.0}, {"waits_for": ["a\nb"]}, {"waits_for": ["x"] * 21}]
)
def test_malformed_heartbeats(beat):
    with pytest.raises(ProtocolError):
        check_heartbeat(wire.Heartbeat(**beat))


def test_a_message_that_comes_byte_by_byte_is_no_progress():
    """Before, each byte put off every deadline, and took a row of the database."""
    size = CHUNK + 9
    assert check_chunk(wire.Chunk(data=bytes(CHUNK)), size, 0) == CHUNK
    assert check_chunk(wire.Chunk(data=bytes(9), offset=CHUNK), size, CHUNK) == size
    for held, sent in ((0, 1), (0, CHUNK - 1), (CHUNK, 8)):
        with pytest.raises(ProtocolError, match=f"a chunk of {sent} bytes .* all but the last have {CHUNK}"):
            check_chunk(wire.Chunk(data=bytes(sent), offset=held), size, held)


def test_acknowledgements_of_nothing_are_no_progress(node):
    """Before, a neighbor that acknowledged nothing, often, was waited for without limit."""
    node.start_round(2, [("a", None)], {}, BEGIN)
    for now in (100, 200, 301):
        say(node, now, a=(0,))
        node.receive("a", Acknowledged((7,), node.view.key), BEGIN + now)
    with pytest.raises(PeerLost, match="node a has taken nothing from node b for 301 s"):
        node.live.check_lost([], "acknowledgements", BEGIN + 301)


# ---------------------------------------------------------------------- meeting and finishing
def test_a_neighbor_that_answers_and_makes_no_handshake():
    """At c6f9cc8 it was waited for as long as it answered."""
    node = protocol("a", "b", now=0.0, timeouts=Timeouts(start=10, progress=5))
    for now in (0.0, 9.0):
        node.receive("b", Answered(), now)
        node.receive("b", Heartbeat(), now)
    assert node.check_meeting(9.5) is None
    with pytest.raises(
        PeerLost, match=r"node b answers, but has made no handshake for 11 s \(limit start_timeout 10 s\)"
    ):
        node.check_meeting(11.0)
    node.receive("b", HandshakeReceived(HandshakeSettings({}), {"b": (("a", "c"), 3)}), 12.0)
    for now in range(12, 29):
        node.receive("b", Answered(), float(now))
        node.receive("b", Heartbeat(), float(now))
    assert node.check_meeting(26.0) is None
    with pytest.raises(PeerLost, match=r"nothing new was heard for 16 s .* nobody has described node c"):
        node.check_meeting(28.0)


@pytest.mark.parametrize("members", [None, "abc"])
def test_invented_nodes_do_not_keep_a_meeting_open(members):
    """Before, each put off the only limit of the meeting; now there is one over all, and names that are no members are refused at once."""
    node = protocol("a", "b", now=0.0, timeouts=Timeouts(start=10, progress=5))
    node.membership.members = members and set(members)

    def invent():
        for i in range(1000):
            around = ("b" if i == 0 else f"x{i - 1}", f"x{i + 1}")
            told = {f"x{i}": (around, 3)} | ({"b": (("a", "x0"), 3)} if i == 0 else {})
            node.receive("b", HandshakeReceived(HandshakeSettings({}), told), 14.0 * i)
            node.receive("b", Answered(), 14.0 * i)
            assert node.check_meeting(14.0 * i) is None

    if members is None:
        with pytest.raises(
            PeerLost, match=r"after 154 s \(limit 10 times start_timeout .* the last by node b; a node may"
        ):
            invent()
    else:
        with pytest.raises(
            Disagreement, match="members are not those of the network: node b tells of node x0, x1, too many"
        ):
            invent()


def test_a_neighbor_that_never_ends_does_not_keep_a_node_that_has_its_answer():
    """At c6f9cc8 it stayed as long as the neighbor answered."""
    node = protocol("a", "b", now=0.0, timeouts=Timeouts(progress=10))
    node.receive("b", Answered(), 0.0)
    node.receive("b", HandshakeReceived(HandshakeSettings({}), {}), 0.0)
    node.start_finishing(0.0)
    for now in range(11):
        node.receive("b", Answered(), float(now))
        node.receive("b", Heartbeat(phase="iterating", idle=float(now)), float(now))
        assert node.try_finish(float(now))[1] is None
    assert node.try_finish(11.0)[1] == ["b"]
