"""A node's whole run, as its owner starts it: from a config to a model file."""

from __future__ import annotations

import json
import logging
import resource
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ....data import read as read_data
from ....data import remembered
from ....estimator import DecentralizedKernelPCA
from ....options import check_rows_stay
from ...facts import settings_of, texts
from ..net.identity import Identity
from ..protocol.node import NodeProtocol
from ..storage import codec
from .config import Config
from .session import Session

log = logging.getLogger("dekpca.peer")

FINISHED = "finished.json"

Watch = Callable[[NodeProtocol], AbstractContextManager[None]]


@dataclass
class Prepared:
    """Everything that is known before anybody is called."""

    config: Config
    model: DecentralizedKernelPCA
    samples: np.ndarray
    labels: np.ndarray | None
    options: Any  # not settled: that takes the sizes of all nodes
    facts: dict[str, str]
    reading: dict[str, Any]  # how the file was read: `dekpca transform` reads others alike


def prepare(config: Config) -> Prepared:
    """Read the data and check the settings."""
    model = config.estimator()
    model._check_parameters()
    data = read_data(config.data, config.roles, config.missing)
    (samples,) = model._check_parts([data.samples], [config.name])
    if config.report is not None:
        import_module("dekpca.report.charts")  # before the work: it says what is missing for a report
    options = model._options(model._features, int(model.random_state))
    check_rows_stay(options, model.n_landmarks)
    settings = settings_of(options) | {name: getattr(model, name) for name in ("n_landmarks", "n_oversamples")}
    return Prepared(config, model, samples, data.labels, options, texts(settings), remembered(config.roles, [data]))


def finished(config: Config) -> dict[str, Any] | None:
    """What an earlier start of this node said at its end, if it came to its end."""
    path = config.folder / FINISHED
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    whole = (
        isinstance(said, dict)
        and {"run", "nodes", "model", "report", "converged", "iterations", "eigenvalues"} <= said.keys()
    )
    return said if whole and said["run"] == config.run and config.model_file.exists() else None


def run(prepared: Prepared, identity: Identity | None, watch: Watch | None = None) -> dict[str, Any]:
    """Take part in the run until the end; returns what came out. `watch` shows the protocol to the owner meanwhile."""
    config, model = prepared.config, prepared.model
    session = Session(config.place(identity), prepared.samples, prepared.facts, model._features.sorted_names)
    with session, nullcontext() if watch is None else watch(session.protocol):
        network, sizes = session.meet()
        number = network.number[config.name]

        def drive(parts: Any, network: Any, options: Any, observer: Any = None) -> Any:
            return session.run(parts, network, session.options(options), observer)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            model._fit([prepared.samples], network, prepared.options, drive, np.array([number]), sizes, shown=False)
        model.nodes_ = np.full(len(prepared.samples), number)
        about = {"span_accuracy": float(model.span_accuracy_), "landmarks": int(model.n_landmarks_)}
        log.info("answer found", extra=about)
        for warning in caught:
            log.warning(str(warning.message))
        config.model_file.parent.mkdir(parents=True, exist_ok=True)
        answer = model.node_models_[config.name]
        answer.reading = prepared.reading
        answer.save(config.model_file)
        result = summary(prepared, session)
        if config.report is not None:
            write_report(prepared, config.report)
        session.finish()
        codec.write_text(config.folder / FINISHED, json.dumps(result))
    return result


def summary(prepared: Prepared, session: Session) -> dict[str, Any]:
    model, config = prepared.model, prepared.config
    return {
        "run": config.run,
        "node": config.name,
        "nodes": len(model.network_),
        "model": str(config.model_file),
        "report": None if config.report is None else str(config.report),
        "converged": bool(model.converged_),
        "iterations": int(model.n_iter_),
        "eigenvalues": [float(v) for v in model.eigenvalues_],
        "accuracy": [None if np.isnan(a) else float(a) for a in model.accuracy_],
        "span_accuracy": None if np.isnan(model.span_accuracy_) else float(model.span_accuracy_),
        "landmarks": int(model.n_landmarks_),
        "explained_variance_ratio": [float(v) for v in model.explained_variance_ratio_],
        "bytes_sent": {kind: int(sent.sum()) for kind, sent in model.history_["bytes"].items()},
        "resumed": session.resumed,
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # bytes; Linux counts in kB
    }


def write_report(prepared: Prepared, path: Path) -> None:
    """What this node knows of the fit; the other nodes' parts are not here."""
    from ....report import fit_report

    path.parent.mkdir(parents=True, exist_ok=True)
    fit_report(path, prepared.model, prepared.samples, prepared.labels, node_of=prepared.model.nodes_,
               title=f"dekpca, node {prepared.config.name}")  # fmt: skip
