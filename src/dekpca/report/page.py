"""The page: sections, figures with their switches and tables, in one self-contained HTML file.

fit.py and experiment.py have the content; assets/ has styles and scripts. All text goes through `escape`. Scripts
run only if their hash is in the page's content security policy, and nothing may be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ..files import atomic_write
from . import charts

ASSETS = Path(__file__).parent / "assets"
LIMIT = 6_000_000  # bytes; small enough for an e-mail


@dataclass(frozen=True)
class Table:
    """Column heads and rows of cells; numbers are right-aligned."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str
    sortable: bool = False


@dataclass(frozen=True)
class Switch:
    """A choice that changes a figure: each option patches it (`data`: trace number to attributes; `layout`)."""

    label: str
    options: Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Chart:
    """A plotly figure, its caption, and its numbers."""

    name: str
    figure: Any
    label: str  # for screen readers
    caption: str
    switches: Sequence[Switch] = ()
    table: Table | None = None
    height: int = 400
    extra: dict[str, Any] = field(default_factory=dict)  # for a figure with its own script
    controls: str = ""  # and its controls, as HTML
    heading: str = ""  # if a section has several charts
    most: int | None = None  # width in pixels


@dataclass(frozen=True)
class Pair:
    """Two charts, side by side if there is room."""

    charts: tuple[Chart, Chart]


Part = Chart | Pair | Table | str  # text is HTML made here


@dataclass(frozen=True)
class Section:
    """A heading and its content."""

    name: str
    title: str
    text: str
    parts: Sequence[Part] = ()


def escape(text: object) -> str:
    """Text for HTML.

    Examples
    --------
    >>> from dekpca.report.page import escape
    >>> escape('<b>"x"')
    '&lt;b&gt;&quot;x&quot;'
    """
    return html.escape(str(text), quote=True)


def write_page(
    path: str | PathLike[str], title: str, lead: str, sections: Sequence[Section], summary: str = ""
) -> Path:
    """Write the file, readable by its owner only, and return its path. `lead` is text, `summary` HTML."""
    path = Path(path)
    content = _page(title, lead, summary, sections).encode("utf-8")
    if len(content) > LIMIT:
        warnings.warn(
            f"{path}: {len(content) / 1e6:.1f} MB, more than {LIMIT / 1e6:g}; draw fewer points, or round them",
            stacklevel=3,
        )
    with atomic_write(path) as file:
        file.write(content)
    return path


def _page(title: str, lead: str, summary: str, sections: Sequence[Section]) -> str:
    drawn = [chart for section in sections for part in section.parts for chart in _charts(part)]
    data = {"figures": {c.name: _spec(c) for c in drawn}, "dark": charts.DARK}
    library, script = _library(), _asset("page.js")
    allowed = " ".join(f"'sha256-{_hash(text)}'" for text in (library, script))
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        lead=escape(lead),
        summary=summary,
        policy=f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'",
        style=_asset("page.css"),
        contents="".join(f'<li><a href="#{escape(s.name)}">{escape(s.title)}</a></li>' for s in sections),
        sections="\n".join(map(_section, sections)),
        data=script_json(data),
        library=library,
        script=script,
    )


def script_json(value: Any) -> str:
    """JSON for a script element: no content can end the element.

    Examples
    --------
    >>> from dekpca.report.page import script_json
    >>> script_json({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("\r\n", "\n")  # a browser normalizes line ends before it compares the hash


@cache
def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


def _spec(chart: Chart) -> dict[str, Any]:
    """The data of a chart for the page's script."""
    figure = json.loads(chart.figure.to_json())
    figure["layout"].pop("template", None)  # its colours would not follow the reader's scheme
    figure["layout"].setdefault("margin", {"l": 8, "r": 8, "t": 16, "b": 8})
    figure["layout"].setdefault("colorway", list(charts.SERIES))
    switches = [[patch for _, patch in switch.options] for switch in chart.switches]
    return {"data": figure["data"], "layout": figure["layout"], "switches": switches} | chart.extra


# ---------------------------------------------------------------------- pieces of HTML
def _section(section: Section) -> str:
    parts = "\n".join(_part(part) for part in section.parts)
    name = escape(section.name)
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">{escape(section.title)}</h2>\n'
        f"<p>{escape(section.text)}</p>\n{parts}\n</section>"
    )


def _charts(part: Part) -> Sequence[Chart]:
    if isinstance(part, Pair):
        return part.charts
    return [part] if isinstance(part, Chart) else []


