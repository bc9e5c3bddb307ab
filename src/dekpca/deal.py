"""Dealing rows to nodes, and making a network if the user gives none."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from .network import Network, listing, natural_key

ROWS_A_NODE = 200  # if the user gives no number of nodes
DEGREE = 4  # of the random regular network made then

Wanted = Network | int | None  # the parameter `network`


def make_network(wanted: Wanted, n_nodes: int, seed: int) -> Network:
    """The given network, or a random one of the given number of nodes, or of `n_nodes`."""
    if isinstance(wanted, Network):
        return wanted
    count = n_nodes if wanted is None else int(wanted)
    if count <= DEGREE + 1:
        return Network.complete(count)
    return Network.random(count, degree=DEGREE, seed=seed % 2**32)


def named_network(wanted: Wanted, names: Sequence[str], seed: int) -> Network:
    """The network over these names: the given one, or one made for them."""
    if isinstance(wanted, Network):
        network = wanted
    else:
        network = make_network(wanted, len(names), seed)
        if len(network) != len(names):
            raise ValueError(
                f"network={wanted}, but the data names {len(names)} nodes: {listing(names)}; leave network at None, "
                "or give a Network of these"
            )
        network = renamed(network, names)
    unknown = [name for name in names if name not in network.number]
    if unknown:
        raise ValueError(
            f"nodes: {listing(unknown)} not in the network, whose nodes are {listing(network.names)}; add them to the network or "
            "leave out their rows"
        )
    present = set(names)
    empty = [name for name in network.names if name not in present]
    if empty:
        raise ValueError(
            f"nodes: no row for node {listing(empty)}; every node needs at least one: leave it out of the network"
        )
    return network


def renamed(network: Network, names: Sequence[str]) -> Network:
    """A network of numbers over as many names, in natural order."""
    ordered = sorted(names, key=natural_key)
    edges = [(ordered[network.number[a]], ordered[network.number[b]]) for a, b in network.edges]
    return Network.from_edges(edges) if edges else Network({ordered[0]: []})


def deal_rows(wanted: Wanted, n_rows: int, seed: int) -> tuple[Network, list[np.ndarray]]:
    """A seeded permutation of the rows, dealt evenly: the network, and the rows of each node.

    >>> network, rows = deal_rows(None, 390, seed=0)
    >>> len(network), [len(own) for own in rows]
    (2, [195, 195])
    """
    network = make_network(wanted, max(1, round(n_rows / ROWS_A_NODE)), seed)
    if n_rows < len(network):
        raise ValueError(
            f"n_samples={n_rows} rows for {len(network)} nodes; each node needs at least one: use fewer nodes"
        )
    return network, np.array_split(np.random.default_rng(seed).permutation(n_rows), len(network))


def deal_by_label(wanted: Wanted, labels: Any, n_rows: int, seed: int) -> tuple[Network, list[np.ndarray]]:
    """Each row to the node that its label names: the network, and the rows of each node."""
    owners = np.asarray(labels).ravel()
    if len(owners) != n_rows:
        raise ValueError(f"nodes has {len(owners)} labels for {n_rows} rows; give one for each row")
    numbers = np.issubdtype(owners.dtype, np.integer)
    missing = [] if numbers else [i for i, owner in enumerate(owners.tolist()) if owner is None or owner != owner]
    if missing:
        raise ValueError(f"nodes: no label in row {listing(missing)}; give every row its node")
    labels, owner = np.unique(owners if numbers else owners.astype(str), return_inverse=True)
    given = labels.astype(str).tolist()
    inside = isinstance(wanted, Network) and numbers and labels[0] >= 0 and labels[-1] < len(wanted)
    if (
        isinstance(wanted, Network) and inside and not set(given) & set(wanted.names)
    ):  # numbers of nodes that have names
        given = [wanted.names[j] for j in labels]
    network = named_network(wanted, given, seed)
    number = np.array([network.number[label] for label in given])[owner]
    order = np.argsort(number, kind="stable")
    return network, np.split(order, np.cumsum(np.bincount(number, minlength=len(network)))[:-1])


def node_numbers(nodes: Sequence[Any], network: Network) -> list[int]:
    """Nodes given by name or, if no node has that name, by number."""
    numbers = []
    for node in nodes:
        by_number = isinstance(node, Integral) and 0 <= int(node) < len(network)
        if str(node) not in network.number and not by_number:
            raise ValueError(f"node {node!r} is not in the network, whose nodes are {listing(network.names)}")
        numbers.append(network.number[str(node)] if str(node) in network.number else int(node))
    return numbers
