"""The page: sections, figures with their switches and tables, in one self-contained HTML file.

fit.py and experiment.py have the content; assets/ has styles and script. All text goes through `escape`. Scripts
run only if their hash is in the page's content security policy, and nothing may be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ..files import atomic_write

ASSETS = Path(__file__).parent / "assets"
LIMIT = 6_000_000  # bytes; small enough for an e-mail
NUMBERS = (int, float, np.integer, np.floating, type(None))


@dataclass(frozen=True)
class Chart:
    """A plotly figure, its caption, and its numbers."""

    name: str
    figure: Any
    label: str  # for screen readers
    caption: str
    table: str = ""  # HTML
    height: int = 400
    heading: str = ""  # if a section has several charts
    choice: str = ""  # label of a choice
    options: Mapping[str, Any] = field(default_factory=dict)  # the arguments of Plotly.update for each of its options
    controls: str = ""  # HTML, for a figure with its own script
    extra: Mapping[str, Any] = field(default_factory=dict)  # and its data

    def html(self) -> str:
        """A figure element: switches, the place for the drawing, the caption, the numbers."""
        name, controls = escape(self.name), self.controls
        if len(self.options) > 1:
            controls += select_html(f"{name}-choice", self.choice, self.options)
        heading = f"<h3>{escape(self.heading)}</h3>" if self.heading else ""
        style = f'style="height:min({self.height}px,120vw)"'
        save = f'aria-label="Save as SVG: {escape(self.heading or self.name)}">Save as SVG</button>'
        return (
            f'<figure class="chart" data-chart="{name}">{heading}<div class="controls">{controls}</div>'
            f'<div class="plot" id="plot-{name}" role="img" aria-label="{escape(self.label)}" {style}></div>'
            f'<figcaption>{escape(self.caption)}</figcaption><button type="button" class="save" {save}'
            f"{folded_html('The numbers as a table', self.table) if self.table else ''}</figure>"
        )

    def data(self) -> dict[str, Any]:
        """For the page's script, which has a template of its own."""
        drawn = json.loads(self.figure.to_json())
        drawn["layout"].pop("template", None)
        return drawn | {"options": list(self.options.values())} | dict(self.extra)


@dataclass(frozen=True)
class Section:
    """A heading and its content: charts, side by side if there is room, and HTML."""

    name: str
    title: str
    text: str
    charts: Sequence[Chart] = ()
    below: str = ""

    def html(self) -> str:
        name, charts = escape(self.name), "".join(chart.html() for chart in self.charts)
        return (
            f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">{escape(self.title)}</h2>\n'
            f'<p>{escape(self.text)}</p>\n<div class="charts">{charts}</div>\n{self.below}\n</section>'
        )


def escape(text: object) -> str:
    """Text for HTML."""
    return html.escape(str(text), quote=True)


def write_page(
    path: str | PathLike[str], title: str, lead: str, sections: Sequence[Section], summary: str = ""
) -> Path:
    """Write the file, readable by its owner only, and return its path. `lead` is text, `summary` HTML."""
    library, template, style, script = _library(), *(_asset(f"page.{kind}") for kind in ("html", "css", "js"))
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (library, script)]
    data = {chart.name: chart.data() for section in sections for chart in section.charts}
    scripts = " ".join(f"'sha256-{digest}'" for digest in hashes)
    contents = "".join(f'<li><a href="#{escape(s.name)}">{escape(s.title)}</a></li>' for s in sections)
    packed = json.dumps(data, allow_nan=False).replace("<", "\\u003c")  # no content can end the element
    body = {"sections": "\n".join(section.html() for section in sections), "summary": summary, "contents": contents}
    code = {"scripts": scripts, "style": style, "data": packed, "library": library, "script": script}
    content = Template(template).substitute(title=escape(title), lead=escape(lead), **body, **code)
    path, encoded = Path(path), content.encode("utf-8")
    if len(encoded) > LIMIT:
        says = f"{len(encoded) / 1e6:.1f} MB, more than {LIMIT / 1e6:g}; draw fewer points, or round them"
        warnings.warn(f"{path}: {says}", stacklevel=3)
    with atomic_write(path) as file:
        file.write(encoded)
    return path


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("\r\n", "\n")  # a browser normalizes line ends before it compares the hash


# ---------------------------------------------------------------------- pieces of HTML
def select_html(name: str, label: str, options: Iterable[str], chosen: int = 0) -> str:
    """A labelled native choice."""
    items = [f'<option value="{i}">{escape(option)}</option>' for i, option in enumerate(options)]
    items[chosen] = items[chosen].replace("<option", "<option selected")
    select = f'<select id="{name}" autocomplete="off">{"".join(items)}</select>'
    return f'<label for="{name}">{escape(label)} {select}</label>'


def folded_html(summary: str, content: str) -> str:
    """HTML that is shown on demand."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def table_html(columns: Mapping[str, Any], caption: str) -> str:
    """A table that scrolls if it is too wide; numbers are right-aligned."""
    numbers = [all(isinstance(cell, NUMBERS) for cell in cells) for cells in columns.values()]
    kinds = [' class="number"' if all_numbers else "" for all_numbers in numbers]

    def row(cells: Iterable[Any], tag: str) -> str:
        made = (f"<{tag}{kind}>{escape(cell_text(cell))}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(row(cells, "td") for cells in zip(*columns.values(), strict=True))
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead>{row(columns, 'th')}</thead><tbody>{body}</tbody></table></div>"
    )


def cell_text(cell: Any) -> str:
    """A cell: numbers with significant digits."""
    if isinstance(cell, (int, np.integer)):
        return f"{int(cell):,}"
    if isinstance(cell, (float, np.floating)):
        return "–" if not np.isfinite(cell) else f"{cell:,.4g}" if abs(float(cell)) < 1e4 else f"{cell:,.0f}"
    return "–" if cell is None else str(cell)


def cards_html(cards: Iterable[tuple[str, str, str]]) -> str:
    """Key figures: name, value, and a remark."""
    shown = ((escape(what), escape(value), escape(remark)) for what, value, remark in cards)
    items = "".join(f'<div><dt>{a}</dt><dd>{b}</dd><dd class="remark">{c}</dd></div>' for a, b, c in shown)
    return f'<dl class="cards">{items}</dl>'


def code_html(code: str, label: str) -> str:
    """Text to copy: a click selects all of it."""
    return f'<pre tabindex="0" aria-label="{escape(label)}"><code>{escape(code)}</code></pre>'
