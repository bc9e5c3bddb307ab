"""Which node has which row; and a network, if the user gives none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from typing import Any, NamedTuple

import array_api_compat as aac
import numpy as np

from ..arrays import take, to_numpy
from ..draws import HOST, row_keys
from ..network import Network, listing, natural_key
from ..site import RowNumbers
from .checks import NOTHING_LEFT, check_finite, checked, complete, complete_rows, warn_of_ids
from .columns import ColumnError, Features, Samples, split_off
from .frames import in_blocks, is_frame, is_null, refuse

ROWS_A_NODE = 200  # if the user gives no number of nodes
DEGREE = 4  # of the random regular network made then

Wanted = Network | int | None  # the parameter `network`


class Owned(NamedTuple):
    """The rows of one array or DataFrame on nodes."""

    X: Any  # (rows, columns), columns in internal order; without rows that missing="drop" leaves out
    features: Features
    network: Network
    rows: RowNumbers  # numbers of the rows of each node
    kept: np.ndarray | None  # the rows of X among those that the user gave; None: all
    total: int  # rows that the user gave

    def node_of(self) -> np.ndarray:
        """The number of the node of each row that the user gave; -1: left out."""
        number, (order, kept) = np.repeat(np.arange(len(self.rows)), self.rows.sizes), (self.rows.order, self.kept)
        if order is None and kept is None:
            return number
        order, found = np.arange(len(number)) if order is None else to_numpy(order), np.full(self.total, -1)
        found[order if kept is None else kept[order]] = number
        return found


def deal(X: Any, nodes: Any, wanted: Wanted, seed: int, dtype: Any = None, missing: str = "error") -> Owned:
    """Put rows on nodes: by a label for each, by the column of a DataFrame that `nodes` names, or else evenly.

    >>> import numpy as np
    >>> owned = deal(np.ones((6, 2)), ["oslo", "rome", "oslo", "oslo", "rome", "bonn"], None, seed=0)
    >>> owned.network.names, [own.tolist() for own in owned.rows]
    (('bonn', 'oslo', 'rome'), [[5], [0, 2, 3], [1, 4]])
    """
    refuse(X, "X")
    several = isinstance(X, (list, tuple)) and X and all(is_frame(x) or getattr(x, "ndim", 0) == 2 for x in X)
    if several or isinstance(X, Mapping):
        raise ValueError(f"fit takes one array, but got a {type(X).__name__} of {len(X)}; use fit_parts for parts")
    if isinstance(nodes, str):
        nodes, X = split_off(X, nodes, f"nodes={nodes!r}")
    samples = checked(X, "X", dtype, least=2)
    warn_of_ids(X, samples, "X")
    total, kept = len(samples), None
    if missing == "drop":
        samples, kept = complete(samples, "X")
    if nodes is None:
        network, rows = deal_rows(wanted, len(samples), seed, samples.X)
    else:
        network, number, lengths = runs_of(wanted, nodes, total, seed)
        if kept is not None:
            number, lengths = np.repeat(number, lengths)[kept], np.ones(len(kept), dtype=np.int64)
        rows = RowNumbers.of(number, lengths, len(network))
        empty = [name for name, size in zip(network.names, rows.sizes, strict=True) if not size]
        if empty:
            raise ColumnError(f"node {listing(empty)}: {NOTHING_LEFT}")
    features = Features(int(samples.X.shape[1]), samples.names)
    owned = Owned(features.to_sorted(samples.X), features, network, rows, kept, total)

    def where(row: int) -> str:
        row = row if kept is None else int(kept[row])
        return f"row {row}, which belongs to node {network.names[owned.node_of()[row]]}"

    check_finite(samples, "X", missing, where)
    return owned


@dataclass(frozen=True, eq=False)
class More:
    """Rows of a stream."""

    X: Any  # (rows, columns), columns in internal order; without rows that missing="drop" leaves out
    features: Features
    network: Network
    node: np.ndarray  # (rows,) the number of the node of each
    node_of: np.ndarray  # the same of each row that the user gave; -1: left out


def deal_more(
    X: Any,
    nodes: Any,
    wanted: Wanted,
    seed: int,
    before: int,
    dtype: Any = None,
    missing: str = "error",
    own: Sequence[int] | None = None,
) -> More:
    """Put rows that come after `before` others on nodes: by a label for each, by a column, or else in turn. One row may be all, and a node may get
    none; without a number of nodes there is one. `own`: the nodes of this process, of several; then there may be no row.

    >>> import numpy as np
    >>> deal_more(np.ones((4, 2)), None, 3, seed=0, before=5).node.tolist()
    [2, 0, 1, 2]
    """
    refuse(X, "X")
    if isinstance(nodes, str):
        nodes, X = split_off(X, nodes, f"nodes={nodes!r}")
    samples = checked(X, "X", dtype, least=1 if own is None else 0)
    if not before:
        warn_of_ids(X, samples, "X")
    total, kept = len(samples), np.arange(len(samples))
    check_finite(samples, "X", missing)
    if missing == "drop":
        kept = np.flatnonzero(complete_rows(samples.X))
        samples = Samples(take(samples.X, kept), samples.names)
    if nodes is None:
        network = make_network(wanted, 1, seed)
        mine = np.arange(len(network)) if own is None else np.asarray(own)
        node = mine[(before + np.arange(len(kept))) % len(mine)]
    else:
        network, number, lengths = runs_of(wanted, nodes, total, seed, all_nodes=False)
        node = np.repeat(number, lengths)[kept]
    node_of = np.full(total, -1)
    node_of[kept] = node
    features = Features(int(samples.X.shape[1]), samples.names)
    return More(features.to_sorted(samples.X), features, network, node, node_of)


def list_parts(parts: Any) -> Sequence[Any] | Mapping[Any, Any]:
    """The argument of `fit_parts`: a sequence, a mapping or a generator of arrays, but no array."""
    if isinstance(parts, (str, PathLike)):
        refuse(parts, "fit_parts")
    if is_frame(parts) or isinstance(parts, Samples) or aac.is_array_api_obj(parts) or in_blocks(parts):
        raise ValueError(f"fit_parts takes one array for each node, but got one {type(parts).__name__}; use fit(X)")
    return parts if isinstance(parts, (Mapping, Sequence)) else list(parts)


def make_network(wanted: Wanted, n_nodes: int, seed: int) -> Network:
    """The given network, or a random one of the given number of nodes, or of `n_nodes`."""
    if isinstance(wanted, Network):
        return wanted
    count = n_nodes if wanted is None else int(wanted)
    if count <= DEGREE + 1:
        return Network.complete(count)
    return Network.random(count, degree=DEGREE, seed=seed % 2**32)


def named_network(wanted: Wanted, names: Sequence[str], seed: int, all_nodes: bool = True) -> Network:
    """The network over these names: the given one, or one made for them. `all_nodes`: each node of a given one must be named."""
    if isinstance(wanted, Network):
        network = wanted
    else:
        network = make_network(wanted, len(names), seed)
        if len(network) != len(names):
            raise ValueError(f"network={wanted}, but the data names {len(names)} nodes; leave network at None")
        network = renamed(network, names)
    unknown = [name for name in names if name not in network.number]
    if unknown:
        there = f"not in the network, whose nodes are {listing(network.names)}"
        raise ValueError(f"nodes: {listing(unknown)} {there}; add them to it, or leave out their rows")
    empty = sorted(set(network.names).difference(names), key=natural_key)
    if empty and all_nodes:
        raise ValueError(f"nodes: no row for node {listing(empty)}; leave it out of the network, or give it rows")
    return network


def renamed(network: Network, names: Sequence[str]) -> Network:
    """A network of numbers over as many names, in natural order."""
    ordered = sorted(names, key=natural_key)
    edges = [(ordered[network.number[a]], ordered[network.number[b]]) for a, b in network.edges]
    return Network.from_edges(edges) if edges else Network({ordered[0]: []})


def deal_rows(wanted: Wanted, n_rows: int, seed: int, beside: Any = HOST) -> tuple[Network, RowNumbers]:
    """A random order of the rows, dealt evenly: the network, and the rows of each node. One node has all rows in their order. The order depends on
    the seed alone; it is found on the device of `beside`."""
    network = make_network(wanted, max(1, round(n_rows / ROWS_A_NODE)), seed)
    if n_rows < len(network):
        raise ValueError(f"n_samples={n_rows} rows for {len(network)} nodes; each needs at least one: use fewer nodes")
    sizes = (n_rows + np.arange(len(network))[::-1]) // len(network)
    if len(network) == 1:
        return network, RowNumbers(sizes)
    keys = row_keys(seed, ["deal"], np.array([n_rows]), beside)
    return network, RowNumbers(sizes, aac.array_namespace(keys).argsort(keys))


def runs_of(
    wanted: Wanted, labels: Any, n_rows: int, seed: int, all_nodes: bool = True
) -> tuple[Network, np.ndarray, np.ndarray]:
    """The network; and of each run of rows with the same label the number of the node that it names, and how many rows there are."""
    owners = np.asarray(labels).ravel()
    if len(owners) != n_rows:
        raise ValueError(f"nodes has {len(owners)} labels for {n_rows} rows; give one for each row")
    numbers = np.issubdtype(owners.dtype, np.integer)
    missing = [] if numbers else [i for i, owner in enumerate(owners.tolist()) if is_null(owner)]
    if missing:
        raise ValueError(f"nodes: no label in row {listing(missing)}; give every row its node")
    owners = owners if numbers else owners.astype(str)
    begins = np.flatnonzero(np.append(True, owners[1:] != owners[:-1])[:n_rows])  # there may be no row
    labels, owner = np.unique(owners[begins], return_inverse=True)
    given = name_labels(labels.astype(str).tolist(), numbers, wanted)
    network = named_network(wanted, given, seed, all_nodes)
    number = np.array([network.number[label] for label in given], dtype=np.int64)[owner]
    return network, number, np.diff(begins, append=n_rows)


def name_labels(labels: list[str], numbers: bool, wanted: Wanted) -> list[str]:
    """Names of nodes from labels: if these are numbers, they may be those of the nodes of a network with other names."""
    names = wanted.names if isinstance(wanted, Network) else ()
    if not numbers or set(labels) & set(names):
        return labels
    return [names[int(j)] if 0 <= int(j) < len(names) else j for j in labels]


def node_numbers(nodes: Sequence[Any], network: Network) -> list[int]:
    """Nodes given by name or, if no node has that name, by number."""
    numbers = [network.number.get(str(node), node) for node in nodes]
    for number in numbers:
        if not isinstance(number, Integral) or not 0 <= int(number) < len(network):
            raise ValueError(f"node {number!r} is not in the network, whose nodes are {listing(network.names)}")
    return list(map(int, numbers))
