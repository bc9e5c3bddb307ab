"""
A broken sensor
===============

Ten pumps measure load and temperature, each at loads of its own. One of them reads 0.35 too much: temperatures
that others mostly have at other loads, and to itself they look as they always did. Together the pumps know which pairs are normal,
and agree on a threshold; no reading leaves its pump.
"""

import matplotlib.pyplot as plt
import numpy as np

from dekpca import DecentralizedKernelPCA

rng = np.random.default_rng(0)
parts = {}
for j in range(10):
    load = np.clip(rng.normal(0.15 + 0.07 * j, 0.15, 300), 0, 1)
    temperature = 0.5 + 0.4 * np.sin(5 * load) + (0.35 if j == 6 else 0)
    parts[f"pump {j}"] = np.stack([load, temperature], axis=1) + rng.normal(scale=0.03, size=(300, 2))

model = DecentralizedKernelPCA(4, gamma=10, share_rows=False, contamination=0.05, random_state=0)
model.fit_parts(parts)
beyond = {}
for name, X in parts.items():
    beyond[name] = (model.node_models_[name].score_samples(X) < model.offset_).mean()

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
grid = np.stack(np.meshgrid(np.linspace(-0.1, 1.1, 80), np.linspace(-0.1, 1.4, 80)), axis=-1)
error = model.reconstruction_error(grid.reshape(-1, 2)).reshape(80, 80)
left.contourf(*grid.transpose(2, 0, 1), error, levels=12, cmap="Blues", vmax=3 * error.max())
left.contour(*grid.transpose(2, 0, 1), error, levels=[-model.offset_], colors="tab:red")
for j, X in enumerate(parts.values()):
    left.scatter(*X.T, s=4, color="tab:orange" if j == 6 else "tab:blue")
left.set(xlabel="load", ylabel="temperature")
left.set_title("reconstruction error; red: the threshold; orange: pump 6")
right.bar(range(10), [100 * share for share in beyond.values()])
right.axhline(5, color="0.6", linestyle=":")
right.set(xlabel="pump", ylabel="% of its readings", xticks=range(10))
right.set_title("readings beyond the threshold")
print(f"broken: {max(beyond, key=beyond.get)}")

# %%
# ``contamination=0.05`` puts the threshold where 5 % of *all* readings are beyond it (dotted). Most of them are of one pump.
#
# **Try next**: ``privacy="secure-sums"``; a smaller shift; ``model.hotelling_t2``, which says how far out a row is among the
# usual ones; :doc:`/tutorials/broken-sensor`, step by step.