def _part(part: Part) -> str:
    if isinstance(part, Chart):
        return chart_html(part)
    if isinstance(part, Pair):
        return f'<div class="pair">{"".join(map(chart_html, part.charts))}</div>'
    return table_html(part) if isinstance(part, Table) else part


def chart_html(chart: Chart) -> str:
    """A figure element: switches, the place for the drawing, the caption, the numbers."""
    name = escape(chart.name)
    switches = "".join(
        select_html(f"{name}-switch-{i}", switch.label, [label for label, _ in switch.options], "switch", i)
        for i, switch in enumerate(chart.switches)
    )
    controls = f'<div class="controls">{switches}{chart.controls}</div>' if switches or chart.controls else ""
    below = f'<button type="button" class="save" aria-label="Save as SVG: {escape(chart.heading or chart.name)}">Save as SVG</button>'
    if chart.table:
        below += f"<details><summary>The numbers as a table</summary>{table_html(chart.table)}</details>"
    heading = f"<h3>{escape(chart.heading)}</h3>" if chart.heading else ""
    width = f";max-width:{chart.most}px" if chart.most else ""
    return (
        f'<figure class="chart" data-chart="{name}">{heading}{controls}'
        f'<div class="plot" id="plot-{name}" role="img" aria-label="{escape(chart.label)}" style="height:{chart.height}px{width}"></div>'
        f'<figcaption>{escape(chart.caption)}</figcaption><div class="below">{below}</div></figure>'
    )


def select_html(name: str, label: str, options: Iterable[str], kind: str, number: int = 0, chosen: int = 0) -> str:
    """A labelled native choice."""
    items = "".join(
        f'<option value="{i}"{" selected" if i == chosen else ""}>{escape(text)}</option>'
        for i, text in enumerate(options)
    )
    return (
        f'<label for="{name}">{escape(label)} '
        f'<select id="{name}" data-kind="{kind}" data-number="{number}" autocomplete="off">{items}</select></label>'
    )


def table_html(table: Table) -> str:
    """A table that scrolls if it is too wide."""
    right = [bool(table.rows) and all(_is_number(row[i]) for row in table.rows) for i in range(len(table.head))]
    kind = [' class="number"' if r else "" for r in right]

    def head(text: str, i: int) -> str:
        inner = f'<button type="button">{escape(text)}</button>' if table.sortable else escape(text)
        return f'<th scope="col"{kind[i]}>{inner}</th>'

    body = "".join(
        "<tr>" + "".join(f"<td{kind[i]}>{escape(cell_text(cell))}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    search = ""
    if table.sortable:
        search = (
            '<p class="controls"><label>Show rows that contain <input type="search" class="filter" autocomplete="off"></label> '
            f'<output class="count" aria-live="polite">{len(table.rows)} rows</output></p>'
        )
    css = ' class="sortable"' if table.sortable else ""
    return (
        f'{search}<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.caption)}"><table{css}>'
        f"<caption>{escape(table.caption)}</caption>"
        f"<thead><tr>{''.join(head(text, i) for i, text in enumerate(table.head))}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _is_number(cell: Any) -> bool:
    return cell is None or (isinstance(cell, (int, float, np.number)) and not isinstance(cell, bool))


def cell_text(cell: Any) -> str:
    """A cell: numbers with significant digits.

    Examples
    --------
    >>> from dekpca.report.page import cell_text
    >>> [cell_text(c) for c in (12345, 0.999512345, 1.5e-9, None, "a")]
    ['12,345', '0.9995', '1.5e-09', '–', 'a']
    """
    if cell is None or (isinstance(cell, (float, np.floating)) and not np.isfinite(cell)):
        return "–"
    if isinstance(cell, bool | np.bool_):
        return "yes" if cell else "no"
    if isinstance(cell, (int, np.integer)):
        return f"{int(cell):,}"
    if isinstance(cell, (float, np.floating)):
        value = float(cell)
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(cell)


def cards_html(cards: Iterable[tuple[str, str, str]]) -> str:
    """Key figures: name, value, and a remark."""
    items = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd>"
        + (f'<dd class="remark">{escape(remark)}</dd>' if remark else "")
        + "</div>"
        for what, value, remark in cards
    )
    return f'<dl class="cards">{items}</dl>'


def code_html(code: str, label: str) -> str:
    """Text to copy."""
    return (
        f'<div class="code"><button type="button" class="copy">Copy</button>'
        f'<pre tabindex="0" aria-label="{escape(label)}"><code>{escape(code)}</code></pre></div>'
    )
