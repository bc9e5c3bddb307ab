"""
Drift in a stream
=================

Rows come day by day, and from day 5 on their groups move apart. The landmarks were chosen by the rows of the first day. What
they miss of the others makes the bound on the error rise; above ``tol`` it is time to ``refresh``.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from dekpca import DecentralizedKernelPCA

rng = np.random.default_rng(0)
centres = 1.5 * rng.normal(size=(6, 8))


def day(t):
    """2,000 rows in six groups; from day 5 on three of them move to one side, and three to the other."""
    moved = centres.copy()
    moved[:, 0] += max(0, t - 5) * np.where(np.arange(6) % 2, -0.6, 0.6)
    return moved[rng.integers(6, size=2000)] + rng.normal(size=(2000, 8)) * np.geomspace(1, 0.2, 8)


def note(t, model):
    """The error that the model states, and its bound."""
    return t, 1 - model.span_accuracy_**2, 1 - model.span_accuracy_bound_**2


model, notes, refreshed = DecentralizedKernelPCA(3, gamma=0.05, random_state=0), [], []
warnings.simplefilter("ignore")  # the warning advises what is done here
for t in range(24):
    rows = day(t)
    model.partial_fit(rows)
    notes.append(note(t, model))
    if not model.converged_:  # the bound is above tol
        before = model.n_landmarks_
        model.refresh(rows)  # keeps the landmarks, adds others, and begins anew with the rows of today
        notes.append(note(t, model))
        refreshed.append(t)
        print(f"day {t}: bound {notes[-2][2]:.0e}, landmarks {before}; refreshed: {model.n_landmarks_}")

days, stated, bound = np.transpose(notes)
figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
ax.semilogy(days, bound, label="bound on the error")
ax.semilogy(days, stated, "--", label="stated error")
ax.axhline(model.tol, color="tab:red", linewidth=1, label="tol")
for t in refreshed:
    ax.axvline(t, color="0.6", linestyle=":")
ax.set(xlabel="day; dotted: refreshed", ylabel="error of the three components")
ax.legend(frameon=False)

# %%
# **Try next**: leave ``refresh`` out, and watch the bound; a faster drift; ``model.forget(rows)``, which takes rows off again;
# :doc:`/tutorials/stream`, step by step.
