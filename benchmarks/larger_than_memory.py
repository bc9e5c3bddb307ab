"""Rows of a parquet file in blocks: seconds and memory, against the same rows at once in memory, and against scikit-learn's IncrementalPCA.

    python benchmarks/larger_than_memory.py [--rows 10000000] [--columns 20] [--folder DIR]

The file is made first, in --folder (default: a temporary one). Every method runs in a process of its own, with the defaults and 4 components; memory
is the largest resident set of that process (VmHWM). IncrementalPCA is linear: it finds other components, and is here as what people use for files
that do not fit into memory. Prints a table, and fails if a fit in blocks takes 1 GB, or its eigenvalues differ from those of the rows at once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from common import Floors, console, table

MOST_BYTES = 1e9
GROUP = 500_000  # rows of a row group
BATCH = 50_000
K = 4


def make(path: Path, rows: int, columns: int) -> None:
    """Ten clusters, with columns of different spreads."""
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    centres, spread = rng.normal(scale=1.5, size=(10, columns)), np.geomspace(2.0, 0.2, columns)
    writer = None
    for start in range(0, rows, GROUP):
        count = min(GROUP, rows - start)
        X = centres[rng.integers(0, 10, size=count)] + spread * rng.normal(size=(count, columns))
        batch = pyarrow.table({f"c{i:02d}": x for i, x in enumerate(X.T)})
        writer = writer or pyarrow.parquet.ParquetWriter(path, batch.schema)
        writer.write_table(batch)
    writer.close()


def in_blocks(path: Path) -> dict:
    import dekpca

    return about(dekpca.DecentralizedKernelPCA(K, random_state=0, verbose=True).fit(dekpca.Rows.from_parquet(path)))


def at_once(path: Path) -> dict:
    import dekpca
    from dekpca.data import read

    return about(dekpca.DecentralizedKernelPCA(K, random_state=0, network=1).fit(read(path).samples))


def about(model) -> dict:
    found = {
        "values": model.eigenvalues_.tolist(),
        "landmarks": model.n_landmarks_,
        "bound": model.span_accuracy_bound_,
    }
    return found | {"passes": model.history_.get("passes", 1), "parts": model.history_["seconds"]}


def transform(path: Path) -> dict:
    """With a model of a sample; `dekpca transform` does the same."""
    from typer.testing import CliRunner

    import dekpca
    from dekpca.cli import app

    model, out = path.parent / "model.npz", path.parent / "components.parquet"
    first = next(dekpca.Rows.from_parquet(path, block_rows=20_000).blocks())
    dekpca.DecentralizedKernelPCA(K, random_state=0, network=1).fit(first.samples).node_models_[0].save(model)
    done = CliRunner().invoke(app, ["transform", str(model), str(path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return {"passes": 1}


def incremental(path: Path) -> dict:
    import pyarrow.parquet
    from sklearn.decomposition import IncrementalPCA

    model = IncrementalPCA(K)
    with pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
        for batch in file.iter_batches(BATCH):
            model.partial_fit(np.column_stack([column.to_numpy() for column in batch.columns]))
    return {"passes": 1}


METHODS = {
    "dekpca, in blocks": in_blocks,
    "dekpca, all rows at once": at_once,
    "dekpca transform, file to file": transform,
    "IncrementalPCA (linear), in blocks": incremental,
}


def measured(name: str, path: Path) -> dict:
    """The result of a method that ran in a process of its own."""
    words = [sys.executable, __file__, "--method", name, "--file", str(path)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def one(name: str, path: Path) -> None:
    import pyarrow.parquet  # noqa: F401  # imports are not timed
    import sklearn.decomposition  # noqa: F401

    import dekpca  # noqa: F401

    start, worked = time.perf_counter(), time.process_time()
    found = METHODS[name](path)
    found |= {"seconds": time.perf_counter() - start, "cpu": time.process_time() - worked}
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    most = 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    print(json.dumps(found | {"memory": most}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.method is not None:
        one(given.method, given.file)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder) / "rows.parquet"
        make(path, given.rows, given.columns)
        found = {name: measured(name, path) for name in METHODS}
        size = path.stat().st_size / 1e9
    shown = table(
        f"{given.rows:,} rows of {given.columns} columns, {size:.1f} GB of parquet",
        "",
        "s",
        "CPU s",
        "MB",
        "passes",
        "landmarks",
    )
    for name, result in found.items():
        shown.add_row(
            name,
            f"{result['seconds']:.0f}",
            f"{result['cpu']:.0f}",
            f"{result['memory'] / 1e6:.0f}",
            str(result["passes"]),
            str(result.get("landmarks", "")),
        )
    console.print(shown)
    blocks, once = found["dekpca, in blocks"], found["dekpca, all rows at once"]
    parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in blocks["parts"].items())
    console.print(f"seconds by part, in blocks: {parts}; bound on the error {1 - blocks['bound'] ** 2:.1e}")
    apart = np.abs(np.array(blocks["values"]) / np.array(once["values"]) - 1).max()
    console.print(
        f"eigenvalues differ by {apart:.1e}; time in blocks over at once {blocks['seconds'] / once['seconds']:.2f}"
    )
    floors = Floors()
    floors.require(blocks["memory"] < MOST_BYTES, f"a fit in blocks takes {blocks['memory'] / 1e6:.0f} MB")
    floors.require(found["dekpca transform, file to file"]["memory"] < MOST_BYTES, "transform takes 1 GB")
    floors.require(apart < 1e-10, f"eigenvalues differ by {apart:.1e}")
    floors.finish()


if __name__ == "__main__":
    main()
