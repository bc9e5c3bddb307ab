"""Every message of a run: who says what to whom, and nothing else. The tables of docs/privacy.md, as a test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from conftest import clusters, make_options
from dekpca import PAPER, Network
from dekpca.answer import REST_FEATURES
from dekpca.core import landmarks
from dekpca.engines import local

COLUMNS = 11  # no other number below is 11, so that whatever has the shape of a row is noticed
PARTS = clusters([40, 25, 1, 33, 2, 18], columns=COLUMNS)
NETWORK = Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (4, 5)])
PUBLIC = np.random.default_rng(5).normal(size=(19, COLUMNS))
PAPERS = {key: PAPER[key] for key in ("update", "centering", "rho", "init")} | {"n_landmarks": 0, "n_components": 2}

TREE = {"landmarks", "fingerprint", "counts", "columns", "scale", "mean", "covariance", "power", "check", "spectrum"}
ONE_SHOT = {"mean", "covariance", "spectrum"}
ITERATING = {"data", "rho", "share", "view", "check", "values", "mean", "covariance", "spectrum"}

MODES = {  # settings -> the kinds of messages that may be said, and have to be
    "default": ({}, ITERATING | {"landmarks"}),
    "noise": ({"exchange_noise": 0.1}, ITERATING | {"landmarks"}),
    "centres": ({"landmarks": "kmeans"}, ITERATING | {"landmarks", "counts"}),
    "points": ({"landmarks": PUBLIC}, ITERATING | {"fingerprint"}),
    "fixed penalty": ({"rho": 50.0}, (ITERATING | {"landmarks"}) - {"rho"}),
    "no start": ({"init": "random"}, (ITERATING | {"landmarks"}) - {"covariance"}),
    "gamma scale": ({"gamma_by_variance": True}, ITERATING | {"landmarks", "scale"}),
    "standardize": ({"standardize": True}, ITERATING | {"landmarks", "columns"}),
    "missing values": ({"impute": True}, ITERATING | {"landmarks", "columns"}),
    "paper": (PAPERS, {"data", "share", "view", "check", "values", "spectrum", "deflate"}),
    "one shot, samples": ({"solver": "landmarks"}, ONE_SHOT | {"landmarks"}),
    "one shot, centres": ({"solver": "landmarks", "landmarks": "kmeans"}, ONE_SHOT | {"landmarks", "counts"}),
    "one shot, points": ({"solver": "landmarks", "landmarks": PUBLIC}, ONE_SHOT | {"fingerprint"}),
    "random features": ({"solver": "landmarks", "landmarks": "random-features"}, {"mean", "power", "spectrum"}),
}
WITHOUT_SAMPLES = ("one shot, centres", "one shot, points", "random features")


@dataclass
class Message:
    kind: str
    sender: int
    receiver: int
    content: np.ndarray

    @property
    def shape(self):
        return self.content.shape


def overheard(options, monkeypatch):
    """All messages between different nodes, as they arrive."""
    sent = []
    deliver, tell = local.Post.deliver, local.Post.tell

    def log_say(post, says):
        for block, s in zip(post.blocks, says, strict=True):
            s = s if s.alike is None else s.joined()
            for i, (row, slot) in enumerate(zip(s.to.rows, s.to.slots, strict=True)):
                array = s.payload if s.common else s.payload[i]
                rows = array.shape[0] if s.common or s.lengths is None else s.lengths[i]
                sent.append(Message(s.kind, block.nodes[row], block.slots[row, slot], array[:rows].copy()))
        return deliver(post, says)

    def log_tell(post, tells):
        for block, t in zip(post.blocks, tells, strict=True):
            for row in range(block.n_nodes):
                content = t.payload[row, : t.lengths[row]]
                sent.extend(Message(t.kind, block.nodes[row], q, content) for q in block.slots[row, 1:])
        return tell(post, tells)

    for name in ("total", "rows"):  # from neighbor to neighbor, to be overheard
        monkeypatch.setattr(local.Post, name, lambda post, requests: [None] * len(requests))
    monkeypatch.setattr(local.Post, "deliver", log_say)
    monkeypatch.setattr(local.Post, "tell", log_tell)
    outcome = local.run(PARTS, NETWORK, options)
    return outcome, [m for m in sent if m.sender != m.receiver]


def allowed(message, options, m):
    """The shapes that a message of this kind between these two nodes may have."""
    k, q = options.n_components, 1 if options.update == "paper" else options.n_columns
    own, theirs = len(PARTS[message.sender]), len(PARTS[message.receiver])
    last = k if options.update == "paper" else q
    parts = 1 + 4 * last**2 + 3 * last + m * last
    if options.solver == "landmarks":
        parts = 1 if options.random_features else 1 + REST_FEATURES * q
    n_rows = message.shape[0] if message.kind == "landmarks" and message.content.ndim == 2 else None
    return {
        "landmarks": [(n_rows, COLUMNS)],  # how many is counted below
        "fingerprint": [(16,)],
        "counts": [(len(PARTS),)],
        "columns": [(2 * COLUMNS,) if options.impute else (COLUMNS,)],
        "scale": [(1,)],
        "mean": [(m,)],
        "covariance": [(m * (m + 1) // 2,), (q * (1 + m),)],  # up, and what the root makes of it down
        "power": [(1 + m * q,), (2 + q + m * q,)],
        "check": [(2 + q * q,), (1 + q * q,)],
        "spectrum": [(parts,), (1,) if options.random_features else (1 + k + last * k,)],
        "data": [(own, COLUMNS)],
        "rho": [(1,)],
        "share": [(m + own, q)],
        "view": [(m + theirs, q)],
        "values": [(m + own, last)],
        "deflate": [(own, 1)],
    }[message.kind]


def run_mode(mode, monkeypatch):
    changes, kinds = MODES[mode]
    n_landmarks = changes.get("n_landmarks", 32 if mode == "random features" else 20)
    settings = {key: value for key, value in changes.items() if key != "n_landmarks"}
    options = make_options(PARTS, NETWORK, "auto" if mode.endswith("points") else n_landmarks, max_iter=7, **settings)
    outcome, sent = overheard(options, monkeypatch)
    marks = outcome.answers[0].marks
    return options, outcome, sent, kinds, 0 if marks is None else marks.size


@pytest.mark.parametrize("mode", MODES)
def test_only_listed_messages_are_sent(mode, monkeypatch):
    options, outcome, sent, kinds, m = run_mode(mode, monkeypatch)
    assert {s.kind for s in sent} == kinds
    neighbors = {(j, int(q)) for j in range(len(PARTS)) for q in NETWORK.neighbors(j)}
    tree = {(j, int(p)) for j, p in enumerate(NETWORK.parents) if p >= 0}
    tree |= {(p, j) for j, p in tree}
    expected = {kind: np.zeros(len(PARTS)) for kind in kinds}
    below = landmarks.allot(np.array([len(p) for p in PARTS]), NETWORK.names, m, options.seed)
    for j in np.argsort(-NETWORK.levels):
        if NETWORK.parents[j] >= 0:
            below[NETWORK.parents[j]] += below[j]
    for s in sent:
        assert (s.sender, s.receiver) in (tree if s.kind in TREE else neighbors)
        assert s.shape in allowed(s, options, m), f"{s.kind}: {s.shape}"
        assert s.kind == "landmarks" or COLUMNS not in s.shape or s.kind in ("data", "columns")
        if s.kind == "landmarks" and NETWORK.parents[s.receiver] == s.sender:
            assert s.shape[0] == m  # all of them, on the way down
        elif s.kind == "landmarks" and isinstance(options.landmarks, str) and options.landmarks == "samples":
            assert s.shape[0] == below[s.sender]  # those of the subtree, on the way up
        expected[s.kind][s.sender] += s.content.nbytes
    edges = outcome.traffic.edges.tolist()
    along = np.zeros(len(edges))
    for s in sent:
        along[edges.index([s.sender, s.receiver])] += s.content.nbytes
    np.testing.assert_array_equal(outcome.traffic.edge_bytes, along)
    for kind in kinds:  # and the engine's count is what went over the edges
        np.testing.assert_array_equal(outcome.traffic.bytes[kind], expected[kind])


def test_how_often(monkeypatch):
    _, _, sent, _, _ = run_mode("default", monkeypatch)
    edges = len(NETWORK.directed_edges)
    for kind, count in (("data", 1), ("rho", 1), ("share", 7), ("view", 7), ("values", 1)):
        assert sum(s.kind == kind for s in sent) == count * edges
    assert sum(s.kind == "check" for s in sent) == 2 * 2 * (len(PARTS) - 1)  # after 5 and 7 iterations, up and down


@pytest.mark.parametrize("mode", WITHOUT_SAMPLES)
def test_no_row_of_anybody_leaves_its_node(mode, monkeypatch):
    _, _, sent, _, _ = run_mode(mode, monkeypatch)
    rows = np.concatenate(PARTS)
    known = {value.tobytes() for row in rows for value in row}
    for s in sent:
        assert not any(value.tobytes() in known for value in s.content.ravel()), s.kind  # not even one entry of one row
        if COLUMNS in s.shape:
            assert (mode, s.kind) == ("one shot, centres", "landmarks")
            assert np.abs(s.content[:, None] - rows).max(axis=2).min() > 0
