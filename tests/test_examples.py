"""The examples run and show what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_denoising(tmp_path, capsys):
    errors = load("denoising").main(seed=5, figure=tmp_path / "denoising.png")
    assert errors["one node after consensus"] < 0.7 * errors["one node alone"]
    assert errors["one node after consensus"] < 1.05 * errors["central"]
    assert errors["central"] < 0.5 * errors["noisy"]
    assert (tmp_path / "denoising.png").stat().st_size > 10_000
    assert "after consensus / central" in capsys.readouterr().out
