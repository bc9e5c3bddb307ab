"""Owners of all sizes.

    python benchmarks/owners.py [--rows 300000]         # a csv of 300,000 flights of 16 airlines, made here, as the command line fits it
    python benchmarks/owners.py --sections sizes        # one owner of 1,000,000 rows among ten of 1,000; 10,000 owners of 20 rows

Columns as a table of flights has them: month, day, times, delays, air time, distance, with the dependencies between them; owners from 29 rows
to many. Prints seconds, peak memory against the data's size, and how far the answer agrees with a Nystroem approximation with three times as many
landmarks (central kernel PCA has no memory for so many rows).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

NAMES = [
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "air_time",
    "distance",
    "hour",
    "minute",
]
RUN = """
import json, re, sys, time
from pathlib import Path
from dekpca.cli import app
start = time.perf_counter()
try:
    app(sys.argv[1:], standalone_mode=False)
finally:
    peak = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # of this program, not of what started it
    print(json.dumps({"seconds": time.perf_counter() - start, "peak": peak}), file=sys.stderr)
"""


FIT = """
import json, re, sys, time, warnings
from pathlib import Path
import numpy as np
from dekpca import DecentralizedKernelPCA
X, sizes = np.load(sys.argv[1]), json.loads(sys.argv[2])
owner = np.repeat(np.arange(len(sizes)), sizes)
model = DecentralizedKernelPCA(3, random_state=0)
start = time.perf_counter()
model.fit(X, nodes=owner)
seconds = time.perf_counter() - start
model.node_models_[0].save(sys.argv[3])
peak = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps({"seconds": seconds, "peak": peak, "landmarks": model.n_landmarks_, "span": model.span_accuracy_, "gamma": model.gamma_}))
"""
SIZES = {
    "one owner of 1,000,000 rows among ten of 1,000": [1_000_000] + 10 * [1000],
    "10,000 owners of 20 rows": 10_000 * [20],
}


def flights(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows (rows, 12) and the airline of each."""
    rng = np.random.default_rng(seed)
    shares = np.sort(rng.dirichlet(np.full(16, 0.7)))
    sizes = np.maximum(29, (shares * rows).astype(int))
    sizes[0] = 29
    sizes[-1] += rows - sizes.sum()
    owner = np.repeat(np.arange(16), sizes)
    routes = rng.choice([185, 500, 760, 1020, 1400, 2470], size=(16, 4))
    distance = routes[owner, rng.integers(0, 4, rows)] * rng.normal(1, 0.08, rows)
    scheduled = np.clip(rng.normal(13.5, 4.5, rows) + rng.normal(0, 1, 16)[owner], 5, 23.9)
    dep_delay = np.where(rng.random(rows) < 0.25, rng.exponential(40, rows), rng.normal(-3, 4, rows))
    air = distance / 7.5 + 20 + rng.normal(0, 8, rows)
    arr_delay = dep_delay + rng.normal(-5, 13, rows)
    arrival = (scheduled + (air + 25) / 60) % 24
    columns = [
        rng.integers(1, 13, rows), rng.integers(1, 32, rows), clock(scheduled + dep_delay / 60), clock(scheduled), dep_delay,
        clock(arrival + arr_delay / 60), clock(arrival), arr_delay, air, distance, np.floor(scheduled), np.floor(scheduled % 1 * 60),
    ]  # fmt: skip
    order = rng.permutation(rows)
    return np.column_stack(columns)[order].astype(np.float64), owner[order]


