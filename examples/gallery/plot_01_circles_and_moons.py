"""
Circles and moons, apart on two nodes
=====================================

One node has the inner circle and the upper moon, the other has the outer circle and the lower moon. Neither can know
what separates the two. Together they find it, and no row leaves its node.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_circles, make_moons

from dekpca import DecentralizedKernelPCA, baselines, plot

figure, axes = plt.subplots(2, 3, figsize=(10, 6.5), layout="constrained")
for row, (make, gamma) in zip(axes, ((make_circles, 4.0), (make_moons, 6.0)), strict=True):
    options = {"factor": 0.35} if make is make_circles else {}
    X, y = make(500, noise=0.05, random_state=0, **options)
    row[0].scatter(*X.T, c=np.where(y == 0, "C0", "C1"), s=8)
    row[0].set(title="the rows, by node", xticks=[], yticks=[])
    alone = baselines.local([X[y == 0], X[y == 1]], 2, gamma=gamma)[0]
    plot.embedding(alone, X, y, ax=row[1], legend=False).set_title("node 0 alone")
    model = DecentralizedKernelPCA(2, gamma=gamma, network=2, share_rows=False, random_state=0)
    model.fit(X, nodes=y)
    plot.embedding(model, X, y, node=0, ax=row[2], legend=False).set_title("node 0 after the fit")
    print(f"{make.__name__}: accuracy stated by the nodes {model.accuracy_.round(4)}")

# %%
# Which node a row is on is here also its class, the hardest case: the nodes have nothing in common.
#
# **Try next**: rows dealt evenly (leave out ``nodes=y``); ``privacy="secure-sums"``, which needs a third node;
# :ref:`sphx_glr_gallery_plot_11_gamma.py` for the choice of ``gamma``.
