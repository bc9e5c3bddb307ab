"""An independent implementation of the iteration: plain loops over nodes and edges, dense matrices, no padding, no messages.

Written from the formulas of docs/algorithm.md; it shares no code with the library and is the tests' oracle for it.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def pinv(G, cutoff=1e-8):
    lam, V = np.linalg.eigh(G)
    keep = lam > cutoff * lam[-1]
    return (V[:, keep] / lam[keep]) @ V[:, keep].T


class Dense:
    """Coordinates psi and kernel rest of all samples together, centred as asked."""

    def __init__(self, parts, kernel, points, centering):
        X = np.vstack(parts)
        ends = np.cumsum([0] + [len(p) for p in parts])
        self.own = [np.arange(a, b) for a, b in pairwise(ends)]
        K = kernel(X, X)
        psi = np.zeros((len(X), 0))
        if points is not None:
            lam, V = np.linalg.eigh(kernel(points, points))
            keep = lam > 1e-8 * lam[-1]
            psi = kernel(X, points) @ ((V[:, keep] / np.sqrt(lam[keep])) @ V[:, keep].T)
        rest = K - psi @ psi.T
        if centering == "global":
            psi = psi - psi.mean(0)
        elif centering == "local":
            H = np.eye(len(X))
            for o in self.own:
                H[np.ix_(o, o)] -= 1 / len(o)
            psi, rest = H @ psi, H @ rest @ H
        self.psi, self.rest = psi, rest

    def block(self, p, q):
        return self.rest[np.ix_(self.own[p], self.own[q])]

    def gram(self, j):
        return self.psi[self.own[j]] @ self.psi[self.own[j]].T + self.block(j, j)


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
            psi = dense.psi[dense.own[j]]
            g = psi @ w[j][:m] + dense.block(j, j) @ w[j][m:]
            for q in around[j]:
                dual[j, q] = 2 / len(around[j]) * np.vstack([psi.T @ g, g])
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
                mine = dense.gram(j) @ seen[j, j][m:]
                for q in around[j]:
                    if (seen[j, q][m:] * mine).sum() < 0:
                        seen[j, q] = -seen[j, q]
        for j in range(J):
            r = sum(rho(j, q, t) for q in around[j])
            target = sum(rho(j, q, t) * seen[j, q] - dual[j, q] for q in around[j])
            psi = dense.psi[dense.own[j]]
            h = 2 * np.linalg.solve(
                r * np.eye(n[j]) - 2 * dense.gram(j), psi @ target[:m] + dense.block(j, j) @ target[m:]
            )
            w[j] = (target + np.vstack([psi.T @ h, h])) / r
            for q in around[j]:
                dual[j, q] = dual[j, q] + rho(j, q, t) * (w[j] - seen[j, q])
    return w, [(zs[j], [zc[j, l] for l in around[j]]) for j in range(J)]
