"""`dekpca fit`: from files to node models."""

from __future__ import annotations

import glob
import json
import time
import warnings
from collections.abc import Mapping, Sequence, Set
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import numpy as np
import typer
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning

from .. import __version__, baselines
from ..data import Data, Roles, Rows, read, remembered
from ..data.columns import Features, Samples
from ..estimator import DecentralizedKernelPCA, NarrowKernelWarning
from ..files import PUBLIC, write_text
from ..memory import machine_bytes, parse_size
from ..model_file import is_model
from ..network import listing, natural_key
from ..results import MixedComponentsWarning
from ..scaling import filled
from ..settings import MAX_LANDMARKS
from . import on_ranks, parameters
from .common import (
    NOT_CONVERGED,
    Said,
    as_text,
    make_folder,
    out,
    print_accuracy,
    print_plain,
    refuse_inputs,
    say,
    verb,
)
from .reading import Columns, Drop, IdColumn, OneHot, make_roles, notes, with_categories

SUMMARY = "summary.json"
MODELS = "Folder for the models; those of an earlier fit in it are replaced or deleted."
SHARE = 0.25  # of the machine's memory: rows that take more are read in blocks. At once they take about three times their size


@verb
def fit(
    data: Annotated[list[Path], typer.Argument(help="One file for all rows, or one file a node (named after it).")],
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of nodes to deal the rows of one file to.")] = None,
    owner: Annotated[str | None, typer.Option(help="Column or array that names the node of each row.")] = None,
    label: Annotated[str | None, typer.Option(help="Column or array of classes: no feature; for the report.")] = None,
    id_column: IdColumn = None,
    columns: Columns = None,
    drop: Drop = None,
    one_hot: OneHot = None,
    missing: Annotated[str, typer.Option(help="Missing values: error, drop the rows, or mean of all nodes.")] = "error",
    network: Annotated[str | None, typer.Option(help=parameters.TOPOLOGIES)] = None,
    n_components: parameters.NumberOrShare = "2",
    kernel: Annotated[str, typer.Option(help="rbf linear poly laplacian sigmoid cosine")] = "rbf",
    gamma: parameters.Gamma = "scale",
    degree: Annotated[int, typer.Option(help="Of poly.")] = 3,
    coef0: Annotated[float, typer.Option(help="Of poly and sigmoid.")] = 1.0,
    normalize: Annotated[bool, typer.Option("--normalize", help="Divide k(x, y) by sqrt(k(x, x) k(y, y)).")] = False,
    tol: parameters.Tol = 1e-3,
    landmarks: parameters.Landmarks = "auto",
    max_landmarks: Annotated[int, typer.Option(min=1, help="Limit; number of random features.")] = MAX_LANDMARKS,
    share_rows: parameters.ShareRows = True,
    solver: parameters.Solver = "auto",
    standardize: Annotated[bool, typer.Option("--standardize", help="Scale columns, over all nodes.")] = False,
    contamination: parameters.Contamination = None,
    privacy: parameters.PrivacyOption = None,
    engine: Annotated[str, typer.Option(help="local, or mpi under mpiexec (dekpca launch).")] = "local",
    dtype: Annotated[str | None, typer.Option(help="float32 or float64; default: the data's.")] = None,
    device: Annotated[str | None, typer.Option(help="Compute there, such as cuda (needs PyTorch).")] = None,
    memory_limit: Annotated[str | None, typer.Option(help="Such as 2GB; a larger file is read in blocks.")] = None,
    random_state: parameters.RandomState = 0,
    out_dir: Annotated[Path, typer.Option("--out", help=MODELS)] = Path("dekpca-models"),
    report: Annotated[Path | None, typer.Option(help="Write an HTML report here.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Central and local kernel PCA in the report.")] = False,
) -> Said:
    """Fit decentralized kernel PCA to files and save one model per node; of one file without --owner, --nodes and --network one model.

    Rows are dealt to --nodes nodes, or belong to the node in the --owner column, or every node has its own file. A folder of parquet files is one
    table. A file whose rows would take more than --memory-limit, or a quarter of the machine's memory, is read in blocks.
    Named columns are matched by name, in any order. Parameters are those of dekpca.DecentralizedKernelPCA.
    Exit code 3: saved, but less accurate than --tol asks for, or not converged.

    Examples:

      dekpca fit rows.npz --nodes 20 -k 4 --gamma scale

      dekpca fit patients.csv --owner hospital --id patient --drop notes --one-hot blood_group --missing mean --standardize

      dekpca fit oslo.csv rome.csv bonn.csv --network path:3 --out models --report fit.html

      dekpca fit rows.npz --solver paper,max_iter=20 --normalize

      dekpca launch -n 4 -- fit "parts/node-*.npz" --network ring:20:4
    """  # fmt: skip
    if engine not in ("local", "mpi"):
        raise ValueError(f"--engine {engine}: known are local, mpi")
    paths = _expand(data)
    _check_outputs(paths, out_dir, report)
    earlier = _earlier(out_dir)
    _check_report(report, compare, engine)
    model = DecentralizedKernelPCA(
        parameters.parse_components(n_components),
        kernel=kernel, gamma=parameters.parse_gamma(gamma), degree=degree, coef0=coef0, normalize=normalize, tol=tol,
        landmarks=parameters.parse_landmarks(landmarks), max_landmarks=max_landmarks, share_rows=share_rows, solver=parameters.parse_solver(solver),
        standardize=standardize, missing=missing, engine=engine, privacy=parameters.parse_privacy(privacy), dtype=dtype, device=device,
        memory_limit=memory_limit, random_state=random_state, contamination=contamination,
    )  # fmt: skip
    roles = make_roles(owner, label, id_column, columns, drop, one_hot)
    made = None if network is None else parameters.parse_network(network, random_state)
    sources: dict[str, Data] = {}
    ranks, large = None, None
    start = time.perf_counter()
    with notes(), warnings.catch_warnings(record=True) as caught:
        for kind in (ConvergenceWarning, NarrowKernelWarning, MixedComponentsWarning):
            warnings.simplefilter("always", kind)
        if engine == "mpi":
            ranks, sources, read_in = on_ranks.fit(model, paths, nodes, roles, made)
        else:
            roles = with_categories(paths, roles)
            large = _large(paths, roles, memory_limit)
            if large is None:
                sources = _read_all(paths, roles, missing)
            elif report is not None:
                remedy = "leave it out, or raise --memory-limit if the rows fit into memory"
                raise ValueError(f"--report: it shows all rows, and {large.who} is read in blocks; {remedy}")
            read_in = time.perf_counter() - start
            _fit(model, sources if large is None else {large.who: large}, owner is not None, nodes, made)
        seconds = {"reading": read_in, "fitting": time.perf_counter() - start - read_in}
    dropped = model.history_.get("dropped", 0) + sum(source.dropped for source in sources.values())
    sent = {phase: x.sum() for phase, x in sorted(model.history_["bytes"].items())}
    counts = np.array([dropped, *sent.values()], dtype=np.int64)
    dropped, *totals = (counts if ranks is None else ranks.total(counts)).tolist()
    code, start = 0 if model.converged_ else NOT_CONVERGED, time.perf_counter()
    one = model.answering_node_ if ranks is None else ranks.from_first(model.answering_node_)  # each rank has its own
    answering = model.network_.names[one]
    # a user who did not ask for nodes wants one model
    dealt = len(paths) == 1 and owner is None and nodes is None and network is None
    foreign = {path.stem.casefold() for path in out_dir.glob("*.npz") if not is_model(path)}
    files = _file_names([answering] if dealt else model.network_.names, foreign)
    removed = _tidy(out_dir, files, foreign, earlier) if ranks is None or ranks.rank == 0 else []
    reading = remembered(roles, [*sources.values()] if large is None else [large])
    for node in model.node_models_:  # under MPI those of this rank
        if node.name in files:
            node.reading = reading
            node.save(out_dir / files[node.name])
    seconds["saving"] = time.perf_counter() - start
    if ranks is not None and ranks.rank:  # one rank tells
        raise typer.Exit(code)
    for warning in caught:
        say("warning", str(warning.message))
    result = _summary(model) | ({} if ranks is None else {"ranks": ranks.size})
    result |= {"rows_dropped": dropped, "bytes_by_phase": dict(zip(sent, totals, strict=True)), "seconds": seconds}
    written = None if report is None else _report(report, model, sources, compare)
    result |= {"folder": out_dir, "models": files, "removed": removed, "report": written}
    write_text(out_dir / SUMMARY, as_text(result, indent=1), PUBLIC)
    return Said(result, lambda: _tell(result), code)


