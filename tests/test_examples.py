"""The examples run and show what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

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


def test_reproduce_a_figure(tmp_path, monkeypatch):
    module = load("reproduce_a_figure")
    monkeypatch.setattr(module.paper, "SIZES", (40, 300))
    rows = module.main(tmp_path, repeats=1)
    assert {row["method"] for row in rows} == {"local", "neighborhood", "paper", "dekpca"}
    assert (tmp_path / "samples.svg").exists()


def test_more_rows_than_fit():
    assert load("more_rows_than_fit").main(rows=3_000).min() > 0.99


def test_data_already_apart(tmp_path):
    found = load("data_already_apart").main(tmp_path)
    assert found["agreement"] > 0.99
    assert found["cork after consensus"] > 0.85
    assert sorted(p.name for p in tmp_path.iterdir()) == ["aarhus.npz", "bergen.npz", "cork.npz", "delft.npz"]


def test_broken_sensor(tmp_path):
    """Together the broken one stands out; alone all look alike."""
    module = load("broken_sensor")
    found = module.main(tmp_path / "broken_sensor.png")
    others = np.delete(found["together"], module.BROKEN)
    assert found["together"][module.BROKEN] > 4 * others.max()
    assert np.ptp(found["alone"]) < 0.01
    assert (tmp_path / "broken_sensor.png").stat().st_size > 10_000


def test_five_hospitals(tmp_path):
    found = load("five_hospitals").main(tmp_path, rows=8_000)
    assert 0.99 < found["epsilon"] <= 1.0
    assert found["together"] > 0.75  # about 0.9; noise differs from fit to fit
    assert found["together"] > found["cork alone"]
    assert (tmp_path / "five_hospitals.png").stat().st_size > 10_000
