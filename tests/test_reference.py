"""The library against the independent implementation in oracle.py: same start, landmarks and penalties, 10 iterations."""

from __future__ import annotations

import numpy as np
import pytest

import oracle
from conftest import clusters, make_options
from dekpca import PAPER, Network
from dekpca.core.landmarks import Landmarks
from dekpca.engines import local
from dekpca.kernels import Kernel
from dekpca.plan import Plan

KERNEL = Kernel("rbf", gamma=0.05)


def oracle_turn(points):
    """From the library's landmark coordinates to the oracle's: both are roots of K_LL^-1, so what lies between them is a rotation."""
    if points is None:
        return np.zeros((0, 0))
    lam, V = np.linalg.eigh(KERNEL.gram(points, points))
    turn = (V * np.sqrt(lam)) @ V.T @ Landmarks.of(points, KERNEL).root
    np.testing.assert_allclose(turn.T @ turn, np.eye(len(turn)), atol=1e-10)
    return turn


def run_library(parts, network, options):
    """States before the first and after the last iteration, by node, in the oracle's coordinates: w without padding, z."""
    seen = []

    def observe(blocks, checkpoints):
        step = {}
        for block, checkpoint in zip(blocks, checkpoints, strict=True):
            turn, state = oracle_turn(checkpoint.known.points), checkpoint.state
            m = len(turn)
            for b, j in enumerate(block.nodes):
                w = state.w[b, : m + block.own_sizes[b]]
                z = turn @ state.z.shared[b], state.z.near[b]
                step[int(j)] = (np.concatenate([turn @ w[:m], w[m:]]), z, block, b)
        seen.append((step, checkpoints[0].known))

    local.run(Plan.of(parts, network, options), observe)
    return seen[0], seen[options.max_iter]


def auto_rho(dense, around):
    def rho(j, q, t):
        d = len(around[j])
        return np.linalg.eigvalsh(dense.gram(j))[-1] * (1 + np.sqrt(1 + 8 * d)) / d

    return rho


def paper_rho(j, q, t):
    return 100.0 if j == q or t >= 10 else (10.0 if t < 5 else 50.0)


CASES = {
    "paper": ({**{k: PAPER[k] for k in ("update", "centering", "rho", "init")}, "n_components": 1}, 0, 0),
    "proximal, no landmarks": ({"init": "random", "centering": "local"}, 0, 4),
    "proximal, landmarks": ({}, 20, 4),
    "proximal, landmarks, local means": ({"centering": "local"}, 20, 4),
    "proximal, landmarks, no means": ({"centering": None, "init": "random"}, 20, 4),
    "proximal, number": ({"rho": 150.0}, 20, 4),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [[30] * 6, [12, 40, 25, 33, 9, 18]], ids=["equal", "ragged"])
def test_ten_iterations_equal_the_oracle(name, sizes):
    changes, n_landmarks, extra = CASES[name]
    parts, network = clusters(sizes), Network.ring(6, 2)
    options = make_options(parts, network, n_landmarks, extra, **changes)
    (start, known), (end, _) = run_library(parts, network, options)
    around = [[j, *(int(q) for q in network.neighbors(j))] for j in range(6)]
    dense = oracle.Dense(parts, KERNEL.gram, known.points, options.centering)
    rho = {"auto": auto_rho(dense, around), 150.0: lambda j, q, t: 150.0}.get(changes.get("rho", "auto"), paper_rho)
    w, z = oracle.iterate(
        dense,
        around,
        [start[j][0] for j in range(6)],
        rho,
        options.max_iter,
        options.update,
        options.init == "landmarks",
    )
    for j in range(6):
        got, (shared, near), block, b = end[j]
        # coefficients of samples that the landmarks express entirely are not determined: compare functions, on all
        # samples
        mine, theirs = (evaluate(dense, j, x) for x in (got, w[j]))
        assert np.abs(mine - theirs).max() <= 1e-8 * np.abs(theirs).max()
        z_mine = dense.psi @ shared + sum(
            dense.rest[:, dense.own[l]] @ near[s, : len(parts[l])] for s, l in enumerate(block.slots[b])
        )
        z_theirs = dense.psi @ z[j][0] + sum(
            dense.rest[:, dense.own[l]] @ c for l, c in zip(around[j], z[j][1], strict=True)
        )
        assert np.abs(z_mine - z_theirs).max() <= 1e-8 * np.abs(z_theirs).max()


def evaluate(dense, j, w):
    m = dense.psi.shape[1]
    return dense.psi @ w[:m] + dense.rest[:, dense.own[j]] @ w[m:]


def test_auto_start_is_pca_in_landmark_coordinates(ragged):
    parts, network = ragged
    options = make_options(parts, network, 25, 3)
    (start, known), _ = run_library(parts, network, options)
    dense = oracle.Dense(parts, KERNEL.gram, known.points, "global")
    V = np.linalg.eigh(dense.psi.T @ dense.psi)[1][:, ::-1][:, : options.n_columns]
    m = len(known.points)
    for j in range(len(parts)):
        s = start[j][0][:m]
        np.testing.assert_allclose(np.abs((s * V).sum(0)), 1, atol=1e-8)  # equal up to sign
        assert not start[j][0][m:].any()
