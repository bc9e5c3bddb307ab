"""The audit file of a node, and certificates that are denied."""

from __future__ import annotations

import json
import socket
import stat

import numpy as np
import pytest
from cryptography import x509
from typer.testing import CliRunner

from dekpca import Network
from dekpca.cli import app
from dekpca.peers.app.audit import AUDIT, Audit, BadAudit, _next, read
from dekpca.peers.app.session import Session
from dekpca.peers.net.identity import IdentityError, key_fingerprint, load
from peer_nodes import Nodes, Stop, certified, join, place
from test_peer_private import certs, failed, secure, wire  # noqa: F401

NETWORK = Network.path(3)


def test_the_audit_file_has_every_message_with_its_hash(certs, tmp_path, wire):  # noqa: F811
    """A killed node goes on in the same file, without lines for what it sends or reads again; what one end sent is what the other received."""

    def die(node, request):
        if node == "2" and request.kind == "moments" and not killed:
            killed.append(node)
            raise Stop
        return request

    killed = []
    wire.spoil = staticmethod(die)
    nodes = Nodes(tmp_path, NETWORK, *secure(NETWORK), certs=certs)
    others = [nodes.start(name) for name in "01"]
    join([nodes.start("2")])
    join([nodes.start("2"), *others])
    assert not nodes.errors
    roots = x509.load_pem_x509_certificates((certs / "ca.crt").read_bytes())
    found = {name: read(tmp_path / name, roots) for name in NETWORK.names}
    ends = set()
    for name, (lines, about) in found.items():
        starts = 2 if name == "2" else 1
        assert [line["what"] for line in lines].count("start") == starts
        assert (about["signatures"], about["unsigned"]) == (2 * starts, 0)
        (members,) = [line for line in lines if line["what"] == "members"]
        assert members["names"] == list(NETWORK.names)
        assert lines[0]["settings"]["n_components"] == "3"
        assert lines[-1]["outcome"] == "finished"
        for line in lines:
            if line["what"] in ("sent", "received"):
                ways = (name, line["node"]) if line["what"] == "sent" else (line["node"], name)
                ends.add((*ways, line["round"], line["what"], line["kind"], line["bytes"], line["sha256"]))
        assert stat.S_IMODE((tmp_path / name / AUDIT).stat().st_mode) == 0o600
    sent, received = ({end[:3] + end[4:] for end in ends if end[3] == what} for what in ("sent", "received"))
    assert sent == received  # neither end has another hash of any message, and no message is missing
    assert len(sent) == len(ends) / 2 > 20
    assert {end[3] for end in sent} >= {"keys", "columns", "moments", "judge"}


def test_an_audit_file_that_was_changed_is_refused(certs, tmp_path):  # noqa: F811
    identity = certified(certs, ["0"])["0"]
    audit = Audit(tmp_path, identity, node="0", run="r", settings={"tol": "0.1"})
    for round in range(5):
        audit.message("sent", "0", round, "moments", "1", memoryview(b"x" * round))
    audit.close("finished")
    lines = (tmp_path / AUDIT).read_text().splitlines()
    done = CliRunner().invoke(app, ["node", "audit", str(tmp_path), "--ca", str(certs / "ca.crt")])
    assert done.exit_code == 0, done.output
    assert f"signed by certificate {identity.fingerprint} of this CA" in done.output.replace("\n", " ")

    def refused(changed):
        (tmp_path / AUDIT).write_text("\n".join(changed) + "\n")
        done = CliRunner().invoke(app, ["node", "audit", str(tmp_path)])
        with pytest.raises(BadAudit):
            read(tmp_path)
        return done.exit_code == 2

    assert refused([*lines[:2], lines[2].replace('"bytes": 1', '"bytes": 2'), *lines[3:]])
    assert refused([*lines[:2], *lines[3:]])
    assert refused([lines[1], lines[0], *lines[2:]])
    forged = json.loads(lines[0]) | {"run": "another"}
    assert refused([json.dumps(forged), *lines[1:]])
    (tmp_path / "other").mkdir()
    Audit(tmp_path / "other", certified(certs, ["1"])["1"], node="0").close("finished")
    whole = (tmp_path / "other" / AUDIT).read_text().splitlines()
    assert refused([json.dumps(json.loads(whole[0]) | {"signature": json.loads(whole[1])["signature"]}), whole[1]])
    with pytest.raises(BadAudit, match="certificate is for"):  # whose key it is shows by the CA
        read(tmp_path / "other", x509.load_pem_x509_certificates((certs / "ca.crt").read_bytes()))
    (tmp_path / AUDIT).write_text("\n".join(lines[:4]) + '\n{"what": "se')  # a power cut
    again = Audit(tmp_path, identity, node="0", run="r")
    again.message("sent", "0", 1, "moments", "1", memoryview(b"x"))  # as before: no new line
    again.message("sent", "0", 1, "moments", "1", memoryview(b"y"))
    again.close("finished")
    assert [line["what"] for line in read(tmp_path)[0]] == ["start", "sent", "sent", "sent", "start", "sent", "end"]


