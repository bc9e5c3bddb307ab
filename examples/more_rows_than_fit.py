# %% [markdown]
# # Kernel PCA on more rows than a central one can hold
#
# 30,000 rows: their kernel matrix would need 7.2 GB. As 150 nodes of 200 rows in one process, a node holds only its
# own rows and the landmarks. The answer is compared with central kernel PCA of a tenth of the rows, since that of
# all rows does not fit.

# %%
import numpy as np

from dekpca import DecentralizedKernelPCA, Network, baselines


def rings(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three noisy circles in ten dimensions, which linear PCA cannot separate."""
    rng = np.random.default_rng(seed)
    ring, angle = rng.integers(0, 3, rows), rng.uniform(0, 2 * np.pi, rows)
    plane = (1.0 + ring)[:, None] * np.c_[np.cos(angle), np.sin(angle)]
    return np.c_[plane, np.zeros((rows, 8))] + rng.normal(scale=0.1, size=(rows, 10)), ring


def main(rows: int = 30_000) -> np.ndarray:
    X, _ = rings(rows)
    print(f"a central kernel matrix would need {rows**2 * 8 / 1e9:.1f} GB")

    # %%
    network = Network.random(rows // 200, degree=4, seed=0)
    model = DecentralizedKernelPCA(3, gamma=0.3, network=network, random_state=0).fit(X)
    print(
        f"{model.n_landmarks_} landmarks; estimated agreement of the span with central kernel PCA: {model.span_accuracy_:.4f}"
    )
    print(f"{len(network)} nodes; components explain", np.round(model.explained_variance_ratio_, 3))

    # %%
    new, ring = rings(2_000, seed=1)
    sample = baselines.central(X[:: max(1, rows // 3_000)], 3, gamma=0.3)
    values, truth = model.transform(new), sample.transform(new)
    # the first two components have equal eigenvalues (the rings are round), so compare spans, by canonical correlations of the two sets of values
    q, r = (np.linalg.qr(v - v.mean(axis=0))[0] for v in (values, truth))
    agreement = np.linalg.svd(q.T @ r, compute_uv=False)
    print("canonical correlations with kernel PCA of a tenth of the rows:", np.round(agreement, 4))
    means = [values[ring == r].mean(axis=0).round(2).tolist() for r in range(3)]
    print("the rings, by their mean component values:", means)
    return agreement


if __name__ == "__main__":
    main()
