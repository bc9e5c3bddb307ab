"""Peers on one machine: time against MPI, memory of a node, and signs of life during a large exchange.

    python benchmarks/peers.py --data mnist-0358.npz

Every node is a process of its own with a certificate of its own; messages go over loopback with mutual TLS, and each is on disk before it is
acknowledged. All nodes share the cores of this machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

import mpi as by_mpi
from common import GAMMA, Floors, arguments, console, load, table
from dekpca import DecentralizedKernelPCA, Network, Projection
from dekpca.experiments import splits
from dekpca.peers.app.config import free_addresses, write_nodes
from dekpca.peers.net.authority import init_ca, issue

SLOWEST = 3.0  # times the same problem by MPI
LARGEST = 3.0  # times data and Gram matrix of the neighborhood
HEARTBEAT = 0.5  # seconds
LATE = 2.0  # seconds; a beat every half second, and a machine that is busy with a hundred megabytes
A_RUN = 1200.0  # seconds after which something hangs


def iterating(n_components: int, gamma: float, **solver: Any) -> dict[str, Any]:
    """The table [model] of a node.toml, for the solver whose nodes exchange rows."""
    return {"n_components": n_components, "gamma": gamma, "share_rows": True, "solver": {"tol": 0.0, **solver}}


def against_mpi(data: Path, floors: Floors, repeats: int) -> None:
    """J = 8 by `dekpca node run`: from the known network, which processes that are up have, to the last answer."""
    J, ranks = 8, 4
    X, y = load(data)
    network = Network.ring(J, 4)
    shown = table(
        f"J = {J}, {by_mpi.ITERATIONS} iterations, {J} peers (TLS, journal on disk) and {ranks} MPI ranks on {len(os.sched_getaffinity(0))} cores, "
        f"load {os.getloadavg()[0]:.1f}: seconds to the answers, best (median) of {repeats} in turn",
        "rows of a node", "peers", "MPI", "peers / MPI", "eigenvalues apart from local",
    )  # fmt: skip
    model = iterating(by_mpi.K, GAMMA, max_iter=by_mpi.ITERATIONS)
    for rows in (100, 500, 1000):
        parts = [X[r] for r in splits.evenly(y, np.full(J, rows))]
        peers, mpi = [], []
        for _ in range(repeats):
            with Nodes(parts, network, model) as nodes:
                nodes.watch()
                peers.append(nodes.seconds())
                eigenvalues = nodes.said()["0"]["eigenvalues"]
            mpi.append(max(rank["whole"] for rank in by_mpi.launch(data, ranks, [{"J": J, "rows": rows}])[0]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tol=0 does not converge
            asked = model | {"solver": Projection(**model["solver"])}
            central = DecentralizedKernelPCA(network=network, random_state=0, **asked).fit_parts(parts)
        apart = np.abs(eigenvalues / central.eigenvalues_ - 1).max()
        floors.require(bool(apart <= 1e-10), f"{rows} rows: eigenvalues {apart:.1e} from the local engine's")
        ratio = min(peers) / min(mpi)
        floors.require(ratio <= SLOWEST, f"{rows} rows: peers take {ratio:.2f} times as long as MPI on {ranks} ranks")
        cells = [f"{min(t):.2f} ({np.median(t):.2f})" for t in (peers, mpi)]
        shown.add_row(str(rows), *cells, f"{ratio:.2f}", f"{apart:.0e}")
    console.print(shown)


class Nodes:
    """Processes of `dekpca node run` in a temporary folder; a context manager that leaves none behind."""

    def __init__(self, parts: list[np.ndarray], network: Network, model: dict[str, Any], **more: Any):
        self.names = network.names
        self._temporary = tempfile.TemporaryDirectory(prefix="peers-")
        self.folder = Path(self._temporary.name)
        init_ca(self.folder / "certs", "benchmark")
        for name in network.names:
            issue(self.folder / "certs", name, 2)
        write_nodes(self.folder, parts, network, "benchmark", "certs", model, more)
        self.metrics = dict(zip(self.names, free_addresses(len(self.names)), strict=True))
        self.peak: dict[str, int] = {}  # bytes
        self.codes: dict[str, int] = {}

    def __enter__(self) -> Nodes:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._pids: dict[int, str] = {}
        for name in self.names:
            config = str(self.folder / f"{name}.toml")
            command = [sys.executable, "-m", "dekpca.cli", "node", "run", config, "--yes", "--json"]
            with open(self.folder / f"{name}.log", "wb") as log, open(self.folder / f"{name}.json", "wb") as said:
                started = subprocess.Popen(
                    [*command, "--metrics", self.metrics[name]], stdin=subprocess.DEVNULL, stdout=said, stderr=log, env=environment
                )  # fmt: skip
            self._pids[started.pid] = name
            started.returncode = 0  # we wait for it ourselves, to learn its peak memory
        return self

    def watch(self, look: Callable[[], None] = lambda: None) -> None:
        """Until all have ended; `look` is called all the time."""
        end = time.monotonic() + A_RUN
        while self._pids:
            if time.monotonic() > end:
                sys.exit(f"nodes {', '.join(self._pids.values())} are not done after {A_RUN:g} s")
            for pid in list(self._pids):
                done, status, usage = os.wait4(pid, os.WNOHANG)
                if done:
                    name = self._pids.pop(pid)
                    self.codes[name] = os.waitstatus_to_exitcode(status)
                    self.peak[name] = usage.ru_maxrss * 1024
            look()
            time.sleep(0.02)
        bad = {name: code for name, code in self.codes.items() if code not in (0, 3)}
        for name in bad:
            console.print((self.folder / f"{name}.log").read_text()[-1500:], markup=False)
        if bad:
            sys.exit(f"exit codes {bad}")

    def said(self) -> dict[str, dict[str, Any]]:
        """What each node said at its end."""
        return {name: json.loads((self.folder / f"{name}.json").read_text()) for name in self.names}

    def seconds(self) -> float:
        """From the first node that knew the network to the last that had its answer, as their logs have it."""
        times: dict[str, list[datetime]] = {"network known": [], "answer found": []}
        for name in self.names:
            for line in (self.folder / f"{name}.log").read_text().splitlines():
                about = json.loads(line) if line.startswith("{") else {}
                if about.get("message") in times:
                    times[about["message"]].append(datetime.fromisoformat(about["time"]))
        return (max(times["answer found"]) - min(times["network known"])).total_seconds()

    def __exit__(self, *unused: object) -> None:
        for pid in self._pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        self._temporary.cleanup()


def load_of_a_node(data: Path, floors: Floors) -> None:
    """16 nodes of 1,000 rows: do they complete, and in how much memory?"""
    J, rows, around = 16, 1000, 4
    X, y = load(data)
    network = Network.ring(J, around)
    parts = [X[r] for r in splits.evenly(y, np.full(J, rows))]
    near = (1 + around) * rows
    neighborhood, gram, once = near * X.shape[1] * 8, near * near * 8, near * (near + rows) // 2 * 8
    model = iterating(4, GAMMA, max_iter=20)
    start = time.perf_counter()
    with Nodes(parts, network, model, start_timeout=600, peer_timeout=600) as nodes:
        nodes.watch()
    seconds = time.perf_counter() - start
    worst, middle = max(nodes.peak.values()), float(np.median(list(nodes.peak.values())))
    ratio = worst / (neighborhood + gram)
    floors.require(ratio <= LARGEST, f"peak memory {ratio:.2f} times data and Gram matrix of the neighborhood")
    shown = table(
        f"{J} nodes as processes, {rows} rows x {X.shape[1]}, {around} neighbors each, 20 iterations: {seconds:.0f} s in all",
        "MB", "data of the neighborhood", "its Gram matrix", "each pair once", "peak of a node: median", "largest", "largest / (data + Gram)",
    )  # fmt: skip
    shown.add_row(
        "", f"{neighborhood / 1e6:.0f}", f"{gram / 1e6:.0f}", f"{once / 1e6:.0f}", f"{middle / 1e6:.0f}", f"{worst / 1e6:.0f}", f"{ratio:.2f}"
    )  # fmt: skip
    console.print(shown)


def signs_of_life(floors: Floors, rows: int = 1000, columns: int = 12_800) -> None:
    """Three nodes exchange 100 MB samples; for how long is anybody silent meanwhile?"""
    network = Network.from_edges([("a", "b"), ("b", "c")])
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(rows, columns)) for _ in network.names]
    model = iterating(2, 1 / columns, n_landmarks=20, max_iter=5)
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in network.names}  # received so far, silence

    with Nodes(parts, network, model, heartbeat=HEARTBEAT) as nodes:

        def look() -> None:
            for name, address in nodes.metrics.items():
                try:
                    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as page:
                        text = page.read().decode()
                except OSError:
                    continue  # not there yet, or not any more
                received = sum(map(float, re.findall(r"^dekpca_peer_received_bytes_total\{.*\} (\S+)", text, re.M)))
                silence = [float(s) for s in re.findall(r"^dekpca_peer_silence_seconds\{.*\} (\S+)", text, re.M)]
                if received and silence:
                    seen[name].append((received, max(silence)))

        nodes.watch(look)
    shown = table(
        f"{rows} x {columns} numbers, {rows * columns * 8 / 1e6:.0f} MB, to each neighbor; a beat every {HEARTBEAT:g} s",
        "node", "MB received", "looks during the exchange", "longest silence, s",
    )  # fmt: skip
    for name, looks in seen.items():
        whole = max(received for received, _ in looks)
        during = [silence for received, silence in looks if 0.05 * whole < received < 0.999 * whole]
        longest = max(during, default=float("nan"))
        shown.add_row(name, f"{whole / 1e6:.0f}", str(len(during)), f"{longest:.2f}")
        floors.require(
            bool(len(during) >= 5 and longest <= LATE),
            f"node {name}: silence of {longest:.2f} s in {len(during)} looks",
        )
    console.print(shown)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=["mpi", "load", "life"])
    a = parser.parse_args()
    floors = Floors()
    if a.only in (None, "mpi"):
        against_mpi(a.data, floors, a.repeats)
    if a.only in (None, "load"):
        load_of_a_node(a.data, floors)
    if a.only in (None, "life"):
        signs_of_life(floors)
    floors.finish()


if __name__ == "__main__":
    main()
