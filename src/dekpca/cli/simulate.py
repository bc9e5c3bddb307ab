"""`dekpca node simulate`: a network of real nodes on this machine, each a process with its own certificate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text
from sklearn.datasets import load_digits

from ..data import read
from ..network import Network
from . import parameters
from .common import FAILED, NOT_CONVERGED, Said, err, make_folder, peer_modules, print_accuracy, print_plain, verb

ENDED = {0: "done", NOT_CONVERGED: "done, less accurate than tol asks for"}


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
    out_dir: Annotated[Path, typer.Option("--out", help="A new folder for all files.")] = Path("dekpca-peers"),
    data: Annotated[Path | None, typer.Option(help="Rows to deal to the nodes; default: handwritten digits.")] = None,
    network: Annotated[str | None, typer.Option(help=f"Default: a ring of --nodes. {parameters.TOPOLOGIES}")] = None,
    n_components: parameters.NumberOrShare = "2",
    gamma: parameters.Gamma = "scale",
    tol: parameters.Tol = 1e-3,
    landmarks: parameters.Landmarks = "auto",
    share_rows: parameters.ShareRows = False,
    solver: parameters.Solver = "auto",
    random_state: parameters.RandomState = 0,
    peer_timeout: Annotated[float, typer.Option(help="Seconds to wait for a silent neighbor.")] = 300,
    write_only: Annotated[bool, typer.Option("--write-only", help="Write the files, start nothing.")] = False,
) -> Said | None:
    """Write configs and certificates for nodes on this machine, run them as real processes, and collect their models.

    Each node could run on another machine: the folder has the files of its owner. Exit code 1: a node failed; the error names it.

    Examples:

      dekpca node simulate --nodes 8 --out /tmp/peers

      dekpca node simulate --nodes 3 --write-only --out three && dekpca node run three/node-0.toml
    """
    peer = peer_modules("app.config", "net.authority")
    usual = Network.path(2) if nodes == 2 else Network.ring(nodes)
    net = usual if network is None else parameters.parse_network(network, random_state)
    net = Network.from_edges([(f"node-{a}", f"node-{b}") for a, b in net.edges])
    model = {
        "n_components": parameters.parse_components(n_components),
        "gamma": parameters.parse_gamma(gamma), "tol": tol, "share_rows": share_rows, "solver": _solver(solver),
        "landmarks": int(landmarks) if landmarks.isdigit() else str(Path(landmarks).resolve()) if Path(landmarks).suffix else landmarks,
        "random_state": random_state,
    }  # fmt: skip
    folder = make_folder(out_dir)
    if any(folder.iterdir()):
        raise ValueError(f"--out {folder}: not empty; choose a new folder")
    X = load_digits().data if data is None else np.asarray(read(data).X, dtype=np.float64)
    if len(X) < len(net):
        raise ValueError(f"{len(X)} rows for {len(net)} nodes; each needs at least one")
    peer.authority.init_ca(folder / "certs", "a simulation")
    for name in net.names:
        peer.authority.issue(folder / "certs", name, 30)
    rows = np.array_split(np.random.default_rng(random_state).permutation(len(X)), len(net))
    more = {"peer_timeout": peer_timeout, "members": list(net.names), "allow_two": len(net) == 2}
    peer.config.write_nodes(folder, [X[r] for r in rows], net, f"simulation-{random_state}", "certs", model, more)
    if write_only:
        print_plain(f"{len(net)} nodes in {folder}; start each with dekpca node run {folder}/NAME.toml", err)
        return None
    start = time.perf_counter()
    codes = _watch(folder, net.names)
    result = _collect(folder, codes) | {"seconds": time.perf_counter() - start, "folder": folder}
    return Said(result, lambda: _tell(result), FAILED if result["failed"] else 0)


def _solver(text: str) -> Any:
    """As node.toml has it: a word, or a table of the options that are not the usual ones."""
    asked = parameters.parse_solver(text)
    if asked == "auto" or "=" not in text:
        return text
    table = {f.name: value for f in fields(asked) if (value := getattr(asked, f.name)) != f.default}
    absent = next((name for name, value in table.items() if value is None), None)
    if absent is not None:
        raise ValueError(f"--solver {text}: node.toml cannot hold {absent}=none; leave it out")
    return table


def _watch(folder: Path, names: tuple[str, ...]) -> dict[str, int]:
    """Run the nodes, and show their progress; returns their exit codes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    node_run = [sys.executable, "-m", "dekpca.cli", "node", "run", "--yes", "--json"]
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in names:
            with open(folder / f"{name}.log", "wb") as log, open(folder / f"{name}.json", "wb") as said:
                ends: Any = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": log}
                processes[name] = subprocess.Popen([*node_run, str(folder / f"{name}.toml")], env=environment, **ends)
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
    from ..peers.protocol.text import showable

    table = Table("node", "state", box=None)
    for name, process in processes.items():
        code, said = process.poll(), _last(folder / f"{name}.log")
        words = [said.get(key) for key in ("message", "phase", "iteration", "peer", "why")]
        state = (
            " ".join(str(word) for word in words if word is not None)
            if code is None
            else ENDED.get(code, f"failed ({code})")
        )
        table.add_row(name, Text(showable(state)))
    return table


def _last(log: Path) -> dict[str, Any]:
    """The last JSON line of a log."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").splitlines()
    for text in reversed(lines):
        with suppress(ValueError):
            if text.startswith("{"):
                return json.loads(text)
    return {}


def _collect(folder: Path, codes: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name, code in codes.items():
        if code in ENDED:
            found[name] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            continue
        log = folder / f"{name}.log"
        errors = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("error:")]
        failed[name] = errors[-1] if errors else f"exit code {code}, see {log}"
    return {"nodes": found, "failed": failed}


def _tell(result: dict[str, Any]) -> None:
    for name, why in result["failed"].items():
        print_plain(f"{name}: {why}")
    nodes = list(result["nodes"].values())
    if not nodes:
        return
    print_plain(f"eigenvalues {' '.join(f'{v:.6g}' for v in nodes[0]['eigenvalues'])}")
    print_accuracy(nodes[0])
    sent = np.mean([sum(node["bytes_sent"].values()) for node in nodes]) / 1e6
    print_plain(f"{len(nodes)} nodes; {result['seconds']:.1f} s; each node sent {sent:.2f} MB on average")
    print_plain(f"models, logs and configs in {result['folder']}")
