"""node.toml: what a node is told about itself (docs/reference/node-toml.md). Everything is checked before anything is opened or anybody is called.

Relative paths are relative to the file.
"""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import json
import random
import re
import socket
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from ...arrays import to_numpy
from ...data import MISSING, Missing, Roles
from ...data import read as read_data
from ...data.columns import closest
from ...files import private, write_text
from ...network import Network, listing
from ...parameters import SECURE_SUMS, Parameters
from ...solvers.projection import Projection
from ..net.endpoint import REVERSE
from ..net.identity import Identity, check_name, load
from ..protocol.checks import MOST_RUN
from ..protocol.node import Timeouts

PATHS = ("data", "add", "folder", "out", "report", "certificate", "key", "ca")
REQUIRED = ("name", "run", "data", "folder", "neighbors")
NOT_HERE = {
    "network": "it is made of the neighbors",
    "engine": "a node is a process of its own",
    "verbose": "progress is shown on a terminal",
    "kernel_params": "a kernel must have a name here",
    "memory_limit": "it is for engine='local'; a node keeps its neighborhood's Gram blocks in memory",
    "device": "it is for engine='local'; a node computes on its processors",
    "missing": "it is a setting of its own, outside [model]",
}
ON_LOSS = ("stop", "continue")
NOTHING = "none"  # in the place of a file of new rows
CAREFUL = {"share_rows": False, "random_state": 0}  # defaults between organisations: no row leaves its owner
TYPES: dict[str, tuple[Any, str]] = {
    "bool": (bool, "true or false"), "int": (int, "a whole number"), "float": ((int, float), "a number"),
    "list": (list, "a list of texts"), "Mapping": (dict, "a table"),
}  # of a field -> of its value in TOML, and in words; all others are texts  # fmt: skip
ABOVE_0 = ("peer_timeout", "start_timeout", "progress_timeout", "heartbeat", "threads")


class ConfigError(ValueError):
    """node.toml, or something in it, is wrong; the message says where and what to do."""


@dataclass(frozen=True)
class Config:
    """A node.toml, checked."""

    path: Path
    name: str
    run: str
    data: Path
    folder: Path
    neighbors: Mapping[str, str]
    listen: str | None = None  # without it, no port is open
    model: Mapping[str, Any] = field(default_factory=dict)
    out: Path | None = None
    report: Path | None = None
    resume: str | None = None  # id of an earlier run whose landmarks this one begins with; --resume says it too
    stream: bool = False  # keep what a later run needs to add rows
    add: Path | None = None  # new rows for the landmarks and sums of an earlier run, or NOTHING; --add says it too
    label: str | None = None
    id: str | None = None
    columns: list[str] | None = None
    drop: list[str] = field(default_factory=list)
    one_hot: Mapping[str, list[str]] = field(default_factory=dict)
    missing: Missing = "error"
    secret_columns: bool = False  # neighbors get a fingerprint of the columns' names instead of the names
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    deny: list[str] = field(default_factory=list)  # fingerprints of keys that are refused: stolen ones
    peer_timeout: float = Timeouts.peer
    start_timeout: float = Timeouts.start
    heartbeat: float = Timeouts.beat
    on_loss: str = "stop"  # or "continue": the remaining nodes go on, if they have the quorum
    quorum: int | None = None  # nodes that must remain; default: more than half
    quorum_rows: float = 0.0  # share of all rows that must remain
    fallback: Mapping[str, str] = field(default_factory=dict)  # neighbors called only if a loss cuts the network
    members: list[str] | None = None  # all nodes of the run; default: whoever the neighbors tell of
    allow_two: bool = False  # secure sums also of two nodes, of whom each learns the other's
    progress_timeout: float = Timeouts.progress
    threads: int = 1  # of BLAS: results are bit-identical after a restart only with the same number

    @property
    def model_file(self) -> Path:
        return self.out or self.folder / f"{self.name}.npz"

    @property
    def stream_file(self) -> Path:
        return self.model_file.with_suffix(".stream.npz")

    @property
    def adding_file(self) -> Path:
        """As long as a run that adds rows has not ended well: which rows."""
        return self.model_file.with_suffix(".adding.json")

    @property
    def adds_nothing(self) -> bool:
        return self.add is not None and self.add.name == NOTHING

    @property
    def roles(self) -> Roles:
        one_hot = {column: list(values) for column, values in self.one_hot.items()}
        return Roles(
            label=self.label, id=self.id, columns=self.columns, drop=self.drop, one_hot=one_hot, interface="node.toml"
        )

    @property
    def addresses(self) -> list[tuple[str, str]]:
        """What each address is of, and the address."""
        listen = [] if self.listen is None else [("listen", self.listen)]
        near = {**self.neighbors, **self.fallback}.items()
        return [*listen, *((name, where.removeprefix(REVERSE)) for name, where in near if where)]

    def identity(self) -> Identity:
        """From the certificate files; there is no run without."""
        files = {key: getattr(self, key) for key in ("certificate", "key", "ca")}
        missing = [key for key, file in files.items() if file is None]
        if missing:
            hint = "dekpca certs makes them for a small group; --insecure-loopback is for trying on one machine"
            text = f"{listing(missing)} not given; every node needs certificate, key and ca ({hint})"
            raise ConfigError(f"{self.path}: {text}")
        return load(files["certificate"], files["key"], files["ca"], self.name, self.deny)

    @property
    def timeouts(self) -> Timeouts:
        return Timeouts(self.peer_timeout, self.start_timeout, self.heartbeat, self.progress_timeout)

    def parameters(self) -> Parameters:
        """Of this run; the careful ones where nothing is said."""
        settings = {**CAREFUL, "missing": "mean" if self.missing == "mean" else "error", **self.model}
        points = settings.get("landmarks")
        if isinstance(points, str) and Path(points).suffix:
            settings["landmarks"] = read_data(self.path.parent / points).samples
        privacy = settings.get("privacy")
        if isinstance(privacy, Mapping) and isinstance(privacy.get("ledger"), str):
            settings["privacy"] = {**privacy, "ledger": str(self.path.parent / privacy["ledger"])}
        solver = settings.get("solver", "auto")
        if solver != "auto":
            settings["solver"] = Projection.of(solver)
        elif privacy is None and self.certificate is not None:
            settings["privacy"] = SECURE_SUMS  # between organisations only totals are told
        return Parameters(**settings)


