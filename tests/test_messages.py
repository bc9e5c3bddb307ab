"""Every message of a run: who says what to whom, and nothing else. The tables of docs/explanation/privacy.md, as a test."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from conftest import clusters, make_options
from dekpca import PAPER, Network, Projection
from dekpca.engines import local
from dekpca.engines.tree import over_tree
from dekpca.kernels import make_kernel
from dekpca.program import program
from dekpca.settings import LandmarkSource
from dekpca.site import apart
from dekpca.solvers.sums.clusters import LEAST_CLUSTER
from dekpca.solvers.sums.judge import largest_sum
from dekpca.solvers.sums.moments import EXTRA

COLUMNS = 13  # no other number below is 13, so that whatever has the shape of a row is noticed
PARTS = clusters([40, 25, 1, 33, 2, 18], columns=COLUMNS)
NETWORK = Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (4, 5)])
PUBLIC = np.random.default_rng(5).normal(size=(19, COLUMNS))
SEVEN = Projection(n_landmarks=20, max_iter=7, tol=0.0)


def wide(A, B):
    """A kernel that nobody knows: it has no random features."""
    return (0.02 * A @ B.T + 1) ** 2


ROUNDS = {"columns", "axes", "clusters", "landmarks", "moments", "judge"}  # of the default solver
CHOOSING = {"columns", "axes", "clusters", "landmarks"}  # landmarks
TREE = ROUNDS | {"fingerprint", "mean", "power", "check", "spectrum"}
WITHOUT_START = {"data", "rho", "share", "view", "moments", "check", "values", "spectrum"} | CHOOSING
ITERATING = WITHOUT_START | {"judge"}
AUTO = {"max_landmarks": 160, "tol": 1e-5}
GIVEN = {"fingerprint", "landmarks", "moments", "judge"}
POINTS = LandmarkSource("points", PUBLIC)


def projection(**changes):
    return {"projection": replace(SEVEN, **changes)}


MODES = {  # settings -> the kinds of messages that may be said, and have to be
    "projection": (projection(), ITERATING),
    "noise": (projection(exchange_noise=0.1), ITERATING),
    "points": ({**projection(n_landmarks="auto"), "landmarks": POINTS}, (ITERATING | {"fingerprint"}) - {"columns", "axes", "clusters"}),
    "fixed penalty": (projection(rho=50.0), ITERATING - {"rho"}),
    "no start": (projection(init="random"), WITHOUT_START),
    "gamma scale": ({**projection(), "gamma_by_variance": True}, ITERATING),
    "standardize": ({**projection(), "standardize": True}, ITERATING),
    "missing values": ({**projection(), "impute": True}, ITERATING),
    "paper": (
        {"projection": replace(PAPER, max_iter=7), "n_components": 2},
        {"data", "share", "view", "check", "values", "spectrum", "deflate"},
    ),
    "auto": (AUTO, ROUNDS),
    "auto, scaled": ({**AUTO, "gamma_by_variance": True, "standardize": True, "impute": True}, ROUNDS),
    "auto, no rows": ({**AUTO, "share_rows": False, "owners_apart": True}, ROUNDS),
    "a number": ({"n_landmarks": 20}, ROUNDS),
    "one shot, points": ({"landmarks": POINTS}, GIVEN),
    "no features": ({**AUTO, "kernel": make_kernel(wide)}, ROUNDS),
    "no features, no rows": ({**AUTO, "kernel": make_kernel(wide), "share_rows": False}, ROUNDS - {"judge"}),
    "random features": ({"landmarks": LandmarkSource("random-features"), "n_landmarks": 32}, {"mean", "power"}),
}  # fmt: skip
WITHOUT_SAMPLES = ("auto, no rows", "one shot, points", "no features, no rows", "random features")


@dataclass
class Message:
    kind: str
    sender: int
    receiver: int
    content: np.ndarray

    @property
    def shape(self):
        return self.content.shape


def overheard(options):
    """All messages between different nodes, each of which is hosted alone, as they arrive."""
    sent = []

    class Overhearing(local.Delivery):
        def exchange(self, requests):
            for request in requests:
                sent.extend(Message(request.kind, *edge, content.copy()) for edge, content in request.messages.items())
            return super().exchange(requests)

    sites = apart(PARTS, NETWORK)
    outcome = local.drive(sites, options, Overhearing(sites), script=over_tree(program))
    assert all(m.sender != m.receiver for m in sent)
    return outcome, sent


def term_of_a_cluster(columns):
    """The numbers of a cluster in a sum: of rows, their weight, its squares, and the weighted sum."""
    return 3 + columns


def is_round(message, options, stages):
    """Whether a message is a term of a round of sums, or its conclusion, for some number c of clusters or rows. `stages` are numbers of landmarks."""
    (n,) = message.shape
    up, M, axes = NETWORK.parents[message.sender] == message.receiver, COLUMNS, min(COLUMNS, 50)
    k, nodes = max(options.n_components, options.n_columns), len(PARTS)
    if message.kind == "columns":  # sums and counts, or squares
        return n in ((2 * M, M) if up else (M,))
    if message.kind == "axes":
        return n == (M * M if up else M * M + M)
    if message.kind == "clusters":  # count and weight of each, and sums; how often each is cut, and centres
        few = n % 2 == 0 and n <= 4 * stages[-1] if up else n <= 2 * stages[-1]
        return few or n % (term_of_a_cluster(axes) if up else 2 + axes) == 0
    if (
        message.kind == "landmarks"
    ):  # sums by cluster, or rows in their places; how many points, and these. Or the rows of each node
        judged = n % (M + 2) == 0 and not options.kernel.has_sketch  # rows that judge, with weight and group
        return n == nodes or judged or (n % M == 0 or n % term_of_a_cluster(M) == 0 or n == 1 if up else n % M == 1)
    if message.kind == "moments":
        sizes = [
            (1 + m + m * (m + 1) // 2 + 2 + m + 1, 3 + m + 2 * q + m * q)
            for m in range(1, stages[-1] + 1)
            for q in [min(m, k + EXTRA)]
        ]
        return n in {size[0 if up else 1] for size in sizes}
    q = k + EXTRA  # judge
    return n <= max(largest_sum(q), (stages[-1] + q + 3) * (q + 1) + 1)


def allowed(message, options, stages):
    """The shapes that a message of this kind between these two nodes may have."""
    k, m, paper = options.n_components, stages[-1], options.projection == MODES["paper"][0]["projection"]
    own, theirs = len(PARTS[message.sender]), len(PARTS[message.receiver])
    q = k + max(4, k) if options.random_features else 1 if paper else options.n_columns
    last = k if paper else q
    signs = [(NETWORK.n_edges * last,), (len(NETWORK) * last,)] if paper else []
    return {
        "fingerprint": [(16,)],
        "mean": [(2 * m + 2,), (2 * m + 1,)],  # up, and down
        "power": [(m * q,), (1 + q + m * q,)],  # up, and what the root makes of it down
        "check": [(2 + q * q,), (1 + q * q,)],
        "spectrum": [(1 + 4 * last**2 + 3 * last + m * last,), (1 + k + last * k,), *signs],
        "data": [(own, COLUMNS)],
        "rho": [(1,)],
        "share": [(m + own, q)],
        "view": [(m + theirs, q)],
        "values": [(m + own, last)],
        "deflate": [(own, 2)],
    }[message.kind]


def run_mode(mode):
    """Options, outcome, messages, the kinds that are expected, and how many landmarks there were at each stage."""
    changes, kinds = MODES[mode]
    options = make_options(PARTS, NETWORK, **changes)
    outcome, sent = overheard(options)
    answer = outcome.answers[0]
    m = 0 if answer.marks is None else answer.marks.size
    stages = [count for count, *_ in answer.stages]
    assert not stages or stages[-1] == m
    return options, outcome, sent, kinds, stages or [m]


def went_down(message):
    return NETWORK.parents[message.receiver] == message.sender


@pytest.mark.parametrize("mode", MODES)
def test_only_listed_messages_are_sent(mode):
    options, outcome, sent, kinds, stages = run_mode(mode)
    assert {s.kind for s in sent} == kinds
    neighbors = {(j, int(q)) for j in range(len(PARTS)) for q in NETWORK.neighbors(j)}
    tree = {(j, int(p)) for j, p in enumerate(NETWORK.parents) if p >= 0}
    tree |= {(p, j) for j, p in tree}
    expected = {kind: np.zeros(len(PARTS)) for kind in kinds}
    for s in sent:
        assert (s.sender, s.receiver) in (tree if s.kind in TREE else neighbors)
        if s.kind in ROUNDS:
            assert is_round(s, options, stages), f"{s.kind}: {s.shape}"
        else:
            assert s.shape in allowed(s, options, stages), f"{s.kind}: {s.shape}"
            assert s.shape[-1] != COLUMNS or s.kind == "data"
        expected[s.kind][s.sender] += s.content.nbytes
    edges = NETWORK.directed_edges.tolist()
    along = np.zeros(len(edges))
    for s in sent:
        along[edges.index([s.sender, s.receiver])] += s.content.nbytes
    np.testing.assert_array_equal(outcome.traffic.edge_bytes, along)
    for kind in kinds:  # and the engine's count is what went over the edges
        np.testing.assert_array_equal(outcome.traffic.bytes[kind], expected[kind])


@pytest.mark.parametrize("mode", MODES)
def test_all_nodes_are_told_the_same(mode):
    """To the bit: what the root concludes, it tells once."""
    _, outcome, sent, kinds, _ = run_mode(mode)
    for kind in kinds & TREE:
        told = {
            j: [s.content for s in sent if s.kind == kind and s.receiver == j and went_down(s)]
            for j in range(6)
            if j != NETWORK.root
        }
        first = told[min(told)]
        assert first
        for mine in told.values():
            assert [x.tobytes() for x in mine] == [x.tobytes() for x in first]
    if "landmarks" in kinds:
        points = [answer.marks.points for answer in outcome.answers]
        said = np.concatenate([s.content for s in sent if s.kind == "landmarks" and went_down(s)])
        assert np.isin(points[0], said).all() or "standardize" in MODES[mode][0]
        assert all((mine == points[0]).all() for mine in points)


def test_how_often():
    _, _, sent, _, _ = run_mode("projection")
    edges = len(NETWORK.directed_edges)
    for kind, count in (("data", 1), ("rho", 1), ("share", 7), ("view", 7), ("values", 1)):
        assert sum(s.kind == kind for s in sent) == count * edges
    tree = 2 * (len(PARTS) - 1)  # up and down
    assert sum(s.kind == "check" for s in sent) == 2 * tree  # after 5 and 7 iterations
    assert sum(s.kind == "moments" for s in sent) == tree
    assert (
        sum(s.kind == "judge" for s in sent) == 7 * tree
    )  # of the iterate and of the landmarks alone, and products of both


def test_how_often_without_iterations():
    _, outcome, sent, _, stages = run_mode("auto")
    tree = 2 * (len(PARTS) - 1)
    counts = {kind: sum(s.kind == kind for s in sent) // tree for kind in ROUNDS}
    assert counts["moments"] == len(stages) >= 2
    assert counts["judge"] % 3 == 0
    assert len(stages) <= counts["judge"] // 3 <= 2 * len(stages) + 1  # again, where more work may be enough
    assert (counts["columns"], counts["axes"]) == (1, 1)
    assert outcome.answers[0].n_iter == 0


@pytest.mark.parametrize("mode", WITHOUT_SAMPLES)
def test_no_row_of_anybody_is_told(mode):
    """A node sends sums over its rows to its parent; those of a node of one row are the row, which goes no further."""
    _, _, sent, _, _ = run_mode(mode)
    rows = np.concatenate(PARTS)
    for s in sent:
        if went_down(s) or (len(PARTS[s.sender]) > 1 and s.kind != "fingerprint"):
            assert not np.isin(s.content, rows).any(), s.kind  # not even one entry of one row


def test_rows_are_told_where_they_may_be():
    """The test above can fail: small tables have rows as landmarks."""
    _, _, sent, _, _ = run_mode("auto")
    rows = np.concatenate(PARTS)
    assert any(np.isin(s.content, rows).any() for s in sent if s.kind == "landmarks" and went_down(s))


def test_nodes_of_few_rows_add_nothing_to_sums_of_clusters():
    """The sum of one row is the row, and that of a few says much about each."""
    _, _, sent, _, _ = run_mode("auto, no rows")
    for kind in ("clusters", "landmarks", "judge"):
        up = {j: [s.content for s in sent if s.kind == kind and s.sender == j and not went_down(s)] for j in range(6)}
        assert len({len(said) for j, said in up.items() if j != NETWORK.root}) == 1
        for j, part in enumerate(PARTS):
            if j == NETWORK.root:
                continue
            own = [said - sum(up[int(child)][i] for child in NETWORK.children[j]) for i, said in enumerate(up[j])]
            largest = max(np.abs(term).max() for term in own)
            size = max(np.abs(said).max() for said in up[j])
            assert (largest > 1e-9 * size) == (len(part) >= LEAST_CLUSTER), (kind, j)
