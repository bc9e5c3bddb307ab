"""The topology: the graph of the nodes, its checks, its spanning tree.

A `Network` has names and edges, but no data, kernels or messages. Nodes have a name (a string) and a number (their
index in `names`). The tree and the order of a node's neighbors do not depend on the numbering: they follow the names
in natural order ("2" before "10").
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array, eye_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, shortest_path

from .files import PUBLIC, write_text

if TYPE_CHECKING:
    import networkx as nx  # imported at first use: it takes longer than the rest of this package

FILE_FORMAT = "dekpca-network"
FILE_VERSION = 1
RESAMPLES = 1000  # draws of a random graph before its parameters are refused as too sparse
AN_EDGE = "write an edge a line, two names separated by a comma or blanks"
LISTED = 8  # names in an error message before "and N more"


class NetworkError(ValueError):
    """The algorithm cannot run on this graph; the message names the nodes and the remedy.

    Examples
    --------
    >>> from dekpca import Network, NetworkError
    >>> try:
    ...     Network.from_edges([("oslo", "rome"), ("bonn", "kiel")])
    ... except NetworkError as error:
    ...     print("kiel" in str(error))
    True
    """


def natural_key(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Sort key under which "node2" comes before "node10"."""
    pieces = re.findall(r"\d+|\D+", name)
    return (*((not p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in pieces),)


def listing(names: Iterable[object]) -> str:
    """Names for an error message, cut after a few."""
    shown = [str(n) for n in names]
    more = f" and {len(shown) - LISTED} more" if len(shown) > LISTED else ""
    return ", ".join(shown[:LISTED]) + more


class Network:
    """A connected, undirected network of named nodes.

    Parameters
    ----------
    neighbors : mapping of name to names
        For each node its neighbors (not itself). Must be symmetric and connected.

    Examples
    --------
    >>> from dekpca import Network
    >>> net = Network({"paris": ["rome"], "rome": ["paris", "oslo"], "oslo": ["rome"]})
    >>> net.names, net.n_edges, net.diameter
    (('paris', 'rome', 'oslo'), 2, 2)
    >>> Network.ring(20, neighbors=4)
    Network(20 nodes, 40 edges, 4 neighbors a node)
    """

    def __init__(self, neighbors: Mapping[Any, Iterable[Any]]):
        names = unique_names(neighbors)
        number = {name: j for j, name in enumerate(names)}
        pairs = []
        for name, around in zip(names, neighbors.values(), strict=True):
            for other in map(str, around):
                if other not in number:
                    raise NetworkError(f"node {name} lists neighbor {other}, which is not a node of the network")
                pairs.append((number[name], number[other]))
        directed = set(pairs)
        one_way = listing(f"{names[a]} -> {names[b]}" for a, b in pairs if (b, a) not in directed)
        if one_way:
            raise NetworkError(
                f"asymmetric network: {one_way} without the way back; list each edge at both of its ends"
            )
        self._set_up(names, pairs)

    @classmethod
    def _from_pairs(cls, names: Iterable[Any], pairs: Any) -> Network:
        network = cls.__new__(cls)
        network._set_up(unique_names(names), pairs)
        return network

    def _set_up(self, names: tuple[str, ...], pairs: Any) -> None:
        """From undirected pairs of node numbers; repeated and reversed pairs count once."""
        self.names = names
        # (edges, 2) the undirected edges as pairs of numbers, the smaller one first
        self.pairs = np.unique(np.sort(np.asarray(pairs, dtype=np.int64).reshape(-1, 2), axis=1), axis=0)
        loops = self.pairs[self.pairs[:, 0] == self.pairs[:, 1]]
        if len(loops):
            raise NetworkError(f"node {names[loops[0, 0]]} is joined to itself; leave such edges out")
        if not names:
            raise NetworkError("a network needs at least one node")
        lonely = np.flatnonzero(self.degrees == 0)
        if len(lonely) and len(names) > 1:
            raise NetworkError(f"isolated nodes: {listing(names[j] for j in lonely)}; join each to a neighbor")
        count, part = connected_components(self._adjacency, directed=False)
        if count > 1:
            inside = listing(names[j] for j in np.flatnonzero(part == np.argmin(np.bincount(part))))
            cut_off = f"{count} parts; {inside} cannot reach the rest"
            raise NetworkError(f"disconnected network: {cut_off}; add an edge between the parts")

    # ------------------------------------------------------------------ topologies
    @classmethod
    def ring(cls, n_nodes: int, neighbors: int = 2) -> Network:
        """Each node has edges to the `neighbors` nearest ones, half of them on either side."""
        _check_count(n_nodes)
        if not isinstance(neighbors, (int, np.integer)) or neighbors % 2 or not 2 <= neighbors < n_nodes:
            allowed = f"it must be even, at least 2 and below {n_nodes}; for fewer than 3 nodes use path"
            raise NetworkError(f"ring of {n_nodes} nodes: neighbors={neighbors!r}, but {allowed}")
        start = np.arange(n_nodes)
        hops = [np.stack([start, (start + h) % n_nodes], axis=1) for h in range(1, neighbors // 2 + 1)]
        return cls._from_pairs(range(n_nodes), np.concatenate(hops))

    @classmethod
    def path(cls, n_nodes: int) -> Network:
        """A line of nodes."""
        _check_count(n_nodes)
        return cls._from_pairs(range(n_nodes), [(j, j + 1) for j in range(n_nodes - 1)])

    @classmethod
    def star(cls, n_nodes: int) -> Network:
        """Node 0 is the hub; all others have an edge to it only."""
        _check_count(n_nodes)
        return cls._from_pairs(range(n_nodes), [(0, j) for j in range(1, n_nodes)])

    @classmethod
    def grid(cls, rows: int, columns: int) -> Network:
        """A rectangle of nodes, numbered row by row, with edges to the left, right, above and below."""
        _check_count(rows)
        _check_count(columns)
        at = np.arange(rows * columns).reshape(rows, columns)
        across = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], axis=1)
        down = np.stack([at[:-1].ravel(), at[1:].ravel()], axis=1)
        return cls._from_pairs(range(rows * columns), np.concatenate([across, down]))

    @classmethod
    def complete(cls, n_nodes: int) -> Network:
        """All nodes are neighbors."""
        _check_count(n_nodes)
        return cls._from_pairs(range(n_nodes), np.stack(np.triu_indices(n_nodes, 1), axis=1))

    @classmethod
    def random(
        cls,
        n_nodes: int,
        probability: float | None = None,
        *,
        degree: int | None = None,
        radius: float | None = None,
        seed: int = 0,
    ) -> Network:
        """A random network, drawn again until it is connected.

        Give one of `probability` (of each edge: Erdos-Renyi), `degree` (the same for all nodes: regular) and
        `radius` (nodes at random in the unit square, with an edge if closer than this: geometric).

        Examples
        --------
        >>> Network.random(10, degree=3, seed=1)
        Network(10 nodes, 15 edges, 3 neighbors a node)
        """
        import networkx as nx

        _check_count(n_nodes)
        given = {"probability": probability, "degree": degree, "radius": radius}
        chosen = [key for key, value in given.items() if value is not None]
        if len(chosen) != 1:
            raise NetworkError(f"a random network needs one of probability, degree and radius; got {chosen or 'none'}")
        draw: Callable[[np.random.RandomState], nx.Graph]
        if not isinstance(given[chosen[0]], Integral if degree is not None else Real):
            what = f"{chosen[0]}={given[chosen[0]]!r} with {n_nodes} nodes"
            raise NetworkError(f"{what}: it must be a {'whole ' * (degree is not None)}number")
        if probability is not None:
            allowed, why = 0 < probability <= 1, "it must be above 0 and at most 1"
            draw = lambda rng: nx.fast_gnp_random_graph(n_nodes, probability, seed=rng)  # noqa: E731
        elif degree is not None:
            allowed = 2 <= degree < n_nodes and degree * n_nodes % 2 == 0
            why = f"it must be at least 2 and below {n_nodes}, and degree times nodes even"
            draw = lambda rng: nx.random_regular_graph(degree, n_nodes, seed=rng)  # noqa: E731
        else:
            allowed, why = radius is not None and radius > 0, "it must be above 0"
            draw = lambda rng: nx.random_geometric_graph(n_nodes, radius, seed=rng)  # noqa: E731
        asked = f"{chosen[0]}={given[chosen[0]]} with {n_nodes} nodes"
        if not allowed:
            raise NetworkError(f"{asked}: {why}")
        rng = np.random.RandomState(seed)
        for _ in range(RESAMPLES):
            graph = draw(rng)
            if nx.is_connected(graph):
                return cls._from_pairs(range(n_nodes), list(graph.edges))
        raise NetworkError(f"{asked}: none of {RESAMPLES} random networks was connected; raise it")

    @classmethod
    def from_edges(cls, edges: Iterable[tuple[Any, Any]]) -> Network:
        """From pairs of names; nodes are numbered in natural order of their names.

        Examples
        --------
        >>> Network.from_edges([("b", "a"), ("b", "c")]).names
        ('a', 'b', 'c')
        """
        edges = list(edges)
        for edge in edges:
            if isinstance(edge, str) or not isinstance(edge, Sequence) or len(edge) != 2:
                raise NetworkError(f"an edge is a pair of names, got {edge!r}; leave out weights")
        try:
            labels = {label for edge in edges for label in edge}
        except TypeError as error:
            raise NetworkError(f"the ends of an edge are names or numbers: {error}") from error
        names = sorted(unique_names(sorted(labels, key=str)), key=natural_key)
        number = {name: j for j, name in enumerate(names)}
        return cls._from_pairs(names, [(number[str(a)], number[str(b)]) for a, b in edges])

    @classmethod
    def from_networkx(cls, graph: nx.Graph) -> Network:
        """From a networkx graph; a directed one must have each edge both ways."""
        return cls({node: [o for o in graph.adj[node] if o != node] for node in graph.nodes})

    def to_networkx(self) -> nx.Graph:
        """The same network as a networkx graph over the names."""
        import networkx as nx

        graph = nx.empty_graph(self.names)
        graph.add_edges_from(self.edges)
        return graph

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Network:
        """From a JSON file written by `write`, or a text file with an edge a line: two names, separated by a comma or blanks.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "edges.txt"
        >>> _ = path.write_text("# who talks to whom\\noslo rome\\nrome bonn\\n")
        >>> Network.read(path).names
        ('bonn', 'oslo', 'rome')
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            if not text.lstrip().startswith("{"):
                return cls.from_edges(_read_edges(path, text))
            content = json.loads(text)
        except UnicodeDecodeError as error:
            raise NetworkError(f"{path}: not a network file: not text in UTF-8") from error
        except (json.JSONDecodeError, RecursionError) as error:
            raise NetworkError(f"{path}: not a network file: damaged JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != FILE_FORMAT:
            expected = f'{{"format": "{FILE_FORMAT}", ...}} as Network.write makes it, or an edge a line'
            raise NetworkError(f"{path}: not a network file; expected {expected}")
        version = content.get("version")
        if version != FILE_VERSION:
            raise NetworkError(f"{path}: version {version}, this dekpca reads version {FILE_VERSION}; update it")
        nodes, edges = content.get("nodes"), content.get("edges")
        if not isinstance(nodes, list) or not isinstance(edges, list):
            raise NetworkError(f"{path}: its nodes and its edges are not lists, as Network.write makes them")
        names = unique_names(nodes)
        number = {name: j for j, name in enumerate(names)}
        pairs = []
        for edge in edges:
            ends = edge if isinstance(edge, list) else []
            if len(ends) != 2 or not all(isinstance(end, str) and end in number for end in ends):
                raise NetworkError(f"{path}: edge {edge!r} is not a pair of names listed under nodes")
            pairs.append((number[edge[0]], number[edge[1]]))
        return cls._from_pairs(names, pairs)

    def write(self, path: str | PathLike[str]) -> None:
        """To a small JSON file."""
        content = {"format": FILE_FORMAT, "version": FILE_VERSION, "nodes": self.names, "edges": self.edges}
        write_text(path, json.dumps(content, indent=1) + "\n", PUBLIC)

    # ------------------------------------------------------------------ properties
    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return self._graph == other._graph if isinstance(other, Network) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._graph)

    @cached_property
    def _graph(self) -> tuple[frozenset[str], frozenset[frozenset[str]]]:
        """Names and edges, whatever their order."""
        return frozenset(self.names), frozenset(map(frozenset, self.edges))

    def __repr__(self) -> str:
        low, high = self.degrees.min(), self.degrees.max()
        around = f"{low}" if low == high else f"{low} to {high}"
        plural = "" if len(self) == 1 else "s"
        return f"Network({len(self)} node{plural}, {self.n_edges} edges, {around} neighbors a node)"

    @property
    def n_edges(self) -> int:
        return len(self.pairs)

    @cached_property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """The undirected edges as pairs of names."""
        return tuple((self.names[a], self.names[b]) for a, b in self.pairs)

    @cached_property
    def degrees(self) -> np.ndarray:
        """How many neighbors each node has (itself not counted)."""
        return np.bincount(self.pairs.ravel(), minlength=len(self.names))

    @cached_property
    def number(self) -> dict[str, int]:
        """Name to number."""
        return {name: j for j, name in enumerate(self.names)}

    @cached_property
    def by_name(self) -> np.ndarray:
        """Node numbers in natural order of their names."""
        return np.array(sorted(range(len(self.names)), key=lambda j: natural_key(self.names[j])), dtype=np.int64)

    def neighbors(self, node: int) -> np.ndarray:
        """The numbers of a node's neighbors, in natural order of their names."""
        return self._neighbors[node]

    @cached_property
    def _neighbors(self) -> list[np.ndarray]:
        return np.split(self.directed_edges[:, 1], np.cumsum(self.degrees)[:-1])

    @cached_property
    def _adjacency(self) -> csr_array:
        a, b = self._both_ways.T
        return csr_array((np.ones(len(a)), (a, b)), shape=(len(self.names), len(self.names)))

    @property
    def _both_ways(self) -> np.ndarray:
        return np.concatenate([self.pairs, self.pairs[:, ::-1]])

    @cached_property
    def directed_edges(self) -> np.ndarray:
        """Directed edges (from, to), sorted by the number of `from`, then by the name of `to`."""
        start, end = self._both_ways.T
        return self._both_ways[np.lexsort((np.argsort(self.by_name)[end], start))]

    @cached_property
    def watchers(self) -> csr_array:
        """Sparse (J, J): how many nodes have both of two nodes in their neighborhood (themselves included)."""
        closed = self._adjacency + csr_array(eye_array(len(self.names)))
        counts = (closed @ closed).tocsr()
        counts.sort_indices()
        return counts

    # ------------------------------------------------------------------ tree
    @cached_property
    def parents(self) -> np.ndarray:
        """Spanning tree, breadth first from the smallest name: each node's parent, -1 at the root."""
        by_name = self.by_name
        renamed = self._adjacency[by_name][:, by_name].tocsr()
        renamed.sort_indices()
        order, before = breadth_first_order(renamed, 0, directed=False)
        parents = np.full(len(by_name), -1, dtype=np.int64)
        parents[by_name[order[1:]]] = by_name[before[order[1:]]]
        return parents

    @property
    def root(self) -> int:
        """The number of the node with the smallest name."""
        return int(self.by_name[0])

    @cached_property
    def levels(self) -> np.ndarray:
        """Each node's distance from the root along the tree."""
        return shortest_path(self._adjacency, unweighted=True, indices=self.root).astype(np.int64)

    @property
    def depth(self) -> int:
        """Length of the longest path from the root of the tree."""
        return int(self.levels.max())

    def below(self, node: int) -> list[int]:
        """A node of the tree and all nodes whose way to the root leads through it."""
        return [node, *(lower for child in self.children[node].tolist() for lower in self.below(child))]

    @cached_property
    def children(self) -> tuple[np.ndarray, ...]:
        """For each node its children in the tree, in natural order of their names."""
        found: list[list[int]] = [[] for _ in self.names]
        for node in self.by_name:
            if self.parents[node] >= 0:
                found[self.parents[node]].append(int(node))
        return tuple(np.array(c, dtype=np.int64) for c in found)

    @cached_property
    def diameter(self) -> int:
        """The longest of the shortest paths between two nodes."""
        chunks = np.array_split(np.arange(len(self)), max(1, len(self) // 256))
        return int(max(shortest_path(self._adjacency, unweighted=True, indices=chunk).max() for chunk in chunks))


def _read_edges(path: str | PathLike[str], text: str) -> list[tuple[str, str]]:
    """One edge per line; empty lines and comments after # are ignored."""
    edges = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.partition("#")[0].strip()
        ends = [end.strip() for end in (line.split(",") if "," in line else line.split())]
        if not line:
            continue
        if len(ends) != 2 or not all(ends):
            raise NetworkError(f"{path}: line {number} is {line[:60]!r}; {AN_EDGE}")
        edges.append((ends[0], ends[1]))
    if not edges:
        raise NetworkError(f"{path}: no edges; {AN_EDGE}")
    return edges


def unique_names(labels: Iterable[Any]) -> tuple[str, ...]:
    """The names of nodes, as texts."""
    names = tuple(str(label) for label in labels)
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise NetworkError(f"node names must be unique as text; given twice: {listing(twice)}")
    if "" in names:
        raise NetworkError("a node has an empty name")
    return names


def _check_count(n_nodes: int) -> None:
    if not isinstance(n_nodes, (int, np.integer)) or n_nodes < 1:
        raise NetworkError(f"number of nodes {n_nodes!r}, but it must be a whole number of at least 1")
