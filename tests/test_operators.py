"""docs/tutorials/operators.md, and examples/ops: the commands in the blocks of the page are run, in three folders as three owners."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dekpca import NodeModel
from dekpca.cli import app
from dekpca.peers.app.config import free_addresses
from faults.supervisor import until

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "tutorials" / "operators.md").read_text(encoding="utf-8")
OWNERS = ["oslo", "rome", "bonn"]
PATIENCE = 120  # seconds


def commands(having):
    """The commands of the block with this text, as lists of words after `dekpca`."""
    block = next(b for b in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if having in b)
    return [shlex.split(line)[1:] for line in block.splitlines() if line and not line.startswith("#")]


def dekpca(folder, words, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


def test_three_owners(tmp_path, monkeypatch, nursery):
    folders = {name: tmp_path / name for name in OWNERS}
    rng = np.random.default_rng(0)
    for name, folder in folders.items():
        folder.mkdir()
        np.savetxt(
            folder / f"{name}.csv", rng.normal(size=(60, 3)), "%.6f", ",", header="age,weight,height", comments=""
        )
    make, request, sign = commands("certs init")
    dekpca(folders["oslo"], make, monkeypatch)
    for name, folder in folders.items():
        dekpca(folder, [word.replace("NAME", name) for word in request], monkeypatch)
        if name != "oslo":
            shutil.copy(folder / f"{name}.csr", folders["oslo"])
        dekpca(folders["oslo"], [word.replace("NAME", name) for word in sign], monkeypatch)
        for file in (f"{name}.crt", "ca.crt"):
            shutil.copy(folders["oslo"] / "ca" / file, folder)
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    addresses = dict(zip(OWNERS, free_addresses(3), strict=True))
    for name, folder in folders.items():
        text = (
            toml.replace("oslo.", f"{name}.")
            .replace("oslo-run", f"{name}-run")
            .replace('name = "oslo"', f'name = "{name}"')
        )
        text = re.sub(r'listen = ".*"', f'listen = "{addresses[name]}"', text)
        around = "\n".join(f'{other} = "{addresses[other]}"' for other in OWNERS if other != name)
        text = re.sub(r"\[neighbors\]\n(.*\n)*?\n", f"[neighbors]\n{around}\n\n", text)
        (folder / "node.toml").write_text(text)
    for block in ("node check", "node run"):
        (words,) = commands(block)
        keys = {}
        for name, folder in folders.items():
            argv = [word.replace("node.toml", str(folder / "node.toml")) for word in words]
            keys[name] = nursery.start(argv, folder / "log")
        for name, key in keys.items():
            log = folders[name] / "log"
            until(lambda key=key: key in nursery.ended, log.read_text, PATIENCE)
            assert nursery.ended[key][0] == 0, log.read_text()
    values = {name: NodeModel.load(folders[name] / f"{name}.npz").transcript for name in OWNERS}
    assert len(set(values.values())) == 1
    said = {
        re.findall(r"^transcript: (\w{16}),", (folders[name] / "log").read_text(), re.MULTILINE)[0] for name in OWNERS
    }
    assert said == {values["oslo"][:16]}
    dekpca(folders["oslo"], *commands("node audit"), monkeypatch)
    started = json.loads((folders["oslo"] / "oslo-run" / "audit.jsonl").read_text().splitlines()[0])
    assert re.fullmatch("[0-9a-f]{64}", started["consent_sha256"])
    dekpca(folders["oslo"], *commands("transform"), monkeypatch)
    assert (folders["oslo"] / "components.csv").exists()


def test_the_unit_restarts_after_exit_code_4_alone():
    unit = (ROOT / "examples" / "ops" / "dekpca-node.service").read_text()
    (never,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    _, _, codes = (ROOT / "docs" / "howto" / "peers.md").read_text().partition("| exit code |")
    table = re.findall(r"^\| (\d+) \|", codes.partition("\n\n")[0], re.MULTILINE)
    assert set(table) - set(never.split()) == {"0", "4"}
    assert len((ROOT / "examples" / "ops" / "Containerfile").read_text().splitlines()) <= 10


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit():
    done = subprocess.run(
        ["systemd-analyze", "verify", ROOT / "examples" / "ops" / "dekpca-node.service"], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
