"""`dekpca node check`, with real processes, certificates and sockets: both directions, what must be corrected, and no effect on a run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from typer.testing import CliRunner

from dekpca import Network
from dekpca.cli import app
from dekpca.peers.app.check import row, summary
from dekpca.peers.app.config import free_addresses, read, write_nodes
from dekpca.peers.net.authority import init_ca, issue
from dekpca.peers.net.identity import key_fingerprint, read_certificates
from dekpca.peers.net.probe import Seen
from faults.supervisor import until

PATIENCE = 120  # seconds: a busy machine may be slow
NAMES = ["oslo", "rome", "bonn"]


@pytest.fixture
def owners(tmp_path):
    """Three owners: node.toml, data and certificates of each; every node is a neighbor of the other two."""
    init_ca(tmp_path / "certs", "three")
    for name in NAMES:
        issue(tmp_path / "certs", name)
    rng = np.random.default_rng(0)
    network = Network.from_edges([("oslo", "rome"), ("rome", "bonn"), ("bonn", "oslo")])
    parts = [rng.normal(size=(40, 3)) for _ in network.names]
    more = {"members": NAMES, "peer_timeout": 60}
    write_nodes(tmp_path, parts, network, "study", "certs", {"n_components": 2, "gamma": 0.1}, more)
    return tmp_path


class Started:
    """A process of `dekpca` with these arguments."""

    def __init__(self, nursery, folder, *argv):
        self.nursery, self.log = nursery, folder / f"{len(list(folder.glob('*.log')))}.log"
        self.log.touch()
        self.key = nursery.start(argv, self.log)

    @property
    def running(self):
        return self.key not in self.nursery.ended

    def end(self):
        until(lambda: not self.running, lambda: self.text(), PATIENCE)
        return self.nursery.ended[self.key][0]

    def text(self):
        return self.log.read_text()

    def table(self):
        """The rows of the last line, by neighbor."""
        return {row["neighbor"]: row for row in json.loads(self.text().splitlines()[-1])["neighbors"]}


def check(nursery, owners, name, seconds=20):
    return Started(nursery, owners, "node", "check", owners / f"{name}.toml", "--json", "--seconds", seconds)


def change(owners, name, old, new):
    path = owners / f"{name}.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_owners_who_check_at_the_same_time_see_both_directions(nursery, owners):
    checks = {name: check(nursery, owners, name) for name in NAMES}
    for name, one in checks.items():
        assert one.end() == 0, one.text()
        table = one.table()
        assert sorted(table) == sorted(set(NAMES) - {name})
        for found in table.values():
            assert (found["we_reach_it"], found["it_reaches_us"], found["settings"]) == ("yes", "yes", "the same")
            assert found["calls"] == min(name, found["neighbor"])
            assert "until" in found["certificate"]
        assert not (owners / name).exists()  # nothing is begun


@pytest.mark.slow
def test_a_missing_neighbor_is_named_with_its_address(nursery, owners):
    both = [check(nursery, owners, name, 8) for name in ("oslo", "rome")]
    assert [one.end() for one in both] == [4, 4]
    table = both[0].table()
    assert table["rome"]["code"] == 0
    assert (table["bonn"]["we_reach_it"], table["bonn"]["it_reaches_us"]) == ("no", "no")
    address = read(owners / "oslo.toml").neighbors["bonn"]
    assert f"nobody answers at {address}, and it has not called (nobody listens there)" in table["bonn"]["remark"]


@pytest.mark.slow
def test_nodes_that_run_already_are_not_disturbed(nursery, owners):
    (metrics,) = free_addresses(1)
    asked = {"rome": ("--metrics", metrics), "bonn": ()}
    run = {
        name: Started(nursery, owners, "node", "run", owners / f"{name}.toml", "--yes", *asked[name]) for name in asked
    }
    for one in run.values():
        until(lambda one=one: "listening" in one.text(), "the node listens", PATIENCE)
    with urllib.request.urlopen(f"http://{metrics}/healthz", timeout=PATIENCE) as page:  # of a real process
        assert page.status == 200
        assert re.fullmatch("meeting, waits for node .*oslo\n", page.read().decode())
    one = check(nursery, owners, "oslo")
    assert one.end() == 0, one.text()
    assert all("runs already" in found["remark"] for found in one.table().values())
    change(owners, "oslo", '"gamma" = 0.1', '"gamma" = 0.2')
    one = check(nursery, owners, "oslo")
    assert one.end() == 2
    assert "gamma" in one.table()["rome"]["remark"]
    change(owners, "oslo", '"gamma" = 0.2', '"gamma" = 0.1')
    change(owners, "oslo", 'run = "study"', 'run = "other"')
    one = check(nursery, owners, "oslo")
    assert one.end() == 2
    assert "run: node rome has 'study', node oslo has 'other'" in one.table()["rome"]["remark"]
    change(owners, "oslo", 'run = "other"', 'run = "study"')
    assert all(one.running for one in run.values())
    said = [json.loads(line) for line in run["rome"].text().splitlines() if line.startswith("{")]
    assert not [line for line in said if line.get("peer") == "oslo" and "up" in line["message"]]
    run["oslo"] = Started(nursery, owners, "node", "run", owners / "oslo.toml", "--yes")
    assert [one.end() for one in run.values()] == [0, 0, 0], [one.text() for one in run.values()]


@pytest.mark.slow  # it stays for a minute to tell others; test_peer_dishonest.py has it with nodes in threads
def test_a_neighbor_with_a_denied_key_is_refused_and_the_log_says_so(nursery, owners):
    """Its calls are refused; `deny` is read at the start of a node."""
    stolen = key_fingerprint(read_certificates(owners / "certs" / "oslo.crt")[0])
    change(owners, "rome", "members =", f'deny = ["{stolen}"]\nmembers =')
    run = {name: Started(nursery, owners, "node", "run", owners / f"{name}.toml", "--yes") for name in ("rome", "oslo")}
    assert run["oslo"].end() == 2, run["oslo"].text()
    assert "refused by node rome: node oslo: its key" in run["oslo"].text()
    until(
        lambda: f"its key {stolen} is denied (deny in node.toml)" in run["rome"].text(),
        "the log says so",
        PATIENCE,
    )
    change(owners, "oslo", "members =", f'deny = ["{stolen}"]\nmembers =')
    one = check(nursery, owners, "oslo")
    assert one.end() == 2
    assert "is denied (deny in node.toml); get a new one" in one.text()
    nursery.signal(run["rome"].key, signal.SIGTERM)
    run["rome"].end()


def test_a_denied_key_is_said_at_both_ends(nursery, owners):
    stolen = key_fingerprint(read_certificates(owners / "certs" / "oslo.crt")[0])
    change(owners, "rome", "members =", f'deny = ["{stolen}"]\nmembers =')
    rome, oslo = check(nursery, owners, "rome", 6), check(nursery, owners, "oslo", 6)
    assert (rome.end(), oslo.end()) == (2, 2), rome.text() + oslo.text()
    assert f"denied by this node: its key {stolen}" in rome.table()["oslo"]["remark"]
    assert "refused by node rome: node oslo: its key" in oslo.table()["rome"]["remark"]


def wrong_ca(owners):
    init_ca(owners / "other", "three")
    issue(owners / "other", "oslo")
    change(owners, "oslo", "certs/", "other/")


def expired(owners):
    for file in ("oslo.crt", "oslo.key"):
        (owners / "certs" / file).unlink()
    issue(owners / "certs", "oslo", 1, start=datetime.now(UTC) - timedelta(days=9))


def not_a_neighbor(owners):
    text = (owners / "rome.toml").read_text()
    kept = [line for line in text.splitlines() if not line.startswith('"oslo" =')]
    (owners / "rome.toml").write_text("\n".join(kept))


def other_members(owners):
    change(owners, "rome", '"bonn"]', '"bonn", "genf"]')


def other_columns(owners):
    np.save(owners / "rome.npy", np.ones((9, 4)) * np.arange(9)[:, None])


def no_folder(owners):
    shutil.rmtree(owners / "oslo", ignore_errors=True)
    (owners / "oslo").write_text("a file where the folder should be")


def not_our_address(owners):
    change(owners, "oslo", f'listen = "{read(owners / "oslo.toml").listen}"', 'listen = "192.0.2.77:7070"')


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (wrong_ca, "not by a CA in our file"),
        pytest.param(expired, "expired at", marks=pytest.mark.slow),
        pytest.param(not_a_neighbor, "node 'oslo' is not a neighbor of node rome", marks=pytest.mark.slow),
        pytest.param(other_members, "members: node oslo has", marks=pytest.mark.slow),
        pytest.param(other_columns, "number of columns: node oslo has 3, node rome has 4", marks=pytest.mark.slow),
        (no_folder, "choose another"),
        pytest.param(not_our_address, "cannot be bound", marks=pytest.mark.slow),
    ],
)
def test_what_must_be_corrected_is_exit_code_2_at_once(nursery, owners, spoil, said):
    spoil(owners)
    seconds = 100  # it does not wait for bonn, which is not there
    other, one = check(nursery, owners, "rome", 6), check(nursery, owners, "oslo", seconds)
    assert one.end() == 2, one.text()
    assert said in one.text()
    assert other.end() in (2, 4)


def test_a_clock_that_is_wrong(owners):
    config = read(owners / "oslo.toml")
    late = row(config, "rome", Seen(reached=True, heard=True, compared=True, ahead=-400.0), "")
    assert late.code == 2
    assert "its clock is 400 s behind ours (limit 300 s)" in late.remark
    assert row(config, "rome", Seen(reached=True, heard=True, compared=True, ahead=200.0), "").code == 0


# ---------------------------------------------------------------------- firewalls
def ip(*words):
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def machines(owners):
    """Oslo and Rome on machines of their own: network namespaces with a wire between them."""
    names = {name: f"dk-{os.getpid()}-{name}" for name in ("oslo", "rome")}
    try:
        for space in names.values():
            ip("ip", "netns", "add", space)
        ends = [f"dk{os.getpid()}a", f"dk{os.getpid()}b"]
        ip("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for i, (end, space) in enumerate(zip(ends, names.values(), strict=True)):
            inside = ["ip", "-n", space]
            ip("ip", "link", "set", end, "netns", space)
            ip(*inside, "link", "set", end, "name", "eth0")
            ip(*inside, "address", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip(*inside, "link", "set", device, "up")
    except (OSError, subprocess.CalledProcessError) as error:
        for space in names.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        pytest.skip(f"no network namespaces here: {error}")
    for name, (other, address) in {"oslo": ("rome", 1), "rome": ("oslo", 2)}.items():
        config = read(owners / f"{name}.toml")
        change(owners, name, f'listen = "{config.listen}"', f'listen = "10.77.0.{address}:7070"')
        change(owners, name, f'"{other}" = "{config.neighbors[other]}"', f'"{other}" = "10.77.0.{3 - address}:7070"')
        change(owners, name, f'"bonn" = "{config.neighbors["bonn"]}"', "")
    yield names
    for space in names.values():
        ip("ip", "netns", "del", space)


@pytest.mark.slow  # 10 s until a connection counts as dropped; the next test has the same texts
def test_the_direction_that_a_firewall_drops_is_named(owners, machines):
    """Rome's firewall drops what comes in for its port: both owners learn that it is Rome's."""
    rule = ["ip", "-n", machines["rome"], "rule"]
    ip(*rule, "add", "pref", "10", "iif", "eth0", "ipproto", "tcp", "dport", "7070", "blackhole")
    ip(*rule, "add", "pref", "100", "lookup", "local")
    ip(*rule, "del", "pref", "0")  # the table of local addresses comes after the rule that drops
    started = {
        name: subprocess.Popen(
            ["ip", "netns", "exec", space, sys.executable, "-m", "dekpca.cli", "node", "check", f"{name}.toml", "--json", "--seconds", "14"],
            cwd=owners, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name, space in machines.items()
    }  # fmt: skip
    said = {name: process.communicate(timeout=PATIENCE)[0] for name, process in started.items()}
    assert [process.returncode for process in started.values()] == [0, 0]  # one direction is enough
    (oslo,), (rome,) = (json.loads(said[name])["neighbors"] for name in ("oslo", "rome"))
    assert (oslo["we_reach_it"], oslo["it_reaches_us"], oslo["calls"]) == ("no", "yes", "rome")
    assert "our calls to 10.77.0.2:7070 do not arrive" in oslo["remark"]
    assert "a firewall at node rome may drop them" in oslo["remark"]
    assert (rome["we_reach_it"], rome["it_reaches_us"], rome["calls"]) == ("yes", "no", "rome")
    assert "a firewall at node rome (this one) may drop them" in rome["remark"]
    assert "it says: no connection to 10.77.0.2:7070" in rome["remark"]


@pytest.mark.parametrize(
    ("reached", "heard", "said"),
    [
        (
            False,
            True,
            "it calls us, but our calls to {rome} do not arrive (no connection): a firewall at node rome may drop them",
        ),
        (
            True,
            False,
            "its calls do not arrive (it says: no connection): a firewall at node oslo (this one) may drop them",
        ),
        (
            False,
            False,
            "nobody answers at {rome}, and it has not called (no connection): start node run or node check there",
        ),
    ],
)
def test_a_direction_and_whose_firewall_it_may_be(owners, reached, heard, said):
    config = read(owners / "oslo.toml")
    seen = Seen(reached, heard, compared=reached or heard, theirs="no connection" if reached else "")
    found = row(config, "rome", seen, "" if reached else "no connection")
    assert found.code == (0 if reached or heard else 4)  # one direction is enough
    assert found.calls == ("oslo" if reached else "rome" if heard else "nobody")
    assert said.format(**config.neighbors) in found.remark


def test_a_refusal_is_not_blamed_on_a_firewall(owners):
    why = "refused by node rome: run: node rome has 'study', node oslo has 'other'; give both the same"
    assert row(read(owners / "oslo.toml"), "rome", Seen(reached=True, refused=why), "").remark == why


def test_two_nodes_are_told_that_secure_sums_need_three(owners):
    """If others are named, or may be there, the run is possible; else it is refused before anybody is called."""
    path = owners / "oslo.toml"
    change(owners, "oslo", f'"bonn" = "{read(path).neighbors["bonn"]}"', "")
    change(owners, "oslo", ', "bonn"]', "]")
    done = CliRunner().invoke(app, ["node", "check", str(path)])
    assert done.exit_code == 2
    assert "secure sums of 2 nodes: 3 nodes are needed" in done.stderr
    change(owners, "oslo", 'members = ["oslo", "rome"]', "")
    done = CliRunner().invoke(app, ["node", "check", str(path), "--seconds", "0.1"])
    assert done.exit_code == 4
    assert done.output.splitlines()[-1].startswith("but secure sums, if only 2 nodes take part: 3 nodes are needed")
    assert "node rome is missing, or can neither" in done.output
    assert "nodes bonn, rome are missing" in summary(
        [dataclasses.replace(row(read(path), "rome", Seen(), ""), neighbor=n) for n in ("bonn", "rome")]
    )


def without(config, listen=None, **neighbors):
    return dataclasses.replace(config, listen=listen, neighbors={**config.neighbors, **neighbors})


def test_an_edge_with_one_address_needs_one_direction(owners):
    config = read(owners / "oslo.toml")
    only_calls = row(without(config), "rome", Seen(reached=True, compared=True, calls=False), "")
    assert (only_calls.it_reaches_us, only_calls.calls, only_calls.remark) == ("no address there", "oslo", "")
    only_called = row(without(config, config.listen, rome=""), "rome", Seen(heard=True, compared=True), "")
    assert (only_called.we_reach_it, only_called.calls, only_called.remark) == ("no address here", "rome", "")
    assert (only_calls.code, only_called.code) == (0, 0)
    nobody = row(without(config, config.listen, rome=""), "rome", Seen(), "")
    assert nobody.code == 4
    assert "it has not called, and has no address here" in nobody.remark
    assert "a firewall at node oslo (this one) may drop its calls" in nobody.remark
    assert "has not called" not in row(without(config), "rome", Seen(), "").remark  # it cannot


def test_an_edge_without_an_address_is_refused_before_anything_starts(owners):
    change(owners, "oslo", f'listen = "{read(owners / "oslo.toml").listen}"', "")
    assert read(owners / "oslo.toml").listen is None
    change(owners, "oslo", f'"rome" = "{read(owners / "oslo.toml").neighbors["rome"]}"', '"rome" = ""')
    with pytest.raises(
        ValueError,
        match=r"node rome has no address here, and node oslo has none either .*: neither can call the other; write its",
    ):
        read(owners / "oslo.toml")
    change(owners, "oslo", '"rome" = ""', '"rome" = "reverse relay.example.org:7072"')
    assert ("rome", "relay.example.org:7072") in read(owners / "oslo.toml").addresses