def test_an_audit_file_that_nobody_signed_is_refused(certs, tmp_path):  # noqa: F811
    """Whoever has no key of the node can make a whole chain, and go on with one: both show."""
    identity, roots = certified(certs, ["0"])["0"], x509.load_pem_x509_certificates((certs / "ca.crt").read_bytes())

    def made(name, *processes):
        """An audit file by these, one after the other: its node, by which identity, and its end."""
        (tmp_path / name).mkdir()
        for node, by, outcome in processes:
            audit = Audit(tmp_path / name, by, node=node, run="r")
            audit.note("members", names=[name, outcome])
            if outcome:
                audit.close(outcome)
        return tmp_path / name

    forged = made("forged", ("0", None, "finished"))
    assert read(forged)[1]["signatures"] == 0  # of --insecure-loopback
    done = CliRunner().invoke(app, ["node", "audit", str(forged), "--ca", str(certs / "ca.crt")])
    assert done.exit_code == 2
    assert "line 1: its signature does not hold (it has no certificate)" in done.output.replace("\n", " ")
    with pytest.raises(BadAudit, match=r"line 4: .*it has no certificate"):
        read(made("longer", ("0", identity, "finished"), ("0", None, "finished")))
    with pytest.raises(BadAudit, match=r"line 4: .*it is of node 1, not of node 0"):
        read(made("other", ("0", identity, "finished"), ("1", certified(certs, ["1"])["1"], "finished")), roots)
    ended = made("ended", ("0", identity, "finished"))
    last = json.loads((ended / AUDIT).read_text().splitlines()[-1])
    more = {"what": "members", "names": []}
    with open(ended / AUDIT, "a") as file:
        file.write(json.dumps(more | {"chain": _next(last["chain"], more)}) + "\n")
    with pytest.raises(BadAudit, match="line 4: a node that has not started, or has ended, writes nothing"):
        read(ended)
    assert read(made("killed", ("0", identity, ""), ("0", identity, "")), roots)[1]["unsigned"] == 0
    assert read(made("runs", ("0", identity, "")), roots)[1]["unsigned"] == 1
    (ended / AUDIT).write_text("")
    with pytest.raises(BadAudit, match="it is empty"):
        read(ended)


def test_a_changed_audit_file_is_put_aside_and_kept(tmp_path, caplog):
    changed = []
    for run in ("first", "second"):
        Audit(tmp_path, None, node="oslo", run=run).close("finished")
        changed.append((tmp_path / AUDIT).read_text().replace("oslo", "rome", 1))
        (tmp_path / AUDIT).write_text(changed[-1])
        Audit(tmp_path, None, node="oslo", run="r").close("finished")
        read(tmp_path)
        (tmp_path / AUDIT).unlink()
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == changed
    said = [record for record in caplog.records if record.message == "the audit file was changed: it is put aside"]
    assert [record.file for record in said] == [str(path) for path in sorted(tmp_path.iterdir())]


def test_a_node_that_cannot_listen_ends_its_audit_file(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = place("a", "r", f"127.0.0.1:{taken.getsockname()[1]}", {"b": "127.0.0.1:1"}, tmp_path / "a")
        with pytest.raises(ValueError, match="cannot be bound"), Session(config, None, np.zeros((5, 2)), {}):
            pass
    lines, _ = read(tmp_path / "a")
    assert [line["what"] for line in lines] == ["start", "end"]
    assert "cannot be bound" in lines[-1]["outcome"]


def test_a_denied_key_is_refused(certs, tmp_path, wire):  # noqa: F811
    """By a neighbor when it calls, and by all members that deny it by its key record: nothing but keys has left them then."""
    network, thief = Network.path(3), certified(certs, ["2"])["2"]
    nodes = Nodes(tmp_path, network, *secure(network), certs=certs)
    assert list(nodes.places["0"].neighbors) == ["1"]  # node 0 hears of node 2 by its record alone

    identity = load(certs / "0.crt", certs / "0.key", certs / "ca.crt", "0", [key_fingerprint(thief.key)])
    nodes.identities["0"] = identity
    errors = failed(nodes)
    denied = f"key record of node 2: its key {key_fingerprint(thief.key)} is denied"
    assert any(denied in str(e) for e in errors.values())
    assert {kind for kind, _ in wire.sent["0"]} == {"keys"}
    # others do not deny it, and may have begun: of their sums none is in clear, and none has a total without node 0
    assert {dtype for sent in wire.sent.values() for _, dtype in sent} == {"<u8"}
    with pytest.raises(IdentityError, match="is denied"):
        load(certs / "2.crt", certs / "2.key", certs / "ca.crt", "2", [key_fingerprint(thief.key).upper()])
    with pytest.raises(IdentityError, match="no fingerprint of a key"):
        load(certs / "2.crt", certs / "2.key", certs / "ca.crt", "2", ["5F"])
