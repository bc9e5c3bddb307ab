"""`experiment_report`: figures of an experiment and its rows, on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from .page import Chart, Section, table_html, write_page
from .settings import settings_section

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
        The explanation is also the text for screen readers.
    rows : sequence of mappings
        One for each measurement, as in the CSV file: shown as a table (the first 500 of them).
    settings : mapping, optional
        Settings that reproduce the experiment; "command" is shown as code to copy.
    text : str, optional
        A sentence or two below the title.

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
        chart = Chart(f"figure-{i + 1}", figure, f"{heading}. {explanation}", "", height=440)
        sections.append(Section(f"section-{i + 1}", heading, explanation, [chart]))
    if rows:
        names = list(dict.fromkeys(name for row in rows for name in row))
        says = f"All {len(rows):,} rows"
        if len(rows) > ROWS:
            says = f"The first {ROWS:,} of {len(rows):,} rows; the CSV file has all"
        table = table_html({str(name): [row.get(name) for row in rows[:ROWS]] for name in names}, says)
        sections.append(Section("measurements", "Measurements", f"{says}.", below=table))
    sections.append(settings_section(None, settings, False))
    return write_page(path, title, text or "An experiment with decentralized kernel PCA.", sections)
