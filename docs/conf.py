"""Sphinx: `make docs` builds the site into build/site, offline, with warnings as errors."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path

import typer
from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from typer.cli import get_docs_for_click
from typer.main import get_command

from dekpca import __version__
from dekpca.cli import app as program

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the examples, of which two run at once
warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")

project, author, version, release = "dekpca", "the dekpca developers", __version__, __version__
copyright = "the dekpca developers"
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "sphinx_gallery.gen_gallery", "sphinx_design",
]  # fmt: skip
exclude_patterns = ["_build", "_contents", "gallery/*.ipynb", "gallery/*.py", "gallery/*.md5", "gallery/*.json"]
highlight_language = "none"
nitpicky = False
suppress_warnings = ["config.cache"]  # sphinx-gallery's settings hold a function

# --- Markdown: as on a code host, with the anchors of its headings
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4

# --- the reference
autosummary_generate = True
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# --- the gallery
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("dekpca",),
    "reference_url": {"dekpca": None},
    "abort_on_example_error": True,
    "capture_repr": (),  # addresses of objects would differ from build to build
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 1e9,  # times would differ from build to build
    "write_computation_times": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "plot_gallery": "True",
    "parallel": 2,
}


def installed_first(notebook, name):
    """From the site's own wheel; what else a notebook imports, Pyodide finds by itself."""
    says = "# This runs in your browser. Python and its packages are loaded from a CDN, which takes a while.\n"
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    notebook["cells"].insert(0, {**cell, "source": [says, "%pip install -q dekpca"]})


# --- `make docs-lite`: a button beside each example, which opens it as a notebook that runs in the reader's browser. It needs a web
# server, and a CDN for Pyodide; so the plain site, which opens from a file and asks nobody for anything, has none.
if lite := os.environ.get("DEKPCA_LITE"):  # a folder with pypi/dekpca-*.whl
    extensions.append("jupyterlite_sphinx")
    jupyterlite_dir = lite
    sphinx_gallery_conf["jupyterlite"] = {
        "jupyterlite_contents": f"{lite}/contents",
        "notebook_modification_function": installed_first,
        "use_jupyter_lab": False,
    }

# --- the pages
html_theme = "pydata_sphinx_theme"
html_title = "dekpca"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = html_show_copyright = html_show_sourcelink = html_copy_source = False
html_last_updated_fmt = None
html_math_renderer = "mathml"
html_sidebars = {"index": [], "gallery/index": []}
html_theme_options = {
    "logo": {"text": "dekpca"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "show_prev_next": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_show_copyright = True

templates_path = ["_templates"]


def page_titles(app, name, source):
    """[accuracy.md](accuracy.md) reads well on a code host; here the text is the page's title."""
    source[0] = re.sub(r"\[[\w/-]+\.md\]\(([^)]+)\)", r"[](\1)", source[0])


def links_to_pages(app, what, name, obj, options, lines):
    """docs/explanation/accuracy.md in a docstring is a link."""
    lines[:] = [re.sub(r"docs/(\w+/\w+)\.md", r":doc:`/\1`", line) for line in lines]


def pages_that_use(app, what, name, obj, options, lines):
    """Links to the pages whose code has this name, as the gallery's examples are linked by sphinx-gallery."""
    *_, module, last = name.split(".")
    if what not in ("class", "function", "exception", "data") or not name.startswith("dekpca"):
        return
    called = rf"\b{last}\b" if last[0].isupper() else rf"\b{module}\.{last}\b|import .*\b{last}\b"
    found = [
        page.relative_to(HERE).with_suffix("").as_posix()
        for page in sorted(HERE.glob("*/*.md"))
        if re.search(called, "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)))
    ]
    if 0 < len(found) <= 8:  # the estimator is on nearly all
        lines += ["", ".. rubric:: Pages that use it", "", ", ".join(f":doc:`/{page}`" for page in found) + "."]


def command_line(app):
    """reference/cli.md, from the program."""
    command = get_command(program)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="dekpca", title="The command line")
    text = re.sub(r"^## `dekpca (\w+)`$", r"## dekpca \1", text, flags=re.M)
    text = re.sub(r"^### `dekpca (\w+ [\w-]+)`$", r"### dekpca \1", text, flags=re.M)
    text = re.sub(r"^  (dekpca .*)$", r"    \1", text, flags=re.M)  # examples are code
    text = text.replace("  [default: ", " [default: ")
    intro = "Made from the program itself: `dekpca VERB --help` says the same. [usage.md](../howto/usage.md#command-line) has examples.\n\n"
    head, _, rest = text.partition("\n\n")
    _write(HERE / "reference" / "cli.md", f"{head}\n\n{intro}{rest}")


def landing(app):
    """The animation of the landing page."""
    from landing import animation

    _write(HERE / "_static" / "landing.svg", animation())


def _write(path, text):
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def mathml(self, node):
    display = node.tagname == "math_block"
    text = convert(node.astext(), display="block" if display else "inline")
    if "\\" in text:  # a command that the converter does not know stays as it is
        raise ValueError(f"no MathML for {node.astext()!r}")
    self.body.append(f'<div class="formula">{text}</div>' if display else text)
    raise SkipNode


def notebooks(app):
    """jupyterlite-sphinx keeps the name of a folder in the paths of its notebooks, and sphinx-gallery's buttons leave it out: name what is in it."""
    app.config.jupyterlite_contents = [f"{lite}/contents/*"]


def setup(app):
    if lite:
        app.connect("builder-inited", notebooks)
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.connect("source-read", page_titles)
    app.connect("autodoc-process-docstring", links_to_pages)
    app.connect("autodoc-process-docstring", pages_that_use, priority=900)  # numpydoc is done then
    app.connect("builder-inited", command_line, priority=100)
    app.connect("builder-inited", landing, priority=100)
