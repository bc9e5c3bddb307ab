from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dekpca import Network, NetworkError
from dekpca.network import natural_key


@pytest.mark.parametrize(
    ("network", "nodes", "edges", "diameter"),
    [
        (Network.ring(20, 4), 20, 40, 5),
        (Network.ring(5, 4), 5, 10, 1),
        (Network.path(7), 7, 6, 6),
        (Network.star(6), 6, 5, 2),
        (Network.grid(3, 4), 12, 17, 5),
        (Network.complete(6), 6, 15, 1),
        (Network.complete(1), 1, 0, 0),
        (Network.path(2), 2, 1, 1),
    ],
)
def test_shapes(network, nodes, edges, diameter):
    assert (len(network), network.n_edges, network.diameter) == (nodes, edges, diameter)
    assert nx.is_connected(network.to_networkx())


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_tree_spans_and_goes_breadth_first(seed):
    network = Network.random(12, 0.25, seed=seed)
    graph = network.to_networkx()
    far = nx.single_source_shortest_path_length(graph, network.names[network.root])
    for j, name in enumerate(network.names):
        assert network.levels[j] == far[name]
        if j != network.root:
            assert network.names[network.parents[j]] in graph[name]
    assert network.diameter == nx.diameter(graph)
    assert network.depth == max(far.values())
    assert sum(len(c) for c in network.children) == len(network) - 1


def test_tree_and_neighbors_go_by_name_not_by_number():
    edges = [("b", "a"), ("b", "c"), ("c", "d"), ("a", "d"), ("d", "e")]
    one = Network({n: [y if x == n else x for x, y in edges if n in (x, y)] for n in "abcde"})
    two = Network({n: [y if x == n else x for x, y in edges if n in (x, y)] for n in "ecadb"})
    assert one == two
    parent = [{n.names[j]: n.names[p] for j, p in enumerate(n.parents) if p >= 0} for n in (one, two)]
    assert parent[0] == parent[1]
    for name in "abcde":
        around = [[n.names[q] for q in n.neighbors(n.number[name])] for n in (one, two)]
        assert around[0] == around[1] == sorted(around[0])


def test_natural_order():
    assert sorted(["10", "9", "node2", "node10", "a"], key=natural_key) == ["9", "10", "a", "node2", "node10"]


@pytest.mark.parametrize("options", [{"probability": 0.3}, {"degree": 4}, {"radius": 0.5}])
def test_random_networks_are_connected_and_seeded(options):
    networks = [Network.random(20, **options, seed=s) for s in (1, 1, 2)]
    assert networks[0] == networks[1] != networks[2]
    if "degree" in options:
        assert (networks[0].degrees == 4).all()


def test_file_round_trip(tmp_path):
    network = Network.from_edges([("st. mary", "1"), ("1", "ünï")])
    network.write(tmp_path / "net.json")
    again = Network.read(tmp_path / "net.json")
    assert again == network
    assert again.names == network.names
    assert Network.from_networkx(network.to_networkx()) == network


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Network({"a": ["b"], "b": []}), "a -> b"),
        (lambda: Network({"a": ["b"], "b": ["a"], "c": []}), "isolated nodes: c"),
        (lambda: Network({"a": ["b"], "b": ["a"], "c": ["d"], "d": ["c"]}), "disconnected"),
        (lambda: Network({"a": ["a"]}), "itself"),
        (lambda: Network({"a": ["x"]}), "x, which is not a node"),
        (lambda: Network({1: [2], "1": [2], 2: [1]}), "unique"),
        (lambda: Network({}), "at least one"),
        (lambda: Network.from_networkx(nx.DiGraph([(0, 1)])), "0 -> 1"),
        (lambda: Network.from_edges([(0, 1), (2, 3)]), "disconnected"),
        (lambda: Network.from_edges(["ab"]), "pair"),
        (lambda: Network.ring(6, 3), "even"),
        (lambda: Network.ring(4, 4), "below 4"),
        (lambda: Network.ring(2), "use path"),
        (lambda: Network.ring(6, 2.0), "must be even"),
        (lambda: Network.from_edges([("a", ["b"])]), "names or numbers"),
        (lambda: Network.from_edges([("a", "b", 3)]), "leave out weights"),
        (lambda: Network.random(10), "one of"),
        (lambda: Network.random(50, 0.001), "connected"),
        (lambda: Network.random(5, degree=3), "even"),
        (lambda: Network.random(5, radius=-1.0), "radius"),
        (lambda: Network.path(0), "at least 1"),
        (lambda: Network.path(2.5), "whole number"),
        (lambda: Network.random(10, degree=4.0), "degree=4.0 with 10 nodes: it must be a whole number"),
        (lambda: Network.random(10, radius="0.5"), "radius='0.5' with 10 nodes: it must be a number"),
    ],
)
def test_bad_networks_say_what_is_wrong(make, says):
    with pytest.raises(NetworkError, match=says):
        make()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"format": ', "damaged JSON"),
        ("three words here", "line 1 is 'three words here'; write an edge a line"),
        ("# nothing", "no edges"),
        ("{}", "dekpca-network"),
        ('{"format": "dekpca-network", "version": 99}', "version 99"),
        ('{"format": "dekpca-network", "version": 1, "nodes": ["a"], "edges": [["a", "b"]]}', "not a pair"),
        ('{"format": "dekpca-network", "version": 1, "nodes": ["a"], "edges": [["a", ["a"]]]}', "not a pair"),
        ('{"format": "dekpca-network", "version": 1, "nodes": null, "edges": []}', "net.json: .* are not lists"),
        ('{"format": "dekpca-network", "version": 1, "nodes": "ab", "edges": [["a", "b"]]}', "are not lists"),
        ('{"format": "dekpca-network", "version": 1, "nodes": ["a"], "edges": 5}', "are not lists"),
    ],
)
def test_bad_files(tmp_path, content, says):
    (tmp_path / "net.json").write_text(content)
    with pytest.raises(NetworkError, match=says):
        Network.read(tmp_path / "net.json")


def test_watchers_count_common_neighborhoods():
    network = Network.path(4)
    closed = np.eye(4) + nx.to_numpy_array(network.to_networkx(), nodelist=network.names)
    np.testing.assert_array_equal(network.watchers.toarray(), closed @ closed)
