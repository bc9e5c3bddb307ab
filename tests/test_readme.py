"""The README's example runs as written, and what it says of it is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[1]
    *lines, last = code.rstrip().splitlines()
    names: dict = {}
    exec("\n".join(lines), names)
    agreement = eval(last, names)
    assert agreement.shape == (20, 4)
    assert agreement.min() > 0.99
    assert (tmp_path / "node-7.npz").exists()


@pytest.mark.parametrize("page", sorted(p.name for p in (README.parent / "docs").glob("*.md")))
def test_examples_in_the_docs_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (README.parent / "docs" / page).read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, {})
