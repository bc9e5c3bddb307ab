"""The projection solver against the independent implementation in oracle.py: same start, landmarks and penalties, 10 iterations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import oracle
from conftest import clusters, make_options
from dekpca import PAPER, Network, Projection
from dekpca.engines import local
from dekpca.kernels import make_kernel
from dekpca.landmarks import Landmarks
from dekpca.plan import Plan
from dekpca.rounds import Transcript
from dekpca.solvers.projection import solve

ROUNDING = 1e-8  # after ten iterations and inverses of blocks with eigenvalues down to 1e-8
FEW = Projection(n_landmarks=20, n_oversamples=4, max_iter=10, tol=0)
BARE = replace(FEW, n_landmarks=0, init="random", centering="local")
PAPERS = replace(PAPER, max_iter=10, tol=0)

CASES = {
    "paper": PAPERS,
    "paper, no means": replace(PAPERS, centering=None),
    "paper, noise": replace(PAPERS, exchange_noise=0.1),
    "proximal, no landmarks": BARE,
    "proximal, no landmarks, own solutions first": replace(BARE, init="local"),
    "proximal, no landmarks, noise": replace(BARE, exchange_noise=0.1),
    "proximal, landmarks": FEW,
    "proximal, landmarks, local means": replace(FEW, centering="local", init="random"),
    "proximal, landmarks, no means": replace(FEW, centering=None, init="random"),
    "proximal, landmarks, no means at the start": replace(FEW, centering=None),
    "proximal, landmarks, noise": replace(FEW, exchange_noise=0.1),
    "proximal, number": replace(FEW, rho=150.0),
    "proximal, the paper's bound": replace(FEW, rho="paper-bound"),
}
RAGGED = [12, 40, 25, 33, 9, 18]
NETWORKS = {
    "ring": Network.ring(6, 2),
    "path": Network.path(6),
    "star": Network.star(6),
    "complete": Network.complete(6),
    "irregular": Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (4, 5)]),
}


class Compared:
    """The same problem, solved by both; functions are compared by their values on all samples, in the oracle's coordinates.

    Coefficients over samples that the landmarks express entirely are not determined.
    """

    def __init__(self, asked, sizes, network, n_components=3, gamma=0.05, dtype=np.float64, **changes):
        self.network, self.asked = network, asked
        self.parts = [p.astype(dtype) for p in clusters(sizes)]
        kernel = make_kernel("rbf", gamma=gamma)
        self.options = make_options(
            self.parts, network, n_components=n_components, kernel=kernel, projection=asked, **changes
        )
        self.first, self.begun = self._library()
        self.sent = [node.near.samples[0].astype(np.float64) for node in self.first.nodes]
        self.marks = None if self.first.marks is None else self.first.marks
        points = None if self.marks is None else self.marks.points.astype(np.float64)
        exact = [p.astype(np.float64) for p in self.parts]
        sent = self.sent if asked.exchange_noise else None
        self.dense = oracle.Dense(exact, kernel.gram, points, asked.centering, sent)
        self.turn = np.zeros((0, 0))
        if points is not None:  # both coordinates come from roots of K_LL^-1: what lies between them is a rotation
            lam, V = np.linalg.eigh(kernel.gram(points, points))
            self.turn = (V * np.sqrt(lam)) @ V.T @ Landmarks.none(points).plus(points, "points", kernel).root
            np.testing.assert_allclose(self.turn.T @ self.turn, np.eye(len(points)), atol=1e-8)
        self.around = [[j, *network.neighbors(j).tolist()] for j in range(len(sizes))]

    def _library(self):
        """The nodes after the iterations (of the first component), and where they began."""

        def script(site, options):
            run = yield from solve.meet(site, options.solver_options, Transcript())
            begun = solve.start(run)
            yield from solve.iterate(run, None)
            return run, begun

        site = Plan.of(self.parts, self.network, self.options).site()
        return local.drive([site], self.options, local.Delivery([site]), script=script).answers[0]

    def turned(self, w):
        """A node's coefficients (m + n, k) in the oracle's coordinates."""
        m = len(self.turn)
        w = w.astype(np.float64)
        return np.concatenate([self.turn @ w[:m], w[m:]])

    def penalties(self):
        """rho(j, q, t), by the formulas."""
        asked, found = self.asked.rho, []
        if not isinstance(asked, str):
            return lambda j, q, t: next(step[1 if j == q else 2] for step in reversed(asked) if t >= step[0])
        for j, around in enumerate(self.around):
            lam, d = np.linalg.eigvalsh(self.dense.gram(j)), len(around)
            top, cubes = lam[-1], (np.maximum(lam, 0) ** 3).sum()
            bound = (top**2 + np.sqrt(top**4 + 8 * d * top * cubes)) / (d * top)
            found.append(bound if asked == "paper-bound" else top * (1 + np.sqrt(1 + 8 * d)) / d)
        return lambda j, q, t: found[j]

    def oracle(self, dense=None, begun=None):
        """w and z of the oracle after the same iterations."""
        dense = self.dense if dense is None else dense
        begun = [self.turned(w) for w in self.begun] if begun is None else begun
        asked = self.asked
        return oracle.iterate(
            dense, self.around, begun, self.penalties(), asked.max_iter, asked.update, asked.init == "landmarks"
        )

    def check(self, tolerance=ROUNDING):
        w, z = self.oracle()
        for j, node in enumerate(self.first.nodes):
            self.close(self.over_own(j, self.turned(node.w)), self.over_own(j, w[j]), tolerance)
            shared, near = self.turn @ node.z_shared.astype(np.float64), node.near.split(node.z)
            self.close(self.over_near(j, shared, near), self.over_near(j, *z[j]), tolerance)

    def over_own(self, j, w):
        m = self.dense.psi.shape[1]
        return self.dense.psi @ w[:m] + self.dense.rest[:, self.dense.own[j]] @ w[m:]

    def over_near(self, j, shared, near):
        return self.dense.psi @ shared + sum(
            self.dense.rest[:, self.dense.own[l]] @ c for l, c in zip(self.around[j], near, strict=True)
        )

    @staticmethod
    def close(mine, theirs, tolerance):
        assert np.abs(theirs).max() > 0
        assert np.abs(mine - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [[30] * 6, RAGGED], ids=["equal", "ragged"])
def test_ten_iterations_equal_the_oracle(name, sizes):
    Compared(CASES[name], sizes, Network.ring(6, 2)).check()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["paper", "proximal, landmarks", "proximal, landmarks, noise"])
def test_on_any_network(name, network):
    Compared(CASES[name], RAGGED, NETWORKS[network]).check()


@pytest.mark.parametrize("name", CASES)
def test_in_float32(name):
    """The kernel is narrow, so that its matrices have no eigenvalues which are rounding in one precision only."""
    both = Compared(CASES[name], RAGGED, Network.ring(6, 2), gamma=2.0, dtype=np.float32)
    assert {array.dtype for node in both.first.nodes for array in (node.w, node.z)} == {np.dtype(np.float32)}
    both.check(1e-4)


def test_kernel_matrices_that_are_not_stored():
    for name in ("paper", "proximal, landmarks", "proximal, landmarks, local means"):
        stored = Compared(CASES[name], RAGGED, Network.ring(6, 2))
        stored.options = replace(stored.options, store_grams=False)
        stored.first, stored.begun = stored._library()
        assert stored.first.nodes[0].near.rest is None
        stored.check()


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_deflation_equals_the_oracles(noise):
    """The second component of the paper's algorithm: every node has removed the first one from its samples. Coefficients are over the samples."""
    both = Compared(replace(PAPERS, exchange_noise=noise), RAGGED, Network.ring(6, 2), n_components=2)
    answer = local.run(Plan.of(both.parts, both.network, both.options)).answers[0]
    w, z = both.oracle()
    deflated = both.dense.deflated(w)
    begun = [own_solution(deflated, j) for j in range(6)]
    again, z_again = both.oracle(deflated, begun)
    units, values = [], []
    for j in range(6):
        units.append(w[j] / np.sqrt(w[j].T @ both.dense.block(j, j) @ w[j]))
        values.append(both.dense.block(j, j) @ units[j])
    places = set()  # the answer is sorted by eigenvalues
    for component, (w_found, z_found) in enumerate(((w, z), (again, z_again))):
        mine, theirs = [], []
        for j in range(6):
            if component:
                w_found[j] = w_found[j] - units[j] @ (values[j].T @ w_found[j])
                near = [c - units[l] @ (values[l].T @ c) for l, c in zip(both.around[j], z_found[j][1], strict=True)]
            else:
                near = z_found[j][1]
            own, around = (answer.expansions(j)[name].coefficients for name in ("node", "neighborhood"))
            columns = [(own[0][:, i], [c[:, i] for c in around]) for i in range(2)]
            mine.append([np.append(both.over_own(j, a), both.over_near(j, np.zeros(0), c)) for a, c in columns])
            theirs.append(np.append(both.over_own(j, w_found[j]), both.over_near(j, z_found[j][0], near)))
        found = [np.concatenate([own[i] for own in mine]) for i in range(2)]
        # the iteration leaves the sign of each node open
        oracle = [
            np.concatenate([x * np.sign(own[i] @ x) for own, x in zip(mine, theirs, strict=True)]) for i in range(2)
        ]
        place = int(np.argmax([f @ o / np.linalg.norm(f) for f, o in zip(found, oracle, strict=True)]))
        places.add(place)
        scale = (found[place] @ oracle[place]) / (oracle[place] @ oracle[place])  # one for all nodes
        Compared.close(found[place], scale * oracle[place], ROUNDING)
    assert places == {0, 1}


