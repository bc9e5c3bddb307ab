"""
Where plain consensus fails
===========================

Two nodes look for one direction of largest variance. One has rows in the plane, the other only on a line. If both must
have the *same* function (w_1 = w_2), the poor node decides. If they agree on *projections*, as in the paper, or add sums,
they find the direction of all rows.
"""

import matplotlib.pyplot as plt
import numpy as np

from dekpca import DecentralizedKernelPCA, Network, Projection, baselines

rng = np.random.default_rng(0)
rich = rng.normal(size=(60, 2)) * [3, 1] @ [[0.9, 0.45], [-0.45, 0.9]]
poor = rng.normal(size=(60, 1)) * [0.0, 1.0]
parts, network = [rich, poor], Network.path(2)


def direction(model):
    """The gradient of the first component, which is linear here."""
    zero, x, y = model.transform(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))[:, 0]
    vector = np.array([x - zero, y - zero])
    return vector / np.linalg.norm(vector) * np.sign(vector[1] or 1)


projection = DecentralizedKernelPCA(1, kernel="linear", network=network, solver=Projection(), random_state=0)
default = DecentralizedKernelPCA(1, kernel="linear", network=network, random_state=0)
ways = {
    "central": baselines.central(parts, 1, kernel="linear"),
    "plain consensus": baselines.plain_consensus(parts, 1, kernel="linear")[0],
    "projection consensus": projection.fit_parts(parts),
    "the default: sums": default.fit_parts(parts),
}
figure, ax = plt.subplots(figsize=(6.5, 5), layout="constrained")
ax.scatter(*rich.T, s=8, color="0.6", label="node 0")
ax.scatter(*poor.T, s=8, color="black", label="node 1, on a line")
for i, (name, model) in enumerate(ways.items()):
    x, y = (6 - 0.9 * i) * direction(model)
    ax.plot([-x, x], [-y, y], color=f"C{i}", linewidth=7 - 1.6 * i, alpha=0.8, label=name)
    print(f"{name:22}{direction(model).round(3)}")
ax.set_aspect("equal")
ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))

# %%
# **Try next**: an rbf kernel, with which no function except zero is common to both nodes; ``dekpca reproduce toy``, the
# paper's figures 1 and 2.
