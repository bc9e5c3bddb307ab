"""
Breast cancer by clinic
=======================

Five clinics of different size have measurements of cells; some see mostly malignant cases, some hardly any. A classifier
at a clinic is trained on its own patients alone, in the columns as they are or in components of all clinics.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from dekpca import DecentralizedKernelPCA, plot
from dekpca.experiments import splits

X, y = load_breast_cancer(return_X_y=True)
rows = splits.dirichlet(y, [160, 90, 60, 40, 30], alpha=1.0, seed=3)
rest = np.setdiff1d(np.arange(len(y)), np.concatenate(rows))  # patients that no clinic has seen
model = DecentralizedKernelPCA(8, standardize=True, share_rows=False, network=5, tol=1e-2, random_state=0)
model.fit_parts([X[r] for r in rows])

scores = {"own columns": [], "components of all": []}
for j, r in enumerate(rows):
    node, scale = model.node_models_[j], StandardScaler().fit(X[r])
    for name, of in (("own columns", scale.transform), ("components of all", node.transform)):
        scores[name].append(LogisticRegression(max_iter=5000).fit(of(X[r]), y[r]).score(of(X[rest]), y[rest]))

figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
names = np.where(y == 1, "benign", "malignant")
plot.embedding(model, X, names, ax=axes[0]).set_title("all cells, by components of all clinics")
for i, (name, values) in enumerate(scores.items()):
    axes[1].bar(np.arange(5) + 0.4 * i - 0.2, values, 0.4, label=name)
axes[1].set(
    xticks=range(5), xticklabels=[f"{len(r)} rows,\n{1 - y[r].mean():.0%} mal." for r in rows], ylim=(0.5, 1.09)
)
axes[1].set_title("share of unseen patients classified correctly")
axes[1].legend(frameon=False, ncols=2, loc="upper center")

# %%
# **Try next**: more components; ``alpha=0.3``, where clinics differ more; a kernel classifier.
