"""`dekpca reproduce`: the paper's experiments, and some others, as CSV files, figures and a report."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from sklearn.datasets import fetch_openml, load_digits

from ..data import Roles, read
from ..experiments import paper, runner, toy
from ..experiments.runner import Source
from ..report import panels
from .common import INTERRUPTED, Config, Debug, Json, bar, emit, err, make_folder, out, say_error, verb

DIGITS = (0, 3, 5, 8)  # the paper's classes
PAPER_GAMMA = 2e-7  # the authors' bandwidth on raw pixels from 0 to 255
DIGITS_GAMMA = 1e-3  # scikit-learn's digits: 64 pixels from 0 to 16


class Which(StrEnum):
    nodes = "nodes"
    samples = "samples"
    neighbors = "neighbors"
    heterogeneity = "heterogeneity"
    convergence = "convergence"
    toy = "toy"


@verb
def reproduce(
    which: Annotated[Which, typer.Argument(help="Which experiment.")],
    data: Annotated[
        Path | None, typer.Option(help="Samples and labels: npz, npy, csv, parquet, mat or MNIST's idx files.")
    ] = None,
    openml: Annotated[bool, typer.Option("--openml", help="Download MNIST from OpenML.")] = False,
    label: Annotated[
        str | None, typer.Option(help="Column or array with the classes, where it is not called y.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="Classes to use, such as 0,3,5,8 (the default where they exist), or all."),
    ] = None,
    gamma: Annotated[
        float | None, typer.Option(help="Width of the rbf kernel; by default the paper's for MNIST.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 10,
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for CSV files, figures and the report.")] = Path(
        "dekpca-reproduce"
    ),
    as_json: Json = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Repeat an experiment of the paper, with the paper's settings and with dekpca's default side by side.

    nodes, samples and neighbors are the paper's; heterogeneity and convergence are new; toy draws its Fig. 1 and 2.
    Without --data scikit-learn's digits are used, with fewer rows per node. An interrupted run resumes.

    Examples:

      dekpca reproduce nodes --repeats 3

      dekpca reproduce samples --data mnist-0358.npz --out results

      dekpca reproduce toy
    """  # fmt: skip
    folder = make_folder(out_dir)
    if which is Which.toy:
        drawn, rows, times, title, text, source = _toy()
    else:
        experiment = paper.EXPERIMENTS[which.value]
        source = _source(data, openml, label, classes, gamma)
        if not as_json:
            err.print(
                f"{source.name}: {len(source.X)} rows, {source.X.shape[1]} columns, gamma {source.gamma:g}",
                highlight=False,
            )
        try:
            with bar(which.value, repeats) as progress:
                rows, times = runner.run(experiment, source, repeats, folder, progress)
        except KeyboardInterrupt:
            say_error(f"interrupted; what is finished is in {folder}, and the same command goes on from there")
            raise typer.Exit(INTERRUPTED) from None
        drawn, title, text = experiment.draw(rows, times), experiment.title, experiment.text
    result: dict[str, Any] = {
        "experiment": which.value,
        "rows": len(rows),
        "folder": folder,
        "figures": [],
        "report": None,
    }
    result["figures"] = _figures(drawn, title, folder / which.value)
    result["report"] = _report(folder / f"{which.value}.html", title, text, drawn, rows, which.value, source, repeats)
    emit(result, as_json, lambda: _tell(which.value, rows, result))


def _toy() -> tuple[list[panels.Panel], list[Any], list[Any], str, str, None]:
    text = (
        "Three nodes in the plane, linear kernel, dashed: the central answer. Plain consensus (w_j = w_q for all neighbors) works while every "
        "node can express the answer; where one node's data lies on a line it drags all others onto that line. Projection consensus does not. "
        "Below: what is known of the kernel matrix of all data in a network of six nodes."
    )
    return toy.panels(), [], [], "Why projection consensus (the paper's Fig. 1 and 2)", text, None


