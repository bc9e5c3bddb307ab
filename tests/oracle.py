"""An independent implementation of the iteration: plain loops over nodes and edges, dense matrices, no messages.

Written from the formulas of docs/explanation/algorithm.md; it shares no code with the library and is the tests' oracle for it.
"""

from __future__ import annotations

from copy import copy
from itertools import pairwise

import numpy as np
from scipy.linalg import eigh


def pinv(G, cutoff=1e-8):
    lam, V = np.linalg.eigh(G)
    keep = lam > cutoff * lam[-1]
    return (V[:, keep] / lam[keep]) @ V[:, keep].T


class Dense:
    """Coordinates psi of all samples together, and the rest of the kernel between them as the nodes know them from each other, centred as asked.

    `sent` are the samples with noise, which neighbors get; without noise they are the samples themselves. A node represents functions over what it
    has sent, and its own samples count: `reach(j)` is the rest between both.
    """

    def __init__(self, parts, kernel, points, centering, sent=None):
        X, Y = np.vstack(parts), np.vstack(parts if sent is None else sent)
        ends = np.cumsum([0] + [len(p) for p in parts])
        self.own = [np.arange(a, b) for a, b in pairwise(ends)]
        root = np.zeros((0, 0))
        if points is not None:
            lam, V = np.linalg.eigh(kernel(points, points))
            keep = lam > 1e-8 * lam[-1]
            root = (V[:, keep] / np.sqrt(lam[keep])) @ V[:, keep].T

        def coordinates(A):
            return kernel(A, points) @ root if points is not None else np.zeros((len(A), 0))

        def rest(A, B):
            return kernel(A, B) - coordinates(A) @ coordinates(B).T

        psi, self.rest, self.toward, self.clean = coordinates(X), rest(Y, Y), rest(X, Y), rest(X, X)
        if centering == "global":
            psi = psi - psi.mean(0)
        elif centering == "local":
            H = np.eye(len(X))
            for o in self.own:
                H[np.ix_(o, o)] -= 1 / len(o)
            psi, self.rest, self.toward, self.clean = (
                H @ psi,
                H @ self.rest @ H,
                H @ self.toward @ H,
                H @ self.clean @ H,
            )
        self.psi = psi
        if sent is None:
            self.toward = self.clean = self.rest

    def block(self, p, q):
        return self.rest[np.ix_(self.own[p], self.own[q])]

    def reach(self, j):
        return self.toward[np.ix_(self.own[j], self.own[j])]

    def values(self, j, w):
        """Of functions of node j, on its own samples."""
        m = self.psi.shape[1]
        return self.psi[self.own[j]] @ w[:m] + self.reach(j) @ w[m:]

    def spread(self, j, h):
        """The function sum_i h_i phi(x_i) over the samples of node j, projected on what node j can represent."""
        own = h if self.toward is self.rest else pinv(self.block(j, j)) @ (self.reach(j).T @ h)
        return np.vstack([self.psi[self.own[j]].T @ h, own])

    def gram(self, j):
        """K_j: of the samples of node j, projected on what node j can represent."""
        return self.values(j, self.spread(j, np.eye(len(self.own[j]))))

    def deflated(self, w):
        """Every node has removed w_j from what it sent, without landmarks: phi(y) <- phi(y) - <phi(y), v> v, where v = w_j / |w_j|."""
        P = np.eye(len(self.rest))
        for j, o in enumerate(self.own):
            unit = w[j][:, :1] / np.sqrt(w[j][:, 0] @ self.block(j, j) @ w[j][:, 0])
            P[np.ix_(o, o)] -= self.block(j, j) @ unit @ unit.T
        found = copy(self)
        found.rest, found.toward = P @ self.rest @ P.T, self.toward @ P.T
        if self.toward is self.rest:
            found.toward = found.rest
        return found

    def rayleigh_ritz(self, w, k):
        """The k largest eigenvalues of the pencil (G'K G, G'G), where G has the values of w_j on the samples of each node, and K is the kernel matrix
        of all samples. Between two nodes K is that of the samples that they have sent."""
        G = np.vstack([self.values(j, w[j]) for j in range(len(w))])
        K = self.psi @ self.psi.T + self.rest
        for o in self.own:
            K[np.ix_(o, o)] += (self.clean - self.rest)[np.ix_(o, o)]
        return eigh(G.T @ K @ G, G.T @ G, eigvals_only=True)[::-1][:k]


def iterate(dense, around, w, rho, n_iter, update, warm=False):
    """Run n_iter iterations from w (one (m + n_j, k) array a node); `rho(j, q, t)` is node j's penalty on z_q. Returns w and z.

    `warm`: multipliers and z begin as at a stationary point.
    """
    J, m = len(w), dense.psi.shape[1]
    k = w[0].shape[1]
    n = [len(o) for o in dense.own]
    w = [x.copy() for x in w]
    zs = [np.zeros((m, k)) for _ in range(J)]
    zc = {(j, l): np.zeros((n[l], k)) for j in range(J) for l in around[j]}
    dual = {(j, q): np.zeros((m + n[j], k)) for j in range(J) for q in around[j]}
    seen = {(j, q): np.zeros((m + n[j], k)) for j in range(J) for q in around[j]}
    if warm:
        for j in range(J):
            zs[j] = w[j][:m].copy()
            for q in around[j]:
                dual[j, q] = 2 / len(around[j]) * dense.spread(j, dense.values(j, w[j]))
                seen[j, q] = w[j].copy()
    for t in range(n_iter):
        fresh = {}
        for j in range(J):
            total = sum(rho(l, j, t) for l in around[j])
            if update == "paper":
                zs[j] = np.zeros((m, k))
                for l in around[j]:
                    zc[j, l] = np.zeros((n[l], k))
            for l in around[j]:
                share = rho(l, j, t) * w[l] + dual[l, j]
                if update == "proximal":
                    share = share - rho(l, j, t) * seen[l, j]
                zs[j] = zs[j] + share[:m] / total
                zc[j, l] = zc[j, l] + share[m:] / total
            values = {p: sum(dense.block(p, q) @ zc[j, q] for q in around[j]) for p in around[j]}
            size, U = np.linalg.eigh(zs[j].T @ zs[j] + sum(zc[j, l].T @ values[l] for l in around[j]))
            shrink = U @ np.diag(1 / np.sqrt(np.maximum(size, 1))) @ U.T
            zs[j] = zs[j] @ shrink
            for l in around[j]:
                zc[j, l] = zc[j, l] @ shrink
                fresh[l, j] = np.vstack([zs[j], pinv(dense.block(l, l)) @ (values[l] @ shrink)])
        seen = fresh
        if update == "paper":
            for j in range(J):
                mine = dense.block(j, j) @ seen[j, j]
                for q in around[j]:
                    if (seen[j, q] * mine).sum() < 0:
                        seen[j, q] = -seen[j, q]
        for j in range(J):
            r = sum(rho(j, q, t) for q in around[j])
            target = sum(rho(j, q, t) * seen[j, q] - dual[j, q] for q in around[j])
            h = 2 * np.linalg.solve(r * np.eye(n[j]) - 2 * dense.gram(j), dense.values(j, target))
            w[j] = (target + dense.spread(j, h)) / r
            for q in around[j]:
                dual[j, q] = dual[j, q] + rho(j, q, t) * (w[j] - seen[j, q])
    return w, [(zs[j], [zc[j, l] for l in around[j]]) for j in range(J)]
