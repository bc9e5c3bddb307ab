"""What `dekpca fit` costs beside the same Python calls: time and peak memory on an npz file of 100,000 rows.

    python benchmarks/command_line.py

Both read the file, fit with default settings (500 nodes) and save every node's model; in turn, each in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from common import Floors, console, table

CALLS = """
import sys
from pathlib import Path
import numpy as np
from dekpca import DecentralizedKernelPCA
X = np.load("rows.npz")["X"]
model = DecentralizedKernelPCA(2, gamma="scale", random_state=0).fit(X)
Path("python").mkdir(exist_ok=True)
for node in model.node_models_:
    node.save(f"python/{node.name}.npz")
"""


def measured(command: list[str], folder: Path) -> tuple[float, float]:
    """Seconds and peak megabytes of a process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command} failed with {process.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=2)
    a = parser.parse_args()
    ways = {
        "Python calls": [sys.executable, "-c", CALLS],
        "dekpca fit": [
            sys.executable,
            "-m",
            "dekpca.cli",
            "fit",
            "rows.npz",
            "--gamma",
            "scale",
            "--out",
            "cli",
            "--json",
        ],
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        centers = rng.normal(scale=2, size=(5, 20))
        np.savez(Path(folder, "rows.npz"), X=centers[rng.integers(0, 5, a.rows)] + rng.normal(size=(a.rows, 20)))
        for _ in range(a.repeats):
            for name, command in ways.items():
                found[name].append(measured(command, Path(folder)))
    shown = table(f"{a.rows} rows, 20 columns, best of {a.repeats}", "", "seconds", "peak MB")
    best = {name: np.min(values, axis=0) for name, values in found.items()}
    for name, (seconds, memory) in best.items():
        shown.add_row(name, f"{seconds:.1f}", f"{memory:.0f}")
    console.print(shown)
    ratio = best["dekpca fit"] / best["Python calls"]
    console.print(f"dekpca fit / Python calls: {ratio[0]:.3f} of the time, {ratio[1]:.3f} of the memory")
    floors = Floors()
    floors.require(ratio[0] <= 1.10, f"time {ratio[0]:.3f}, at most 1.10")
    floors.require(ratio[1] <= 1.10, f"memory {ratio[1]:.3f}, at most 1.10")
    floors.finish()


if __name__ == "__main__":
    main()
