"""
How a fit comes to its answer
=============================

The default adds landmarks until a bound on the error is below ``tol``. ``Projection`` iterates until neighbors agree. The
paper's iteration, as published, moves away again if it is not stopped early.
"""

import warnings
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from dekpca import PAPER, DecentralizedKernelPCA, Network, Projection, baselines, metrics, plot

X = load_digits().data[:1000]
parts, network = np.array_split(X, 10), Network.ring(10, 4)
given = {"gamma": 1e-3, "network": network, "random_state": 0}
default = DecentralizedKernelPCA(4, tol=1e-5, **given).fit_parts(parts)
projection = DecentralizedKernelPCA(4, solver=Projection(tol=1e-5), **given).fit_parts(parts)

figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
plot.convergence(default, ax=axes[0]).set_title("the default")
plot.convergence(projection, ax=axes[1]).set_title("Projection()")

central = baselines.central(X, 1, gamma=1e-3, normalize=True)
solvers = {
    "as published (dekpca.PAPER)": PAPER,
    "its penalties, proximal step": replace(PAPER, update="proximal"),
    "its step, our penalties": replace(PAPER, rho="auto"),
    "proximal step, our penalties": replace(PAPER, update="proximal", rho="auto"),
    "and further columns": replace(PAPER, update="proximal", rho="auto", n_oversamples="auto"),
}
iterations = (5, 10, 20, 40, 80, 160)
for name, solver in solvers.items():
    found = []
    for most in iterations:
        stopped = replace(solver, max_iter=most, tol=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it was stopped early is the point
            model = DecentralizedKernelPCA(1, solver=stopped, normalize=True, **given).fit_parts(parts)
        found.append(metrics.similarity(model, central).mean())
    axes[2].plot(iterations, found, "o-", label=name)
    print(f"{name:30}", np.round(found, 2))
axes[2].set(xscale="log", xlabel="stopped after so many iterations", ylabel="similarity")
axes[2].set_title("without landmarks")
axes[2].legend(frameon=False, fontsize="small")

# %%
# The third panel changes one thing at a time; all lines begin with the local solutions and centre each node by its own mean, so
# that none can reach 1. With the penalties of the paper its step moves away again; the proximal step does not, but it is slow.
# With penalties from each node's spectrum both rise and stay up, the published step sooner. ``Projection`` is faster than
# either because it iterates on more columns than components; it has landmarks besides, and with them the mean of all rows.
#
# **Try next**: ``rho="paper-bound"``; nodes with one digit each; :doc:`/explanation/note` on when the step matters.
