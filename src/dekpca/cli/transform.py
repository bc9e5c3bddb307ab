"""`dekpca transform`: from models to component values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ..data import Rows, column_names
from ..data.columns import Samples, check_same_names
from ..data.formats import check_output, writing
from ..network import listing
from ..node_model import NodeModel
from .common import Said, make_folder, print_plain, refuse_inputs, say, verb
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
    missing: Annotated[
        str | None,
        typer.Option(
            help="Missing values: error, drop the rows, or the fit's mean; default: as the fit, but not drop."
        ),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Further columns: how far out each row is.")] = False,
    out_file: Annotated[Path, typer.Option("--out", help="A .npy, .csv or .parquet file.")] = Path("components.npy"),
) -> Said:
    """Component values of new samples, from the model of any node.

    Rows are read and written in blocks, so that neither file need fit into memory. Columns are matched by name, in any order. --scores adds the
    reconstruction error, Hotelling's T2 and, if the fit had --contamination, 1 for each outlier and 0 for other rows. The model stores which columns
    of the fit's files were not features, and which was the id.

    Examples:

      dekpca transform dekpca-models new.csv --out components.csv

      dekpca transform dekpca-models/rome.npz new.npy

      dekpca transform dekpca-models new.csv --scores --out scores.csv

      dekpca transform dekpca-models new.csv --node rome --id patient --missing drop --out components.parquet
    """
    path = _model_file(model, node)
    check_output(out_file)
    refuse_inputs("--out", out_file, [data, path])
    if id_column is not None and out_file.suffix.lower() == ".npy":
        raise ValueError(f"--id with --out {out_file}: an .npy file holds numbers only; use .csv or .parquet")
    make_folder(out_file.parent)
    loaded = NodeModel.load(path)
    there = column_names(data)
    roles = recalled(loaded.reading, make_roles(owner, label, id_column, columns, drop, None), there)
    roles = replace(roles, keep=loaded.features.names or ())
    if missing is None:
        missing = "error" if loaded.fill is None else "mean"
    if missing == "mean" and loaded.fill is None:
        if loaded.scales is None:
            no_means = f"--missing mean: {path} keeps no means of the columns"
            raise ValueError(f"{no_means}; fit with --missing mean, or use --missing drop")
        loaded.fill = loaded.scales.mean
    dropped = outliers = 0
    judged = scores and loaded.histogram is not None
    names = [f"component {i + 1}" for i in range(loaded.n_components)]
    names += ["reconstruction error", "hotelling t2"] * scores + ["outlier"] * judged
    with notes(), writing(out_file, names, roles.id) as output:
        source = Rows.from_file(data, roles)
        if source.names is not None and loaded.features.names is not None:
            check_same_names(source.names, loaded.features.names, str(data), "the model")
        if (source.names is None) != (loaded.features.names is None):
            has, fitted = ("has no", "with") if source.names is None else ("has", "without")
            order = f"the model was fitted {fitted} them; columns are taken in the order of the fit"
            say("warning", f"{data} {has} column names, but {order}")
        for block in source.blocks(missing):  # type: ignore[arg-type]
            if len(block.X):
                samples = Samples(block.X.astype(np.float64), block.names)
                values = [*loaded.scores(samples)] if scores else [loaded.transform(samples)]
                if judged:
                    values.append((-values[1] < loaded.offset_).astype(np.float64))
                    outliers += int(values[-1].sum())
                output.write(np.column_stack(values), block.ids)
            dropped += block.dropped
    counted = {"rows": output.rows, "rows_dropped": dropped, "components": loaded.n_components}
    counted |= {"outliers": outliers} if judged else {}
    result = {"model": path, "node": loaded.name, **counted, "file": out_file}
    left_out = f"; {dropped} rows with missing values left out" if dropped else ""
    found = f"; {outliers} outliers" if judged else ""
    text = f"{output.rows} rows through node {loaded.name}: {out_file}{left_out}{found}"
    return Said(result, lambda: print_plain(text))


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
        raise ValueError(f"--node {name}: not among the nodes with a model in {model}: {listing(content['models'])}")
    return model / content["models"][name]
