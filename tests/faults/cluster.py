"""A small network of node processes with a misbehaving wire along every edge, and the answer that it must come to.

Nodes listen on whatever port is free and are reached through wires only (proxy.py), which learn the port from the node's log: nothing
here can collide with another run on the same machine. What a node has done so far is read from its log and its database.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dekpca.peers.net import authority
from dekpca.peers.storage.database import FILE

from .proxy import Wire, Wires
from .supervisor import Node, Nursery, until

LONG = 120.0  # seconds for a run of a few seconds: machines are slow, hangs are for ever
SETTINGS = {
    "n_components": 2, "share_rows": True, "gamma": "scale", "standardize": True, "random_state": 0,
    "solver": {"n_oversamples": 1, "n_landmarks": 10, "max_iter": 15, "tol": 1e-2},
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """Nodes, their rows, and the settings. By default one that has every kind of message of the projection solver but two."""

    edges: tuple[tuple[str, str], ...] = (("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("d", "e"))
    rows: int = 24
    columns: int = 4
    model: Mapping[str, Any] = field(default_factory=lambda: SETTINGS)
    fallback_edges: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> list[str]:
        return sorted({name for edge in self.edges for name in edge})

    def around(self, name: str) -> list[str]:
        return sorted({*(b for a, b in self.edges if a == name), *(a for a, b in self.edges if b == name)})

    def fallback(self, name: str) -> list[str]:
        return sorted(
            {*(b for a, b in self.fallback_edges if a == name), *(a for a, b in self.fallback_edges if b == name)}
        )

    def part(self, name: str) -> np.ndarray:
        number = self.names.index(name)
        rng = np.random.default_rng(number)
        return rng.normal(size=(self.rows + 3 * number, self.columns)) * np.geomspace(2, 0.3, self.columns) + number % 3


class Cluster:
    """One run of a problem. A context manager: at its end no process is left."""

    def __init__(
        self, folder: Path, nursery: Nursery, wires: Wires, problem: Problem | None = None, peer_timeout: float = 60.0, fresh: bool = False,
        **more: Any,
    ):  # fmt: skip
        self.problem, self.more = problem or Problem(), more
        self.folder, self.wires, self.peer_timeout = folder, wires, peer_timeout
        folder.mkdir(parents=True)
        authority.init_ca(folder / "certs")
        self.wire: dict[tuple[str, str], Wire] = {}  # who calls, whom
        for name in self.problem.names:
            for other in (*self.problem.around(name), *self.problem.fallback(name)):
                self.wire[name, other] = wires.to(None)
        self.nodes: dict[str, Node] = {}
        for name in self.problem.names:
            authority.issue(folder / "certs", name)
            np.save(folder / f"{name}.npy", self.problem.part(name))
            self._write_config(name)
            self.nodes[name] = Node(name, folder / f"{name}.toml", nursery, folder / f"{name}.log", fresh=fresh)

    def _write_config(self, name: str) -> None:
        settings: dict[str, Any] = {
            "name": name, "run": self.folder.name, "listen": "127.0.0.1:0", "data": f"{name}.npy", "folder": f"{name}-run",
            "out": f"{name}-model.npz", "certificate": f"certs/{name}.crt", "key": f"certs/{name}.key", "ca": "certs/ca.crt",
            "peer_timeout": self.peer_timeout, "heartbeat": min(1.0, self.peer_timeout / 5),
            "start_timeout": LONG - 20,  # so that nobody waits longer than we do
        } | self.more  # fmt: skip
        addresses = {other: f"127.0.0.1:{self.wire[name, other].port}" for other in self.problem.around(name)}
        text = toml(settings) + "\n[neighbors]\n" + toml(addresses) + "\n[model]\n" + toml(self.problem.model)
        fallback = {other: f"127.0.0.1:{self.wire[name, other].port}" for other in self.problem.fallback(name)}
        text += "\n[fallback]\n" + toml(fallback) if fallback else ""
        (self.folder / f"{name}.toml").write_text(text, encoding="utf-8")

    def run_folder(self, name: str) -> Path:
        return self.folder / f"{name}-run"

    def model_file(self, name: str) -> Path:
        return self.folder / f"{name}-model.npz"

    # ------------------------------------------------------------------ what happens to nodes and edges
    def start(self, *names: str) -> None:
        """Start these nodes (default: all), and lead the wires to where they listen."""
        for name, port in self.listen(*names).items():
            self.lead(name, port)

    def listen(self, *names: str) -> dict[str, int]:
        """Start these nodes, which nobody can reach yet; returns the ports of those that listen."""
        names = names or tuple(self.nodes)
        for name in names:
            self.nodes[name].start()
        ports = {}
        for name in names:
            node = self.nodes[name]
            self.until(lambda node=node: _address(node) or not node.running, f"node {name} listens")
            if address := _address(node):
                ports[name] = int(address.rpartition(":")[2])
        return ports

    def kill(self, *names: str) -> None:
        for name in names:
            self.nodes[name].kill()
            self.lead(name, None)  # its port may soon be somebody else's

    def lead(self, name: str, port: int | None) -> None:
        for (_, called), wire in self.wire.items():
            if called == name:
                wire.target = port

    def between(self, a: str, b: str) -> list[Wire]:
        """Both wires of an edge."""
        return [self.wire[a, b], self.wire[b, a]]

    # ------------------------------------------------------------------ what nodes have done
    def has_said(self, name: str, message: str) -> bool:
        return self.nodes[name].happened(lambda event: event.get("message") == message)

    def until(self, condition: Callable[[], Any], what: str, seconds: float = LONG) -> Any:
        return until(condition, lambda: self.report(what), seconds)

    def until_heard(self, name: str, kind: str) -> None:
        """Wait until the node has a message of this kind on disk, or has come to its end without our noticing."""
        query = "SELECT 1 FROM chunk WHERE kind = ? LIMIT 1"
        self.until(
            lambda: self.stored(name, query, kind) or not self.nodes[name].running, f"node {name} hears a {kind!r}"
        )

    def stored(self, name: str, query: str, *values: Any) -> list[Any]:
        """What a query finds on the disk of a node, which may run."""
        try:
            with closing(sqlite3.connect(f"file:{self.run_folder(name) / FILE}?mode=ro", uri=True)) as database:
                return database.execute(query, values).fetchall()
        except sqlite3.Error:
            return []  # not there yet

    def until_ended(self, seconds: float = LONG, *names: str) -> dict[str, int]:
        """Wait for these nodes (default: all) to end; returns their exit codes."""
        nodes = [self.nodes[name] for name in names or self.nodes]
        self.until(lambda: not any(node.running for node in nodes), "all nodes end", seconds)
        return {node.name: int(node.code) for node in nodes if node.code is not None}

    def models(self) -> dict[str, dict[str, bytes]]:
        """Every node's model, array by array, the header without the id of the run; an empty one where there is none."""
        found: dict[str, dict[str, bytes]] = {}
        for name in self.nodes:
            path = self.model_file(name)
            found[name] = {}
            if path.exists():
                with np.load(path, allow_pickle=False) as file:
                    arrays = {k: file[k] for k in file.files if k != "header"}
                    header = json.loads(str(file["header"]))
                assert header.pop("run") == self.folder.name
                found[name] = {k: f"{x.dtype} {x.shape} ".encode() + x.tobytes() for k, x in arrays.items()}
                found[name]["header"] = json.dumps(header).encode()
        return found

    def report(self, what: str) -> str:
        """For a failure: who is where, and the last words of each."""
        lines = [what]
        for name, node in self.nodes.items():
            state = "runs" if node.running else f"ended with {node.code}"
            last = node.text().strip().splitlines()[-3:]
            lines += [f"  {name} {state}", *(f"    {line[:300]}" for line in last)]
        return "\n".join(lines)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *unused: object) -> None:
        self.kill(*(name for name, node in self.nodes.items() if node.running))


def toml(settings: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_inline(value)}\n" for key, value in settings.items())


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_inline(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)  # of plain values, JSON is TOML


def _address(node: Node) -> str | None:
    node.happened(lambda event: False)
    return next((e["address"] for e in reversed(node.events) if e.get("message") == "listening"), None)
