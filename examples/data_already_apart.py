# %% [markdown]
# # Data that is already split
#
# Four hospitals measured the same thirty features of tumors. None may share its rows, and each has few.
# (scikit-learn's breast cancer data, dealt so that hospitals differ.)

# %%
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from dekpca import DecentralizedKernelPCA, Network, NodeModel, baselines, metrics


def main(folder: Path = Path("hospitals")) -> dict[str, float]:
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    owner = np.where(
        y == 1, rng.choice(4, len(y), p=[0.4, 0.4, 0.1, 0.1]), rng.choice(4, len(y), p=[0.1, 0.1, 0.4, 0.4])
    )
    names = ["aarhus", "bergen", "cork", "delft"]
    parts = {name: X[owner == j] for j, name in enumerate(names)}

    # %% [markdown]
    # No row leaves its hospital; only means of clusters and sums do (docs/explanation/privacy.md). Columns have units, so they
    # are standardized by the mean and deviation over all four.

    # %%
    network = Network.from_edges([("aarhus", "bergen"), ("bergen", "cork"), ("cork", "delft")])
    model = DecentralizedKernelPCA(
        4, gamma=0.02, network=network, share_rows=False, standardize=True, random_state=0
    ).fit_parts(parts)  # fmt: skip
    print(
        f"{model.n_landmarks_} landmarks; estimated agreement of the span with central kernel PCA: {model.span_accuracy_:.4f}"
    )
    print("sent, by kind:", {kind: f"{int(sent.sum()) / 1e3:.1f} kB" for kind, sent in model.history_["bytes"].items()})

    # %% [markdown]
    # Each hospital has its own model, in a file that lists its contents. Cork classifies tumors with it, trained on its own rows only.

    # %%
    folder.mkdir(parents=True, exist_ok=True)
    for node in model.node_models_:
        node.save(folder / f"{node.name}.npz")
    cork = NodeModel.load(folder / "cork.npz")
    print("cork's file holds:", *cork.contents)
    own = owner == names.index("cork")
    accuracy = {}
    for what, transform in (
        ("cork after consensus", cork.transform),
        ("cork alone", baselines.central(X[own], 4, gamma=0.02, standardize=True).transform),
    ):
        classifier = LogisticRegression().fit(transform(X[own]), y[own])
        accuracy[what] = float(classifier.score(transform(X[~own]), y[~own]))
        print(f"{what}: {accuracy[what]:.3f} of the other hospitals' tumors right")

    # %% [markdown]
    # This script has all rows, so it can compare with the central answer, which the hospitals cannot.

    # %%
    central = baselines.central(X, 4, gamma=0.02, standardize=True)
    accuracy["agreement"] = float(metrics.agreement(model, central, X)[:, :2].min())
    print(f"components 1 and 2 agree with central kernel PCA to {accuracy['agreement']:.4f}")
    return accuracy


if __name__ == "__main__":
    main()
