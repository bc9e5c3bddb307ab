"""Denoising with kernel PCA when no node has all the images.

Ten archives of clean digits, each mostly of one digit, form a ring with four neighbors. A new, noisy image arrives
at one of them. Its components carry the digit and little of the noise; the pre-image of the components is the
denoised digit. An archive alone represents one digit well and the others badly; after consensus it is nearly as good
as pooled archives. The landmarks are means of clusters, which are also good points to learn pre-images from.

    python examples/denoising.py                     # prints mean squared errors, draws denoising.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from dekpca import DecentralizedKernelPCA, Network, baselines
from dekpca.experiments import splits

NODES, ROWS, COMPONENTS = 10, 140, 32
GAMMA = 1e-3  # pixels are 0 to 16
NOISE = 4.0
ALPHA = 0.1  # of the regression to points: little, for the archives are clean
SHOWN_NODE = 3  # whose images are drawn


def main(seed: int = 0, nodes: int = NODES, rows: int = ROWS, figure: Path | None = Path("denoising.png")) -> dict:
    X, y = load_digits(return_X_y=True)
    dealt = splits.mostly_one_class(y, np.full(nodes, rows), share=0.8, seed=seed)
    parts = [X[r] for r in dealt]
    new = np.setdiff1d(np.arange(len(X)), np.concatenate(dealt))  # images that no archive has
    clean, noisy = X[new], X[new] + np.random.default_rng(seed).normal(scale=NOISE, size=X[new].shape)

    settings = {"n_components": COMPONENTS, "gamma": GAMMA}
    network = Network.ring(nodes, min(4, nodes - 1))
    after = DecentralizedKernelPCA(**settings, network=network, random_state=seed).fit_parts(parts)
    ways = {
        "central": [baselines.central(parts, **settings)],
        "one node alone": baselines.local(parts, **settings),
        "one node after consensus": after.node_models_,
    }
    errors = {"noisy": float(((noisy - clean) ** 2).mean())}
    pictures = {}
    for name, models in ways.items():
        denoised = [model.inverse_transform(model.transform(noisy), ALPHA) for model in models]
        by_node = [((images - clean) ** 2).mean() for images in denoised]
        errors[name] = float(np.mean(by_node))
        pictures[name] = denoised[min(SHOWN_NODE, len(denoised) - 1)]
        spread = f"   (nodes: {min(by_node):.2f} to {max(by_node):.2f})" if len(by_node) > 1 else ""
        print(f"{name:26} mean squared error {errors[name]:6.2f}{spread}")
    print(f"{'noisy':26} mean squared error {errors['noisy']:6.2f}")
    print(f"after consensus / central: {errors['one node after consensus'] / errors['central']:.3f}")
    if figure is not None:
        draw(clean, noisy, pictures, y[new], errors, figure)
        print(f"wrote {figure}")
    return errors


def draw(clean, noisy, pictures, labels, errors, path: Path) -> None:
    import matplotlib.pyplot as plt

    shown = [int(np.flatnonzero(labels == digit)[0]) for digit in np.unique(labels)]
    rows = {"clean": clean, "noisy": noisy} | pictures
    figure, axes = plt.subplots(len(rows), len(shown), figsize=(len(shown), 1.15 * len(rows)), squeeze=False)
    for row, (name, images) in zip(axes, rows.items(), strict=True):
        for ax, i in zip(row, shown, strict=True):
            ax.imshow(images[i].reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
            ax.set_xticks([])
            ax.set_yticks([])
        text = f"{name}\nerror {errors[name]:.1f}" if name in errors else name
        row[0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=9)
    figure.suptitle("Digits denoised through 32 components; errors are mean squares over all test images", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, default=Path("denoising.png"))
    arguments = parser.parse_args()
    main(arguments.seed, figure=arguments.figure)
