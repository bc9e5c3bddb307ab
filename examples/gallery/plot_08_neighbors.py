"""
How much do neighbors matter?
=============================

The third experiment of the paper: nodes on a ring have more and more neighbors. The paper's iteration, the variant that
converges, and the default, whose answer does not depend on the network.
"""

import warnings
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from dekpca import PAPER, DecentralizedKernelPCA, Network, Projection, baselines, metrics

X = load_digits().data[:960]
parts = np.array_split(X, 16)
given = {"gamma": 1e-3, "normalize": True}
central = baselines.central(X, 1, **given)
solvers = {"the paper's": replace(PAPER, max_iter=20), "Projection": Projection(max_iter=60), "default": "auto"}
best = "the best over a node's own rows"
around, found = (2, 4, 6, 8), {name: [] for name in ("alone", "for the neighborhood's rows", best, *solvers)}
alone = baselines.local(parts, 1, **given)
for neighbors in around:
    network = Network.ring(16, neighbors)
    near = baselines.neighborhood(parts, network, 1, **given)
    found["alone"].append(metrics.similarity(alone, central).mean())
    found["for the neighborhood's rows"].append(metrics.similarity(near, central).mean())
    found[best].append(metrics.oracle(alone, central).mean())
    for name, solver in solvers.items():
        model = DecentralizedKernelPCA(1, network=network, solver=solver, random_state=0, **given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the paper's iteration is stopped early on purpose
            model.fit_parts(parts)
        found[name].append(metrics.similarity(model, central).mean())

figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
for name, values in found.items():
    ax.plot(around, values, "o-", label=name)
ax.set(xlabel="neighbors of a node", ylabel="similarity with the central component", xticks=around)
ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))

# %%
# Similarity is the paper's measure: the cosine between a node's function and the central component. A function over a node's own
# rows can express only a part of that component, at best the third line. "alone" is the best such function for the node's own
# rows, and the second line the best one for the rows of its neighbors too. ``Projection`` and the default also have landmarks,
# and can express nearly all of it.
#
# **Try next**: ``dekpca reproduce neighbors`` runs the experiment with repetitions; nodes with one class each
# (:func:`dekpca.experiments.splits.one_class_a_node`), where the paper's iteration fails.
