"""`dekpca reproduce`: the paper's experiments, and some others, as CSV files, figures and a report."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import fetch_openml, load_digits

from ..data import Roles, read
from ..experiments import paper, runner, toy
from ..experiments.runner import Source
from ..report import panels
from .common import INTERRUPTED, Json, Said, err, make_folder, out, print_plain, say, unless_lacking, verb

DIGITS = ("0", "3", "5", "8")  # the paper's classes
PAPER_GAMMA = 2e-7  # the authors' bandwidth on raw pixels from 0 to 255
DIGITS_GAMMA = 1e-3  # scikit-learn's digits: 64 pixels from 0 to 16
TOY_TITLE = "Why projection consensus (the paper's Fig. 1 and 2)"
TOY_TEXT = (
    "Three nodes in the plane, linear kernel, dashed: the central answer. Plain consensus (w_j = w_q for all neighbors) works while every "
    "node can express the answer; where one node's data lies on a line it drags all others onto that line. Projection consensus does not. "
    "Drawn of it are the estimates z_j; w_2 stays on its line. Below: what is known of the kernel matrix of all data in a network of six nodes."
)


Which = StrEnum("Which", [*paper.EXPERIMENTS, "toy"])  # type: ignore[misc]


@verb
def reproduce(
    which: Annotated[Which, typer.Argument(help="Which experiment.")],
    data: Annotated[Path | None, typer.Option(help="Samples and labels: npz, csv, tsv or parquet.")] = None,
    openml: Annotated[bool, typer.Option("--openml", help="Download MNIST from OpenML.")] = False,
    label: Annotated[str | None, typer.Option(help="Column or array of the classes, where it is not called y.")] = None,
    classes: Annotated[str | None, typer.Option(help="Such as 0,3,5,8 (default if --data has them), or all.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Of the rbf kernel; default: the paper's for raw MNIST.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How many seeds; each takes minutes.")] = 10,
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for all files.")] = Path("dekpca-reproduce"),
    as_json: Json = False,
) -> Said:
    """Repeat an experiment of the paper, with the paper's settings and with dekpca's projection solver side by side.

    nodes, samples and neighbors are the paper's Fig. 3, 4 and 5, toy its Fig. 1 and 2; heterogeneity and convergence are new.
    Without --data scikit-learn's digits are used, with fewer rows per node. An interrupted run resumes.

    Examples:

      dekpca reproduce nodes --repeats 3

      dekpca reproduce samples --data mnist-0358.npz --out results

      dekpca reproduce toy
    """  # fmt: skip
    folder = make_folder(out_dir)
    source: Source | None = None
    rows: list[Any] = []
    if which.value == "toy":
        drawn, title, text = toy.panels(), TOY_TITLE, TOY_TEXT
    else:
        experiment = paper.EXPERIMENTS[which.value]
        source = _source(data, openml, label, classes, gamma)
        if not as_json:
            n, columns = source.X.shape
            print_plain(f"{source.name}: {n} rows, {columns} columns, gamma {source.gamma:g}", err)
        try:
            with Progress(console=err, disable=not err.is_terminal, transient=True) as bar:
                task = bar.add_task(which.value)

                def progress(done: int, total: int, what: str) -> None:
                    bar.update(task, completed=done, total=total, description=f"{which.value}: {what}")

                rows, times = runner.run(experiment, source, repeats, folder, progress)
        except KeyboardInterrupt:
            say("error", f"interrupted; what is finished is in {folder}, and the same command goes on from there")
            raise typer.Exit(INTERRUPTED) from None
        drawn, title, text = experiment.draw(rows, times), experiment.title, experiment.text
    figures, report = [], None
    with unless_lacking("figure"):
        figures = panels.save(drawn, title, folder / which.value)
    with unless_lacking("report"):
        report = _report(folder / f"{which.value}.html", title, text, drawn, rows, which.value, source, repeats)
    about = {"experiment": which.value, "rows": len(rows), "folder": folder, "figures": figures, "report": report}
    return Said(about, lambda: _tell(rows, about))


def _source(data: Path | None, openml: bool, label: str | None, classes: str | None, gamma: float | None) -> Source:
    if data is not None and openml:
        raise ValueError("--data and --openml: give one of them")
    if data is not None:
        read_data = read(data, Roles(label=label))
        if read_data.labels is None:
            no_labels = f"{data}: no labels, which the experiments need to deal classes"
            raise ValueError(f"{no_labels}; add an array or column y, or name it with --label")
        X, y, name = read_data.X, read_data.labels, data.name
    elif openml:
        with err.status("downloading MNIST"):
            X, y = fetch_openml("mnist_784", return_X_y=True, as_frame=False)
        y, name = y.astype(int), "MNIST"
    else:
        X, y = load_digits(return_X_y=True)
        name, classes = "scikit-learn's digits", classes or "all"
    names = [str(c) for c in np.unique(y)]
    usual = DIGITS if set(DIGITS) <= set(names) else names
    wanted = usual if classes is None else names if classes == "all" else classes.split(",")
    missing = [c for c in wanted if c not in names]
    if missing:
        raise ValueError(f"--classes: {', '.join(missing)} not among the labels {', '.join(names)}")
    kept = np.isin(y.astype(str), wanted)
    X, y = X[kept], y[kept]
    if X.shape[1] == 784 and X.max() > 100:
        usual_gamma = PAPER_GAMMA
    elif X.shape[1] == 64 and X.max() <= 16:
        usual_gamma = DIGITS_GAMMA
    else:
        usual_gamma = float(1.0 / (X.shape[1] * X.astype(np.float64).var()))
    return Source(X, y, usual_gamma if gamma is None else gamma, name)


def _report(
    path: Path, title: str, text: str, drawn: list[panels.Panel], rows: list[Any], name: str, source: Source | None, repeats: int
) -> Path:  # fmt: skip
    from ..report import experiment_report

    figures = [(panel.title, "", panels.plotly_figure(panel)) for panel in drawn]
    command = shlex.join(["dekpca", *sys.argv[1:]]) if "reproduce" in sys.argv else f"dekpca reproduce {name}"
    settings: dict[str, Any] = {"command": command, "repeats": repeats}
    if source is not None:
        settings |= {"data": source.name, "rows": len(source.X), "columns": source.X.shape[1], "gamma": source.gamma}
    return experiment_report(path, title, figures, rows, settings=settings, text=text)


def _tell(rows: list[Any], about: dict[str, Any]) -> None:
    name = about["experiment"]
    if rows:
        cells, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("cell", "method"))
        last = max(row["iteration"] for row in rows) if name == "convergence" else 0
        found: dict[tuple[Any, Any], list[float]] = {(cell, method): [] for cell in cells for method in methods}
        for row in rows:
            if row.get("iteration", 0) == last:
                found[row["cell"], row["method"]].append(row["similarity"])
        title = f"{name}: similarity of the first component, mean over nodes and repeats"
        table = Table("", title=title, title_justify="left")
        for method in methods:
            table.add_column(method, justify="right")
        for cell in cells:
            values = (found[cell, method] for method in methods)
            table.add_row(str(cell), *(f"{np.mean(some):.4f}" if some else "" for some in values))
        out.print(table)
    for path in [about["folder"] / f"{name}.csv", *about["figures"], about["report"]]:
        if path is not None and Path(path).exists():
            print_plain(f"wrote {path}")
