"""
Wine by grower
==============

Three growers have analysed their own wines. The columns have different units, so they are standardized by means and
deviations over all growers, which a sum over the network gives.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_wine

from dekpca import DecentralizedKernelPCA, baselines, plot

frame = load_wine(as_frame=True).frame
frame["grower"] = frame.pop("target").map({0: "anna", 1: "bruno", 2: "carla"})
X = frame.drop(columns="grower")

model = DecentralizedKernelPCA(2, standardize=True, share_rows=False, random_state=0)
model.fit(frame, nodes="grower")  # a column that names the owner of each row
anna = baselines.local([X[frame["grower"] == "anna"]], 2, standardize=True)[0]

figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
plot.embedding(anna, X, frame["grower"], ax=axes[0]).set_title("anna alone")
plot.embedding(model, X, frame["grower"], node="anna", ax=axes[1]).set_title("anna after the fit")
plot.scree(model, ax=axes[2])

# %%
# Each grower has the same answer at the end and can save it. No grower has seen a bottle of the others.

print(model.node_models_["carla"])
print("stated accuracy:", model.accuracy_.round(4))

# %%
# **Try next**: leave out ``standardize=True`` and see which column dominates; save a model
# (``model.node_models_["anna"].save("anna.npz")``) and transform a new bottle with it.
