"""Every message of a run: who says what to whom, and nothing else. The tables of docs/privacy.md, as a test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from conftest import clusters, make_options
from dekpca import PAPER, Network
from dekpca.block import make_blocks
from dekpca.core import landmarks
from dekpca.core.clusters import LEAST_CLUSTER
from dekpca.engines import local
from dekpca.engines.delivery import Delivery
from dekpca.engines.tree import over_tree
from dekpca.judging import EXTRA_COLUMNS, FREQUENCIES, MORE_FREQUENCIES
from dekpca.kernels import Kernel
from dekpca.landmark_solver import CORRECTING
from dekpca.messages import Exchange, NeighborBroadcast
from dekpca.program import program
from dekpca.separation import SIGNS, Shapes

COLUMNS = 13  # no other number below is 13, so that whatever has the shape of a row is noticed
PARTS = clusters([40, 25, 1, 33, 2, 18], columns=COLUMNS)
NETWORK = Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (4, 5)])
PUBLIC = np.random.default_rng(5).normal(size=(19, COLUMNS))
PAPERS = {key: PAPER[key] for key in ("update", "centering", "rho", "init")} | {"n_landmarks": 0, "n_components": 2}

TREE = {
    "landmarks",
    "fingerprint",
    "counts",
    "columns",
    "scale",
    "mean",
    "covariance",
    "sketch",
    "accuracy",
    "power",
    "check",
    "spectrum",
}
ONE_SHOT = {"covariance", "sketch", "accuracy"}
WITHOUT_START = {"data", "rho", "share", "view", "check", "values", "mean", "spectrum"}
ITERATING = WITHOUT_START | {"covariance", "sketch", "accuracy"}
AUTO = {"solver": "auto", "landmarks": "auto", "n_landmarks": "auto", "max_landmarks": 160, "tol": 1e-5}

MODES = {  # settings -> the kinds of messages that may be said, and have to be
    "projection": ({}, ITERATING | {"landmarks"}),
    "noise": ({"exchange_noise": 0.1}, ITERATING | {"landmarks"}),
    "centres": ({"landmarks": "kmeans"}, ITERATING | {"landmarks", "counts"}),
    "points": ({"landmarks": PUBLIC}, ITERATING | {"landmarks", "fingerprint"}),
    "fixed penalty": ({"rho": 50.0}, (ITERATING | {"landmarks"}) - {"rho"}),
    "no start": ({"init": "random"}, WITHOUT_START | {"landmarks"}),
    "gamma scale": ({"gamma_by_variance": True}, ITERATING | {"landmarks", "scale"}),
    "standardize": ({"standardize": True}, ITERATING | {"landmarks", "columns"}),
    "missing values": ({"impute": True}, ITERATING | {"landmarks", "columns"}),
    "paper": (PAPERS, {"data", "share", "view", "check", "values", "spectrum", "deflate"}),
    "auto": (AUTO, ONE_SHOT | {"landmarks"}),  # nodes too small for clusters
    "auto, noise": ({**AUTO, "exchange_noise": 0.1}, ONE_SHOT | {"landmarks"}),
    "auto, no rows": ({**AUTO, "share_rows": False}, ONE_SHOT | {"landmarks", "counts", "scale"}),
    "one shot, samples": ({"solver": "landmarks"}, ONE_SHOT | {"landmarks"}),
    "one shot, centres": ({"solver": "landmarks", "landmarks": "kmeans"}, ONE_SHOT | {"landmarks", "counts"}),
    "one shot, nobody's": ({"solver": "landmarks", "landmarks": "gaussian"}, ONE_SHOT | {"landmarks", "scale"}),
    "one shot, points": ({"solver": "landmarks", "landmarks": PUBLIC}, ONE_SHOT | {"landmarks", "fingerprint"}),
    "one shot, no features": (
        {"solver": "landmarks", "kernel": Kernel("poly", gamma=0.02, degree=2)},
        {"landmarks", "covariance", "accuracy"},
    ),
    "random features": ({"solver": "landmarks", "landmarks": "random-features"}, {"mean", "power", "spectrum"}),
}
WITHOUT_SAMPLES = ("auto, no rows", "one shot, centres", "one shot, nobody's", "one shot, points", "random features")


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

    class Overhearing(Delivery):
        def answer(self, requests):
            for block, request in zip(self.blocks, requests, strict=True):
                if isinstance(request, NeighborBroadcast):
                    (node,), content = block.nodes, request.rows[0, : block.own_sizes[0]]
                    sent.extend(Message(request.kind, node, q, content) for q in block.slots[0, 1:])
                    continue
                send = request.joined(block.everywhere) if isinstance(request, Exchange) else request
                for i, (row, slot) in enumerate(zip(send.to.rows, send.to.slots, strict=True)):
                    content = send.payload[i, : send.lengths[i]].copy()
                    sent.append(Message(send.kind, block.nodes[row], block.slots[row, slot], content))
            return super().answer(requests)

    blocks = make_blocks(PARTS, NETWORK, apart=True)
    outcome = local.drive(blocks, options, delivery=Overhearing(blocks), script=over_tree(program))
    return outcome, [m for m in sent if m.sender != m.receiver]


def sums_of_a_stage(m, old, p, k, frequencies=FREQUENCIES):
    """Shapes of the sums along the tree that follow new landmarks, from `old` to m, for p functions of which k are components: up, down."""
    q, new, F = min(m, k + EXTRA_COLUMNS), m - old, 2 * frequencies
    moments = new + old * new + new * (new + 1) // 2 + 2
    sides = p + SIGNS
    # of features and psi with functions and random signs, of functions with each other (and weighted); all rows judge, so both sketches have them all
    products = (2 * F + m) * sides + 2 * p * p
    ones = 2 * F + m + sides + p
    leaks = k * k + 2 * m * k + SIGNS + (F + m) * SIGNS + SIGNS + 1
    correction = 2 * CORRECTING * (p + 1) + p
    return {
        "covariance": [(moments,), (1 + q + m + m * q,)],
        "sketch": [(products + ones,), (Shapes(F, m, p, k).told,), (correction,)],
        "accuracy": [
            (leaks,),
            (2 + 3 * k,),
            (1,),
            (2 + k,),
            (1 + (m + p) * p + m + p,),
            (1 + p * p,),
        ],  # with features; without; over all rows, of functions with psi and with each other
    }


def allowed(message, options, stages):
    """The shapes that a message of this kind between these two nodes may have. `stages` are numbers of landmarks, one after the other."""
    k, q, m = options.n_components, 1 if options.update == "paper" else options.n_columns, stages[-1]
    own, theirs = len(PARTS[message.sender]), len(PARTS[message.receiver])
    last = k if options.update == "paper" else q
    iterating = options.solver == "projection"
    up = NETWORK.parents[message.sender] == message.receiver
    sums = {"covariance": [], "sketch": [], "accuracy": []}
    for at, of in enumerate(stages):
        for old in [0, *stages[:at]]:
            p = min(of, (q if iterating else k) + EXTRA_COLUMNS)
            for frequencies in (FREQUENCIES, MORE_FREQUENCIES):
                for kind, shapes in sums_of_a_stage(of, old, p, k, frequencies).items():
                    sums[kind] += shapes
    if iterating:
        kept = min(m, q + EXTRA_COLUMNS)
        sums["covariance"] = [(m * (m + 1) // 2,), (kept * (1 + m),)]  # up, and what the root makes of it down
        if options.init == "landmarks":
            for frequencies in (FREQUENCIES, MORE_FREQUENCIES):
                sums["sketch"] += sums_of_a_stage(m, 0, q, k, frequencies)["sketch"]
    n = message.shape[0]
    return {
        # how many rows is counted below; then the root says which of them add something
        "landmarks": [(n, COLUMNS), (1,) if up else (n,)],
        "fingerprint": [(16,)],
        "counts": [(len(PARTS),)],
        "columns": [(2 * COLUMNS,) if options.impute else (COLUMNS,)],
        "scale": [(1,)] if options.gamma_by_variance else [(COLUMNS,), (COLUMNS**2,)],
        "mean": [(m,)],
        "power": [(1 + m * q,), (2 + q + m * q,)],
        "check": [(2 + q * q,), (1 + q * q,)],
        "spectrum": [(1,)]
        if options.random_features
        else [(1 + 4 * last**2 + 3 * last + m * last,), (1 + k + last * k,)],
        "data": [(own, COLUMNS)],
        "rho": [(1,)],
        "share": [(m + own, q)],
        "view": [(m + theirs, q)],
        "values": [(m + own, last)],
        "deflate": [(own, 1)],
        **sums,
    }[message.kind]


def run_mode(mode):
    """Options, outcome, messages, the kinds that are expected, and how many landmarks there were after each lot of them."""
    changes, kinds = MODES[mode]
    n_landmarks = changes.get("n_landmarks", 32 if mode == "random features" else 20)
    settings = {key: value for key, value in changes.items() if key != "n_landmarks"}
    options = make_options(
        PARTS, NETWORK, "auto" if mode.endswith("points") else n_landmarks, **{"max_iter": 7, **settings}
    )
    outcome, sent = overheard(options)
    answer = outcome.answers[0]
    stages = np.cumsum([count for _, count in answer.known.kinds]).tolist()
    m = 0 if answer.marks is None else answer.marks.size
    assert not stages or stages[-1] == m
    return options, outcome, sent, kinds, stages or [m]


def went_down(message):
    return NETWORK.parents[message.receiver] == message.sender


def subtree_sums(own):
    """Of a number for each node."""
    below = np.array(own)
    for j in np.argsort(-NETWORK.levels):
        if NETWORK.parents[j] >= 0:
            below[NETWORK.parents[j]] += below[j]
    return below


@pytest.mark.parametrize("mode", MODES)
def test_only_listed_messages_are_sent(mode):
    options, outcome, sent, kinds, stages = run_mode(mode)
    assert {s.kind for s in sent} == kinds
    neighbors = {(j, int(q)) for j in range(len(PARTS)) for q in NETWORK.neighbors(j)}
    tree = {(j, int(p)) for j, p in enumerate(NETWORK.parents) if p >= 0}
    tree |= {(p, j) for j, p in tree}
    expected = {kind: np.zeros(len(PARTS)) for kind in kinds}
    below = subtree_sums(landmarks.allot(np.array([len(p) for p in PARTS]), NETWORK.names, 20, options.seed + 1))
    for s in sent:
        assert (s.sender, s.receiver) in (tree if s.kind in TREE else neighbors)
        assert s.shape in allowed(s, options, stages), f"{s.kind}: {s.shape}"
        assert COLUMNS not in s.shape or s.kind in ("data", "columns", "landmarks", "scale")
        if s.kind == "landmarks" and len(s.shape) == 2 and mode in ("projection", "noise", "one shot, samples"):
            assert s.shape[0] == (20 if went_down(s) else below[s.sender])  # all, or those of the subtree on the way up
        expected[s.kind][s.sender] += s.content.nbytes
    edges = outcome.traffic.edges.tolist()
    along = np.zeros(len(edges))
    for s in sent:
        along[edges.index([s.sender, s.receiver])] += s.content.nbytes
    np.testing.assert_array_equal(outcome.traffic.edge_bytes, along)
    for kind in kinds:  # and the engine's count is what went over the edges
        np.testing.assert_array_equal(outcome.traffic.bytes[kind], expected[kind])


@pytest.mark.parametrize("mode", MODES)
def test_all_nodes_are_told_the_same_landmarks_and_which_of_them_to_keep(mode):
    _, outcome, sent, kinds, _ = run_mode(mode)
    if "landmarks" not in kinds:
        return
    told = [[s.content for s in sent if s.kind == "landmarks" and s.receiver == j and went_down(s)] for j in range(6)]
    told[NETWORK.root] = next(t for t in told if t)
    for mine in told:
        assert len(mine) == len(told[0])
        assert all((a == b).all() for a, b in zip(mine, told[0], strict=True))
    lots = [content.astype(int) for content in told[0] if content.ndim == 1]
    assert [int((lot >= 0).sum()) for lot in lots] == [count for _, count in outcome.answers[0].known.kinds]
    rows = [content for content in told[0] if content.ndim == 2]
    kept = {row.tobytes() for row in outcome.answers[0].known.points}
    if mode not in ("points", "one shot, points", "one shot, nobody's", "auto, no rows"):
        assert kept <= {row.tobytes() for content in rows for row in content}


def test_how_often():
    _, _, sent, _, _ = run_mode("projection")
    edges = len(NETWORK.directed_edges)
    for kind, count in (("data", 1), ("rho", 1), ("share", 7), ("view", 7), ("values", 1)):
        assert sum(s.kind == kind for s in sent) == count * edges
    tree = 2 * (len(PARTS) - 1)  # up and down
    assert sum(s.kind == "check" for s in sent) == 2 * tree  # after 5 and 7 iterations
    assert sum(s.kind == "sketch" for s in sent) == 2 * tree  # of the iterate and of the landmarks alone
    assert sum(s.kind == "accuracy" for s in sent) == 3 * tree


def test_how_often_without_iterations():
    _, outcome, sent, _, _ = run_mode("auto")
    tree = 2 * (len(PARTS) - 1)
    counts = {kind: sum(s.kind == kind for s in sent) // tree for kind in ("covariance", "sketch", "accuracy")}
    stages = counts["covariance"]
    assert stages >= 2
    # Once with more frequencies, and once with a correction (of which the sketch is summed), if the landmarks end without reaching the tolerance.
    again, extra = counts["accuracy"] - stages, counts["sketch"] - counts["accuracy"]
    assert 0 <= again <= 2
    assert 0 <= extra <= 1
    assert outcome.answers[0].n_iter == 1


@pytest.mark.parametrize("mode", WITHOUT_SAMPLES)
def test_no_row_of_anybody_leaves_its_node(mode):
    _, _, sent, _, _ = run_mode(mode)
    rows = np.concatenate(PARTS)
    for s in sent:
        assert not np.isin(s.content, rows).any(), s.kind  # not even one entry of one row
        if s.kind == "landmarks" and len(s.shape) == 2:
            assert mode in ("auto, no rows", "one shot, centres")
            assert np.abs(s.content[:, None] - rows).max(axis=2).min() > 0
        elif COLUMNS in s.shape:
            assert s.kind == "scale"


@pytest.mark.parametrize("mode", ["auto, no rows", "one shot, nobody's"])
def test_nodes_of_few_rows_add_nothing_to_sums_of_rows(mode):
    """The sum of one row is the row, and that of a few says much about each."""
    _, _, sent, _, _ = run_mode(mode)
    up = {j: [s.content for s in sent if s.kind == "scale" and s.sender == j and not went_down(s)] for j in range(6)}
    assert len({len(said) for j, said in up.items() if j != NETWORK.root}) == 1
    for j, part in enumerate(PARTS):
        if j == NETWORK.root:
            continue
        for i, said in enumerate(up[j]):
            own = said - sum(up[int(child)][i] for child in NETWORK.children[j])
            assert (np.abs(own).max() > 0) == (len(part) >= LEAST_CLUSTER)
