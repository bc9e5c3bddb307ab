"""
A swiss roll on a chain of sensors
==================================

Twelve sensors stand in a row along the roll. Each sees a short piece of it and can call only the one before and the one
after it. The rows of a sensor are never seen by the others.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_swiss_roll

from dekpca import DecentralizedKernelPCA, Network, baselines, plot

X, t = make_swiss_roll(1800, noise=0.2, random_state=0)
sensor = np.argsort(np.argsort(t)) * 12 // len(t)  # by the place along the roll
model = DecentralizedKernelPCA(4, network=Network.path(12), share_rows=False, random_state=0)
model.fit(X, nodes=sensor)

alone = baselines.local([X[sensor == j] for j in range(12)], 4, gamma=model.gamma_)[5]
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
axes[0].scatter(X[:, 0], X[:, 2], c=sensor, cmap="viridis", s=5)
axes[0].set(title="the roll from the side, by sensor", xticks=[], yticks=[])
plot.embedding(alone, X, t, own=sensor == 5, legend=False, ax=axes[1]).set_title("sensor 5 alone (its rows ringed)")
plot.embedding(model, X, t, node=5, own=sensor == 5, legend=False, ax=axes[2]).set_title("sensor 5 after the fit")

# %%
# A sum over a chain takes as many steps as the chain is long, there and back. The answer does not depend on the network:

central = baselines.central(X, 4, gamma=model.gamma_)
plot.accuracy(model, central, X).set_title("error of each component, stated and true")

# %%
# **Try next**: ``Network.ring(12)`` and ``Network.star(12)``, and compare ``model.network_.depth``; more components;
# a narrower kernel, which follows the roll more closely and needs more landmarks.
