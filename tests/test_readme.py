"""The Python code of README and docs runs as written, and what the README says of its example is true."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dekpca import Network

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"```python\n(.*?)```", re.DOTALL)
GENERATED = {"cli.md"}  # by `make docs`
PAGES = [page for page in PAGES if page.name not in GENERATED]
WITH_CODE = [page for page in PAGES if FENCED.search(page.read_text(encoding="utf-8"))]


def given_to(page):
    """Files that the code of a page reads."""
    if page == "clusters.md":
        network = Network.ring(3)
        network.write("network.json")
        Path("parts").mkdir()
        Path("models").mkdir()
        for name in network.names:
            np.save(f"parts/{name}.npy", np.random.default_rng(int(name)).normal(size=(30, 5)))


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = FENCED.search(README.read_text(encoding="utf-8"))[1]
    *lines, last = code.rstrip().splitlines()
    names: dict = {}
    exec("\n".join(lines), names)
    agreement = eval(last, names)
    assert agreement.shape == (20, 4)
    assert agreement.min() > 0.99
    assert (tmp_path / "node-7.npz").exists()


@pytest.mark.parametrize("page", [page for page in WITH_CODE if page != README], ids=lambda page: page.name)
def test_examples_in_the_docs_run(page, tmp_path, monkeypatch, request):
    if page.name == "clusters.md":
        pytest.importorskip("mpi4py")
        request.getfixturevalue("dask_workers_are_forks")
    monkeypatch.chdir(tmp_path)
    given_to(page.name)
    names: dict = {}  # later blocks of a page use what earlier ones made
    for code in FENCED.findall(page.read_text(encoding="utf-8")):
        if "cuda" in code:  # for ranks with GPUs; tests/on_ranks.py fits such parts
            continue
        exec(code.replace("ROWS, COLUMNS = 1_000_000, 20", "ROWS, COLUMNS = 16_000, 20"), names)


def test_every_test_that_the_docs_name_exists():
    """Each cell of the tables of adversaries has the test that shows it."""
    tests = {
        name
        for path in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = {
        page: re.findall(r"`(test_\w+)`", (ROOT / "docs" / "explanation" / page).read_text(encoding="utf-8"))
        for page in ("privacy.md", "security.md")
    }
    assert min(map(len, named.values())) > 8
    assert {name for names in named.values() for name in names} <= tests
    rows = re.findall(
        r"^\| (?:an outsider|a curious|a member|two or more|the root).*$",
        (ROOT / "docs" / "explanation" / "privacy.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 5
    unproven = [cell for row in rows for cell in row.split("|")[2:-1] if "`test_" not in cell]
    assert [cell.strip()[:8] for cell in unproven] == [
        "the same",
        "the same",
        "the same",
        "what eac",
    ]  # as another cell says


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_all_python_code_is_marked_as_such(page):
    """Code in an indented block would not be run here."""
    rest = FENCED.sub("", page.read_text(encoding="utf-8"))
    assert not re.findall(
        r"^\s*(?:import \w+|from [\w.]+ import \w+).*|^.*= DecentralizedKernelPCA\(.*", rest, re.MULTILINE
    )
