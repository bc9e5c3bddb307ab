"""
Stated against true error
=========================

The nodes state how far they are from kernel PCA of all rows, which none of them can compute. Here somebody has all rows,
and checks.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_moons, make_swiss_roll

from dekpca import DecentralizedKernelPCA, baselines, plot

tables = {
    "digits": load_digits().data, "wine": load_wine().data, "breast cancer": load_breast_cancer().data,
    "moons": make_moons(900, noise=0.1, random_state=0)[0], "swiss roll": make_swiss_roll(900, random_state=0)[0],
}  # fmt: skip


def sin2(Z, truth):
    """sin² of the largest angle between the spans of two sets of component values."""
    a, b = (np.linalg.qr(values - values.mean(axis=0))[0] for values in (Z, truth))
    return 1 - min(np.linalg.svd(a.T @ b)[1][-1], 1) ** 2


figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.3), layout="constrained")
for name, X in tables.items():
    found = []
    central = baselines.central(X, 3, standardize=True)
    for landmarks in (20, 40, 80):
        model = DecentralizedKernelPCA(3, standardize=True, landmarks=landmarks, tol=0.9, network=4, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of so few landmarks for digits, which is the point
            model.fit(X)
        found.append((sin2(model.transform(X), central.transform(X)), 1 - model.span_accuracy_**2))
    left.plot(*np.maximum(np.array(found).T, 1e-9), "o-", label=name)
left.plot([1e-9, 1], [1e-9, 1], color="0.5", linestyle="--")
left.set(
    xscale="log", yscale="log", xlabel="true error of the span", ylabel="stated error", title="20, 40 and 80 landmarks"
)
left.legend(frameon=False, fontsize="small")

X = tables["digits"]
model = DecentralizedKernelPCA(4, tol=1e-5, network=10, random_state=0).fit(X)
plot.accuracy(model, baselines.central(X, 4, gamma=model.gamma_), X, ax=right).set_title(
    "digits, component by component"
)

# %%
# Errors below 1e-9 are rounding. :doc:`/explanation/accuracy` has the same comparison for thousands of fits.
#
# **Try next**: ``plot.convergence(model)``; a narrow kernel (``gamma=1`` on standardized columns), where the error is
# large and the nodes say so.
