"""A neighbor that is alive but does nothing is not waited for without limit; one that computes is, and one that waits is not blamed."""

from __future__ import annotations

import threading
import time

import pytest

from dekpca import Network
from dekpca.engines.peer.errors import PeerLost, ProtocolError
from dekpca.engines.peer.net.endpoint import Station, Timeouts
from dekpca.engines.peer.protocol import wire_pb2 as wire
from dekpca.engines.peer.protocol.checks import Letter, Limits, check_beat
from dekpca.engines.peer.protocol.membership import Roster
from dekpca.engines.peer.protocol.progress import CLAIMS, Effort, Told, stuck
from dekpca.engines.peer.storage.journal import Journal
from peer_nodes import PATIENCE, Nodes, Stop, bits, join, problem

LIMIT = 2.0


def once_at(iteration, do):
    """An observer that does something in one iteration."""
    left = [iteration]

    def observe(blocks, requests):
        if left and requests[0].state.iteration >= left[0]:
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


def test_slow_computing_is_not_stuck(tmp_path):
    network = Network.path(3)
    parts, options = problem(network, max_iter=5)
    nodes = Nodes(tmp_path, network, parts, options, timeouts=Timeouts(60, 60, 0.2, LIMIT))
    nodes.run({"2": once_at(3, lambda: work(3 * LIMIT))})


def test_waiting_for_somebody_who_is_away_is_not_stuck(tmp_path):
    """Silence has a limit of its own, which may be longer."""
    network = Network.path(3)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options, timeouts=Timeouts(60, 60, 0.2, LIMIT))

    def leave():
        raise Stop

    threads = {name: nodes.start(name, once_at(4, leave) if name == "2" else None) for name in network.names}
    join([threads["2"]])
    time.sleep(3 * LIMIT)
    threads["2"] = nodes.start("2")
    join(threads.values())
    assert not nodes.errors


def test_the_processor_time_of_a_thread_counts_and_that_of_others_does_not():
    effort, go_on = Effort(), threading.Event()
    thread = threading.Thread(target=lambda: (work(0.6), go_on.wait(PATIENCE)), daemon=True)
    thread.start()
    effort.begin(thread.ident)
    time.sleep(0.4)
    assert effort.computing() < 0.3
    while thread.is_alive() and effort.computing() < 0.3:  # it has worked, and hangs
        work(0.05)
    assert thread.is_alive()
    go_on.set()
    thread.join()


# ---------------------------------------------------------------------- who is blamed
@pytest.fixture
def station(tmp_path):
    """Node b of the network a - b - c, a - c, in round 1, waiting for both."""
    journal = Journal(tmp_path)
    roster = Roster("b", ["a", "c"], 3)
    roster.add({"a": (("b", "c"), 3), "c": (("a", "b"), 3)}, "a")
    made = Station("b", "r", tmp_path, {"a": "", "c": ""}, roster, journal, Timeouts(progress=100))
    made.begin(Limits("r", "<f8", 1000, 32), 0, {})
    made.exchange(1, [], {name: Letter(1, "share", "<f8", (1,), 8) for name in "ac"})
    for neighbor in made.neighbors.values():
        made.answered(neighbor)
        made.agree(neighbor)
    yield made
    journal.close()


def say(station, name, idle, waits_for=(), ago=0.0):
    station.note_beat(station.neighbors[name], wire.Beat(phase="iterating", idle=idle, waits_for=waits_for))
    station.round_begun = time.monotonic() - ago


def blamed(station):
    try:
        station._check_stuck("its 'share'")
    except PeerLost as error:
        return str(error).split()[1]
    return None


def test_who_waits_for_nobody_is_blamed(station):
    say(station, "a", 150, ["c"])
    say(station, "c", 99, ago=1000)
    assert blamed(station) is None
    say(station, "c", 101, ago=1000)
    assert blamed(station) == "c"


def test_nobody_is_blamed_before_it_was_waited_for(station):
    say(station, "a", 5000)
    say(station, "c", 5000, ago=99)
    assert blamed(station) is None


def test_who_says_that_it_waits_for_us_must_have_something_to_wait_for(station):
    say(station, "a", 0)
    say(station, "c", 150, ["b"], ago=150)
    assert blamed(station) == "c"  # it has acknowledged all that we have said
    station.neighbors["c"].outbox[1] = None
    assert blamed(station) is None
    say(station, "c", 150, ["nobody", "d"], ago=150)
    assert blamed(station) == "c"  # these are no neighbors of it


def test_everybody_says_that_it_waits(station):
    say(station, "a", 199, ["c"])
    say(station, "c", 199, ["a"], ago=199)
    assert blamed(station) is None
    say(station, "c", 201, ["a"], ago=201)
    assert blamed(station) == "c"


def test_nobody_computes_for_ever():
    for others, times in (((), CLAIMS), (("c",), 2 * CLAIMS)):
        assert stuck(Told(), others, times * 100 - 1, 100, 0, 0) is None
        assert "it says that something moves" in stuck(Told(), others, times * 100 + 1, 100, 0, 0)


def test_what_a_node_says_of_itself(station):
    station.waits_for = {"a", "c"}
    station.effort.moved -= 70
    say(station, "a", 40)
    say(station, "c", 20)
    beat = station.beat(station.neighbors["a"])
    assert list(beat.waits_for) == ["a", "c"]
    assert 20 <= beat.idle < 25  # of those it waits for, something moved at c last
    station.neighbors["c"].up = False
    assert station.beat(station.neighbors["a"]).idle == 0  # its silence is another matter
    station.waits_for = set()
    assert station.beat(station.neighbors["a"]).idle < 5  # it computes: this test does


@pytest.mark.parametrize(
    "beat", [{"idle": float("nan")}, {"idle": -1.0}, {"waits_for": ["a\nb"]}, {"waits_for": ["x"] * 21}]
)
def test_beats_that_make_no_sense(beat):
    with pytest.raises(ProtocolError):
        check_beat(wire.Beat(**beat))


# ---------------------------------------------------------------------- meeting
def test_a_neighbor_that_answers_and_does_not_greet(tmp_path):
    """At c6f9cc8 it was waited for as long as it answered."""
    journal = Journal(tmp_path)
    station = Station("a", "r", tmp_path, {"b": ""}, Roster("a", ["b"], 3), journal, Timeouts(start=10, progress=5))
    b = station.neighbors["b"]
    station.answered(b)
    station.note_beat(b, wire.Beat(phase="meeting"))
    b.heard -= 11
    with pytest.raises(PeerLost, match=r"node b answers, but has not greeted for 11 s \(limit start_timeout 10 s\)"):
        station.meet()
    station.agree(b)
    station.roster.add({"b": (("a", "c"), 3)}, "b")
    station.learned -= 16
    with pytest.raises(PeerLost, match=r"nothing new was heard for 16 s .* nobody has described node c"):
        station.meet()
    journal.close()


def test_a_neighbor_that_never_ends_does_not_keep_who_has_its_answer(tmp_path):
    """At c6f9cc8 it stayed as long as the neighbor answered."""
    journal = Journal(tmp_path)
    station = Station("a", "r", tmp_path, {"b": ""}, Roster("a", ["b"], 3), journal, Timeouts(progress=1))
    b = station.neighbors["b"]
    station.answered(b)
    station.note_beat(b, wire.Beat(phase="iterating", idle=50))
    assert station.finish() == ["b"]
    journal.close()
