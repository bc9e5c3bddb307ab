"""`dekpca node simulate`: a network of real nodes on this machine, each a process with its own certificate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..data import read
from ..network import Network
from .common import (
    FAILED,
    NOT_CONVERGED,
    TOPOLOGIES,
    Debug,
    Json,
    emit,
    err,
    make_folder,
    out,
    parse_network,
    rounded_down,
    verb,
)

ENDED = {0: "done", NOT_CONVERGED: "done, not converged"}


@contextmanager
def private_files() -> Iterator[None]:
    """Files written inside are readable by their owner only: models, logs and reports hold rows of several nodes."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@verb
@private_files()
def simulate(
    nodes: Annotated[int, typer.Option(min=2, help="How many.")] = 8,
    out_dir: Annotated[
        Path, typer.Option("--out", help="A new folder for configs, certificates, logs and models.")
    ] = Path("dekpca-peers"),
    data: Annotated[Path | None, typer.Option(help="Rows to deal to the nodes; default: handwritten digits.")] = None,
    network: Annotated[str | None, typer.Option(help=f"Default: a ring. {TOPOLOGIES}")] = None,
    components: Annotated[int, typer.Option("--components", "-k", min=1, help="How many components.")] = 2,
    gamma: Annotated[str, typer.Option(help="A number, or scale.")] = "scale",
    landmarks: Annotated[str, typer.Option(help="auto, a number, or random-features.")] = "auto",
    solver: Annotated[str, typer.Option(help="auto, landmarks or projection.")] = "auto",
    share_rows: Annotated[
        bool,
        typer.Option(
            "--share-rows/--keep-rows", help="Whether rows may leave their node: as landmarks, or to neighbors."
        ),
    ] = False,
    max_iter: Annotated[int, typer.Option(min=1, help="Largest number of iterations.")] = 100,
    tol: Annotated[
        float, typer.Option(min=0, help="The error that is asked for: sin^2 of the angle to central kernel PCA.")
    ] = 1e-3,
    peer_timeout: Annotated[float, typer.Option(help="Seconds to wait for a silent neighbor.")] = 300,
    write_only: Annotated[bool, typer.Option("--write-only", help="Write the files, start nothing.")] = False,
    seed: Annotated[int, typer.Option(help="Deals the rows.")] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write configs and certificates for nodes on this machine, run them as real processes, and collect their models.

    Each node could run on another machine: the folder has the files of its owner. Exit code 1: a node failed; the error names it.

    Examples:

      dekpca node simulate --nodes 8 --out /tmp/peers

      dekpca node simulate --nodes 3 --write-only --out three && dekpca node run three/node-0.toml
    """
    from ..engines.peer.app.local_cluster import write_nodes
    from ..engines.peer.net.identity import init_ca, issue

    net = _named(parse_network(network, seed) if network else Network.path(2) if nodes == 2 else Network.ring(nodes))
    if network and len(net) != nodes:
        nodes = len(net)
    folder = make_folder(out_dir)
    if any(folder.iterdir()):
        raise ValueError(f"--out {folder}: not empty; choose a new folder")
    X = _digits() if data is None else np.asarray(read(data).X, dtype=np.float64)
    if len(X) < nodes:
        raise ValueError(f"{len(X)} rows for {nodes} nodes; each needs at least one")
    init_ca(folder / "certs", "a simulation")
    for name in net.names:
        issue(folder / "certs", name, 30)
    rows = np.array_split(np.random.default_rng(seed).permutation(len(X)), nodes)
    model = {
        "n_components": components, "gamma": gamma if gamma == "scale" else float(gamma), "solver": solver,
        "landmarks": int(landmarks) if landmarks.isdigit() else landmarks,
        "share_rows": share_rows, "max_iter": max_iter, "tol": tol, "random_state": seed,
    }  # fmt: skip
    more = {"peer_timeout": peer_timeout}
    write_nodes(folder, [X[r] for r in rows], net, f"simulation-{seed}", "certs", model, more)
    if write_only:
        err.print(
            f"{nodes} nodes in {folder}; start each with dekpca node run {folder}/NAME.toml",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )
        return
    start = time.perf_counter()
    codes = _watch(folder, net.names)
    seconds = time.perf_counter() - start
    result = _collect(folder, net.names, codes) | {"seconds": seconds, "folder": folder}
    emit(result, as_json, lambda: _tell(result))
    if result["failed"]:
        raise typer.Exit(FAILED)


def _named(network: Network) -> Network:
    return Network.from_edges([(f"node-{a}", f"node-{b}") for a, b in network.edges])


def _digits() -> np.ndarray:
    from sklearn.datasets import load_digits

    return load_digits().data


def _watch(folder: Path, names: tuple[str, ...]) -> dict[str, int]:
    """Run the nodes, and show their progress; returns their exit codes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in names:
            with open(folder / f"{name}.log", "wb") as log, open(folder / f"{name}.json", "wb") as said:
                command = [
                    sys.executable,
                    "-m",
                    "dekpca.cli",
                    "node",
                    "run",
                    str(folder / f"{name}.toml"),
                    "--yes",
                    "--json",
                ]
                processes[name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=said, stderr=log, env=environment
                )
        with Live(console=err, transient=True, auto_refresh=False) as live:
            while any(p.poll() is None for p in processes.values()):
                if err.is_terminal:
                    live.update(_table(folder, processes), refresh=True)
                time.sleep(0.2)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
        for process in processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return {name: process.returncode for name, process in processes.items()}


def _table(folder: Path, processes: dict[str, Any]) -> Table:
    from ..engines.peer.protocol.text import showable

    table = Table(box=None)
    for column in ("node", "state"):
        table.add_column(column)
    for name, process in processes.items():
        code = process.poll()
        said = _last(folder / f"{name}.log")
        words = [
            str(said.get(key, ""))
            for key in ("message", "phase", "iteration", "peer", "why")
            if said.get(key) not in (None, "")
        ]
        state = " ".join(words) if code is None else ENDED.get(code, f"failed ({code})")
        table.add_row(name, Text(showable(state)))
    return table


def _last(log: Path) -> dict[str, Any]:
    """The last JSON line of a log."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").splitlines()
    for text in reversed(lines):
        if text.startswith("{"):
            try:
                return json.loads(text)
            except ValueError:
                continue
    return {}


def _collect(folder: Path, names: tuple[str, ...], codes: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in names:
        if codes[name] in ENDED:
            found[name] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        else:
            words = [
                t for t in (folder / f"{name}.log").read_text(errors="replace").splitlines() if t.startswith("error:")
            ]
            failed[name] = words[-1] if words else f"exit code {codes[name]}, see {folder / name}.log"
    return {"nodes": found, "failed": failed}


def _tell(result: dict[str, Any]) -> None:
    for name, why in result["failed"].items():
        out.print(f"{name}: {why}", markup=False, highlight=False, soft_wrap=True)
    if not result["nodes"]:
        return
    first = next(iter(result["nodes"].values()))
    sent = [sum(n["bytes_sent"].values()) for n in result["nodes"].values()]
    out.print(
        f"{len(result['nodes'])} nodes, {first['iterations']} iterations, {'' if first['converged'] else 'not '}converged; "
        f"{np.mean(sent) / 1e6:.2f} MB sent a node; {result['seconds']:.1f} s",
        highlight=False,
    )
    out.print(f"eigenvalues {' '.join(f'{v:.6g}' for v in first['eigenvalues'])}", highlight=False, soft_wrap=True)
    if first["span_accuracy"] is not None:
        out.print(
            f"estimated agreement with central kernel PCA: {rounded_down(first['span_accuracy'])}", highlight=False
        )
    out.print(f"models, logs and configs in {result['folder']}", highlight=False, soft_wrap=True, markup=False)
