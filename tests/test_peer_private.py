"""Secure sums and differential privacy between peers: real TLS and real folders. Nodes are threads of one process, but for one test."""

from __future__ import annotations

import json
import re
import shutil
import struct
import threading
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from conftest import clusters, make_options
from dekpca import Network, baselines, metrics
from dekpca.cli import app
from dekpca.engines import local
from dekpca.messages import Sum
from dekpca.node_model import NodeModel
from dekpca.peers.app import config, disclosure, keys, node, session
from dekpca.peers.app.config import write_nodes
from dekpca.peers.app.delivery import PeerDelivery
from dekpca.peers.errors import Changed, Damaged, Excluded, RunFailed
from dekpca.peers.net.authority import init_ca, issue
from dekpca.peers.protocol.node import Timeouts
from dekpca.peers.protocol.views import Quorum, ViewChanged, Views
from dekpca.peers.storage.folder import RunFolder
from dekpca.plan import Plan
from dekpca.privacy.errors import PublicError
from dekpca.privacy.ledger import BudgetSpent, Entry
from dekpca.privacy.masks import BadMasks, pair_keys, public_of
from dekpca.privacy.records import sign_record
from dekpca.privacy.releases import Release
from dekpca.scaling import BadColumn
from dekpca.settings import LandmarkSource
from dekpca.site import apart
from dekpca.testing import VALUE_TOLERANCE
from peer_nodes import Nodes, Stop, certified, join, protocol, stored
from uniformity import LEVEL, check_totals, least_effect, same_p, stripped_sums, two_apart, uniform_p

NETWORKS = {
    "path": Network.path(5), "star": Network.star(5), "ring": Network.ring(5, 2), "grid": Network.grid(2, 3), "complete": Network.complete(4),
    "random": Network.random(6, 0.5, seed=1),
}  # fmt: skip


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    init_ca(folder)
    return folder


def secure(network, **changes):
    parts = clusters([40] * len(network), 3)
    return parts, make_options(parts, network, **{"n_landmarks": 30, "secure_sums": True} | changes)


def same_answer(answers, simulated):
    """All nodes have the same bits; and the answer of a simulation, in which masks, and so the last units of totals, are others, to rounding."""
    (bits,) = {answer.terms.shared.tobytes() for answer in answers.values()}
    found, truth = np.frombuffer(bits).reshape(simulated.terms.shared.shape), simulated.terms.shared
    np.testing.assert_allclose(found, truth, rtol=0, atol=VALUE_TOLERANCE * np.abs(truth).max())


class Wire(PeerDelivery):
    """Keeps (kind, dtype) of all that nodes send; `spoil(node, request)` may change what one of them does."""

    sent: defaultdict
    spoil = staticmethod(lambda node, request: request)

    def exchange(self, requests):
        name = self.endpoint.name
        requests = [self.spoil(name, request) for request in requests]
        for request in requests:
            if request.messages:
                self.sent[name].append((request.kind, request.dtype.str))
        return super().exchange(requests)


@pytest.fixture
def wire(monkeypatch):
    """The class through which all nodes of a test send."""

    class Mine(Wire):
        sent = defaultdict(list)

    monkeypatch.setattr(session, "PeerDelivery", Mine)
    return Mine


# ---------------------------------------------------------------------- the sums
@pytest.mark.parametrize("name", NETWORKS)
def test_sums_are_exact_to_half_a_unit_of_each_node(name, certs, tmp_path, monkeypatch):
    network = NETWORKS[name]
    values = np.random.default_rng(3).normal(size=(len(network), 50))

    def script(site, options, stream=None):
        sealed = site.sealer.seal("mean", values[int(site.nodes[0])], 40.0)
        return (yield Sum("mean", sealed, lambda total: site.sealer.open("mean", total, 40.0), 50))

    monkeypatch.setattr(session, "program", script)
    answers = Nodes(tmp_path, network, *secure(network), certs=certs).run()
    assert len(answers) == len(network)
    check_totals(answers.values(), values, 40.0)


def test_the_answer_is_that_of_the_simulation_and_within_1e_9_of_the_one_in_clear(certs, tmp_path, wire):
    network = NETWORKS["ring"]
    parts, options = secure(network)
    answers = Nodes(tmp_path, network, parts, options, certs=certs).run()
    simulated = local.run(Plan.of(parts, network, options)).answers[0]
    clear = local.run(Plan.of(parts, network, replace(options, secure_sums=False))).answers[0]
    same_answer(answers, simulated)
    for answer in answers.values():
        truth = clear.terms.shared
        np.testing.assert_allclose(answer.terms.shared, truth, rtol=0, atol=1e-9 * np.abs(truth).max())
        np.testing.assert_allclose(answer.eigenvalues, clear.eigenvalues, rtol=1e-9)
    kinds = {kind for sent in wire.sent.values() for kind, _ in sent}
    assert {"keys", "sizes", "columns", "axes", "clusters", "landmarks", "moments", "judge"} == kinds
    # what a leaf sends: key records, and sums under masks, those of the rows that it gives as landmarks too
    for j in leaves(network):
        assert {dtype for _, dtype in wire.sent[network.names[j]]} == {"<u8"}


