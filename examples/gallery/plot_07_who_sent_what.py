"""
Who sent what
=============

Every message of a fit is counted, by its kind, by node and by edge. Here on a network that is not regular.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from dekpca import DecentralizedKernelPCA, Network, plot

edges = [("oslo", "rome"), ("rome", "bonn"), ("bonn", "oslo"), ("rome", "bari"), ("bari", "cadiz"), ("bonn", "kiel")]
network = Network.from_edges(edges)
X = load_digits().data
figure, axes = plt.subplots(2, 2, figsize=(10, 8), layout="constrained")
for row, (title, options) in zip(
    axes, {"the default": {}, "secure sums": {"privacy": "secure-sums", "share_rows": False}}.items(), strict=True
):
    model = DecentralizedKernelPCA(3, network=network, random_state=0, **options).fit(X)
    plot.network(model, ax=row[0]).set_title(f"{title}: edges by their traffic")
    plot.traffic(model, ax=row[1])
    sent = {name: sum(v[j] for v in model.history_["bytes"].values()) for j, name in enumerate(network.names)}
    print(title, {name: f"{count / 1e3:.0f} kB" for name, count in sent.items()})

# %%
# Sums go along a tree, so one edge of the triangle carries nothing. Terms under masks are as large as terms in clear.
# :doc:`/explanation/privacy` says what is in each kind of message.
#
# **Try next**: ``solver=Projection()``, whose nodes send their rows to neighbors; ``model.history_["messages"]``.
