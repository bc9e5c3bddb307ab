"""`dekpca fit` and `dekpca transform`: from files to node models, and from models to component values."""

from __future__ import annotations

import glob
import json
import re
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning

from .. import __version__, baselines
from ..data import Data, read
from ..engines import ENGINES
from ..estimator import DecentralizedKernelPCA
from ..network import listing, natural_key
from ..node_model import NodeModel
from . import on_ranks
from .common import (
    NOT_CONVERGED,
    TOPOLOGIES,
    Config,
    Debug,
    Json,
    emit,
    err,
    make_folder,
    out,
    parse_network,
    plain,
    verb,
)

SUMMARY = "summary.json"
PLAIN_NAME = re.compile(r"[A-Za-z0-9._ -]+")


@verb
def fit(
    data: Annotated[list[Path], typer.Argument(help="One file for all rows, or one file a node (named after it).")],
    nodes: Annotated[int | None, typer.Option(min=1, help="Deal the rows of one file to so many nodes.")] = None,
    owner: Annotated[str | None, typer.Option(help="Column or array that names the node of each row.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Column or array of classes: left out of the samples, shown in the report.")
    ] = None,
    network: Annotated[str | None, typer.Option(help=TOPOLOGIES)] = None,
    components: Annotated[int, typer.Option("--components", "-k", min=1, help="How many components.")] = 2,
    kernel: Annotated[str, typer.Option(help="rbf linear poly laplacian sigmoid cosine")] = "rbf",
    gamma: Annotated[str | None, typer.Option(help="A number, or scale; default 1 / columns.")] = None,
    degree: Annotated[int, typer.Option(help="Of poly.")] = 3,
    coef0: Annotated[float, typer.Option(help="Of poly and sigmoid.")] = 1.0,
    solver: Annotated[str, typer.Option(help="projection or landmarks")] = "projection",
    landmarks: Annotated[str, typer.Option(help="samples, kmeans, random-features, or a file of points.")] = "samples",
    n_landmarks: Annotated[str, typer.Option(help="A number, or auto.")] = "auto",
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Scale columns by the mean and deviation over all nodes.")
    ] = False,
    expansion: Annotated[str, typer.Option(help="What models hold: neighborhood, node or landmarks.")] = "neighborhood",
    exchange_noise: Annotated[
        str, typer.Option(help="Noise on samples that leave a node: a deviation, or 20dB.")
    ] = "0",
    max_iter: Annotated[int, typer.Option(min=1, help="At most so many iterations.")] = 100,
    tol: Annotated[float, typer.Option(min=0, help="When to stop.")] = 1e-3,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64; default: the data's.")] = None,
    seed: Annotated[int, typer.Option(help="Deals rows, draws network and landmarks.")] = 0,
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the models, one file a node.")] = Path(
        "dekpca-models"
    ),
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="In the report, compare with central, local and neighborhood kernel PCA of the same rows."
        ),
    ] = False,
    engine: Annotated[
        str, typer.Option(help="local; mpi under mpiexec (dekpca launch); peer: a process for each node.")
    ] = "local",
    as_json: Json = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Fit decentralized kernel PCA to files and save one model a node.

    Rows are dealt to --nodes nodes, or belong to the node that the --owner column names, or every node has a file of its own.
    Exit code 3: saved, but not converged.

    Examples:

      dekpca fit rows.npz --nodes 20 -k 4 --gamma scale

      dekpca fit patients.csv --owner hospital --standardize --landmarks kmeans --solver landmarks

      dekpca fit oslo.csv rome.csv bonn.csv --network path:3 --out models --report fit.html

      dekpca launch -n 4 -- fit "parts/node-*.npz" --network ring:20:4
    """  # fmt: skip
    if engine not in ENGINES:
        raise ValueError(f"--engine {engine}: known are {', '.join(sorted(ENGINES))}")
    make_folder(out_dir)
    if report is not None:
        make_folder(report.parent)
        if report.is_dir():
            raise ValueError(f"--report {report}: is a folder; name a file")
        import_module("dekpca.report.charts")  # before the work: it says what is missing for a report
    elif compare:
        raise ValueError("--compare is for the report; give --report FILE too")
    model = DecentralizedKernelPCA(
        n_components=components, kernel=kernel, gamma=_number_or_word(gamma, "--gamma"), degree=degree, coef0=coef0, solver=solver,
        landmarks=_landmarks(landmarks), n_landmarks=_number_or_word(n_landmarks, "--n-landmarks", int), standardize=standardize,
        expansion=expansion, exchange_noise=_number_or_word(exchange_noise, "--exchange-noise"), max_iter=max_iter, tol=tol, dtype=dtype,
        random_state=seed, verbose=not as_json, engine=engine,
    )  # fmt: skip
    paths = _expand(data)
    told = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        if engine == "mpi":
            if report is not None:
                raise ValueError("--report with --engine mpi: no rank holds all models; use --engine local")
            numbers, told = on_ranks.fit(model, paths, nodes, owner, label, network, seed)
        else:
            start = time.perf_counter()
            sources = _read_all(paths, owner, label)
            reading = time.perf_counter() - start
            _fit(model, sources, nodes, network, seed)
            sent = {phase: int(x.sum()) for phase, x in model.history_["bytes"].items()}
            numbers = {"rows": len(model.nodes_), "bytes_by_phase": sent}
            numbers["seconds"] = {"reading": reading, "fitting": time.perf_counter() - start - reading}
    start = time.perf_counter()
    files = _file_names(model.network_.names)
    if told:
        _remove_stale(out_dir, files)
    for node in model.node_models_:  # under MPI those that this rank hosts
        node.save(out_dir / files[node.name])
    numbers["seconds"]["saving"] = time.perf_counter() - start
    result: dict[str, Any] = {
        "version": __version__,
        "folder": out_dir,
        "models": files,
        "nodes": len(model.network_),
        "columns": model.n_features_in_,
        "components": components,
        "converged": bool(model.converged_),
        "iterations": int(model.n_iter_),
        "eigenvalues": model.eigenvalues_,
        "explained_variance_ratio": model.explained_variance_ratio_,
        "answering_node": model.network_.names[model.answering_node_],
        "report": None,
    } | numbers
    if told:
        for warning in caught:
            err.print(f"warning: {warning.message}", markup=False, highlight=False, soft_wrap=True)
        if report is not None:
            result["report"] = _report(report, model, sources, compare)
        (out_dir / SUMMARY).write_text(json.dumps(plain(result), indent=1), encoding="utf-8")
        emit(result, as_json, lambda: _tell(result))
    if not model.converged_:
        raise typer.Exit(NOT_CONVERGED)


def _expand(patterns: list[Path]) -> list[Path]:
    """Patterns that no shell has expanded, in natural order."""
    paths: list[Path] = []
    for pattern in patterns:
        if glob.has_magic(str(pattern)) and not pattern.exists():
            found = sorted(glob.glob(str(pattern)), key=natural_key)
            if not found:
                raise ValueError(f"{pattern}: no file matches")
            paths += map(Path, found)
        else:
            paths.append(pattern)
    return paths


def _read_all(paths: list[Path], owner: str | None, label: str | None) -> dict[str, Data]:
    if len(paths) > 1 and owner is not None:
        raise ValueError("--owner is for one file; several files belong to one node each: leave it out")
    return {name: read(path, owner, label) for name, path in on_ranks.by_node(paths).items()}


def _number_or_word(text: str | None, option: str, kind: type = float) -> Any:
    """A number where it is one; a word is checked by the estimator."""
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        if re.match(r"[-+]?[0-9.]+$", text):
            raise ValueError(f"{option} {text}: expected a {'whole ' if kind is int else ''}number or a word") from None
        return text


def _landmarks(text: str) -> Any:
    return read(text).X if Path(text).suffix else text


def _fit(
    model: DecentralizedKernelPCA, sources: dict[str, Data], nodes: int | None, network: str | None, seed: int
) -> None:
    made = None if network is None else parse_network(network, seed)
    if len(sources) > 1:
        if nodes is not None:
            raise ValueError("--nodes is for one file; each of several files is a node: leave it out")
        model.set_params(network=made if made is None else on_ranks.renamed(made, list(sources)))
        model.fit_parts({name: source.X for name, source in sources.items()})
        return
    (source,) = sources.values()
    if nodes is not None and made is not None and len(made) != nodes:
        raise ValueError(f"--nodes {nodes}, but the network has {len(made)}; leave out --nodes")
    model.set_params(network=made if made is not None else nodes)
    if source.owners is not None:
        if nodes is not None:
            raise ValueError("--nodes deals rows and --owner says whose they are; give one of them")
        names = [str(name) for name in dict.fromkeys(source.owners.tolist())]
        if made is not None:
            model.set_params(network=on_ranks.renamed(made, names))
        model.fit(source.X, nodes=source.owners)
    else:
        model.fit(source.X)


def _file_names(names: Sequence[str]) -> dict[str, str]:
    """A file for each node, named after it where that is a name for a file, and apart also where upper and lower case are one."""
    files: dict[str, str] = {}
    taken = {name.casefold() for name in names}
    for number, name in enumerate(names):
        plain_name = PLAIN_NAME.fullmatch(name) and not name.startswith(".")
        stem = name
        if not plain_name or stem.casefold() in {f.casefold().removesuffix(".npz") for f in files.values()}:
            stem = f"node-{number}"
            while stem.casefold() in taken:
                stem += "_"
        taken.add(stem.casefold())
        files[name] = f"{stem}.npz"
    return files


def _remove_stale(folder: Path, files: dict[str, str]) -> None:
    """Models that an earlier fit into this folder wrote and this one does not."""
    summary = folder / SUMMARY
    if summary.is_file():
        earlier = json.loads(summary.read_text(encoding="utf-8"))["models"]
        for name in set(earlier.values()) - set(files.values()):
            (folder / Path(name).name).unlink(missing_ok=True)


def _report(path: Path, model: DecentralizedKernelPCA, sources: dict[str, Data], compare: bool) -> Path:
    from ..report import fit_report

    ordered = [sources[name] for name in model.network_.names] if len(sources) > 1 else list(sources.values())
    X = np.concatenate([source.X for source in ordered])
    labels = [source.labels for source in ordered if source.labels is not None]
    central, others = None, None
    if compare:
        given = {
            "kernel": model.kernel,
            "gamma": model.gamma,
            "degree": model.degree,
            "coef0": model.coef0,
            "standardize": model.standardize,
        }
        parts = [X[model.nodes_ == j] for j in range(len(model.network_))]
        central = baselines.central(parts, model.n_components, **given)
        others = {
            "local": baselines.local(parts, model.n_components, **given),
            "neighborhood": baselines.neighborhood(parts, model.network_, model.n_components, **given),
        }
    classes = np.concatenate(labels) if len(labels) == len(ordered) else None
    return fit_report(path, model, X, classes, central, others, model.nodes_)


def _tell(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['rows']} rows on {result['nodes']} nodes", title_justify="left")
    for column in ("component", "eigenvalue", "explained"):
        table.add_column(column, justify="right")
    for i, (value, share) in enumerate(zip(result["eigenvalues"], result["explained_variance_ratio"], strict=True)):
        table.add_row(str(i + 1), f"{value:.6g}", f"{share:.1%}")
    out.print(table)
    state = "converged" if result["converged"] else "not converged"
    sent = sum(result["bytes_by_phase"].values()) / result["nodes"] / 1e6
    out.print(
        f"{state} after {result['iterations']} iterations; {sent:.2f} MB sent a node; {result['seconds']['fitting']:.1f} s",
        highlight=False,
    )
    out.print(f"{len(result['models'])} models in {result['folder']}", highlight=False, soft_wrap=True)
    if result["report"] is not None:
        out.print(f"report: {result['report']}", highlight=False, soft_wrap=True)


@verb
def transform(
    model: Annotated[Path, typer.Argument(help="A model file, or a folder that dekpca fit wrote.")],
    data: Annotated[Path, typer.Argument(help="Samples.")],
    node: Annotated[
        str | None, typer.Option(help="Which node of the folder answers; default: the best informed.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Column to leave out.")] = None,
    label: Annotated[str | None, typer.Option(help="Column to leave out.")] = None,
    out_file: Annotated[Path, typer.Option("--out", help="Where component values go: .npy or .csv.")] = Path(
        "components.npy"
    ),
    as_json: Json = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Component values of new samples, through the model of any node.

    Examples:

      dekpca transform dekpca-models new.csv --out components.csv

      dekpca transform dekpca-models/rome.npz new.npy

      dekpca transform dekpca-models new.npz --node rome
    """
    path = _model_file(model, node)
    if out_file.suffix.lower() not in (".npy", ".csv"):
        raise ValueError(f"--out {out_file}: unknown format {out_file.suffix or '(no ending)'}; use .npy or .csv")
    make_folder(out_file.parent)
    loaded = NodeModel.load(path)
    values = loaded.transform(read(data, owner, label).X.astype(np.float64))
    if out_file.suffix.lower() == ".npy":
        np.save(out_file, values)
    else:
        header = ",".join(f"component {i + 1}" for i in range(values.shape[1]))
        np.savetxt(out_file, values, delimiter=",", header=header, comments="")
    result = {"model": path, "node": loaded.name, "rows": len(values), "components": values.shape[1], "file": out_file}
    emit(
        result, as_json, lambda: out.print(f"{len(values)} rows through node {loaded.name}: {out_file}", highlight=False, soft_wrap=True)
    )  # fmt: skip


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