def leaves(network):
    return [j for j in range(len(network)) if not len(network.children[j])]


def test_there_are_no_secure_sums_without_certificates(tmp_path, wire):
    network = NETWORKS["path"]
    errors = failed(Nodes(tmp_path, network, *secure(network)))
    assert all("without certificates" in str(error) for error in errors.values())
    assert not wire.sent


# ---------------------------------------------------------------------- nodes that cheat
def failed(nodes):
    """The errors of all nodes, each of which must fail."""
    join([nodes.start(name) for name in nodes.network.names])
    assert nodes.errors.keys() == set(nodes.network.names)
    return nodes.errors


def only_keys(wire):
    return {kind for sent in wire.sent.values() for kind, _ in sent} == {"keys"}


def test_a_value_beyond_its_bound_is_told_to_nobody(certs, tmp_path, wire):
    network = NETWORKS["path"]
    parts, options = secure(network, gamma_by_variance=True)
    parts[2][3, 1] = 2.31875e39  # beyond the largest power of two
    errors = failed(Nodes(tmp_path, network, parts, options, certs=certs))
    assert "2.31875e+39" in str(errors["2"])
    for name in network.names:
        assert "a number is beyond 2^127; nothing was sent" in str(errors[name])
        assert "node 2: " in str(errors[name]) or name == "2"
        assert "2.31" not in str(errors[name]) or name == "2"
    # others may have sent how large theirs are, under masks that nobody can take off
    assert {sent for node in wire.sent.values() for sent in node} <= {("keys", "<u8"), ("sizes", "<u8")}


def test_neighbors_hear_the_class_of_other_errors_and_nothing_more():
    error = MemoryError("Unable to allocate 5.2 GiB for an array with shape (88123, 7880)")
    for sealed, cause in ((False, f"node a: {error}"), (True, "node a: MemoryError")):
        mine = protocol("a", "b")
        mine.sealed = sealed
        mine.fail(error)
        assert mine.cause == cause
    mine = protocol("a", "b")
    mine.sealed = True
    mine.fail(RunFailed("88123 rows", told="too many rows"))
    assert (str(mine.error), mine.cause) == ("88123 rows", "node a: too many rows")


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (ValueError("88123 rows"), "ValueError"), (BadColumn(3, "is 88123"), "BadColumn"), (BadMasks("masks of 5 nodes"), "masks of 5 nodes"),
        (BudgetSpent("epsilon 3.3 of 88123", told="no room"), "no room"),
    ],
)  # fmt: skip
def test_what_others_hear_of_an_error_of_the_program(error, heard):
    assert heard in session.told(error)
    assert "88123" not in session.told(error)


def test_a_node_with_too_many_rows_does_not_say_how_many():
    with pytest.raises(PublicError, match="1000000000 rows") as error:
        Release("", 2, 4.0, 20, 1).check_rows(10**9, "rome")
    assert "1000000000" not in error.value.told


def test_a_node_with_other_data_does_not_say_how_many_rows_it_has(tmp_path):
    for data, rows in (("900 x 5, abc", 900), ("901 x 5, def", 901)):
        store = RunFolder(tmp_path / "node")
        try:
            if rows == 900:
                store.open({"run": "r", "data": data, "tol": "1"})
            else:
                with pytest.raises(Changed, match="data was 900 x 5, abc and is 901") as error:
                    store.open({"run": "r", "data": data, "tol": "2"})
        finally:
            store.close()
    assert error.value.told == "begun with other settings, and not the same any more: data, tol"


def test_swapped_keys_stop_the_run(certs, tmp_path, wire):
    """The root swaps the public keys of two nodes in what it sends down."""
    network = NETWORKS["star"]
    root = network.names[network.root]
    one, other = (name for name in network.names if name != root and name in ("1", "2"))

    def swap(node, send):
        if node != root or send.kind != "keys" or any(len(x) < 50 for x in send.messages.values()):
            return send
        changed = {edge: message.copy() for edge, message in send.messages.items()}
        for row in changed.values():
            octets = row.view(np.uint8)
            at = {
                name: octets.tobytes().index(struct.pack(">I", 1) + name.encode() + struct.pack(">I", 32)) + 9
                for name in (one, other)
            }
            first, second = (octets[at[name] : at[name] + 32].copy() for name in (one, other))
            assert (first != second).any()
            octets[at[one] : at[one] + 32], octets[at[other] : at[other] + 32] = second, first
        return replace(send, messages=changed)

    wire.spoil = staticmethod(swap)
    errors = failed(Nodes(tmp_path, network, *secure(network), certs=certs))
    assert all(isinstance(error, RunFailed) for error in errors.values())
    assert all("the signature does not fit; somebody changed the record on its way" in str(e) for e in errors.values())
    assert only_keys(wire)


