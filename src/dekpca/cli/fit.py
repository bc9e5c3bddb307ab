"""`dekpca fit`: from files to node models."""

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
from ..columns import Samples
from ..core.centering import filled
from ..data import Data, Roles, read, remembered
from ..engines import ENGINES
from ..estimator import DecentralizedKernelPCA, NarrowKernelWarning
from ..files import PUBLIC, write_text
from ..network import listing, natural_key
from ..options import MAX_LANDMARKS
from ..results import MixedComponentsWarning
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
    rounded_down,
    verb,
)
from .privacy import parse_privacy
from .reading import Columns, Drop, IdColumn, OneHot, make_roles, notes, with_categories

SUMMARY = "summary.json"
PLAIN_NAME = re.compile(r"[A-Za-z0-9._ -]+")


@verb
def fit(
    data: Annotated[list[Path], typer.Argument(help="One file for all rows, or one file a node (named after it).")],
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of nodes to deal the rows of one file to.")] = None,
    owner: Annotated[str | None, typer.Option(help="Column or array that names the node of each row.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Column or array of classes: left out of the samples, shown in the report.")
    ] = None,
    id_column: IdColumn = None,
    columns: Columns = None,
    drop: Drop = None,
    one_hot: OneHot = None,
    missing: Annotated[
        str,
        typer.Option(
            help="Rows with missing values: error, drop (leave them out) or mean (of the column, over all nodes)."
        ),
    ] = "error",
    network: Annotated[str | None, typer.Option(help=TOPOLOGIES)] = None,
    components: Annotated[int, typer.Option("--components", "-k", min=1, help="How many components.")] = 2,
    kernel: Annotated[str, typer.Option(help="rbf linear poly laplacian sigmoid cosine")] = "rbf",
    gamma: Annotated[str, typer.Option(help="A number, or scale: 1 / (columns x variance).")] = "scale",
    degree: Annotated[int, typer.Option(help="Of poly.")] = 3,
    coef0: Annotated[float, typer.Option(help="Of poly and sigmoid.")] = 1.0,
    solver: Annotated[str, typer.Option(help="auto, landmarks or projection.")] = "auto",
    landmarks: Annotated[
        str, typer.Option(help="auto: as many as --tol needs; a number; random-features; or a file of points.")
    ] = "auto",
    max_landmarks: Annotated[
        int, typer.Option(min=1, help="To which auto may grow; how many random features.")
    ] = MAX_LANDMARKS,
    share_rows: Annotated[
        bool,
        typer.Option(
            "--share-rows/--keep-rows", help="Whether rows may leave their node: as landmarks, or to neighbors."
        ),
    ] = True,
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Scale columns by the mean and deviation over all nodes.")
    ] = False,
    expansion: Annotated[str, typer.Option(help="What models hold: neighborhood, node or landmarks.")] = "neighborhood",
    exchange_noise: Annotated[
        str, typer.Option(help="Noise on samples that leave a node: a deviation, or 20dB.")
    ] = "0",
    secure_sums: Annotated[
        bool, typer.Option("--secure-sums", help="Sums leave a node under masks; only totals are in clear.")
    ] = False,
    privacy: Annotated[
        str | None, typer.Option(help="Differential privacy: epsilon=1,delta=1e-6, and norm=, rank=, ledger= ...")
    ] = None,
    max_iter: Annotated[int, typer.Option(min=1, help="Largest number of iterations.")] = 100,
    tol: Annotated[
        float, typer.Option(min=0, help="The error that is asked for: sin^2 of the angle to central kernel PCA.")
    ] = 1e-3,
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
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder for checkpoints of the iterations: a fit that was killed goes on from there."),
    ] = None,
    as_json: Json = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Fit decentralized kernel PCA to files and save one model per node.

    Rows are dealt to --nodes nodes, or belong to the node in the --owner column, or every node has its own file.
    Named columns are matched by name, in any order. Exit code 3: saved, but not converged.

    Examples:

      dekpca fit rows.npz --nodes 20 -k 4 --gamma scale

      dekpca fit patients.csv --owner hospital --id patient --drop notes --one-hot blood_group --missing mean --standardize

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
        import_module("dekpca.report.charts")  # before the work: raises if a package for the report is missing
    elif compare:
        raise ValueError("--compare is for the report; give --report FILE too")
    model = DecentralizedKernelPCA(
        n_components=components, kernel=kernel, gamma=_number_or_word(gamma, "--gamma"), degree=degree, coef0=coef0, solver=solver,
        landmarks=_landmarks(landmarks), standardize=standardize,
        max_landmarks=max_landmarks, share_rows=share_rows,
        expansion=expansion, exchange_noise=_number_or_word(exchange_noise, "--exchange-noise"), max_iter=max_iter, tol=tol, dtype=dtype,
        random_state=seed, verbose=not as_json, engine=engine,
        missing="mean" if missing == "mean" else "error", secure_sums=secure_sums, privacy=None if privacy is None else parse_privacy(privacy),
    )  # fmt: skip
    paths = _expand(data)
    roles = make_roles(owner, label, id_column, columns, drop, one_hot)
    told = True
    with notes(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        warnings.simplefilter("always", NarrowKernelWarning)
        warnings.simplefilter("always", MixedComponentsWarning)
        if engine == "mpi":
            if report is not None:
                raise ValueError("--report with --engine mpi: no rank holds all models; use --engine local")
            numbers, told, reading = on_ranks.fit(model, paths, nodes, roles, missing, network, seed, checkpoint)
        else:
            start = time.perf_counter()
            roles = with_categories(paths, roles)
            sources = _read_all(paths, roles, missing)
            reading = remembered(roles, list(sources.values()))
            read_in = time.perf_counter() - start
            _fit(model, sources, nodes, network, seed, checkpoint)
            sent = {phase: int(x.sum()) for phase, x in model.history_["bytes"].items()}
            dropped = sum(source.dropped for source in sources.values())
            numbers = {"rows": len(model.nodes_), "rows_dropped": dropped, "bytes_by_phase": sent}
            numbers["seconds"] = {"reading": read_in, "fitting": time.perf_counter() - start - read_in}
    start = time.perf_counter()
    files = _file_names(model.network_.names)
    removed = _remove_stale(out_dir, files) if told else []
    for node in model.node_models_:  # under MPI those of this rank
        node.reading = reading
        node.save(out_dir / files[node.name])
    numbers["seconds"]["saving"] = time.perf_counter() - start
    feature_names = list(model.feature_names_in_) if hasattr(model, "feature_names_in_") else None
    result: dict[str, Any] = {
        "version": __version__,
        "folder": out_dir,
        "models": files,
        "nodes": len(model.network_),
        "columns": model.n_features_in_,
        "feature_names": feature_names,
        "gamma": model.gamma_,
        "removed": removed,
        "components": components,
        "converged": bool(model.converged_),
        "iterations": int(model.n_iter_),
        "eigenvalues": model.eigenvalues_,
        "explained_variance_ratio": model.explained_variance_ratio_,
        "accuracy": [None if np.isnan(a) else a for a in model.accuracy_.tolist()],
        "span_accuracy": None if np.isnan(model.span_accuracy_) else model.span_accuracy_,
        "span_accuracy_bound": None if np.isnan(model.span_accuracy_bound_) else model.span_accuracy_bound_,
        "mixed_components": [[i + 1 for i in group] for group in model.mixed_components_],
        "landmarks": model.n_landmarks_,
        "privacy": None if model.privacy_ is None else model.privacy_.as_dict(),
        "answering_node": model.network_.names[model.answering_node_],
        "report": None,
    } | numbers
    if told:
        for warning in caught:
            err.print(f"warning: {warning.message}", markup=False, highlight=False, soft_wrap=True)
        if report is not None:
            result["report"] = _report(report, model, sources, compare)
        write_text(out_dir / SUMMARY, json.dumps(plain(result), indent=1), PUBLIC)
        emit(result, as_json, lambda: _tell(result))
    if not model.converged_:
        raise typer.Exit(NOT_CONVERGED)


def _expand(patterns: list[Path]) -> list[Path]:
    """Expand patterns that the shell has not expanded, in natural order."""
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


def _read_all(paths: list[Path], roles: Roles, missing: Any) -> dict[str, Data]:
    if len(paths) > 1 and roles.owner is not None:
        raise ValueError("--owner is for one file; several files belong to one node each: leave it out")
    return {name: read(path, roles, missing) for name, path in on_ranks.by_node(paths).items()}


def _number_or_word(text: str | None, option: str, kind: type = float) -> Any:
    """A number, or a word, which the estimator checks."""
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        if re.match(r"[-+]?[0-9.]+$", text):
            raise ValueError(f"{option} {text}: expected a {'whole ' if kind is int else ''}number or a word") from None
        return text


def _landmarks(text: str) -> Any:
    if text.isdigit():
        return int(text)
    return read(text).samples if Path(text).suffix else text


def _fit(
    model: DecentralizedKernelPCA, sources: dict[str, Data], nodes: int | None, network: str | None, seed: int, checkpoint: Path | None
) -> None:  # fmt: skip
    made = None if network is None else parse_network(network, seed)
    if len(sources) > 1:
        if nodes is not None:
            raise ValueError("--nodes is for one file; each of several files is a node: leave it out")
        model.set_params(network=made if made is None else on_ranks.over_names(made, list(sources)))
        model.fit_parts({name: source.samples for name, source in sources.items()}, checkpoint=checkpoint)
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
            model.set_params(network=on_ranks.over_names(made, names))
        model.fit(source.samples, nodes=source.owners, checkpoint=checkpoint)
    else:
        model.fit(source.samples, checkpoint=checkpoint)


def _file_names(names: Sequence[str]) -> dict[str, str]:
    """A file name for each node: its name if valid, and unique also on case-insensitive file systems."""
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


def _remove_stale(folder: Path, files: dict[str, str]) -> list[str]:
    """Delete models of an earlier fit into this folder that this one does not replace, and report it."""
    summary = folder / SUMMARY
    if not summary.is_file():
        return []
    earlier = {Path(name).name for name in json.loads(summary.read_text(encoding="utf-8"))["models"].values()}
    stale = sorted((name for name in earlier - set(files.values()) if (folder / name).is_file()), key=natural_key)
    for name in stale:
        (folder / name).unlink()
    if stale:
        err.print(
            f"note: {folder}: deleted models of an earlier fit that this one does not replace: {listing(stale)}; --out keeps fits apart",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return stale


def _report(path: Path, model: DecentralizedKernelPCA, sources: dict[str, Data], compare: bool) -> Path:
    from ..report import fit_report

    ordered = [sources[name] for name in model.network_.names] if len(sources) > 1 else list(sources.values())
    names = ordered[0].names
    X = Samples(np.concatenate([source.samples.in_order_of(names).X for source in ordered]), names)
    labels = [source.labels for source in ordered if source.labels is not None]
    central, others = None, None
    if compare:
        given = {
            "kernel": model.kernel,
            "gamma": model.gamma_,
            "degree": model.degree,
            "coef0": model.coef0,
            "standardize": model.standardize,
        }
        fill = model.node_models_[0].fill
        full = (
            X
            if fill is None
            else Samples(filled(X.X, model.node_models_[0].features.from_sorted(fill[None, :])[0]), names)
        )
        parts = [full[model.nodes_ == j] for j in range(len(model.network_))]
        central = baselines.central(parts, model.n_components, **given)
        others = {
            "local": baselines.local(parts, model.n_components, **given),
            "neighborhood": baselines.neighborhood(parts, model.network_, model.n_components, **given),
        }
    classes = np.concatenate(labels) if len(labels) == len(ordered) else None
    return fit_report(path, model, X, classes, central, others, model.nodes_)


def _tell(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['rows']} rows on {result['nodes']} nodes", title_justify="left")
    for column in ("component", "eigenvalue", "explained", "accuracy"):
        table.add_column(column, justify="right")
    columns = result["eigenvalues"], result["explained_variance_ratio"], result["accuracy"]
    for i, (value, share, accuracy) in enumerate(zip(*columns, strict=True)):
        table.add_row(
            str(i + 1), f"{value:.6g}", f"{share:.1%}", "unknown" if accuracy is None else rounded_down(accuracy)
        )
    out.print(table)
    state = "converged" if result["converged"] else "not converged"
    sent = sum(result["bytes_by_phase"].values()) / result["nodes"] / 1e6
    if result["span_accuracy"] is not None:
        out.print(
            f"estimated agreement with central kernel PCA: {rounded_down(result['span_accuracy'])} for the span of all components, "
            f"at least {rounded_down(result['span_accuracy_bound'])} ({result['landmarks']} landmarks)",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    out.print(
        f"{state} after {result['iterations']} iterations; {sent:.2f} MB sent a node; {result['seconds']['fitting']:.1f} s"
        + (f"; {result['rows_dropped']} rows with missing values left out" if result["rows_dropped"] else ""),
        highlight=False,
    )
    out.print(f"{len(result['models'])} models in {result['folder']}", highlight=False, soft_wrap=True)
    if result["report"] is not None:
        out.print(f"report: {result['report']}", highlight=False, soft_wrap=True)
