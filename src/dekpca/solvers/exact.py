"""One node with few rows: central kernel PCA."""

from __future__ import annotations

import warnings

import numpy as np

from ..accuracy import Accuracy
from ..answer import Answer, Expansion
from ..arrays import CUTOFF, NEGATIVE, double_centered, eps, on_host
from ..landmarks import check_finite
from ..rounds import Solver
from ..signs import reference, signed
from ..site import Site
from .sums import SumsOptions, rows_of
from .sums.columns import prepare_rows


def solve(site: Site, options: SumsOptions) -> Solver:
    """The leading eigenvectors of the kernel matrix, centred if asked; returns the `Answer`. Negative eigenvalues are left out."""
    prepared = yield from prepare_rows(rows_of(site, options), options)
    kernel, X = prepared.kernel, prepared.rows.X
    X = X + 0 if X is site.X else X  # the model holds these rows: the caller may change its own
    raw = on_host(kernel.gram(X, X))
    check_finite(raw, f"node {site.names[0]}", kernel)
    values, basis = np.linalg.eigh(double_centered(raw) if options.centered else raw)
    rounding = 10 * len(raw) * eps(X) * float(raw.diagonal().max())
    if values[0] < -(NEGATIVE * values[-1] + rounding):
        lowest, *_, top = np.linalg.eigvalsh(raw)
        if lowest < -(NEGATIVE * top + rounding):
            wrong = f"smallest eigenvalue {lowest:.3g} of a Gram matrix whose largest is {top:.3g}"
            text = f"kernel {kernel.label} is not positive semi-definite: {wrong}; negative eigenvalues are left out"
            warnings.warn(text, UserWarning, stacklevel=2)
    trace, k = float(np.maximum(values, 0.0).sum()), int(options.n_components)
    if options.n_components < 1:  # a share of the variance
        reached = np.cumsum(np.maximum(values[::-1], 0.0)) >= options.n_components * trace
        k = int(np.argmax(reached)) + 1 if reached.any() else len(values)
    values, basis = values[::-1][:k], basis[:, ::-1][:, :k]
    basis = signed(basis, on_host(reference(kernel, X)(X)) @ basis)
    real = values > max(CUTOFF * values[0], rounding)
    coefficients = np.where(real, basis / np.sqrt(np.where(real, values, 1.0)), 0.0)
    none, owner, centre = np.zeros((0, k)), f"samples of node {site.names[0]}", X if options.centered else None
    values, errors = np.where(real, values, 0.0), np.where(real, 0.0, 1.0)  # components that the data does not have
    own = Expansion(site.array(none), (X,), (site.array(coefficients),), (owner,), centre)
    return Answer(
        site=site, kernel=kernel, terms={int(site.nodes[0]): {"node": own}}, eigenvalues=site.array(values), trace=trace,
        scales=prepared.scales, fill=prepared.fill, accuracy=Accuracy.of(errors, 0.0, 0.0, method="exact"),
    )  # fmt: skip
