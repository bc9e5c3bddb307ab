"""`experiment_report`: figures of an experiment and its rows, on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from .page import Chart, Section, Table, write_page
from .reproduce import settings_section

ROWS = 500  # shown; more make a page slow on a phone


def experiment_report(
    path: str | PathLike[str],
    title: str,
    figures: Sequence[tuple[str, str, Any]],
    rows: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any] | None = None,
    text: str | None = None,
) -> Path:
    """Write an experiment's figures and measurements to one self-contained HTML file.

    Parameters
    ----------
    path : path
        Where to write; an existing file is replaced.
    title : str
    figures : sequence of (heading, explanation, plotly figure)
        The explanation is also the text for screen readers. Colours of `dekpca.report.charts` follow the reader's scheme, light or dark.
    rows : sequence of mappings
        One for each measurement, as in the CSV file: shown as a table to sort and to search (the first 500 of them).
    settings : mapping, optional
        Settings that reproduce the experiment; "command" is shown with a button to copy it.
    text : str, optional
        A sentence or two below the title.

    Returns
    -------
    Path

    Examples
    --------
    >>> import tempfile
    >>> from dekpca.report import charts, experiment_report
    >>> figure = charts.bar_figure({"dekpca": [0.99, 0.98]}, ["10", "20"], "nodes", "similarity")
    >>> rows = [{"nodes": 10, "similarity": 0.99}, {"nodes": 20, "similarity": 0.98}]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     experiment_report(f"{folder}/nodes.html", "More nodes", [("Similarity", "By nodes.", figure)], rows).name
    'nodes.html'
    """
    sections = []
    for i, (heading, explanation, figure) in enumerate(figures):
        caption = "Its measurements are in the table of all measurements below." if rows else ""
        chart = Chart(f"figure-{i + 1}", figure, f"{heading}. {explanation}", caption, height=440)
        sections.append(Section(f"section-{i + 1}", heading, explanation, [chart]))
    sections.append(_measurements(rows))
    sections.append(settings_section(None, settings, None, "What makes the same figures again."))
    return write_page(path, title, text or "An experiment with decentralized kernel PCA.", sections)


def _measurements(rows: Sequence[Mapping[str, Any]]) -> Section:
    if not rows:
        return Section("measurements", "Measurements", "There are none: the experiment gave no rows.")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    shown = [[row.get(name) for name in columns] for row in rows[:ROWS]]
    says = f"All {len(rows):,} rows." if len(rows) <= ROWS else f"The first {ROWS:,} of {len(rows):,} rows; the CSV file has all."  # fmt: skip
    table = Table([str(c) for c in columns], shown, says, sortable=True)
    return Section("measurements", "Measurements", f"{says} A column's head sorts by it.", [table])