def clock(hours: np.ndarray) -> np.ndarray:
    """As a timetable writes it: 1730."""
    hours = hours % 24
    return np.floor(hours) * 100 + np.floor(hours % 1 * 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--components", type=int, default=4)
    parser.add_argument("--sections", nargs="+", choices=["flights", "sizes"], default=["flights"])
    given = parser.parse_args()
    if "flights" in given.sections:
        flights_section(given)
    if "sizes" in given.sections:
        for name, sizes in SIZES.items():
            sizes_section(name, sizes)


def sizes_section(name: str, sizes: list[int]) -> None:
    """A fit with the default settings in a process of its own, for its peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        X, _ = flights(sum(sizes))
        X = (X - X.mean(axis=0)) / X.std(axis=0)
        np.save(path, X)
        command = [sys.executable, "-c", FIT, str(path), json.dumps(sizes), f"{folder}/models.npz"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout)
        span = span_of_nystroem(f"{folder}/models.npz", X, X, 3, 3 * found["landmarks"], found["gamma"])
    limit = (3 * X.nbytes + 500e6) / 1e6
    print(f"{name}: {len(X):,} rows, {found['seconds']:.2f} s, {found['landmarks']} landmarks, ", end="")
    print(f"peak memory {found['peak'] / 1e6:.0f} MB (three times the data and 500 MB are {limit:.0f}); ", end="")
    print(f"smallest cosine of the span: estimated {found['span']:.5f}, with Nystroem + PCA {span:.5f}")


def flights_section(given: argparse.Namespace) -> None:
    X, owner = flights(given.rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flights.csv"
        with open(path, "w") as file:
            file.write(",".join([*NAMES, "carrier"]) + "\n")
            np.savetxt(file, np.column_stack([X, owner]), fmt=["%.6g"] * 12 + ["airline-%d"], delimiter=",")
        arguments = ["fit", str(path), "--owner", "carrier", "--standardize", "-k", str(given.components), "--json"]
        done = subprocess.run(
            [sys.executable, "-c", RUN, *arguments, "--out", f"{folder}/models"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(done.stderr)
        result, took = json.loads(done.stdout), json.loads(done.stderr.splitlines()[-1])
        limit = 3 * X.nbytes + 500e6
        sizes = np.bincount(owner)
        print(f"{len(X):,} rows of 16 owners with {sizes.min()} to {sizes.max():,}; {X.nbytes / 1e6:.0f} MB of data")
        print(
            f"{took['seconds']:.1f} s in all, {result['seconds']['fitting']:.1f} s of them fitting; {result['landmarks']} landmarks"
        )
        print(f"peak memory {took['peak'] / 1e6:.0f} MB; three times the data and 500 MB are {limit / 1e6:.0f} MB")
        print(f"estimated agreement: {np.round(result['accuracy'], 5).tolist()}, span {result['span_accuracy']:.5f}")
        compare(Path(folder), X, given.components, 3 * result["landmarks"], result["gamma"])


def compare(folder: Path, X: np.ndarray, k: int, landmarks: int, gamma: float) -> None:
    from dekpca.data.columns import Samples

    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    path = next((folder / "models").glob("*.npz"))
    cosine = span_of_nystroem(path, Samples(X, tuple(NAMES)), Z, k, landmarks, gamma)
    print(f"smallest cosine between the spans of ours and of Nystroem({landmarks}) + PCA of all rows: {cosine:.5f}")


def span_of_nystroem(path: str | Path, rows: Any, Z: np.ndarray, k: int, landmarks: int, gamma: float) -> float:
    """The smallest cosine between a model's span and that of Nystroem + PCA, on some rows: as the model takes them, and as the kernel does."""
    from scipy.linalg import eigh
    from sklearn.kernel_approximation import Nystroem

    from dekpca import NodeModel

    landmarks = min(landmarks, len(Z[::10]))
    nystroem = Nystroem(gamma=gamma, n_components=landmarks, random_state=1).fit(Z[::10])
    first, second = np.zeros(landmarks), np.zeros((landmarks, landmarks))
    for start in range(0, len(Z), 20_000):
        part = nystroem.transform(Z[start : start + 20_000])
        first, second = first + part.sum(axis=0), second + part.T @ part
    mean = first / len(Z)
    directions = eigh(second / len(Z) - np.outer(mean, mean), subset_by_index=[landmarks - k, landmarks - 1])[1]
    some = slice(0, None, 15)
    given = replace(rows, X=rows.X[some]) if hasattr(rows, "X") else rows[some]
    values, truth = NodeModel.load(path).transform(given), (nystroem.transform(Z[some]) - mean) @ directions
    return float(np.linalg.svd(orthonormal(values).T @ orthonormal(truth), compute_uv=False)[-1])


def orthonormal(values: np.ndarray) -> np.ndarray:
    return np.linalg.qr(values - values.mean(axis=0))[0]


if __name__ == "__main__":
    main()
