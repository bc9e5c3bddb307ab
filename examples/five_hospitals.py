# %% [markdown]
# # Five hospitals with differential privacy
#
# Five hospitals have images of digits, each mostly of two kinds (scikit-learn's digits, copied with noise, since
# differential privacy needs many rows). They want the components of all images together, without revealing any
# single image (docs/explanation/privacy.md).

# %%
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from dekpca import DecentralizedKernelPCA, Network, Privacy, baselines

NAMES = ["aarhus", "bergen", "cork", "delft", "essen"]
GAMMA = 1e-3


def main(folder: Path = Path("five-hospitals"), rows: int = 15_000, draw: bool = True) -> dict[str, float]:
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    public, X, y = X[:300], X[300:], y[300:]  # images that everybody has
    which = rng.integers(0, len(X), rows)
    X, y = X[which] + rng.normal(scale=0.5, size=(rows, 64)), y[which]
    owner = np.where(rng.random(rows) < 0.7, y // 2, rng.integers(0, 5, rows))
    parts = {name: X[owner == j] for j, name in enumerate(NAMES)}

    # %% [markdown]
    # Before the fit, `dekpca privacy --rows 15000 --epsilon 1 --points public.npz --gamma 1e-3` estimates the
    # accuracy for epsilon = 1, from public images alone. In the fit each hospital adds its share of the noise and
    # its masks; the ledger records the epsilon spent, and a second fit would be refused. Here all
    # hospitals are simulated in one process; real ones use `dekpca node run`, with the same settings in node.toml
    # (docs/explanation/privacy.md), and `dekpca node simulate` runs such nodes on one machine.

    # %%
    folder.mkdir(parents=True, exist_ok=True)
    ledger = folder / "ledger.json"
    ledger.unlink(missing_ok=True)
    network = Network.from_edges([(a, b) for a, b in zip(NAMES, NAMES[1:] + NAMES[:1], strict=True)])
    model = DecentralizedKernelPCA(
        3, gamma=GAMMA, network=network, landmarks=public, tol=0.05, random_state=0,
        privacy=Privacy(epsilon=1.0, delta=1e-6, colluding=2, rank=30, ledger=str(ledger)),
    ).fit_parts(parts)  # fmt: skip
    print(model.privacy_)
    print(f"estimated agreement of the span of three components: {model.span_accuracy_:.4f}")

    # %% [markdown]
    # This script has all rows, so it can compare with the central answer, which the hospitals cannot; and with cork alone.

    # %%
    some = rng.choice(rows, 2000, replace=False)
    central = baselines.central(X[some], 3, gamma=GAMMA).transform(X[some])
    alone = baselines.central(parts["cork"][:2000], 3, gamma=GAMMA).transform(X[some])
    together = model.node_models_["cork"].transform(X[some])
    found = {"together": together, "cork alone": alone}
    agreement = {name: span_agreement(Z, central) for name, Z in found.items()}
    for name, value in agreement.items():
        print(f"{name}: the span agrees with that of rows of all without noise to {value:.3f}")
    if draw:
        figure(folder / "five_hospitals.png", central, together, alone, y[some], parts["cork"][:64].clip(0, 16))
    return agreement | {"epsilon": model.privacy_.epsilon}


def span_agreement(Z: np.ndarray, central: np.ndarray) -> float:
    """The smallest cosine between the spans of two sets of component values; single components of digits have close eigenvalues."""
    bases = [np.linalg.qr(values - values.mean(axis=0))[0] for values in (Z, central)]
    return float(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)[-1])


def figure(path: Path, central, together, alone, labels, images) -> None:
    """The components found together, and the messages meanwhile."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from dekpca.privacy.masks import sealers

    panels, axes = plt.subplots(1, 4, figsize=(15, 3.8))
    node = sealers(NAMES, b"figure")["cork"]
    words = node.seal("images", images.ravel().astype(np.int64) << 52, 2.0**60)[:-1]
    axes[0].imshow((words >> np.uint64(56)).astype(float).reshape(images.shape), cmap="gray")
    axes[0].set_title("64 of cork's images under its masks")
    axes[0].set_axis_off()
    clear = (
        ("2,000 rows of all, no noise", central),
        ("the five together, epsilon = 1", together),
        ("cork alone", alone),
    )
    for ax, (title, Z) in zip(axes[1:], clear, strict=True):
        left, _, right = np.linalg.svd(Z.T @ central)  # rotated to match the first (Procrustes)
        ax.scatter(*(Z @ left @ right)[:, :2].T, c=labels, cmap="tab10", s=4)
        ax.set_title(title)
        ax.set_xticks([])
        ax.set_yticks([])
    panels.tight_layout()
    panels.savefig(path, dpi=110)
    plt.close(panels)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