def agreement_of(monkeypatch, cheat, change):
    """Node `cheat` agrees on keys in another way."""

    class Cheating(keys.KeyAgreement):
        def sealer(self, block, options):
            mine = change(self) if block.names[0] == cheat else self
            return (yield from keys.KeyAgreement.sealer(mine, block, options))

    monkeypatch.setattr(session, "KeyAgreement", Cheating)


def test_a_forged_record_stops_the_run(certs, tmp_path, wire, monkeypatch):
    """Node 2 has a certificate for its connections, but signs with one of another CA."""
    strangers = tmp_path / "strangers"
    init_ca(strangers)
    forged = certified(strangers, ["2"])["2"]
    agreement_of(monkeypatch, "2", lambda own: replace(own, identity=replace(forged, roots=own.identity.roots)))
    errors = failed(Nodes(tmp_path / "run", NETWORKS["ring"], *secure(NETWORKS["ring"]), certs=certs))
    assert all("key record of node 2: its certificate does not lead to the CA" in str(e) for e in errors.values())
    assert only_keys(wire)


def test_a_replayed_record_of_another_run_stops_the_run(certs, tmp_path, wire, monkeypatch):
    """The same owners, the same run id: the challenges make it another epoch."""
    network, before = NETWORKS["path"], {}

    def keeping(run, name, *more):
        before.setdefault(name, sign_record(run, name, *more))
        return before[name] if name == "3" else sign_record(run, name, *more)

    monkeypatch.setattr(keys, "sign_record", keeping)
    Nodes(tmp_path / "first", network, *secure(network), certs=certs).run()
    wire.sent.clear()
    errors = failed(Nodes(tmp_path / "second", network, *secure(network), certs=certs))
    assert all("key record of node 3: it is of another run or epoch" in str(e) for e in errors.values())
    assert only_keys(wire)


def test_a_changed_challenge_stops_the_run(certs, tmp_path, wire):
    """The root gives all nodes the challenge of a run that it has records of."""
    network = NETWORKS["star"]
    root = network.names[network.root]

    def change(node, send):
        if node != root or send.kind != "keys" or any(len(x) != 4 * len(network) for x in send.messages.values()):
            return send
        return replace(send, messages={edge: np.zeros_like(message) for edge, message in send.messages.items()})

    wire.spoil = staticmethod(change)
    errors = failed(Nodes(tmp_path, network, *secure(network), certs=certs))
    for error in errors.values():
        assert re.match(r"node (\S+): its challenge came back as another: its folder is not the one", str(error)), error
    assert only_keys(wire)


def test_a_node_that_omits_its_masks_stops_the_run(certs, tmp_path, wire, monkeypatch):
    network = NETWORKS["path"]
    assert network.names[network.root] != "2"

    def without(name, *given):
        return {} if name == "2" else pair_keys(name, *given)

    monkeypatch.setattr(keys, "pair_keys", without)
    parts, options = secure(network, landmarks=LandmarkSource("points", np.concatenate(clusters([10] * 3, 9))))
    errors = failed(Nodes(tmp_path, network, parts, options, certs=certs))
    assert all("masks of 5 nodes do not cancel" in str(error) for error in errors.values())
    # the root made nothing of the first total: only records, a hash of the points, and integers under masks have left
    clear = {kind for sent in wire.sent.values() for kind, dtype in sent if dtype != "<u8"}
    assert clear <= {"fingerprint"}
    # the run cannot go on: no key is left, and a start after it ends as the first did
    for name in network.names:
        assert stored(tmp_path / name, "SELECT name FROM secret") == []
    nodes = Nodes(tmp_path, network, parts, options, certs=certs, timeouts=Timeouts(peer=60, start=1, beat=0.2))
    join([nodes.start("3")])
    assert isinstance(nodes.errors["3"], RunFailed)
    assert "do not cancel" in str(nodes.errors["3"])
    assert "its keys are deleted" in str(nodes.errors["3"])


# ---------------------------------------------------------------------- a recorder at all nodes but two
def recording(certs, folder, network, wire, monkeypatch, seed=0, scale=1.0, broken=None, lie=None):
    """A run in which all nodes but two may keep what they receive: what each node sent to its parent, by sum; a hash of what each had been told
    before; and the keys of all. `lie(node, request)` may change what a node sends."""
    sent, known, histories = defaultdict(list), {}, defaultdict(list)

    def keep(node, request):
        if request.dtype == np.uint64 and request.kind != "keys" and request.messages:
            (message,) = request.messages.values()  # to the parent
            sent[node].append(message.copy())
        return request if lie is None else lie(node, request)

    class Noted(keys.PeerSealer):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            known[self.name] = self.keys

        def seal(self, kind, values, bound):
            histories[self.name].append(self.history)
            if broken is None:
                return super().seal(kind, values, bound)
            return broken(self, super().seal, kind, values, bound)

    monkeypatch.setattr(keys, "PeerSealer", Noted)
    wire.spoil = staticmethod(keep)
    parts = [scale * part for part in clusters([30] * len(network), seed)]
    points = scale * np.concatenate(clusters([20] * 3, 77))
    options = make_options(parts, network, landmarks=LandmarkSource("points", points), secure_sums=True)
    nodes = Nodes(folder, network, parts, options, certs=certs)
    join([nodes.start(name) for name in network.names])
    numbers = {len(sums) for name, sums in sent.items()}
    sums = [{network.number[name]: sent[name][i] for name in sent} for i in range(min(numbers))]
    return sums, histories, known, nodes


