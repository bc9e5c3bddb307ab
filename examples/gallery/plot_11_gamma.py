"""
Too narrow, too wide: gamma
===========================

With a large ``gamma`` every row is similar only to itself, and the first components explain almost nothing. With a tiny
one kernel PCA becomes linear PCA. ``gamma="scale"``, the default, adapts to the spread of all rows.
"""

import warnings

import matplotlib.pyplot as plt
from sklearn.datasets import load_wine

from dekpca import DecentralizedKernelPCA, plot

X, y = load_wine(return_X_y=True)
scale = DecentralizedKernelPCA(4, standardize=True, network=3, random_state=0).fit(X).gamma_
figure, axes = plt.subplots(2, 4, figsize=(12, 6), layout="constrained")
for (above, below), factor in zip(axes.T, (0.01, 1, 10, 100), strict=True):
    model = DecentralizedKernelPCA(4, gamma=factor * scale, standardize=True, network=3, random_state=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(X)
    plot.embedding(model, X, y, ax=above, legend=False).set_title(f"gamma = {factor:g} x scale")
    plot.scree(model, ax=below)
    print(f"gamma = {factor:g} x scale:", *{warning.category.__name__ for warning in said} or ["no warning"])

# %%
# **Try next**: ``kernel="laplacian"`` or ``"poly"``; ``gamma=None``, scikit-learn's default for KernelPCA, on columns
# that are not standardized.
