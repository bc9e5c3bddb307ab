"""`dekpca transform`: from models to component values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ..data import column_names, read
from ..data.columns import Samples
from ..data.formats import check_output, write_values
from ..network import listing
from ..node_model import NodeModel
from .common import Config, Debug, Json, emit, make_folder, print_plain, say, verb
from .fit import SUMMARY
from .reading import Columns, Drop, IdColumn, make_roles, notes, recalled


@verb
def transform(
    model: Annotated[Path, typer.Argument(help="A model file, or a folder that dekpca fit wrote.")],
    data: Annotated[Path, typer.Argument(help="Samples.")],
    node: Annotated[str | None, typer.Option(help="Which node answers; default: the best informed.")] = None,
    owner: Annotated[str | None, typer.Option(help="Column to leave out.")] = None,
    label: Annotated[str | None, typer.Option(help="Column to leave out.")] = None,
    id_column: IdColumn = None,
    columns: Columns = None,
    drop: Drop = None,
    missing: Annotated[str, typer.Option(help="Missing values: error, drop the rows, or the fit's mean.")] = "error",
    scores: Annotated[bool, typer.Option("--scores", help="Further columns: how far out each row is.")] = False,
    out_file: Annotated[Path, typer.Option("--out", help="A .npy, .csv or .parquet file.")] = Path("components.npy"),
    as_json: Json = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Component values of new samples, from the model of any node.

    Columns are matched by name, in any order. --scores adds the reconstruction error, Hotelling's T2 and, if the fit had --contamination, 1 for each
    outlier and 0 for other rows. The model stores which columns of the fit's files were not features, and which was the id.

    Examples:

      dekpca transform dekpca-models new.csv --out components.csv

      dekpca transform dekpca-models/rome.npz new.npy

      dekpca transform dekpca-models new.csv --scores --out scores.csv

      dekpca transform dekpca-models new.csv --node rome --id patient --missing drop --out components.parquet
    """
    path = _model_file(model, node)
    check_output(out_file)
    if id_column is not None and out_file.suffix.lower() == ".npy":
        raise ValueError(f"--id with --out {out_file}: an .npy file holds numbers only; use .csv or .parquet")
    make_folder(out_file.parent)
    loaded = NodeModel.load(path)
    there = column_names(data)
    roles = recalled(loaded.reading, make_roles(owner, label, id_column, columns, drop, None), there)
    roles = replace(roles, keep=loaded.features.names or ())
    if missing == "mean" and loaded.fill is None:
        if loaded.columns is None:
            no_means = f"--missing mean: {path} keeps no means of the columns"
            raise ValueError(f"{no_means}; fit with --missing mean, or use --missing drop")
        loaded.fill = loaded.columns.mean
    with notes():
        source = read(data, roles, missing)  # type: ignore[arg-type]
        if (source.names is None) != (loaded.features.names is None):
            has, fitted = ("has no", "with") if source.names is None else ("has", "without")
            order = f"the model was fitted {fitted} them; columns are taken in the order of the fit"
            say("warning", f"{data} {has} column names, but {order}")
        samples, more = Samples(source.X.astype(np.float64), source.names), {}
        if scores:
            values, error, t2 = loaded.scores(samples)
            more = {"reconstruction error": error, "hotelling t2": t2}
            if loaded.histogram is not None:
                more["outlier"] = (-error < loaded.offset_).astype(np.float64)
        else:
            values = loaded.transform(samples)
    ids = None if out_file.suffix.lower() == ".npy" else source.ids
    write_values(out_file, np.column_stack([values, *more.values()]), ids, roles.id or "id", list(more))
    counted = {"rows": len(values), "rows_dropped": source.dropped, "components": values.shape[1]}
    counted |= {"outliers": int(more["outlier"].sum())} if "outlier" in more else {}
    result = {"model": path, "node": loaded.name, **counted, "file": out_file}
    left_out = f"; {source.dropped} rows with missing values left out" if source.dropped else ""
    found = f"; {counted['outliers']} outliers" if "outliers" in counted else ""
    text = f"{len(values)} rows through node {loaded.name}: {out_file}{left_out}{found}"
    emit(result, as_json, lambda: print_plain(text))


def _model_file(model: Path, node: str | None) -> Path:
    if model.is_file():
        if node is not None:
            raise ValueError(f"--node {node}: {model} is one node's model; give the folder to choose among nodes")
        return model
    if not model.is_dir():
        raise ValueError(f"{model}: no such model file or folder")
    summary = model / SUMMARY
    if not summary.is_file():
        raise ValueError(f"{model}: no {SUMMARY} in it, so dekpca fit did not write this folder; give a model file")
    content = json.loads(summary.read_text(encoding="utf-8"))
    name = content["answering_node"] if node is None else node
    if name not in content["models"]:
        raise ValueError(f"--node {name}: not among the nodes of {model}: {listing(content['models'])}")
    return model / content["models"][name]