@pytest.mark.parametrize(
    "name", [pytest.param("path", marks=pytest.mark.slow), pytest.param("star", marks=pytest.mark.slow), "grid"]
)
def test_a_recorder_at_all_nodes_but_two_sees_uniform_numbers(name, certs, tmp_path, wire, monkeypatch):
    network = NETWORKS[name]
    a, b = two_apart(network)
    sums, told, known, nodes = recording(certs, tmp_path, network, wire, monkeypatch)
    assert not nodes.errors
    assert len({tuple(history) for history in told.values()}) == 1
    mine, theirs = (stripped_sums(network, sums, told["0"], known, *pair) for pair in ((a, b), (b, a)))
    words = np.concatenate(mine)
    assert len(words) > 20_000
    assert least_effect(len(words)) < 0.1  # far below that of any broken mask
    assert uniform_p(words) > LEVEL
    first = max(mine, key=len)
    for other in mine:  # sums under one nonce would show in differences
        if other is not first and len(other) > 1000:
            assert uniform_p(first[: len(other)] - other) > LEVEL
    # the recorder is as strong as it can be: the two honest nodes' total is what it sees in clear
    total = np.concatenate([x + y for x, y in zip(mine, theirs, strict=True)])
    assert uniform_p(total) < LEVEL


def test_recordings_of_very_different_data_have_one_distribution(certs, tmp_path, wire, monkeypatch):
    network = NETWORKS["grid"]
    a, b = two_apart(network)
    words = []
    for seed, scale in ((1, 1.0), (2, 1e-2)):
        sums, told, known, _ = recording(certs, tmp_path / str(seed), network, wire, monkeypatch, seed, scale)
        words.append(np.concatenate(stripped_sums(network, sums, told["0"], known, a, b)))
    assert min(map(len, words)) > 10_000
    assert same_p(*words) > LEVEL


def test_a_reused_nonce_fails_the_tests(certs, tmp_path, wire, monkeypatch):
    network = NETWORKS["grid"]

    def stuck(own, seal, *given):
        own._sealed, told = 0, own.history
        own.history = bytes(32)
        try:
            return seal(*given)
        finally:
            own.history = told

    sums, _, _, _ = recording(certs, tmp_path, network, wire, monkeypatch, broken=stuck)
    a, _ = two_apart(network)
    alone = [sent[a] - sum((sent[int(c)] for c in network.children[a]), np.uint64(0)) for sent in sums]
    first, second = sorted(alone, key=len)[-2:]
    assert uniform_p(second[: len(first)] - first) < LEVEL


def test_a_missing_pair_fails_the_tests_and_stops_the_run(certs, tmp_path, wire, monkeypatch):
    network = NETWORKS["grid"]
    a, b = two_apart(network)

    def without(own, seal, *given):
        kept = own.keys
        if own.name == network.names[a]:
            own.keys = {other: key for other, key in kept.items() if other != network.names[b]}
        try:
            return seal(*given)
        finally:
            own.keys = kept

    sums, told, known, nodes = recording(certs, tmp_path, network, wire, monkeypatch, broken=without)
    assert nodes.errors.keys() == set(network.names)
    assert all("do not cancel" in str(error) for error in nodes.errors.values())
    assert stripped_sums(network, sums, told["0"], known, a, b)[0][-1] == 1  # in clear: the count


# ---------------------------------------------------------------------- restarts and losses
def stop_at_judge(at):
    """Ends node 1 when it is first judged; `at` has its name from then on."""

    def stop(node, send):
        if node == "1" and send.kind == "judge" and not at:
            at.append(node)
            raise Stop
        return send

    return stop


def test_a_node_that_was_killed_goes_on_with_the_same_masks(certs, tmp_path, wire):
    network, at = NETWORKS["ring"], []
    parts, options = secure(network)

    wire.spoil = staticmethod(stop_at_judge(at))
    nodes = Nodes(tmp_path, network, parts, options, certs=certs)
    others = [nodes.start(name) for name in network.names if name != "1"]
    join([nodes.start("1")])
    assert isinstance(nodes.errors["1"], Stop)
    join([nodes.start("1"), *others])
    assert not nodes.errors
    simulated = local.run(Plan.of(parts, network, options)).answers[0]
    same_answer(nodes.answers, simulated)


