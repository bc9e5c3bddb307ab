"""
One big table, against Nystroem
===============================

5,000 rows on one machine, few enough to know the exact answer too. scikit-learn's Nystroem followed by PCA needs a
number of landmarks and does not say how good it is; here you give the error that you accept. Seconds are of the machine
that built this page.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_blobs
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline

from dekpca import DecentralizedKernelPCA, baselines

X, _ = make_blobs(5_000, n_features=60, centers=12, cluster_std=4, random_state=0)
gamma = 1 / (X.shape[1] * X.var())


def timed(model):
    start = time.perf_counter()
    return model.fit_transform(X), time.perf_counter() - start


def sin2(Z, truth):
    a, b = (np.linalg.qr(values - values.mean(axis=0))[0] for values in (Z, truth))
    return 1 - min(np.linalg.svd(a.T @ b)[1][-1], 1) ** 2


truth = baselines.central(X, 4, gamma=gamma).transform(X)
figure, ax = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
ours, theirs = [], []
for tol in (1e-2, 1e-3, 1e-4):
    Z, seconds = timed(DecentralizedKernelPCA(4, gamma=gamma, tol=tol, random_state=0))
    ours.append((seconds, sin2(Z, truth)))
for landmarks in (50, 200, 800):
    steps = Nystroem(gamma=gamma, n_components=landmarks, random_state=0), PCA(4, svd_solver="covariance_eigh")
    Z, seconds = timed(make_pipeline(*steps))
    theirs.append((seconds, sin2(Z, truth)))
ax.plot(*np.array(ours).T, "o-", label="dekpca, tol = 1e-2, 1e-3, 1e-4")
ax.plot(*np.array(theirs).T, "s-", label="Nystroem, 50, 200, 800 landmarks, then PCA")
ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="error: sin² of the largest angle")
ax.legend(frameon=False)

# %%
# **Try next**: 100,000 rows, where no exact answer is to be had and the stated error is all there is; 3 columns instead
# of 60, where Nystroem is faster; ``memory_limit="200MB"``;
# :doc:`/explanation/performance`, measured on a quiet machine.
