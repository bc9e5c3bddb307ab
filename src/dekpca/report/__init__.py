"""Pictures of fits and experiments.

    panels                           charts as data, by matplotlib            pip install 'dekpca[plot]'
    fit_report, experiment_report    one self-contained HTML file for each    pip install 'dekpca[report]'

Modules are imported at first use, so that either extra works without the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .experiment import experiment_report
    from .fit import fit_report

__all__ = ["experiment_report", "fit_report"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f".{name.removesuffix('_report')}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