def test_certificates_are_checked_once_in_a_run(certs, tmp_path, wire, monkeypatch):
    """A node is killed; until it is started again its certificate was renewed, as a longer one, and that of another node has run out. What it signs
    at the end others verify by the key of the epoch, not by the certificate that they know."""
    network, at, check, size = NETWORKS["ring"], [], keys.check_records, keys.longest
    parts, options = secure(network)

    def only_before(*given):
        if at:
            raise keys.BadRecord("key record of node 2: its certificate is not valid now")
        check(*given)

    monkeypatch.setattr(keys, "check_records", only_before)
    monkeypatch.setattr(keys, "longest", lambda *given: size(*given) + (400 if at else 0))
    wire.spoil = staticmethod(stop_at_judge(at))
    nodes = Nodes(tmp_path, network, parts, options, certs=certs)
    others = [nodes.start(name) for name in network.names if name != "1"]
    join([nodes.start("1")])
    issue(certs, "1", replace=True)
    nodes.identities |= certified(certs, "1")
    join([nodes.start("1"), *others])
    assert at
    assert not nodes.errors
    simulated = local.run(Plan.of(parts, network, options)).answers[0]
    same_answer(nodes.answers, simulated)


class Kept(dict):
    """What a node keeps in its folder."""

    def secret(self, name, make):
        return self[name] if name in self else self.setdefault(name, make())


def test_after_a_restart_other_key_records_are_refused(certs, tmp_path):
    """Records are checked once. A node between cannot show a restarted node another one later, by whose key it would sign for the other."""
    network = Network.path(3)
    init_ca(tmp_path)
    identities, folders = certified(certs, network.names), {name: Kept() for name in network.names}
    forged = certified(tmp_path, "1")["1"]  # of another CA
    liar = replace(forged, roots=forged.roots + identities["1"].roots)

    def script(site, options, stream=None):
        return site.names[0]
        yield

    def agree(identities):
        agreements = {n: keys.KeyAgreement(identities[n], "run", "0", {}, folders[n]) for n in network.names}
        sites = apart(clusters([5] * 3), network)
        return local.drive(
            sites, secure(network)[1], local.Delivery(sites),
            script=lambda site, options: agreements[site.names[0]].before(script)(site, options),
        ).answers  # fmt: skip

    assert agree(identities) == agree(identities) == ["0", "1", "2"]  # all are killed, and go on
    folders["1"] = Kept({name: folders["1"][name] for name in ("challenge", "key", "record size")})
    with pytest.raises(keys.BadRecord, match="node 0: it was told other key records than before it was restarted"):
        agree(identities | {"1": liar})


class Surviving(Nodes):
    """Nodes that go on without lost ones."""

    def __init__(self, *args, **more):
        super().__init__(*args, timeouts=Timeouts(peer=4, start=60, beat=0.2), **more)
        self.places = {name: replace(place, on_loss="continue") for name, place in self.places.items()}

    def _run(self, name, observer, facts, samples):
        samples = self.parts[self.network.number[name]]
        try:
            with session.Session(self.places[name], self.identities[name], samples, facts) as mine:
                network, _ = mine.meet()
                while True:
                    try:
                        outcome = mine.run(samples, network, self.options)
                        mine.agree()
                        break
                    except ViewChanged:
                        network, _ = mine.begin_anew()
                self.answers[name] = outcome.answers[0]
                mine.finish()
                mine.store.forget_secrets()
        except BaseException as error:
            self.errors[name] = error


def test_a_lost_node_means_new_keys_and_new_masks(certs, tmp_path, wire, monkeypatch):
    network, used = NETWORKS["complete"], defaultdict(list)
    parts, options = secure(network)
    lost = next(name for name in network.names if name != network.names[network.root])

    def noted(name, own, public, run):
        pairs = pair_keys(name, own, public, run)
        used[name].append((run, public_of(own), pairs))
        return pairs

    def die(node, send):
        if node == lost and send.kind == "moments":
            raise Stop
        return send

    monkeypatch.setattr(keys, "pair_keys", noted)
    wire.spoil = staticmethod(die)
    nodes = Surviving(tmp_path, network, parts, options, certs=certs)
    join([nodes.start(name) for name in network.names])
    assert nodes.errors.keys() == {lost}
    left = [name for name in network.names if name != lost]
    for name in left:
        (first_run, first_key, first), (second_run, second_key, second) = used[name]
        assert first_run != second_run
        assert first_key != second_key
        assert second.keys() == first.keys() - {lost}
        assert not set(first.values()) & set(second.values())
        # nothing is left on its disk by which somebody could open what was under masks
        assert stored(nodes.places[name].folder, "SELECT name FROM secret") == []
    rest = Network({name: [other for other in left if other != name] for name in left})
    alone = local.run(Plan.of([parts[network.number[name]] for name in left], rest, options)).answers[0]
    for name in left:
        np.testing.assert_allclose(nodes.answers[name].eigenvalues, alone.eigenvalues, rtol=1e-9)


def test_secrets_are_the_same_after_a_restart_and_gone_with_the_view(tmp_path):
    drawn = []

    def draw():
        drawn.append(bytes([len(drawn)] * 5))
        return drawn[-1]

    for _ in range(2):  # started twice
        store = RunFolder(tmp_path / "node")
        store.open({"run": "r"})
        assert store.secret("key", draw) == b"\0" * 5
        store.close()
    assert len(drawn) == 1
    store = RunFolder(tmp_path / "node")
    store.open({"run": "r"})
    store.forget_secrets()
    assert store.secret("key", draw) == b"\1" * 5
    store.close()


