"""What reproduces a run: parameters, versions, and code to copy."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any

from .. import __version__
from ..estimator import DecentralizedKernelPCA, same
from ..network import Network
from .page import Section, code_html, table_html

PACKAGES = ("numpy", "scipy", "scikit-learn", "array-api-compat", "networkx", "plotly")
SPELLED = 60  # edges up to which a network is written out


def settings_section(model: DecentralizedKernelPCA | None, settings: Mapping[str, Any] | None, owned: bool) -> Section:
    """The command and the code to run it again, settings of the caller, parameters that are not the default, versions."""
    given = {str(name): str(value) for name, value in (settings or {}).items()}
    below = code_html(given.pop("command"), "The command") if "command" in given else ""
    if model is not None:
        below += code_html(snippet(model, owned), "Python code")
    if given:
        below += table_html({"setting": [*given], "value": [*given.values()]}, "Settings of this run")
    versions = {"dekpca": __version__, "Python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    versions |= {"platform": platform.platform(), "written": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"}
    below += table_html({"what": [*versions], "version": [*versions.values()]}, "Versions")
    return Section("settings", "Settings", "What gives the same answer again. A click selects the code.", below=below)


def snippet(model: DecentralizedKernelPCA, owned: bool) -> str:
    """Python that fits the same model to the same rows: the parameters that are not the default."""
    usual = DecentralizedKernelPCA().get_params(deep=False)
    given = {name: value for name, value in model.get_params(deep=False).items() if not same(value, usual[name])}
    arguments = [f"    {name}={_code(value)}" for name, value in given.items() if name != "verbose"]
    lines = ["import dekpca", "", "model = dekpca.DecentralizedKernelPCA(", *arguments, ")"]
    how = "model.fit(X, nodes=node_of)  # node_of[i] is the node of row i"
    return "\n".join([*lines, how if owned else "model.fit(X)  # or fit_parts, as you did"])


def _code(value: Any) -> str:
    """An expression with a comma; an ellipsis and a remark for what cannot be written in short."""
    if isinstance(value, Network):
        return network_code(value)
    if is_dataclass(value):
        return f"dekpca.{value!r},"
    if isinstance(value, (int, float, str, tuple, list, dict)):
        return f"{value!r},"
    shape = getattr(value, "shape", None)
    return f"...,  # {getattr(value, '__qualname__', type(value).__qualname__)}{'' if shape is None else f' {tuple(shape)}'}"


def network_code(network: Network) -> str:
    """An expression that makes the network, or an ellipsis and a remark if it would be long."""
    n, degree = len(network), int(network.degrees.max())
    known = [("path", (n,), n - 1), ("star", (n,), n - 1), ("complete", (n,), n * (n - 1) // 2)]
    for kind, arguments, edges in (*known, ("ring", (n, degree), n * degree // 2)):
        with suppress(ValueError):  # there is no ring with so many neighbors
            if network.n_edges == edges and getattr(Network, kind)(*arguments) == network:
                return f"dekpca.Network.{kind}({', '.join(map(str, arguments))}),"
    if network.n_edges <= SPELLED:
        around = {name: [network.names[q] for q in network.neighbors(j)] for j, name in enumerate(network.names)}
        return f"dekpca.Network({around!r}),"
    return f"...,  # your network of {n} nodes and {network.n_edges} edges"
