"""Data to reproduce a run: parameters, versions, and code to copy."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from .. import __version__
from ..estimator import DecentralizedKernelPCA
from ..network import Network
from .page import Section, Table, code_html

PACKAGES = ("numpy", "scipy", "scikit-learn", "array-api-compat", "networkx", "plotly")
SPELLED = 60  # edges up to which a network is written out


def versions() -> list[tuple[str, str]]:
    """Names and versions of the packages."""
    found = [("dekpca", __version__), ("Python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:  # installed without metadata
            continue
    found.append(("platform", platform.platform()))
    found.append(("written", datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")))
    return found


def shown(value: Any) -> str:
    """A short text for a parameter.

    Examples
    --------
    >>> import numpy as np
    >>> from dekpca import Network
    >>> from dekpca.report.reproduce import shown
    >>> shown(Network.ring(6)), shown(np.ones((3, 2))), shown(0.1)
    ('dekpca.Network.ring(6, neighbors=2): 6 nodes, 6 edges', 'array (3, 2)', '0.1')
    """
    if isinstance(value, Network):
        made = network_code(value)
        name = made if len(made) < 60 and not made.startswith("...") else "Network"
        return f"{name}: {len(value)} nodes, {value.n_edges} edges"
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if hasattr(value, "shape"):
        return f"array {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def network_code(network: Network) -> str:
    """An expression that makes the network; "..." and a remark if it would be long.

    Examples
    --------
    >>> from dekpca import Network
    >>> from dekpca.report.reproduce import network_code
    >>> network_code(Network.star(4))
    'dekpca.Network.star(4)'
    """
    n = len(network)
    degree = int(network.degrees.max())
    known: dict[str, Any] = {
        f"path({n})": lambda: Network.path(n),
        f"complete({n})": lambda: Network.complete(n),
        f"star({n})": lambda: Network.star(n),
    }
    if 2 <= degree < n and degree % 2 == 0:
        known[f"ring({n}, neighbors={degree})"] = lambda: Network.ring(n, degree)
    known |= {f"grid({r}, {n // r})": lambda r=r: Network.grid(r, n // r) for r in range(2, n // 2 + 1) if n % r == 0}
    for text, make in known.items():
        if _edges_of(text, n) == network.n_edges and make() == network:
            return f"dekpca.Network.{text}"
    if network.n_edges <= SPELLED:
        around = {name: [network.names[q] for q in network.neighbors(j)] for j, name in enumerate(network.names)}
        return f"dekpca.Network({around!r})"
    return f"...  # your network of {n} nodes and {network.n_edges} edges"


def _edges_of(text: str, n: int) -> int:
    """The number of edges of a topology, so that no complete graph is built for a comparison."""
    kind, _, rest = text.partition("(")
    if kind == "complete":
        return n * (n - 1) // 2
    if kind == "ring":
        return n * int(rest.rstrip(")").partition("=")[2]) // 2
    if kind == "grid":
        rows, columns = map(int, rest.rstrip(")").split(","))
        return rows * (columns - 1) + columns * (rows - 1)
    return n - 1


def snippet(model: DecentralizedKernelPCA, owned: bool) -> str:
    """Python that fits the same model to the same rows."""
    given, usual = model.get_params(), DecentralizedKernelPCA().get_params()
    lines = ["import dekpca", ""]
    arguments = []
    for name, value in given.items():
        if _same(value, usual[name]) or name in ("network", "verbose"):
            continue
        written = repr(value) if isinstance(value, (int, float, str, tuple, list, dict)) else f"...,  # {shown(value)}"
        arguments.append(f"    {name}={written}," if not written.startswith("...") else f"    {name}={written}")
    if given["network"] is not None:
        network = given["network"]
        made = network_code(network) if isinstance(network, Network) else repr(network)
        lines.append(f"network = {made}")
        arguments.append("    network=network,")
    lines += ["model = dekpca.DecentralizedKernelPCA(", *arguments, ")"]
    lines.append(
        "model.fit(X, nodes=node_of)  # node_of[i] is the node of row i"
        if owned
        else "model.fit(X)  # or fit_parts, as you did"
    )
    return "\n".join(lines)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return False
    try:
        return type(one) is type(two) and bool(one == two)
    except (TypeError, ValueError):  # arrays of other libraries
        return False


def settings_section(
    params: Mapping[str, Any] | None, settings: Mapping[str, Any] | None, code: str | None, text: str
) -> Section:
    """Parameters, settings of the caller, versions, and code to run."""
    parts: list[Any] = []
    given = dict(settings or {})
    command = given.pop("command", None)
    if command:
        parts.append(code_html(str(command), "The command"))
    if code:
        parts.append(code_html(code, "Python code"))
    tables = []
    if given:
        rows = [(str(k), v if isinstance(v, str) else shown(v)) for k, v in given.items()]
        tables.append(Table(("setting", "value"), rows, "Settings of this run"))
    if params is not None:
        usual = DecentralizedKernelPCA().get_params()
        default = {name: name in usual and _same(value, usual[name]) for name, value in params.items()}
        order = sorted(params, key=lambda name: (default[name], name))
        rows = [(name, shown(params[name]) + (" (default)" if default[name] else "")) for name in order]
        tables.append(Table(("parameter", "value"), rows, "Parameters of the estimator, those set first"))
    tables.append(Table(("what", "version"), versions(), "Versions"))
    return Section("settings", "Settings and versions", text, [*parts, *tables])