@pytest.mark.parametrize("error", [Excluded("without node 1"), RunFailed("3 rows", told="few rows"), Damaged("a page")])
def test_keys_are_deleted_after_an_end_that_cannot_be_resumed(error, tmp_path):
    store = RunFolder(tmp_path / "node")
    store.open({"run": "r"})
    store.secret("key", lambda: b"k")
    store.end(error)  # no sum was masked yet: the run may go on when its owner has corrected what was wrong
    assert store.secret("key", lambda: b"other") == b"k"
    store.secret("checked records", lambda: b"p")
    store.end(error)
    assert store.database.read("SELECT name FROM secret") == []
    store.close()
    store = RunFolder(tmp_path / "node")
    with pytest.raises(type(error), match=f"{error}.*keys are deleted") as again:
        store.open({"run": "r"})
    assert again.value.told == error.told
    store.close()


# ---------------------------------------------------------------------- differential privacy, as owners run it
ASKED = {"epsilon": 4.0, "delta": 1e-6, "rows": 3000, "ledger": "spent.json", "budget": 6.0}


def owners(folder, certs, run="study-1", asked=ASKED, sizes=(900, 1100, 1000), more=None, **model):
    """node.toml, data, public points and certificates for three owners; `asked`: of privacy, None for secure sums."""
    network = Network({"oslo": ["rome"], "rome": ["oslo", "bonn"], "bonn": ["rome"]})
    parts = clusters(list(sizes), 4)
    folder.mkdir(exist_ok=True)
    certified(certs, network.names)
    np.save(folder / "public.npy", np.concatenate(clusters([10] * 4, 4)))
    common = {"n_components": 2, "gamma": 0.05, "landmarks": "public.npy", "tol": 0.1}
    write_nodes(
        folder,
        parts,
        network,
        run,
        str(certs),
        common | model,
        {"peer_timeout": 60, "start_timeout": 60} | (more or {}),
    )
    for name in network.names if asked else ():
        path = folder / f"{name}.toml"
        own = asked | ({"ledger": f"{name}-{asked['ledger']}"} if "ledger" in asked else {})
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in own.items())
        path.write_text(path.read_text() + f"\n[model.privacy]\n{lines}\n")
    return {name: folder / f"{name}.toml" for name in network.names}, dict(zip(network.names, parts, strict=True))


def take_part(tomls, only=None):
    """What each owner's node ends with: what it says, or its error."""
    ends = {}

    def one(name):
        try:
            mine = config.read(tomls[name])
            ends[name] = node.run(node.prepare(mine), mine.identity())
        except BaseException as error:
            ends[name] = error

    threads = [threading.Thread(target=one, args=(name,), daemon=True) for name in only or tomls]
    for thread in threads:
        thread.start()
    join(threads)
    return ends


def test_owners_fit_with_differential_privacy(certs, tmp_path, wire):
    tomls, parts = owners(tmp_path, certs)
    ends = take_part(tomls)
    models = {name: NodeModel.load(ends[name]["model"]) for name in tomls}
    X = np.concatenate(list(parts.values()))
    assert len({models[name].transform(X).tobytes() for name in tomls}) == 1
    truth = baselines.central(X, 2, gamma=0.05)
    assert metrics.agreement(models["oslo"], truth, X).min() > 0.95
    for name, model in models.items():
        assert 3.99 < model.privacy_.epsilon <= 4.0
        assert model.privacy_.as_dict() == ends[name]["privacy"]
        spent = json.loads((tmp_path / f"{name}-spent.json").read_text())
        assert spent["budget"] == {"epsilon": 6.0, "delta": 1e-6}
        assert spent["spent"]["epsilon"] == pytest.approx(model.privacy_.epsilon)
        assert ends[name]["rows"] is None
        # nobody was told how many rows the others have
        records = json.loads(dict(stored(tmp_path / name, "SELECT name, value FROM fact"))["network"])
        assert {rows for _, rows in records.values()} == {1}
        assert stored(tmp_path / name, "SELECT name FROM secret") == []
    sent = {(kind, dtype) for sent in wire.sent.values() for kind, dtype in sent}
    assert {kind for kind, dtype in sent if dtype == "<u8"} == {"keys", "moments"}


