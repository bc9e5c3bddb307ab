from __future__ import annotations

import re
import sys

from typer.testing import CliRunner

import dekpca
from dekpca.cli import app

PNG = b"\x89PNG\r\n\x1a\n"
STAGE = r"(\d+) landmarks: stated error (\S+), at most (\S+); true error (\S+)"


def test_demo_draws_and_tabulates(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "new" / "demo")])
    assert result.exit_code == 0, result.output
    figure = tmp_path / "new" / "demo" / "demo.png"
    assert figure.read_bytes().startswith(PNG)
    assert figure.stat().st_size > 50_000
    report = (figure.parent / "report.html").read_text(encoding="utf-8")
    assert "1,600 handwritten digits on 20 nodes" in report
    said = " ".join(result.stdout.split())
    for word in (
        "local",
        "neighborhood",
        "the paper's: 80 iterations",
        "component 4",
        "stated by dekpca",
        "rounds",
        "kB sent by a node",
        "what node 3 learned from the others",
        figure.name,
        "report.html",
    ):
        assert word in said
    assert " 1 iterations" not in said
    stages = [[float(v) for v in found] for found in re.findall(STAGE, said)]
    assert len(stages) > 1  # the landmarks grew
    for landmarks, stated, bound, true in stages:
        assert landmarks > 0
        assert stated / 3 < true < 3 * stated
        assert true < bound
    rows = [line for line in result.stdout.splitlines() if line.startswith("│ dekpca")]
    worst = [float(v) for v in rows[0].split() if v.replace(".", "").isdigit()]
    assert min(worst) > 0.99


def test_demo_says_when_it_cannot_write(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file" / "x")])
    assert result.exit_code == 2


def test_demo_without_matplotlib_and_plotly(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    found = [name for name in sys.modules if name.startswith("dekpca.report.") and "figures" not in name]
    for module in found:  # that have plotly already
        monkeypatch.delitem(sys.modules, module)
        monkeypatch.delattr(sys.modules["dekpca.report"], module.rpartition(".")[2], raising=False)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert "dekpca[plot]" in result.stderr
    assert "dekpca[report]" in result.stderr.replace("\n", "")
    assert not list(tmp_path.iterdir())


def test_version_and_help():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"dekpca {dekpca.__version__}\n"
    assert "demo" in CliRunner().invoke(app, ["--help"]).stdout