def _check_outputs(paths: list[Path], folder: Path, report: Path | None) -> None:
    """Refuse, before the work, to overwrite what is read. (Models step aside: `_file_names`.)"""
    refuse_inputs("--out", folder, [path for path in paths if path.is_dir()])
    make_folder(folder)
    if report is not None:
        refuse_inputs("--report", report, paths)


def _check_report(path: Path | None, compare: bool, engine: str) -> None:
    """Refuse, before the work, a report that could not be written after it."""
    if path is None:
        if compare:
            raise ValueError("--compare is for the report; give --report FILE too")
        return
    if engine == "mpi":
        raise ValueError("--report with --engine mpi: no rank holds all models; use --engine local")
    make_folder(path.parent)
    if path.is_dir():
        raise ValueError(f"--report {path}: is a folder; name a file")
    import_module("dekpca.report.charts")  # raises if a package for the report is missing


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


def _fit(
    model: DecentralizedKernelPCA, sources: Mapping[str, Any], owned: bool, nodes: int | None, network: Any
) -> None:  # fmt: skip
    """Fit `Data` of files, or the `Rows` of one. `owned`: a column names the node of each row."""
    if len(sources) > 1:
        if nodes is not None:
            raise ValueError("--nodes is for one file; each of several files is a node: leave it out")
        model.set_params(network=on_ranks.over_names(network, list(sources)))
        model.fit_parts({name: source.samples for name, source in sources.items()})
        return
    (source,) = sources.values()
    if nodes is not None and network is not None and len(network) != nodes:
        raise ValueError(f"--nodes {nodes}, but the network has {len(network)}; leave out --nodes")
    if nodes is not None and owned:
        raise ValueError("--nodes deals rows and --owner says whose they are; give one of them")
    if owned and network is not None:
        network = on_ranks.over_names(network, source.owner_names)
    model.set_params(network=nodes if network is None else network)
    if isinstance(source, Rows):
        model.fit(source)
    else:
        model.fit(source.samples, nodes=source.owners)