def test_a_ledger_adds_up_over_runs_and_stops_the_run_at_the_budget(certs, tmp_path, wire):
    first, _ = owners(tmp_path, certs)
    take_part(first)
    once = json.loads((tmp_path / "oslo-spent.json").read_text())
    for name in first:
        shutil.rmtree(tmp_path / name)
    second, _ = owners(tmp_path, certs, run="study-2", asked=ASKED | {"epsilon": 3.0})
    (tmp_path / "bonn-spent.json").unlink()  # bonn counts anew, the others go on
    assert all(isinstance(end, dict) for end in take_part(second).values())
    twice = json.loads((tmp_path / "oslo-spent.json").read_text())
    assert len(twice["entries"]) == 2
    assert 4.0 < once["spent"]["epsilon"] * 1.001 < twice["spent"]["epsilon"] <= 6.0
    for name in first:
        shutil.rmtree(tmp_path / name)
    wire.sent.clear()
    third, _ = owners(tmp_path, certs, run="study-3")
    ends = take_part(third)
    assert all(isinstance(end, RunFailed) for end in ends.values())
    own = {name for name, end in ends.items() if f"{name}-spent.json" in str(end) and "the budget is 6" in str(end)}
    assert own
    assert "bonn" not in own
    # the others hear that there is no room, and nothing of anybody's ledger
    for name in ends.keys() - own:
        assert "the privacy budget of its data has no room" in str(ends[name])
        assert not any(seen in str(ends[name]) for seen in ("spent.json", "the budget is", "epsilon"))
    assert not wire.sent
    assert json.loads((tmp_path / "oslo-spent.json").read_text()) == twice


def test_a_private_node_that_was_killed_spends_once_and_sends_the_same_noise(certs, tmp_path, wire):
    tomls, parts = owners(tmp_path, certs)
    sums = []

    def stop(name, send):
        if name == "bonn" and send.kind == "moments" and send.messages:
            sums.append(b"".join(x.tobytes() for x in send.messages.values()))
            if len(sums) == 1:
                raise Stop
        return send

    wire.spoil = staticmethod(stop)
    ends = {}
    others = threading.Thread(target=lambda: ends.update(take_part(tomls, ["oslo", "rome"])), daemon=True)
    others.start()
    assert isinstance(take_part(tomls, ["bonn"])["bonn"], Stop)
    ends |= take_part(tomls, ["bonn"])
    join([others])
    assert len(sums) == 2
    assert sums[0] == sums[1]
    assert len(json.loads((tmp_path / "bonn-spent.json").read_text())["entries"]) == 1
    X = np.concatenate(list(parts.values()))
    assert len({NodeModel.load(ends[name]["model"]).transform(X).tobytes() for name in tomls}) == 1


LOSING = {"on_loss": "continue", "peer_timeout": 4, "heartbeat": 0.2, "allow_two": True}  # one of three is lost


def dying(wire, kind):
    """bonn dies whenever it sends this kind of message to its parent."""

    def die(name, send):
        if name == "bonn" and send.kind == kind and send.messages:
            raise Stop
        return send

    wire.spoil = staticmethod(die)


def test_a_node_lost_after_the_release_costs_a_second_one(certs, tmp_path, wire):
    asked = ASKED | {"epsilon": 3.0}
    tomls, _ = owners(tmp_path, certs, asked=asked, more=LOSING)
    dying(wire, "moments")
    ends = take_part(tomls)
    assert isinstance(ends["bonn"], Stop)
    for name in ("oslo", "rome"):
        assert [lost["node"] for lost in ends[name]["missing"]] == ["bonn"]
        ledger, spent = (
            NodeModel.load(ends[name]["model"]).privacy_,
            json.loads((tmp_path / f"{name}-spent.json").read_text()),
        )
        assert len(ledger.entries) == len(spent["entries"]) == 2
        assert ends[name]["privacy"]["epsilon"] == ledger.epsilon == pytest.approx(spent["spent"]["epsilon"])
        assert 4.0 < ledger.epsilon < 6.0


def test_a_node_lost_before_the_release_costs_nothing(certs, tmp_path, wire):
    tomls, _ = owners(tmp_path, certs, more=LOSING)
    dying(wire, "keys")
    ends = take_part(tomls)
    for name in ("oslo", "rome"):
        assert [lost["node"] for lost in ends[name]["missing"]] == ["bonn"]
        assert len(ends[name]["privacy"]["entries"]) == 1
        assert len(json.loads((tmp_path / f"{name}-spent.json").read_text())["entries"]) == 1


def test_without_a_ledger_there_is_no_second_release(certs, tmp_path, wire):
    asked = {key: value for key, value in ASKED.items() if key not in ("ledger", "budget")}
    tomls, _ = owners(tmp_path, certs, asked=asked, more=LOSING)
    dying(wire, "moments")
    ends = take_part(tomls)
    for name in ("oslo", "rome"):
        assert isinstance(ends[name], RunFailed)
    assert any(
        "nodes were lost after a release" in str(ends[n]) and "give privacy a ledger" in str(ends[n])
        for n in ("oslo", "rome")
    )
    # with a ledger that has room the same run goes on
    for name in ("oslo", "rome"):
        tomls[name].write_text(tomls[name].read_text() + f'ledger = "{name}-spent.json"\nbudget = 9.0\n')
    ends = take_part(tomls, ["oslo", "rome"])
    assert {len(ends[name]["privacy"]["entries"]) for name in ("oslo", "rome")} == {2}
    assert (
        len(json.loads((tmp_path / "oslo-spent.json").read_text())["entries"]) == 2
    )  # also what was released without it


