"""Landmarks that are no samples: centres of clusters, and points that everybody has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conftest import clusters, make_options
from dekpca import DecentralizedKernelPCA, Network, baselines, metrics
from dekpca.block import make_blocks
from dekpca.core.landmarks import LEAST_CLUSTER, cluster_centers, digest
from dekpca.engines import local

PARTS = clusters([60, 45, 3, 50, 30])
NETWORK = Network.ring(5)
PUBLIC = np.concatenate([p[:12] for p in PARTS]) + np.random.default_rng(1).normal(scale=0.3, size=(51, 6))  # synthetic


def test_centers_are_means_of_enough_rows():
    X = np.concatenate(clusters([60, 7]))
    for count in (1, 4, 13, 500):
        centers = cluster_centers(X, count, seed=0, name="a")
        assert 1 <= len(centers) <= min(count, len(X) // LEAST_CLUSTER)
        assert not (np.abs(X[:, None] - centers).sum(axis=2) == 0).any()
    assert len(cluster_centers(X[:4], 3, seed=0, name="a")) == 0
    lonely = np.concatenate(
        [np.zeros((20, 2)) + np.arange(20)[:, None] * 1e-3, [[100.0, 0.0]]]
    )  # an outlier is no cluster
    assert np.abs(cluster_centers(lonely, 4, seed=0, name="a")).max() < 50


@pytest.mark.parametrize("solver", ["projection", "landmarks"])
@pytest.mark.parametrize("kind", ["kmeans", "points"])
def test_good_answers(solver, kind):
    settings = {"landmarks": "kmeans", "n_landmarks": 30} if kind == "kmeans" else {"landmarks": PUBLIC}
    model = DecentralizedKernelPCA(2, gamma=0.05, network=NETWORK, solver=solver, random_state=0, **settings).fit_parts(
        PARTS
    )
    central = baselines.central(PARTS, 2, gamma=0.05)
    assert metrics.agreement(model, central, np.concatenate(PARTS)).min() > (0.995 if solver == "projection" else 0.98)


@pytest.mark.parametrize("kind", ["kmeans", "points"])
def test_no_message_of_the_landmark_solver_holds_a_sample(kind, monkeypatch):
    rows = {row.tobytes() for part in PARTS for row in part}
    said = []
    say = local.Post.say

    def listen(post, says):
        said.extend((s.kind, np.asarray(s.payload)) for s in says if s.payload is not None)
        return say(post, says)

    def refuse(post, tells):
        raise AssertionError("samples were told")

    monkeypatch.setattr(local.Post, "say", listen)
    monkeypatch.setattr(local.Post, "tell", refuse)
    given = "kmeans" if kind == "kmeans" else PUBLIC
    options = make_options(PARTS, NETWORK, 25, solver="landmarks", landmarks=given)
    local.run(PARTS, NETWORK, options)
    assert {k for k, _ in said} == {"landmarks", "mean", "covariance", "spectrum"} | (
        {"counts"} if kind == "kmeans" else set()
    )
    for name, payload in said:
        if payload.ndim and payload.shape[-1] == PARTS[0].shape[1]:
            assert name == "landmarks"
            assert not any(row.tobytes() in rows for row in payload.reshape(-1, payload.shape[-1]))


def test_points_that_differ_are_noticed():
    options = make_options(PARTS, NETWORK, "auto", landmarks=PUBLIC)
    sizes = [len(p) for p in PARTS]
    blocks = [b for j, p in enumerate(PARTS) for b in make_blocks([p], NETWORK, [j], sizes)]
    program = local.program
    other = replace(options, landmarks=PUBLIC + 1e-12)

    def one_differs(block, options, resume=None):
        return program(block, other if 3 in block.nodes else options, resume)

    local.program = one_differs
    try:
        with pytest.raises(ValueError, match="node 3: its landmarks differ from those of node 0"):
            local.drive(blocks, options)
    finally:
        local.program = program


def test_digest_tells_arrays_apart_and_fits_float32():
    a = np.arange(6.0).reshape(2, 3)
    assert (digest(a) == digest(a.copy(order="F"))).all()
    assert (digest(a) != digest(a.reshape(3, 2))).any()
    assert (digest(a).astype(np.float32) == digest(a)).all()


def test_models_of_public_landmarks_hold_no_sample():
    settings = {"landmarks": PUBLIC, "expansion": "landmarks", "random_state": 0}
    model = DecentralizedKernelPCA(2, gamma=0.05, network=NETWORK, **settings).fit_parts(PARTS)
    for node in model.node_models_:
        assert [p.tobytes() for f in node.functions.values() for p in f.points] == [PUBLIC.tobytes()]