def _large(paths: list[Path], roles: Roles, memory_limit: str | None) -> Rows | None:
    """One file whose rows do not fit into memory, to be read in blocks."""
    if len(paths) > 1 or paths[0].suffix.lower() == ".npz":  # an archive cannot be read in blocks
        return None
    limit, rows = parse_size(memory_limit), Rows.from_file(paths[0], roles)
    most = SHARE * machine_bytes() if limit is None else limit
    if rows.bytes <= most:
        return None
    of = "a quarter of this machine's memory" if limit is None else f"--memory-limit {memory_limit}"
    say("note", f"{rows.who}: {rows.bytes / 1e9:.2g} GB as numbers, more than {of}: read in blocks")
    return rows


def _stem(name: str) -> str:
    return quote(name, safe=" ").lstrip(".") or "node"


def _file_names(names: Sequence[str], foreign: Set[str]) -> dict[str, str]:
    """A file name for each node, unique also on case-insensitive file systems, and none of a file that is no model."""
    files: dict[str, str] = {}
    taken = {*foreign}
    for name in names:
        stem = _stem(name)
        while stem.casefold() in taken:
            stem += "_"
        taken.add(stem.casefold())
        files[name] = f"{stem}.npz"
    return files


def _earlier(folder: Path) -> set[str]:
    """Names of the models of an earlier fit into this folder, from its summary; refused, before the work, if it is another file."""
    path = folder / SUMMARY
    try:
        return {Path(name).name for name in json.loads(path.read_text(encoding="utf-8"))["models"].values()}
    except FileNotFoundError:
        return set()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        remedy = "move it away, or choose another folder with --out"
        raise ValueError(f"{path}: no summary of an earlier fit, and would be overwritten; {remedy}") from error