def test_an_owner_who_adds_a_ledger_does_not_end_the_run_for_others(certs, tmp_path, wire):
    """Only rome lacks one: oslo has drawn a key for the new view, has sent nothing under it, and can go on."""
    tomls, _ = owners(tmp_path, certs, asked=ASKED | {"epsilon": 3.0}, more=LOSING)
    text = tomls["rome"].read_text()
    tomls["rome"].write_text(
        "\n".join(line for line in text.splitlines() if not line.startswith(("ledger", "budget"))) + "\n"
    )
    dying(wire, "moments")
    ends = take_part(tomls)
    assert all(isinstance(ends[name], RunFailed) for name in ("oslo", "rome"))
    assert "epsilon" not in str(ends["oslo"])
    tomls["rome"].write_text(text)
    ends = take_part(tomls, ["oslo", "rome"])
    assert {len(ends[name]["privacy"]["entries"]) for name in ("oslo", "rome")} == {2}


def test_the_guarantee_says_what_a_loss_costs(certs, tmp_path):
    for asked, end in (
        (ASKED, "the ledger has no room"),
        ({"epsilon": 1.0, "delta": 1e-6}, "without a ledger the run stops"),
    ):
        tomls, _ = owners(tmp_path / end[:3], certs, asked=asked, more=LOSING)
        prepared = node.prepare(config.read(tomls["oslo"]))
        lines = disclosure.guarantee(prepared.settings, 6, 3, goes_on=True)
        assert any(
            'on_loss = "continue": each loss after the release costs as much again' in line and end in line
            for line in lines
        )
        assert not any("on_loss" in line for line in disclosure.guarantee(prepared.settings, 6, 3))


def test_a_finished_node_whose_model_was_moved_does_not_begin_again(certs, tmp_path):
    tomls, _ = owners(tmp_path, certs)
    ends = take_part(tomls)
    spent = (tmp_path / "oslo-spent.json").read_text()
    Path(ends["oslo"]["model"]).rename(tmp_path / "elsewhere.npz")
    done = CliRunner().invoke(app, ["node", "run", str(tomls["oslo"]), "--yes"])
    assert done.exit_code == 0, done.output
    assert "was finished before" in done.output
    assert "the model is not there any more" in done.output
    assert (tmp_path / "oslo-spent.json").read_text() == spent


def test_ranges_are_public_and_no_sums_of_columns_leave(certs, tmp_path):
    tomls, _ = owners(tmp_path, certs, asked=ASKED | {"ranges": [-8.0, 8.0]}, standardize=True)
    prepared = node.prepare(config.read(tomls["oslo"]))
    lines = disclosure.disclosure(prepared.settings, 900, 6, ["rome"])
    assert not any("sums of each column" in what for what, _ in lines)


def test_more_components_than_the_rank_are_refused_before_anybody_is_called(certs, tmp_path):
    tomls, _ = owners(tmp_path, certs, asked=ASKED | {"rank": 1})
    with pytest.raises(ValueError, match="privacy keeps rank=1 coordinates"):
        node.prepare(config.read(tomls["oslo"]))


def test_too_few_nodes_are_counted_without_rows():
    views = Views("oslo", Quorum())
    views.begin({"oslo": (("rome", "bonn"), 1), "rome": (("oslo",), 1), "bonn": (("oslo",), 1)})
    assert "1 of 3 nodes (oslo) with 1 of 3 rows remain" in str(views._too_few({"oslo"}))
    views.tell_rows = False
    assert "1 of 3 nodes (oslo) remain, where the quorum is 2 nodes" in str(views._too_few({"oslo"}))


def test_owners_see_the_guarantee_before_they_agree(certs, tmp_path):
    tomls, _ = owners(tmp_path, certs)
    done = CliRunner().invoke(app, ["node", "run", str(tomls["oslo"])])
    assert done.exit_code == 2
    for seen in (
        "epsilon 4, delta 1e-06, for adding or removing one row",
        "against 1 colluding nodes",
        "epsilon 0 spent before, 4 with this run, of 6",
        "if all nodes have 3,000 rows",
        "only their noisy totals over all nodes",
        "give --yes",
    ):
        assert seen in done.output
    assert "its number of rows" not in done.output
    assert not (tmp_path / "oslo").exists()
    (tmp_path / "oslo-spent.json").write_text(
        json.dumps(
            {
                "version": 1,
                "budget": {"epsilon": 6.0, "delta": 1e-6},
                "entries": [asdict(Entry("x", "y", 1.0, 0.9, 3, 1))],
            }
        )
    )
    done = CliRunner().invoke(app, ["node", "run", str(tomls["oslo"]), "--yes"])
    assert done.exit_code == 2
    assert "but the budget is 6" in done.output
    assert not (tmp_path / "oslo").exists()


def test_quorum_rows_need_rows_that_are_told(certs, tmp_path):
    tomls, _ = owners(tmp_path, certs)
    text = tomls["oslo"].read_text()
    tomls["oslo"].write_text('on_loss = "continue"\nquorum_rows = 0.5\n' + text)
    with pytest.raises(config.ConfigError, match="quorum_rows with privacy"):
        node.prepare(config.read(tomls["oslo"]))
