"""
Digits denoised
===============

Five archives of noisy digits. Components carry the digit and little of the noise; ``inverse_transform`` maps them back
to images. ``alpha`` is the ridge of that regression: larger is smoother.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from dekpca import DecentralizedKernelPCA
from dekpca.estimator import MixedComponentsWarning

clean = load_digits().data / 16
noisy = clean + np.random.default_rng(0).normal(scale=0.25, size=clean.shape)
warnings.simplefilter("ignore", MixedComponentsWarning)  # denoising uses components together, so mixtures do no harm
model = DecentralizedKernelPCA(32, gamma=0.01, network=5, tol=0.1, random_state=0).fit(noisy)
Z = model.transform(noisy)
images = {"clean": clean, "noisy": noisy}
for alpha in (0.01, None, 100):
    name = "default alpha" if alpha is None else f"alpha={alpha:g}"
    images[name] = model.inverse_transform(Z, alpha=alpha)

figure, axes = plt.subplots(len(images), 10, figsize=(9, 5), layout="constrained")
for row, (name, pictures) in zip(axes, images.items(), strict=True):
    error = ((pictures - clean) ** 2).mean()
    for ax, i in zip(row, range(10), strict=True):
        ax.imshow(pictures[i].reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
    row[0].set_ylabel(f"{name}\n{error:.3f}", rotation=0, ha="right", va="center")

# %%
# The numbers are mean squared errors.
#
# **Try next**: fit on clean digits and denoise new ones, with ``alpha=0.1``; 8 or 100 components instead of 32; see
# :doc:`/howto/denoise` for a comparison with scikit-learn.
