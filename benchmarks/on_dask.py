"""The Dask engine on this machine: time, memory and what passes the scheduler, against MPI ranks with the same rows.

    python benchmarks/on_dask.py [--rows 2000000] [--columns 20] [--workers 4]

Every worker and every rank makes its own rows, so that nothing of their size is ever in one place. Memory is the proportional set size of all
processes of a run, sampled every 0.2 s. Prints a table, and fails if the eigenvalues differ, or a bar of the issue is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

PARTS = 16
SETTINGS = {"n_components": 4, "gamma": 0.02, "random_state": 0}
MOST_BYTES, MOST_RATIO = 2.5e9, 1.5

RANK = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, {folder!r})
import numpy as np
from mpi4py import MPI
from on_dask import PARTS, SETTINGS, block
from dekpca.engines import mpi
from dekpca import DecentralizedKernelPCA
comm = MPI.COMM_WORLD
mine = [block(i, {rows} // PARTS, {columns}) for i in np.array_split(range(PARTS), comm.Get_size())[comm.Get_rank()]]
times = []
for _ in range(2):
    comm.Barrier()
    start = time.perf_counter()
    model = DecentralizedKernelPCA(**SETTINGS, engine="mpi").fit_parts(mine)
    comm.Barrier()
    times.append(time.perf_counter() - start)
if comm.Get_rank() == 0:
    print(json.dumps([min(times), model.n_landmarks_, model.eigenvalues_.tolist()]))
"""


def block(number: int, rows: int, columns: int) -> np.ndarray:
    """Rows whose columns have different spreads, so that no eigenvalues are close."""
    return np.random.default_rng(number).normal(size=(rows, columns)) * np.geomspace(3, 0.1, columns)


class Memory(threading.Thread):
    """The largest proportional set size of this process's children and, for Dask, of itself."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.stop = 0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.stop.wait(0.2):
            self.most = max(self.most, sum(map(pss, family())))


def family() -> list[int]:
    """This process and all that descend from it."""
    import psutil

    me = psutil.Process()
    return [me.pid, *(child.pid for child in me.children(recursive=True))]


def pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:  # it has ended
        return 0
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def on_dask(rows: int, columns: int, workers: int) -> tuple[float, int, list[float], int, int]:
    import dask
    import dask.array as da
    from distributed import Client, LocalCluster, wait

    from dekpca import DecentralizedKernelPCA

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        size = rows // PARTS
        blocks = [da.from_delayed(dask.delayed(block)(i, size, columns), (size, columns), float) for i in range(PARTS)]
        X = da.concatenate(blocks).persist()
        wait(X)
        memory, times = Memory(), []
        before = client.run_on_scheduler(sent_and_read)
        for _ in range(2):
            start = time.perf_counter()
            model = DecentralizedKernelPCA(**SETTINGS).fit(X)
            times.append(time.perf_counter() - start)
        passed = client.run_on_scheduler(sent_and_read) - before
        memory.stop.set()
        return min(times), model.n_landmarks_, model.eigenvalues_.tolist(), memory.most, passed // 2


def sent_and_read(dask_scheduler: object = None) -> int:
    """Bytes that the scheduler's process has written to and read from sockets and pipes."""
    text = Path("/proc/self/io").read_text(encoding="ascii")
    numbers = dict(line.split(": ") for line in text.splitlines())
    return int(numbers["rchar"]) + int(numbers["wchar"])


def on_ranks(rows: int, columns: int, ranks: int) -> tuple[float, int, list[float], int]:
    from dekpca.engines.ranks import find_mpiexec

    code = RANK.format(folder=str(Path(__file__).parent), rows=rows, columns=columns)
    memory = Memory()
    words = [find_mpiexec(), "-n", str(ranks), "-env", "OMP_NUM_THREADS", "1", sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    memory.stop.set()
    seconds, landmarks, values = json.loads(done.stdout.splitlines()[-1])
    return seconds, landmarks, values, memory.most


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    size = given.rows * given.columns * 8
    d_time, d_marks, d_values, d_memory, passed = on_dask(given.rows, given.columns, given.workers)
    m_time, m_marks, m_values, m_memory = on_ranks(given.rows, given.columns, given.workers)
    print(
        f"{given.rows:,} x {given.columns}, {size / 1e6:.0f} MB of rows; {given.workers} workers, {given.workers} ranks; best of 2"
    )
    print(f"dask  {d_time:6.2f} s  {d_marks} landmarks  {d_memory / 1e9:.2f} GB in all processes")
    print(f"mpi   {m_time:6.2f} s  {m_marks} landmarks  {m_memory / 1e9:.2f} GB in all processes")
    print(f"ratio {d_time / m_time:.2f}; through the scheduler's process {passed / 1e6:.1f} MB a fit")
    np.testing.assert_allclose(d_values, m_values, rtol=1e-8)
    missed = [f"memory {d_memory / 1e9:.2f} GB"] * (d_memory > MOST_BYTES) + [f"ratio {d_time / m_time:.2f}"] * (
        d_time > MOST_RATIO * m_time
    )
    missed += [f"{passed / 1e6:.0f} MB through the scheduler"] * (passed > size / 4)
    sys.exit(f"missed: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
