"""Runs that go on without lost nodes: a few with real processes (faults/losses.py has all), and what owners and disks see of it."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dekpca import Network
from dekpca.cli import app
from dekpca.cli.common import FAILED, NOT_CONVERGED, USAGE
from dekpca.cli.node import EXCLUDED, MISSING, STOPPED
from dekpca.engines.agreement import flattened, texts
from dekpca.peers.app import config
from dekpca.peers.app.disclosure import after_a_loss
from dekpca.peers.app.node import FINISHED, SUMMARY, prepare
from dekpca.peers.app.session import Session
from dekpca.peers.errors import BelowQuorum, Disagreement, Excluded, ProtocolError
from dekpca.peers.protocol import wire_pb2 as wire
from dekpca.peers.protocol.checks import MessageHead
from dekpca.peers.protocol.view_messages import pack_kept, pack_status, unpack_kept, unpack_status
from dekpca.peers.protocol.views import Kept, Lost, Quorum, Status, View, Views, Vote
from dekpca.peers.storage.database import FILE
from dekpca.peers.storage.folder import RunFolder
from dekpca.peers.storage.messages import Chunk
from faults import losses
from faults.supervisor import Nursery
from peer_nodes import Nodes, join, problem

FEW = {
    "ring-killed": (14, "answer of the survivors"),  # node c, when it hears of landmarks
    "ring-parted": (0, "all stopped, then the answer of all"),
}  # `make test-faults` has the rest


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="module")
def truths(nursery, tmp_path_factory):
    return losses.Truths(nursery, tmp_path_factory.mktemp("losses"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_the_others_go_on_or_all_stop(name, nursery, truths, tmp_path, monkeypatch):
    monkeypatch.setattr(
        losses, "GRACE", 60.0
    )  # seconds; other tests run at the same time, make test-faults takes it to the letter
    seed, outcome = FEW[name]
    assert losses.play(name, seed, nursery, truths, tmp_path / name) == outcome


# ---------------------------------------------------------------------- views, without links or a clock
def agreeing(network: Network, quorum: Quorum | None = None) -> dict[str, Views]:
    """The views of all nodes of a network, which has ten rows at each node."""
    records = {n: (tuple(network.names[q] for q in network.neighbors(j)), 10) for j, n in enumerate(network.names)}
    nodes = {name: Views(name, quorum or Quorum()) for name in network.names}
    for node in nodes.values():
        node.begin(records)
    return nodes


def gossip(nodes: dict[str, Views], dead: set[str], times: int = 8) -> None:
    """Everybody tells everybody, who has not heard from the dead, until nothing is new."""
    for _ in range(times):
        for name, views in nodes.items():
            for other in nodes.values():
                views.add({other.name: other.own})
            views.update(dead & set(views.records[name][0]), (), 1e9, 0.0)


def test_survivors_enter_the_same_view_and_call_its_answer_final_together():
    nodes = agreeing(Network.ring(5))
    alive = {name: views for name, views in nodes.items() if name != "3"}
    gossip(alive, {"3"})
    assert {views.kept.program for views in alive.values()} == {alive["0"].kept.program}
    assert alive["0"].kept.program.without == {"3"}
    network, sizes = alive["1"].network(alive["1"].kept.program)
    assert network.names == ("0", "1", "2", "4")
    assert sizes.tolist() == [10] * 4
    for name in ("0", "1", "2"):
        alive[name].answer(alive[name].kept.program.key)
    gossip(alive, {"3"})
    assert all(views.own.vote is None for views in alive.values())  # one member has no answer yet
    alive["4"].answer(alive["4"].kept.program.key)
    gossip(alive, {"3"})
    assert {views.own.final for views in alive.values()} == {alive["0"].kept.program.key}


def test_an_answer_that_one_node_voted_for_is_kept_in_the_next_view():
    """It may be final at a node that nobody hears from any more."""
    nodes = agreeing(Network.complete(5))
    for views in nodes.values():
        views.answer(views.kept.program.key)
    for other in nodes.values():
        nodes["1"].add({other.name: other.own})
    nodes["1"].update((), (), 1e9, 0.0)
    assert nodes["1"].own.vote == Vote((0, ""), (0, ""))
    alive = {name: views for name, views in nodes.items() if name != "4"}
    gossip(alive, {"4"})
    assert {views.own.final for views in alive.values()} == {(0, "")}
    assert {views.kept.program.key for views in alive.values()} == {(0, "")}  # nothing is computed anew


def test_a_node_that_waits_for_a_view_names_the_one_that_should_propose_it():
    """Seed 9754 of the simulator: node 1 keeps back what others say, so that node 0, the first by name, does not hear that node 4 is lost. The nodes
    that wait named only honest neighbors of the lost one."""
    nodes = agreeing(Network.path(5))
    beyond = {name: nodes[name] for name in "23"}
    nodes["2"].add({name: nodes[name].own for name in "01"})
    gossip(beyond, {"4"})
    assert {name: views.awaited() for name, views in beyond.items()} == {"2": {"0"}, "3": {"0"}}
    for name, views in beyond.items():  # they have answers of their own, and wait for the others' too
        views.answer(views.kept.program.key)
        assert "0" in views.awaited(), name
    nodes["0"].add({name: views.own for name, views in beyond.items()})
    nodes["0"].update((), (), 1e9, 0.0)
    assert nodes["0"].own.view.without == {"4"}
    assert nodes["0"].awaited() == {"1", "2", "3"}  # who must accept its view; it is itself nobody to wait for


def test_who_is_waited_for_in_vain_is_named_with_those_that_every_way_there_leads_over():
    """What one of them keeps back is heard of nobody else."""
    path, ring = agreeing(Network.path(5)), agreeing(Network.ring(5))
    assert path["3"].between({"0"}) == {"1", "2"}
    assert path["3"].between({"2", "4"}) == set()  # its neighbors
    assert ring["3"].between({"0", "1"}) == set()  # around either side
    gossip(ring, set(), times=1)
    ring["3"].update({"4"}, (), 1e9, 0.0)  # now the ring is a path, whose end is this node
    assert ring["3"].between({"4"}) == {"0", "1", "2"}
    spare = {name: replace(path[name].own, version=1, fallback=(other,)) for name, other in (("0", "4"), ("4", "0"))}
    path["3"].add(spare)
    assert path["3"].between({"0"}) == set()  # the other way over a fallback edge
    with pytest.raises(BelowQuorum):
        path["3"].update({"2", "4"}, (), 1e9, 0.0)
    assert path["3"].between({"0", "2"}) == set()  # it hears nobody


def test_a_node_that_was_left_out_is_told_what_to_do():
    nodes = agreeing(Network.ring(5))
    gossip({name: views for name, views in nodes.items() if name != "3"}, {"3"})
    for other in nodes.values():
        nodes["3"].add({other.name: other.own})
    with pytest.raises(Excluded, match=r"4 of 5: 0, 1, 2, 4.* without node 3.*agree with the others on a new run"):
        nodes["3"].update((), (), 1e9, 0.0)


def test_too_few_nodes_or_rows_stop():
    nodes = agreeing(Network.path(4))
    with pytest.raises(
        BelowQuorum,
        match=r"node 1, node 2, node 3 cannot be reached \(node 0 counts node 1 as lost\); 1 of 4 nodes \(0\) with 10 of 40 rows",
    ):
        nodes["0"].update({"1"}, (), 1e9, 0.0)
    nodes = agreeing(Network.ring(5), Quorum(rows=0.9))
    nodes["0"].add({name: Status(version=1, down=("3",)) for name in ("2", "4")})
    with pytest.raises(
        BelowQuorum,
        match=r"with 40 of 50 rows remain, where the quorum is 3 nodes and 90% of the rows; the others may have",
    ):
        nodes["0"].update((), (), 1e9, 0.0)


@pytest.mark.parametrize("nodes", [2, 3, 7])
def test_a_quorum_that_two_groups_could_have_is_refused(nodes):
    with pytest.raises(Disagreement, match=rf"quorum = {nodes} of 6 nodes: .*; set quorum at all nodes to 4 to 6"):
        agreeing(Network.ring(6), Quorum(nodes))


def test_a_node_started_again_keeps_its_promises():
    nodes = agreeing(Network.ring(5))
    gossip({name: views for name, views in nodes.items() if name != "3"}, {"3"})
    kept = unpack_kept(pack_kept("1", nodes["1"].kept))
    assert kept == nodes["1"].kept
    again = Views("1", Quorum(), kept)
    again.begin(nodes["1"].records)
    assert again.own.view == nodes["1"].own.view
    assert again.own.version > nodes["1"].own.version  # else nobody would listen
    again.add({"3": Status(version=9, view=View(7, "3"))})  # all nodes again: not within the view that it has entered
    again.update(("3",), (), 1e9, 0.0)
    assert again.own.view.number < 7


@pytest.mark.parametrize(
    "lie",
    [
        Status(1, View(1, "2", (Lost("9", 5.0),))),
        Status(1, View(1, "2", (), (("1", "9"),))),
        Status(1, View(), View(1, "2", (), (), (("1", "9"),))),
        Status(1, down=("9",)),
    ],
)
def test_statuses_about_strangers_are_refused(lie):
    nodes = agreeing(Network.ring(5))
    with pytest.raises(ProtocolError, match="not in the network"):
        nodes["1"].add({"2": lie})
    early = Views("1", Quorum())
    early.add({"2": lie})  # nothing is known yet
    early.begin(nodes["1"].records)
    assert not early.statuses


@pytest.mark.parametrize(
    "view",
    [
        View(1, "2", (), (("1", "2"), ("2", "3"))),  # node 2 is cut off
        View(1, "2", (), (), (("1", "3"),)),  # an edge that node 1 does not have
        View(1, "2", (Lost("1", 5.0),)),
        View(1, "2", tuple(Lost(name, 5.0) for name in ("0", "3", "4"))),  # too few
    ],
)
def test_a_view_that_cannot_be_is_not_accepted(view):
    nodes = agreeing(Network.ring(5))
    nodes["1"].add({"2": Status(1, view)})
    nodes["1"].update((), (), 1e9, 0.0)
    assert nodes["1"].own.view == View()


def test_statuses_survive_the_wire():
    view = View(3, "b", (Lost("c", 5.0),), (("a", "b"),), (("a", "d"),))
    status = Status(4, view, View(1, "a"), (1, "a"), Vote((2, "b"), (1, "a")), (1, "a"), ("b",), ("d",))
    sent = pack_status("a", status).SerializeToString()
    assert unpack_status(wire.Status.FromString(sent)) == ("a", status)


# ---------------------------------------------------------------------- the disk
def test_rows_of_a_lost_node_are_deleted_from_the_files(tmp_path):
    secret = np.arange(5000.0) + 0.123456789
    store = RunFolder(tmp_path / "a")
    store.open({"run": "r"})
    try:
        head = MessageHead(1, "landmarks", "<f8", secret.shape)
        store.messages.append(Chunk("c", head, 0, 0, secret.tobytes()))
        store.messages.append(Chunk("c", head._replace(round=2), 0, 0, secret[:2500].tobytes()))
        store.messages.drop_partial("c", 2, 0)  # what is deleted here lies in pages that nobody uses
        store.secret("noise-1", secret[::-1].tobytes)
        store.messages.sync().result(60)
        assert any(secret[100:110].tobytes() in path.read_bytes() for path in (tmp_path / "a").glob(f"{FILE}*"))
        kept = Kept(Status(1), View(1, "a", (Lost("c", 5.0),)))
        store.keep_views("a", kept)
        store.wipe(kept.program)
        for path in (tmp_path / "a").glob(f"{FILE}*"):
            assert secret[100:110].tobytes() not in path.read_bytes(), path
            assert secret[::-1][100:110].tobytes() not in path.read_bytes(), path
    finally:
        store.close()
    again = RunFolder(tmp_path / "a")
    try:
        again.open({"run": "r"})
        assert again.messages.held("c") == []
        assert again.views == kept
    finally:
        again.close()


# ---------------------------------------------------------------------- the config
NODE = """
name = "a"
run = "r"
listen = "127.0.0.1:0"
data = "a.npy"
folder = "a-run"
{more}
[neighbors]
b = "127.0.0.1:1"
{tables}
"""


@pytest.mark.parametrize(
    ("more", "tables", "error"),
    [
        ('on_loss = "ignore"', "", r"on_loss = 'ignore'; known are stop, continue"),
        ("quorum = 4", "", 'quorum without on_loss = "continue"; add that, or leave it out'),
        ("", '[fallback]\nc = "127.0.0.1:2"', 'fallback without on_loss = "continue"'),
        ('on_loss = "continue"\nquorum = 1', "", "two groups of nodes could both go on"),
        ('on_loss = "continue"\nquorum_rows = 50', "", "a share of all rows, from 0 to 1"),
        (
            'on_loss = "continue"',
            '[fallback]\nb = "127.0.0.1:2"',
            r"\[fallback\] lists b, which is this node or a neighbor",
        ),
        ('on_loss = "continue"', '[fallback]\nc = "nowhere"', "'nowhere' is no address"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said_before_anything_is_opened(more, tables, error, tmp_path):
    (tmp_path / "a.toml").write_text(NODE.format(more=more, tables=tables))
    with pytest.raises(config.ConfigError, match=error):
        config.read(tmp_path / "a.toml")


CONTINUE = {"on_loss": "continue"}


def test_the_policy_of_a_config(tmp_path):
    (tmp_path / "a.toml").write_text(
        NODE.format(more='on_loss = "continue"\nquorum = 4', tables='[fallback]\nc = "127.0.0.1:2"')
    )
    read = config.read(tmp_path / "a.toml")
    assert (read.on_loss, read.quorum) == ("continue", 4)
    assert read.fallback == {"c": "127.0.0.1:2"}


STOPS, TELLS = "a loss stops the run", "the sums of a lost node alone are the difference"
PRIVATE = "[model]\nprivacy = {epsilon = 1, delta = 1e-6}"


@pytest.mark.parametrize(
    ("more", "tables", "says"),
    [
        ('on_loss = "continue"\nmembers = ["a", "b", "c"]', "", ["with 3 owners a loss stops the run for all"]),
        (
            'on_loss = "continue"',
            "",
            ["with three owners a loss stops the run for all", TELLS],
        ),  # a may be a leaf of many owners
        ('on_loss = "continue"\nmembers = ["a", "b", "c", "d"]', "", [TELLS]),
        ('on_loss = "continue"\nallow_two = true', "", [TELLS]),
        ('on_loss = "continue"', PRIVATE, [STOPS]),
        ('on_loss = "continue"\nallow_two = true', PRIVATE, []),
        ("", "", []),
    ],
)
def test_owners_are_told_before_what_a_loss_means_for_secure_sums(tmp_path, more, tables, says):
    (tmp_path / "a.toml").write_text(NODE.format(more=more, tables=tables))
    said = after_a_loss(True, config.read(tmp_path / "a.toml"))
    assert all(part in said for part in says)
    assert [part in said for part in (STOPS, TELLS)] == [any(part in x for x in says) for part in (STOPS, TELLS)]
    assert bool(said) == bool(says)
    assert not after_a_loss(False, config.read(tmp_path / "a.toml"))


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        (({}, CONTINUE), "on_loss: node . has (stop|continue), node . has (stop|continue)"),
        ((CONTINUE | {"quorum": 2}, CONTINUE), "quorum: node . has (2|more than half)"),
        ((CONTINUE | {"quorum_rows": 0.5}, CONTINUE), "quorum_rows: node . has 0"),
    ],
)
def test_the_policy_is_part_of_what_nodes_compare(policies, says, tmp_path):
    nodes = Nodes(tmp_path, Network.path(2), *problem(Network.path(2)))
    for name, policy in zip("01", policies, strict=True):
        nodes.places[name] = replace(nodes.places[name], **policy)
    join([nodes.start("0"), nodes.start("1")])
    assert all(isinstance(nodes.errors[name], Disagreement) for name in "01"), nodes.errors
    assert re.search(says, str(nodes.errors["0"])), nodes.errors["0"]


def test_members_are_those_of_the_beginning_after_a_loss_too(tmp_path):
    """A node that is started again after a loss runs with fewer nodes than `members` names."""
    network = Network.complete(3)
    nodes = Nodes(tmp_path, network, *problem(network))
    place = replace(nodes.places["0"], on_loss="continue", members=list(network.names))
    records = {n: (tuple(o for o in network.names if o != n), 20) for n in network.names}
    view = View(1, "0", (Lost("2", 5.0),))
    for _ in range(2):  # the second time all is in its folder
        session = Session(place, None, nodes.parts[0], {})
        session.store.keep_records(records)
        session.store.keep_views("0", Kept(Status(1, view, view), view, (view.key,)))
        session.store.database.keep({"view": str(view)})
        left, session.endpoint.meet = session, partial(session.protocol.check_meeting, 0.0)
        if not session.protocol.membership.missing():
            assert session.meet()[0].names == ("0", "1")
        session._close(None)
    assert not left.protocol.membership.missing()


def test_a_finished_node_that_is_started_again_tells_lost_ones(tmp_path):
    """At commit 67c4244 it ended at once, and the lost one waited, and was started again, for ever."""
    network = Network.complete(3)
    nodes = Nodes(tmp_path, network, *problem(network))
    nodes.places = {name: replace(place, on_loss="continue") for name, place in nodes.places.items()}
    records = {n: (tuple(o for o in network.names if o != n), 20) for n in network.names}
    view = View(1, "0", (Lost("2", 5.0),))
    own = Status(4, view, view, view.key, Vote(view.key, view.key), view.key)
    facts = texts(flattened(nodes.options))
    session = Session(nodes.places["0"], None, nodes.parts[0], facts)
    session.store.keep_records(records)
    session.store.keep_views("0", Kept(own, view, (view.key,)))
    session.store.keep_statuses({"1": replace(own, version=3, final=None)})
    session.store.database.keep({"view": str(view)})
    session._close(None)
    late = Session(nodes.places["2"], None, nodes.parts[2], facts)
    late.store.keep_records(records)
    late._close(None)
    thread = nodes.start("2")
    with Session(nodes.places["0"], None, nodes.parts[0], facts) as again:
        again.meet()
        again.endpoint.tell_lost(["2"])
    join([thread])
    assert isinstance(nodes.errors["2"], Excluded), nodes.errors


def test_the_command_tells_lost_ones_and_keeps_its_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr("dekpca.peers.net.endpoint.LATE", 0.3)  # nobody comes back
    network, more = Network.complete(3), {"on_loss": "continue", "peer_timeout": 9}
    config.write_nodes(tmp_path, problem(network)[0], network, "r", "none", {"n_components": 2}, more)
    path = tmp_path / "0.toml"
    path.write_text("".join(line for line in path.open() if "none/" not in line))
    prepared = prepare(config.read(path))
    session = Session(prepared.config, None, prepared.samples, prepared.facts)
    session.store.keep_records({n: (tuple(o for o in network.names if o != n), 20) for n in network.names})
    session._close(None)
    said = dict.fromkeys(SUMMARY, 1) | {
        "run": "r",
        "unserved": [],
        "missing": [{"node": "2", "rows": 20, "since": "x"}],
    }
    said |= {"eigenvalues": [1.0], "span_accuracy": None, "report": None}
    (tmp_path / "0" / FINISHED).write_text(json.dumps(said))
    done = CliRunner().invoke(app, ["node", "run", str(path), "--insecure-loopback"])
    assert done.exit_code == MISSING, done.output
    assert "this node tells node 2 that it is left out" in done.output
    assert "was not told" not in done.output


# ---------------------------------------------------------------------- the documents
ROOT = Path(__file__).parent.parent


def test_the_page_for_three_in_the_morning_has_every_warning_and_exit_code():
    text = (ROOT / "docs" / "howto" / "peers.md").read_text(encoding="utf-8")
    said = set()
    for path in (ROOT / "src" / "dekpca" / "peers").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("log.warning", "log.error", "Log"):
                given = call.args[1] if ast.unparse(call.func) == "Log" else call.args[0]
                said |= {given.value} if isinstance(given, ast.Constant) else set()
    assert len(said) > 12
    assert not [words for words in said if f"`{words}`" not in text]
    for code in (0, FAILED, USAGE, NOT_CONVERGED, STOPPED, MISSING, EXCLUDED, 130):
        assert f"\n| {code} | " in text
