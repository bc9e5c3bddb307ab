"""
What privacy costs
==================

Differential privacy adds noise to what all nodes are told. The more rows, the less it matters. Landmarks are public rows,
since they must not depend on anybody's.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from dekpca import DecentralizedKernelPCA, Privacy, baselines

X = load_digits().data
rng = np.random.default_rng(0)
public, X = X[:300], X[300:]
truth = baselines.central(X, 2, gamma=1e-3)
given = {"gamma": 1e-3, "landmarks": public, "network": 5, "random_state": 0, "tol": 0.5}


def cosine(Z, of):
    a, b = (np.linalg.qr(values - values.mean(axis=0))[0] for values in (Z, of))
    return np.linalg.svd(a.T @ b)[1][-1]


epsilons, figure = (0.3, 1, 3, 9), plt.figure(figsize=(6.5, 4.2), layout="constrained")
ax = figure.subplots()
for rows in (3_000, 10_000, 30_000):
    many = X[rng.integers(len(X), size=rows)] + rng.normal(scale=0.5, size=(rows, 64))
    found = []
    for epsilon in epsilons:
        privacy = Privacy(epsilon=epsilon, delta=1e-6, rank=30)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the noise is the point
            model = DecentralizedKernelPCA(2, privacy=privacy, **given).fit(many)
        found.append(cosine(model.transform(X), truth.transform(X)))
    ax.plot(epsilons, found, "o-", label=f"{rows:,} rows")
ax.set(xscale="log", xlabel="epsilon: smaller is more private", ylabel="smallest cosine with the span without noise")
ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
ax.legend(frameon=False)

# %%
# In one process this simulates what owners would do (``dekpca node run``); noise is drawn anew in each fit, so the figure
# differs a little from build to build.
#
# **Try next**: ``dekpca privacy``, which plans such a fit from public points; a larger ``rank``; no public points at all
# (``norm``, :doc:`/explanation/privacy`).