def _source(data: Path | None, openml: bool, label: str | None, classes: str | None, gamma: float | None) -> Source:
    if data is not None and openml:
        raise ValueError("--data and --openml: give one of them")
    if data is not None:
        read_data = read(data, Roles(label=label))
        if read_data.labels is None:
            raise ValueError(
                f"{data}: no labels, which the experiments need to deal classes; add an array or column y, or name it with --label"
            )
        X, y, name = read_data.X, read_data.labels, data.name
    elif openml:
        with err.status("downloading MNIST"):
            X, y = fetch_openml("mnist_784", return_X_y=True, as_frame=False)
        y, name = y.astype(int), "MNIST"
    else:
        X, y = load_digits(return_X_y=True)
        name, classes = "scikit-learn's digits", classes or "all"
    found = np.unique(y)
    if classes is None:
        wanted = [c for c in found if str(c) in map(str, DIGITS)]
        wanted = wanted if len(wanted) == len(DIGITS) else list(found)
    elif classes == "all":
        wanted = list(found)
    else:
        names = {str(c): c for c in found}
        missing = [c for c in classes.split(",") if c not in names]
        if missing:
            raise ValueError(f"--classes: {', '.join(missing)} not among the labels {', '.join(names)}")
        wanted = [names[c] for c in classes.split(",")]
    kept = np.isin(y, wanted)
    X, y = X[kept], y[kept]
    if gamma is None:
        if X.shape[1] == 784 and X.max() > 100:
            gamma = PAPER_GAMMA
        elif X.shape[1] == 64 and X.max() <= 16:
            gamma = DIGITS_GAMMA
        else:
            gamma = float(1.0 / (X.shape[1] * X.astype(np.float64).var()))
    return Source(X, y, gamma, name)


def _figures(drawn: list[panels.Panel], title: str, stem: Path) -> list[Path]:
    try:
        return panels.save(drawn, title, stem)
    except ImportError:
        err.print("no figure: matplotlib is not installed; pip install 'dekpca[plot]'", markup=False)
        return []


def _report(
    path: Path, title: str, text: str, drawn: list[panels.Panel], rows: list[Any], name: str, source: Source | None, repeats: int
) -> Path | None:  # fmt: skip
    try:
        from ..report import experiment_report

        figures = [(panel.title, "", panels.plotly_figure(panel)) for panel in drawn]
    except ImportError:
        err.print("no report: plotly is not installed; pip install 'dekpca[report]'", markup=False)
        return None
    settings: dict[str, Any] = {
        "command": shlex.join(["dekpca", *sys.argv[1:]]) if "reproduce" in sys.argv else f"dekpca reproduce {name}"
    }
    settings["repeats"] = repeats
    if source is not None:
        settings |= {"data": source.name, "rows": len(source.X), "columns": source.X.shape[1], "gamma": source.gamma}
    return experiment_report(path, title, figures, rows, settings=settings, text=text)


def _tell(name: str, rows: list[Any], result: dict[str, Any]) -> None:
    if rows:
        cells, methods = list(dict.fromkeys(r["cell"] for r in rows)), list(dict.fromkeys(r["method"] for r in rows))
        last = max((r.get("iteration", 0) for r in rows), default=0) if name == "convergence" else 0
        table = Table(
            title=f"{name}: similarity of the first component, mean over nodes and repeats", title_justify="left"
        )
        table.add_column("")
        for method in methods:
            table.add_column(method, justify="right")
        for cell in cells:
            values = []
            for method in methods:
                found = [
                    r["similarity"]
                    for r in rows
                    if r["cell"] == cell and r["method"] == method and r.get("iteration", 0) == last
                ]
                values.append(f"{np.mean(found):.4f}" if found else "")
            table.add_row(str(cell), *values)
        out.print(table)
    for path in [result["folder"] / f"{name}.csv", *result["figures"], result["report"]]:
        if path is not None and Path(path).exists():
            out.print(f"wrote {path}", highlight=False, soft_wrap=True)