def own_solution(dense, j):
    """The unit function along the leading eigenvector of K_j, whose largest entry is positive."""
    lam, V = np.linalg.eigh(dense.gram(j))
    v = V[:, -1:] * np.sign(V[np.abs(V[:, -1]).argmax(), -1])
    return dense.spread(j, v / np.sqrt(lam[-1]))


@pytest.mark.parametrize("name", [name for name, asked in CASES.items() if asked.init != "landmarks"])
def test_eigenvalues_are_those_of_the_pencil(name):
    """Where all nodes are neighbors all pairs of samples are known. The paper's update finds one component here."""
    k = 1 if name.startswith("paper") else 3
    both = Compared(CASES[name], RAGGED, Network.complete(6), n_components=k)
    answer = local.run(Plan.of(both.parts, both.network, both.options)).answers[0]
    w, _ = both.oracle()
    np.testing.assert_allclose(answer.eigenvalues, both.dense.rayleigh_ritz(w, k), rtol=1e-8)
    trace = np.trace(both.dense.psi @ both.dense.psi.T + both.dense.clean)
    np.testing.assert_allclose(answer.trace, trace, rtol=1e-10)


def test_the_start_is_pca_in_landmark_coordinates(ragged):
    for centering in ("global", None):
        both = Compared(replace(FEW, n_landmarks=25, centering=centering), [40, 25, 1, 33, 2, 18], ragged[1])
        V = np.linalg.eigh(both.dense.psi.T @ both.dense.psi)[1][:, ::-1][:, : both.options.n_columns]
        m = len(both.turn)
        assert m > 10
        for w in map(both.turned, both.begun):
            np.testing.assert_allclose(np.abs((w[:m] * V).sum(0)), 1, atol=1e-8)  # equal up to sign
            assert not w[m:].any()