def _tidy(folder: Path, files: dict[str, str], foreign: Set[str], earlier: Set[str]) -> list[str]:
    """Delete models of an earlier fit into this folder that this one does not replace, and report it."""
    for name, file in files.items():
        if _stem(name).casefold() in foreign:
            say("note", f"{folder}: {_stem(name)}.npz is no model and stays; the model of node {name} is {file}")
    stale = sorted((name for name in earlier - set(files.values()) if is_model(folder / name)), key=natural_key)
    for name in stale:
        (folder / name).unlink()
    if stale:
        what = "deleted models of an earlier fit that this one does not replace"
        say("note", f"{folder}: {what}: {listing(stale)}; --out keeps fits apart")
    return stale


def _report(path: Path, model: DecentralizedKernelPCA, sources: dict[str, Data], compare: bool) -> Path:
    from ..report import fit_report

    ordered = [sources[name] for name in model.network_.names] if len(sources) > 1 else list(sources.values())
    names = ordered[0].names
    features = Features(ordered[0].X.shape[1], names)
    rows = np.concatenate([features.arrange(source.samples, "the report", "the fit") for source in ordered])
    X = Samples(features.from_sorted(rows), names)
    labels = [source.labels for source in ordered if source.labels is not None]
    central, others = None, None
    if compare:
        shared = ("kernel", "degree", "coef0", "normalize", "standardize")
        given = {name: getattr(model, name) for name in shared} | {"gamma": model.gamma_}
        first, full = model.node_models_[0], X
        if first.fill is not None:
            full = Samples(filled(X.X, first.features.from_sorted(first.fill[None, :])[0]), names)
        parts = [full[model.nodes_ == j] for j in range(len(model.network_))]
        k = model.n_components_
        central, local = baselines.central(parts, k, **given), baselines.local(parts, k, **given)
        others = {"local": local, "neighborhood": baselines.neighborhood(parts, model.network_, k, **given)}
    classes = np.concatenate(labels) if len(labels) == len(ordered) else None
    return fit_report(path, model, X, classes, central, others, model.nodes_)


def _summary(model: DecentralizedKernelPCA) -> dict[str, Any]:
    def known(value: float) -> float | None:
        return None if np.isnan(value) else float(value)

    names = getattr(model, "feature_names_in_", None)
    return {
        "version": __version__, "nodes": len(model.network_), "rows": int(model.node_sizes_.sum()), "columns": model.n_features_in_,
        "feature_names": names, "gamma": model.gamma_,
        "components": model.n_components_, "converged": bool(model.converged_), "iterations": model.n_iter_,
        "eigenvalues": model.eigenvalues_, "explained_variance_ratio": model.explained_variance_ratio_,
        "accuracy": [known(a) for a in model.accuracy_], "span_accuracy": known(model.span_accuracy_),
        "span_accuracy_bound": known(model.span_accuracy_bound_),
        "mixed_components": [[i + 1 for i in group] for group in model.mixed_components_],
        "landmarks": model.n_landmarks_, "privacy": None if model.privacy_ is None else model.privacy_.as_dict(),
        "answering_node": model.network_.names[model.answering_node_], "offset": getattr(model, "offset_", None),
    }  # fmt: skip


def _tell(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['rows']} rows on {result['nodes']} nodes", title_justify="left")
    for column in ("component", "eigenvalue", "explained", "accuracy"):
        table.add_column(column, justify="right")
    columns = result["eigenvalues"], result["explained_variance_ratio"], result["accuracy"]
    for i, (value, share, accuracy) in enumerate(zip(*columns, strict=True)):
        shown = "unknown" if accuracy is None else f"{np.floor(accuracy * 1e4) / 1e4:.4f}"  # never overstated
        table.add_row(str(i + 1), f"{value:.6g}", f"{share:.1%}", shown)
    out.print(table)
    print_accuracy(result)
    sent = sum(result["bytes_by_phase"].values()) / result["nodes"] / 1e6
    left_out = f"; {result['rows_dropped']} rows with missing values left out" if result["rows_dropped"] else ""
    print_plain(f"{result['seconds']['fitting']:.1f} s; each node sent {sent:.2f} MB on average{left_out}")
    count = len(result["models"])
    one = f"the model of node {result['answering_node']}; --nodes N writes one for each of N nodes"
    print_plain(f"{one if count == 1 < result['nodes'] else f'{count} models'} in {result['folder']}")
    if result["report"] is not None:
        print_plain(f"report: {result['report']}")