def read(path: Path, resume: str | None = None, add: Path | None = None) -> Config:
    """A node.toml; raises ConfigError for whatever is wrong with it. `resume` and `add` take the place of the settings in the file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: values within values, too deep to be read") from error
    known = {f.name: f for f in fields(Config) if f.name != "path"}
    try:
        _check_keys("", content, list(known))
        if missing := [key for key in REQUIRED if key not in content]:
            raise ValueError(f"{listing(missing)} missing; a node.toml needs {', '.join(REQUIRED)}")
        for key, value in content.items():
            _check_type(known[key], value)
        content |= {key: path.parent / content[key] for key in PATHS if key in content}
        content |= {key: said for key, said in (("resume", resume), ("add", add)) if said is not None}
        config = Config(path=path, **content)
        _check(config)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    return config


def _check(config: Config) -> None:
    near = (config.name, *config.neighbors, *config.fallback)
    for name in (*near, *(config.members or ())):
        check_name(name)
    if config.members is not None and not set(near) <= set(config.members):
        others = sorted(set(config.members) - set(near))
        meant = [(name, closest(name, others)) for name in sorted(set(near) - set(config.members))]
        lacks = [name if other is None else f"{name} (did you mean {other!r}?)" for name, other in meant]
        raise ValueError(f"members lacks {listing(lacks)}; correct the name, or name all nodes of the run in members")
    if config.name in config.neighbors:
        raise ValueError(f"node {config.name} lists itself as a neighbor; leave it out")
    if not config.neighbors:
        raise ValueError("no neighbors; list one, or use dekpca fit")
    for key, run in (("run", config.run), ("resume", config.resume)):
        if run is not None and (not 1 <= len(run) <= MOST_RUN or not run.isprintable()):
            rule = f"a run id has 1 to {MOST_RUN} printable characters, and no line breaks"
            raise ValueError(f"{key} = {run[:MOST_RUN]!r}; {rule}")
    if config.resume == config.run:
        rule = "resume names an earlier run, and this one needs an id of its own"
        raise ValueError(f"resume = {config.resume!r} in run {config.run!r}; {rule}")
    if config.add is not None and config.resume is not None:
        raise ValueError("add and resume: a run adds rows to an earlier one, or begins with its landmarks; use one")
    for what, address in config.addresses:
        split_address(what, address)
    absent = [name for name, where in {**config.neighbors, **config.fallback}.items() if not where]
    if absent and config.listen is None:
        text = f"node {listing(absent)} has no address here, and node {config.name} has none either (no listen): neither can call the other"
        remedy = "write its address, or open a port with listen, or connect both to a forwarder (docs/howto/peers.md)"
        raise ValueError(f"{text}; {remedy}")
    _check_files(config)
    _check_loss(config)
    for name in ABOVE_0:
        if not 0 < getattr(config, name) < 1e7:
            raise ValueError(f"{name}={getattr(config, name)}; it must be above 0")
    for key in config.model.keys() & NOT_HERE.keys():
        raise ValueError(f"[model] {key} cannot be set here: {NOT_HERE[key]}")
    _check_keys("[model]: ", config.model, sorted(set(Parameters().get_params()) - NOT_HERE.keys()))
    if not isinstance(config.model.get("random_state", 0), int):
        raise ValueError(f"[model] random_state={config.model['random_state']!r}; it must be a whole number")


def _check_files(config: Config) -> None:
    """Refuse to write over what is read."""
    keys = "data", "add", "certificate", "key", "ca"
    given = {key: getattr(config, key) for key in keys if not (key == "add" and config.adds_nothing)}
    for what, written in (
        ("out", config.model_file), ("the stream beside out", config.stream_file), ("the note beside out", config.adding_file),
        ("report", config.report),
    ):  # fmt: skip
        for key, file in given.items():
            if written is not None and file is not None and written.resolve() == file.resolve():
                raise ValueError(f"{what} = {written}: would overwrite {key}, which is read; choose another path")


def _check_loss(config: Config) -> None:
    """What happens when a node is lost."""
    if config.on_loss not in ON_LOSS:
        raise ValueError(f"on_loss = {config.on_loss!r}; known are {', '.join(ON_LOSS)}")
    given = [key for key in ("quorum", "quorum_rows", "fallback") if getattr(config, key)]
    if config.on_loss == "stop" and given:
        raise ValueError(f'{listing(given)} without on_loss = "continue"; add that, or leave it out')
    if config.quorum is not None and config.quorum < 2:  # more than half of any network of two or more nodes
        rule = "it must be more than half of all nodes, or left out"
        raise ValueError(f"quorum = {config.quorum}: two groups of nodes could both go on; {rule}")
    if not 0 <= config.quorum_rows <= 1:
        raise ValueError(f"quorum_rows = {config.quorum_rows}; it is a share of all rows, from 0 to 1")
    twice = sorted(config.fallback.keys() & {config.name, *config.neighbors})
    if twice:
        raise ValueError(f"[fallback] lists {listing(twice)}, which is this node or a neighbor; list other nodes there")


def split_address(what: str, address: str) -> tuple[str, int]:
    """host:port, with a port from 0 to 65535."""
    host, colon, port = str(address).rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{what}: {address!r} is no address; write host:port, such as 192.0.2.7:7070")
    return host.strip("[]"), int(port)


def check_loopback(config: Config) -> None:
    """Without TLS a node may only be reached from its own machine."""
    for what, address in config.addresses:
        host, _ = split_address(what, address)
        try:
            inside = ipaddress.ip_address(host) in ipaddress.ip_network("127.0.0.0/8")
        except ValueError:
            inside = False  # a name may mean anything
        if not inside:
            rule = "without certificates a node talks within 127.0.0.0/8 only; use such an address, or certificates"
            raise ConfigError(f"--insecure-loopback with {what} = {address!r}: {rule}")


def _check_keys(table: str, content: Mapping[str, Any], known: list[str]) -> None:
    for key in content:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            did = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"
            raise ValueError(f"{table}no setting {key!r}{did}")


def _check_type(of: Field[Any], value: Any) -> None:
    key, kind = of.name, re.split(r"\W", str(of.type))[0]
    expected, words = TYPES.get(kind, (str, "a text"))
    if not isinstance(value, expected) or (isinstance(value, bool) and kind != "bool"):
        raise ValueError(f"{key} = {value!r}; it must be {words}")
    lists = [value] if kind == "list" else value.values() if key == "one_hot" else []
    if not all(isinstance(some, list) and all(isinstance(name, str) for name in some) for some in lists):
        raise ValueError(f'{key}: write texts in a list, such as ["red", "green"]')
    if key == "missing" and value not in MISSING:
        raise ValueError(f"missing = {value!r}; known are {', '.join(MISSING)}")
    if key in ("neighbors", "fallback") and not all(isinstance(v, str) for v in value.values()):
        raise ValueError(f'[{key}]: write name = "host:port", or name = "" for a node that calls this one')


# ---------------------------------------------------------------------- nodes on one machine, to try things out
def free_addresses(count: int) -> list[str]:
    """Addresses on loopback that nobody listens on just now; below the ports that systems give to outgoing connections,
    one of which could otherwise take a port before its node listens."""
    found: set[int] = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.add(port)
    return [f"127.0.0.1:{port}" for port in found]


def write_nodes(
    folder: Path, parts: Sequence[Any], network: Network, run: str, certs: str, model: Mapping[str, Any], more: Mapping[str, Any]
) -> None:  # fmt: skip
    """NAME.toml and NAME.npy for every node, on loopback; `certs` is where the certificates are, seen from `folder`."""
    addresses = dict(zip(network.names, free_addresses(len(network)), strict=True))
    for j, name in enumerate(network.names):
        with open(folder / f"{name}.npy", "wb", opener=private) as file:
            np.save(file, to_numpy(parts[j]), allow_pickle=False)
        settings = {
            "name": name, "run": run, "listen": addresses[name], "data": f"{name}.npy", "folder": name,
            "certificate": f"{certs}/{name}.crt", "key": f"{certs}/{name}.key", "ca": f"{certs}/ca.crt",
        }  # fmt: skip
        neighbors = {network.names[q]: addresses[network.names[q]] for q in network.neighbors(j)}
        tables = {"neighbors": neighbors} | ({"model": model} if model else {})
        write_toml(folder / f"{name}.toml", settings | dict(more), tables)


def write_toml(path: Path, settings: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> None:
    """A small TOML file: texts, numbers and lists are written as in JSON; a table may hold others."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    inner = {f"{name}.{key}": v for name, table in tables.items() for key, v in table.items() if isinstance(v, Mapping)}
    flat = {name: {k: v for k, v in table.items() if not isinstance(v, Mapping)} for name, table in tables.items()}
    for name, table in (flat | inner).items():
        lines += ["", f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items())]
    write_text(path, "\n".join(lines) + "\n")
