"""Peers take columns by name, and compare the names before anything else. All of this failed at c6f9cc8, where they compared only the number."""

from __future__ import annotations

import re
import signal

import numpy as np
import pytest

from dekpca import NodeModel
from dekpca.peers.app.config import free_addresses, write_toml
from dekpca.peers.errors import Disagreement
from dekpca.peers.protocol.handshake import HandshakeSettings
from faults.supervisor import until
from peer_nodes import PATIENCE
from test_columns import KINDS, NAMES, PARTS, broken, shuffled, write


def run_peers(nursery, folder, frames, model, **settings):
    """A process for each node, in a triangle; returns exit codes and what was said, by name."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    write(folder, frames, "csv")
    addresses = dict(zip(frames, free_addresses(len(frames)), strict=True))
    for name in frames:
        own = {
            "name": name,
            "run": "columns",
            "listen": addresses[name],
            "data": f"{name}.csv",
            "folder": f"{name}-run",
        }
        others = {other: address for other, address in addresses.items() if other != name}
        write_toml(
            folder / f"{name}.toml", own | settings, {"neighbors": others, "model": {"n_components": 2, **model}}
        )
    command = ["node", "run", "--yes", "--insecure-loopback"]
    keys = {name: nursery.start([*command, folder / f"{name}.toml"], folder / f"{name}.log") for name in frames}
    try:
        until(lambda: nursery.ended.keys() >= set(keys.values()), "all nodes end", PATIENCE)
    finally:
        for key in keys.values():
            nursery.signal(key, signal.SIGKILL)  # where it still runs
    said = {name: (folder / f"{name}.log").read_text() for name in frames}
    return {name: nursery.ended[key][0] for name, key in keys.items()}, said


PROJECTION = {"solver": "projection", "share_rows": True}


@pytest.mark.parametrize(
    ("settings", "standardize"),
    [
        ({}, True),
        (PROJECTION, False),
        pytest.param({}, False, marks=pytest.mark.slow),
        pytest.param(PROJECTION, True, marks=pytest.mark.slow),
    ],
)
def test_another_order_at_each_node_changes_no_bit(nursery, tmp_path, settings, standardize):
    values = []
    for kind, frames in (("ordered", PARTS), ("shuffled", shuffled(PARTS))):
        codes, said = run_peers(nursery, tmp_path / kind, frames, {**settings, "standardize": standardize})
        assert set(codes.values()) <= {0, 3}, said
        models = [NodeModel.load(tmp_path / kind / f"{name}-run" / f"{name}.npz") for name in PARTS]
        assert all(sorted(model.feature_names_in_) == sorted(NAMES) for model in models)
        values.append([np.vstack([model.transform(PARTS["rome"]), model.eigenvalues_]) for model in models])
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize(
    "kind",
    [kind if kind in ("renamed", "duplicated") else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_other_names_stop_all_before_any_row_leaves(nursery, tmp_path, kind):
    frame, says = broken(kind)
    if kind == "duplicated":  # seen in its own file, before anybody is called
        codes, said = run_peers(nursery, tmp_path, {"rome": frame, "oslo": PARTS["oslo"]}, {}, start_timeout=1)
        assert codes["rome"] == 2
        assert says in said["rome"]
        return
    codes, said = run_peers(nursery, tmp_path, PARTS | {"rome": frame}, {"standardize": True})
    assert set(codes.values()) == {2}, said
    named = set(re.findall(r"'\w+'", says))  # the node that notices first speaks of its own names
    for text in said.values():
        last = text.splitlines()[-1]
        assert "the columns are not those of" in last
        assert set(re.findall(r"'\w+'", last)) == named
        assert '"message": "begun"' not in text


@pytest.mark.slow
def test_secret_names_are_not_told(nursery, tmp_path):
    frame, _ = broken("renamed")
    codes, said = run_peers(nursery, tmp_path, PARTS | {"rome": frame}, {}, secret_columns=True)
    assert set(codes.values()) == {2}
    for text in said.values():
        assert "columns: node" in text.splitlines()[-1]
        assert "a fingerprint of the columns' names" in text
        assert "heigth" not in text
        assert "height" not in text


def test_settings_of_columns():
    names = ("age", "bmi")
    same = HandshakeSettings.of({}, names, "run")
    same.compare("oslo", "rome", HandshakeSettings.of({}, names, "run"))
    with pytest.raises(Disagreement, match=r"node oslo has with names .*, node rome has without names"):
        same.compare("oslo", "rome", HandshakeSettings.of({}, None, "run"))
    with pytest.raises(
        Disagreement, match=r"unknown 'patient'.*; if 'patient' is no feature, write id = \"patient\", label"
    ):
        HandshakeSettings.of({}, (*names, "patient"), "run").compare("oslo", "rome", same)
    assert HandshakeSettings.of({}, names, "run").values != HandshakeSettings.of({}, names, "another run").values
    assert HandshakeSettings.of({}, names, "run", secret=True).columns == ()
    many = [f"column {i}" for i in range(10_000)]
    assert (
        HandshakeSettings.of({}, many, "run").columns == ()
    )  # too many for a greeting: a fingerprint tells them apart
    with pytest.raises(Disagreement, match="with names of fingerprint"):
        HandshakeSettings.of({}, many, "run").compare(
            "oslo", "rome", HandshakeSettings.of({}, [*many[1:], "other"], "run")
        )
    odd = HandshakeSettings.of({}, ["a\x1b[31m\nb"], "run")
    assert all(name.isprintable() for name in odd.columns)
