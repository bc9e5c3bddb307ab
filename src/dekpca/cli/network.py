"""`dekpca network`: check and draw a topology."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ..network import Network
from .common import Said, make_folder, print_plain, verb
from .parameters import TOPOLOGIES, parse_network

MANY = 400  # nodes; more cannot be distinguished in a picture


@verb
def network(
    topology: Annotated[str, typer.Argument(help=TOPOLOGIES)],
    seed: Annotated[int, typer.Option(help="Of a random network.")] = 0,
    write: Annotated[Path | None, typer.Option(help="Write it to a file that --network takes.")] = None,
    draw: Annotated[Path | None, typer.Option(help="Draw it into a PNG or SVG file.")] = None,
) -> Said:
    """Check a topology, print its cost, and draw it.

    A network must be connected. Its depth determines the rounds of a network sum; its degrees, how often samples are sent.

    Examples:

      dekpca network ring:20:4

      dekpca network random:30:0.2 --seed 3 --draw net.png --write net.json
    """
    net = parse_network(topology, seed)
    least, mean, most = (f(net.degrees) for f in (np.min, np.mean, np.max))
    result = {
        "nodes": len(net), "edges": net.n_edges, "neighbors": {"least": least, "mean": mean, "most": most},
        "diameter": net.diameter, "depth": net.depth, "root": net.names[net.root], "file": write, "figure": draw,
    }  # fmt: skip
    if draw is not None:
        if len(net) > MANY:
            raise ValueError(f"--draw: {len(net)} nodes cannot be told apart in a picture; at most {MANY}")
        _draw(draw, net)
    if write is not None:
        make_folder(write.parent)
        net.write(write)
    return Said(result, lambda: _tell(result))


def _draw(path: Path, net: Network) -> None:
    from .. import plot
    from ..report.panels import pyplot, save_figure

    make_folder(path.parent)
    figure, ax = pyplot().subplots(figsize=(7, 7))
    plot.network(net, ax=ax)
    save_figure(figure, path, dpi=120, bbox_inches="tight")


def _tell(result: dict) -> None:
    near = result["neighbors"]
    print_plain(f"{result['nodes']} nodes, {result['edges']} edges, connected")
    print_plain(f"neighbors of a node: {near['least']} to {near['most']}, {near['mean']:.2f} on average")
    rounds = f"network sums take {2 * result['depth']} rounds, from node {result['root']}"
    print_plain(f"diameter {result['diameter']}; {rounds}")
    for what in ("file", "figure"):
        if result[what] is not None:
            print_plain(f"wrote {result[what]}")
