"""
Breast cancer by clinic
=======================

Five clinics of different size have measurements of cells; some see mostly malignant cases, some hardly any. Nobody tells
kernel PCA what is malignant. Over all cells the first component is close to it; of the cells of one clinic it may be
something else.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dekpca import DecentralizedKernelPCA, baselines, plot
from dekpca.experiments import splits

X, y = load_breast_cancer(return_X_y=True)
rows = splits.dirichlet(y, [160, 90, 60, 40, 30], alpha=1.0, seed=3)
unseen = np.setdiff1d(np.arange(len(y)), np.concatenate(rows))  # patients of no clinic
parts = [X[r] for r in rows]
model = DecentralizedKernelPCA(2, standardize=True, share_rows=False, network=5, tol=1e-2, random_state=0)
model.fit_parts(parts)
alone = [baselines.central(part, 2, standardize=True) for part in parts]


def separates(node):
    """Area under the ROC curve of the first component, whichever sign it has."""
    area = roc_auc_score(y[unseen], node.transform(X[unseen])[:, 0])
    return max(area, 1 - area)


figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
names = np.where(y == 1, "benign", "malignant")
plot.embedding(alone[3], X[unseen], names[unseen], ax=axes[0]).set_title("unseen patients, by clinic 3 alone")
plot.embedding(model, X[unseen], names[unseen], node=3, ax=axes[1]).set_title("by clinic 3 after the fit")
for i, (name, nodes) in enumerate({"alone": alone, "together": model.node_models_}.items()):
    axes[2].bar(np.arange(5) + 0.4 * i - 0.2, [separates(nodes[j]) for j in range(5)], 0.4, label=name)
axes[2].set(xticks=range(5), xticklabels=[f"{len(r)} rows,\n{1 - y[r].mean():.0%} mal." for r in rows], ylim=(0.5, 1.1))
axes[2].set_title("component 1 tells malignant cells: ROC area", fontsize=10)
axes[2].legend(frameon=False, ncols=2, loc="upper center")
print("together:", np.round([separates(model.node_models_[j]) for j in range(5)], 3))
print("alone:   ", np.round([separates(node) for node in alone], 3))

# %%
# After the fit all clinics have the same components, whatever their own patients are.
#
# A clinic that knows the diagnoses of its own patients can train a classifier, which is another matter:

for name, values in {"columns": lambda j: X, "components": lambda j: model.node_models_[j].transform(X)}.items():
    trained = [
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(values(j)[r], y[r])
        for j, r in enumerate(rows)
    ]
    right = [one.score(values(j)[unseen], y[unseen]) for j, one in enumerate(trained)]
    print(f"{name:11}", np.round(right, 2), "of the unseen patients right, by clinic")

# %%
# The columns as they are serve it better at every clinic, most of all where one class is rare: two components keep what varies,
# which is not all that tells malignant from benign.
#
# **Try next**: ``alpha=0.3``, where clinics differ more; ten components; ``privacy="secure-sums"``.
