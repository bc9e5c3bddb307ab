"""A node's whole run, as its owner starts it: from a config to a model file."""

from __future__ import annotations

import json
import logging
import resource
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...data import Data, remembered
from ...data import read as read_data
from ...data.checks import check_parts
from ...data.columns import Features
from ...engines.agreement import flattened, texts
from ...files import write_text
from ...network import Network, listing, natural_key
from ...node_model import NodeModel
from ...parameters import Parameters, check, check_stream, seed_of, settings_of
from ...plan import Outcome, Plan, make_plan
from ...privacy.ledger import BudgetSpent
from ...results import Result, run_plan
from ...settings import LandmarkSource, Settings, check_private_rank, check_resume, check_rows_stay, settle
from ...solvers.sums import Basis, Stream
from ...solvers.sums.judging_rows import least_new
from ..errors import Disagreement, RunFailed
from ..net.identity import Identity
from ..protocol.node import NodeProtocol
from ..protocol.views import ViewChanged
from ..storage.stream import NodeStream
from .config import Config, ConfigError
from .disclosure import rows_for_sums, too_few
from .session import NO_CERTIFICATES, Session, fingerprint

log = logging.getLogger("dekpca.peer")

FINISHED = "finished.json"
EARLIER = "earlier.npz"  # the model of the run that is resumed: `out` is written over at the end
EARLIER_STREAM = "earlier.stream.npz"  # likewise, of the run to which rows are added

Watch = Callable[[NodeProtocol], AbstractContextManager[None]]
Report = Callable[[Result, list[dict[str, Any]]], None]


@dataclass
class Prepared:
    """Everything that is known before anybody is called."""

    config: Config
    parameters: Parameters
    settings: Settings  # options take the sizes of all nodes
    features: Features
    samples: np.ndarray
    labels: np.ndarray | None
    facts: dict[str, str]
    reading: dict[str, Any]  # how the file was read: `dekpca transform` reads others alike
    earlier: NodeModel | None = None  # of the run that is resumed, if this node was there
    consent: str = ""  # the text that the owner agreed to
    before: NodeStream | None = None  # of the run to which rows are added
    after: NodeStream | None = None  # with these rows
    twice: int = 0  # rows among these that are equal to rows of that run

    @property
    def rows(self) -> int:
        """Of this node, in the answer."""
        return len(self.samples) if self.after is None else self.after.rows


def prepare(config: Config) -> Prepared:
    """Read the data and check the settings."""
    parameters = config.parameters()
    check(parameters)
    before = None if config.add is None else earlier_stream(config)
    if before is not None and config.adds_nothing:
        samples, labels = before.marks.points[:0], None
        features = Features(samples.shape[1], before.columns)
        reading = dict(NodeModel.load(config.model_file).reading) if config.model_file.exists() else {}
    else:
        data, features, samples = _read(config, parameters)
        labels, reading = data.labels, remembered(config.roles, [data])
    settings = settings_of(parameters, features, seed_of(parameters))
    settings = replace(settings, resume=config.resume, owners_apart=not settings.sealed)
    check_rows_stay(settings)
    check_resume(settings)
    check_private_rank(settings)
    if settings.privacy is not None and config.quorum_rows:
        text = "quorum_rows with privacy: no node tells how many rows it has; use quorum, a number of nodes"
        raise ConfigError(f"{config.path}: {text}")
    if config.members is not None and (few := too_few(settings.sealed, config)):
        raise ConfigError(f"{config.path}: {few}")
    if config.deny and not settings.sealed:
        remedy = "use secure sums, or remove the neighbor"
        text = "deny with sums in clear: a node calls its neighbors before it sees their certificates"
        raise ConfigError(f"{config.path}: {text}; {remedy}")
    if config.stream or before is not None:
        check_stream(parameters, "stream and add", sealed=True)
        settings = replace(settings, stream=True)
    facts, earlier = compared(settings), earlier_model(config, settings, features)
    prepared = Prepared(config, parameters, settings, features, samples, labels, facts, reading, earlier)
    return prepared if before is None else adding(prepared, before)


def _read(config: Config, parameters: Parameters) -> tuple[Data, Features, np.ndarray]:
    data = read_data(config.data if config.add is None else config.add, config.roles, config.missing)
    features, (samples,) = check_parts([data.samples], [config.name], parameters.dtype, parameters.missing)
    return data, features, samples


def compared(settings: Settings) -> dict[str, str]:
    """What nodes compare; missing values under the name that owners write."""
    facts = flattened(settings)
    facts["missing"] = "mean" if facts.pop("impute") else "error, or drop"
    return texts(facts)


# ---------------------------------------------------------------------- rows that are added to those of an earlier run
def earlier_stream(config: Config) -> NodeStream:
    """The stream to which rows are added."""
    kept = config.folder / EARLIER_STREAM
    path = kept if kept.exists() else config.stream_file
    if not path.exists():
        remedy = "set stream = true at all nodes for the run before the first --add, and leave out as it was"
        raise ConfigError(f"{path}: no such file, so there is nothing to add rows to; {remedy}")
    stream = NodeStream.load(path)
    if stream.name != config.name:
        raise ConfigError(f"{path}: the stream of node {stream.name}, and this is node {config.name}; use its own out")
    if stream.run == config.run:
        raise ConfigError(f"{path}: its rows are those of run {config.run!r} already; adding rows takes a new run id")
    return stream


def adding(prepared: Prepared, before: NodeStream) -> Prepared:
    """With the landmarks, gamma and scales of the earlier run, and its sums with those of the new rows; refused where they do not fit."""
    config, settings, features, samples = prepared.config, prepared.settings, prepared.features, prepared.samples
    changed = [name for name, text in prepared.facts.items() if name != "resume" and before.settings.get(name) != text]
    if changed or prepared.facts.keys() != before.settings.keys():
        what = f"{listing(changed) or 'the version of dekpca'}: changed since run {before.run!r}"
        raise ConfigError(
            f"{config.path}: {what}, to which rows are added; set it back, or start a new run without --add"
        )
    same = tuple(before.columns or ()) == (features.sorted_names or ())
    if not same or before.marks.points.shape[1] != features.count:
        raise ConfigError(f"{config.add}: its columns are not those of run {before.run!r}; give the same columns")
    least = least_new(before.members[config.name], len(before.marks.points))
    if 0 < len(samples) < least and not settings.share_rows:
        who = "members that collude" if settings.sealed else "a neighbor"
        what = f"{len(samples)} rows: {who} would see, from two runs, sums of so few rows alone, and could compute each"
        raise ConfigError(f"{config.add}: {what}; add at least {least}, or none, and wait for more")
    check_noted(config, before, samples)
    settings = replace(
        settings, kernel=before.kernel, gamma_by_variance=False, impute=False, standardize=False, n_landmarks="auto",
        landmarks=LandmarkSource("points", before.marks.points),
    )  # fmt: skip
    names, sizes = list(before.members), np.array(list(before.members.values()))
    stream = before.stream(names, settle(settings, Network.complete(len(names)), sizes).solver_options)
    try:
        stream.add(samples, np.full(len(samples), names.index(config.name)))
    except ValueError as error:
        raise ConfigError(f"{config.add}: {error}") from error
    told = before.run, before.transcript, before.settings, before.members
    after = NodeStream.of(stream, config.name, *told, features.sorted_names)
    adds = f"run {before.run}, of which a hash of all that was told is {before.transcript}"
    facts = compared(settings) | {"adds to": adds}
    twice = int(np.isin(after.arrays["prints"][before.rows :], before.arrays["prints"]).sum())
    return replace(prepared, settings=settings, facts=facts, before=before, after=after, twice=twice)


def note_rows(config: Config, before: NodeStream, samples: np.ndarray) -> None:
    """On disk before the first sum over new rows is sent: if the run breaks off, sums over them may be known, and over others would tell the
    difference."""
    note = {"run": config.run, "to": before.transcript, "rows": fingerprint(samples)}
    write_text(config.adding_file, json.dumps(note))


def check_noted(config: Config, before: NodeStream, samples: np.ndarray) -> None:
    """Refuse other new rows than those that a run which broke off may have told sums of."""
    path = config.adding_file
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        run, to, rows = (str(note[key]) for key in ("run", "to", "rows"))
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path}: damaged; bring it back, or delete it if no run with --add broke off") from error
    if to == before.transcript and rows != fingerprint(samples):
        what = f"run {run!r} broke off when it added other rows ({rows.split(',')[0]}), and sums over these may be known: the difference would tell"
        remedy = "add the same rows again, and others in a later run, or delete the file if all owners agree that no sums were told"
        raise ConfigError(f"{path}: {what}; {remedy}")


def check_added(before: NodeStream, members: Mapping[str, int], sealed: bool, allow_two: bool) -> None:
    """Refuse, under masks, that so few members add rows that others learn the sums of these; also where lost members are not among them."""
    more = [name for name, rows in members.items() if rows > before.members[name]]
    least = 1 if not sealed else 2 if allow_two else 3
    if len(more) < least:
        who = f"only node {listing(more)} adds rows" if more else "no node adds rows"
        whose = "its" if len(more) == 1 else "their"
        why = f"; the totals of two runs would tell the sums of {whose} new rows" if more else ""
        raise Disagreement(f"add: {who}, where at least {least} must{why}; wait until more nodes have new rows")


def keep_stream(prepared: Prepared, result: Result, transcript: str) -> None:
    """Save what a later run needs to add rows to this one."""
    plan, config, options = result.plan, prepared.config, result.plan.options.solver_options
    if prepared.after is not None:
        stream = prepared.after.stream(plan.network.names, options)
    else:
        stream = Stream(Basis.of(plan.network.names, options, result.outcome.answers[0]))
        stream.add(prepared.samples, np.full(len(prepared.samples), plan.network.number[config.name]))
    settings = prepared.facts if prepared.before is None else prepared.before.settings
    members = dict(zip(plan.network.names, plan.sizes.tolist(), strict=True))
    told = config.run, transcript, settings, members
    NodeStream.of(stream, config.name, *told, prepared.features.sorted_names).save(config.stream_file)


def earlier_model(config: Config, settings: Settings, features: Features) -> NodeModel | None:
    """The model of the run that is resumed, if this node has it; refused where it does not fit this run."""
    kept = config.folder / EARLIER
    path = kept if kept.exists() else config.model_file
    if config.resume is None or not path.exists():
        return None
    model = NodeModel.load(path)
    if path != kept and model.run == config.run:
        return None  # an earlier start of this node saved it; the node has no model of the earlier run
    if model.run != config.resume:
        of = "no run between peers" if model.run is None else f"run {model.run!r}"
        remedy = "let out be the model of that run, or move this file away to join as a node that was not there"
        raise ConfigError(f"{path}: the model of {of}, and resume = {config.resume!r}; {remedy}")
    if model.function().fourier or "landmarks" not in model.functions:
        raise ConfigError(f"{path}: a model without landmarks cannot be resumed; start a new run without resume")
    if (model.features.sorted_names, model.n_features_in_) != (features.sorted_names, features.count):
        raise ConfigError(f"{path}: its columns are not those of {config.data}; start a new run without resume")
    if not settings.share_rows and any(held.samples for held in model.contents):
        remedy = "start a new run without resume, or set share_rows = true if rows may leave their nodes"
        held = ", ".join(map(str, model.contents))
        raise ConfigError(f"{path}: it holds rows of nodes ({held}), and share_rows is false; {remedy}")
    return model


def landmarks_of(model: NodeModel) -> np.ndarray:
    """The landmarks of a model, as rows of its columns in their units."""
    points = np.concatenate(model.functions["landmarks"].points)
    return points if model.scales is None else model.scales.restored(points)


def finished(config: Config) -> dict[str, Any] | None:
    """What an earlier start of this node said at its end, if it came to its end. Its model file may have been moved since.

    "unserved" are neighbors that did not have their answer then: if there are some, the node takes part again and hands over what they lack.
    """
    try:
        said = json.loads((config.folder / FINISHED).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) and said.keys() >= SUMMARY and said["run"] == config.run else None


def has_other_rows(config: Config, then: str | None) -> bool:
    """Whether the data file can be read, and its rows are not those with fingerprint `then`."""
    if then is None or config.adds_nothing:
        return False
    try:
        return fingerprint(_read(config, config.parameters())[2]) != then
    except (ValueError, OSError):
        return False


def run(
    prepared: Prepared, identity: Identity | None, watch: Watch = lambda protocol: nullcontext(), report: Report | None = None
) -> dict[str, Any]:  # fmt: skip
    """Take part in the run until the end; returns what came out. `watch` shows the protocol meanwhile, `report` the result before the node leaves."""
    config, settings, samples, features = prepared.config, prepared.settings, prepared.samples, prepared.features
    if settings.sealed and identity is None:
        raise ValueError(NO_CERTIFICATES)
    private, names = settings.privacy is not None, features.sorted_names
    session = Session(
        config, identity, samples, prepared.facts, names, not private, settings.sealed, prepared.consent, prepared.rows
    )
    with session, watch(session.protocol):
        if prepared.earlier is not None:
            prepared.earlier.save(config.folder / EARLIER)
        earlier = None if prepared.earlier is None else landmarks_of(prepared.earlier)
        if prepared.before is not None:
            prepared.before.save(config.folder / EARLIER_STREAM)
        network, sizes = session.meet()
        if prepared.before is not None:
            then, now = prepared.before.members, sorted(session.protocol.membership.records, key=natural_key)
            if set(now) != then.keys():
                of = f"the members of run {prepared.before.run!r} were {listing(then)}, and these are {listing(now)}"
                raise Disagreement(f"add: {of}; start a new run without --add")

        others, enough = int(sizes.sum() - sizes.max()), rows_for_sums(settings, features.count)
        if settings.sealed and not private and others < enough:
            what = "few rows: totals have more numbers than those of the nodes but the largest, and may tell each of these rows to whoever opens them"
            log.warning(f"{what}; join more nodes, or use privacy", extra={"rows": others, "enough": enough})

        def engine(plan: Plan, watch: Any) -> Outcome:
            options = replace(plan.options, earlier=earlier, private_seed=session.store.private_seed())
            if prepared.before is None or prepared.after is None:
                return session.run(plan.parts[0], plan.network, options, watch)
            note_rows(config, prepared.before, samples)
            stream = prepared.after.stream(plan.network.names, options.solver_options)
            return session.run(stream.basis.marks.points, plan.network, options, watch, stream)

        while True:
            if prepared.before is not None:
                members = dict(zip(network.names, sizes.tolist(), strict=True))
                check_added(prepared.before, members, settings.sealed, config.allow_two)
            try:
                nodes = [network.number[config.name]]
                plan = make_plan(prepared.parameters, settings, network, [samples], features, nodes, sizes)
                fit, before = session.releases() if private else ("", {})
                result = run_plan(plan, engine, prepared.parameters, fit, before)
                session.agree()
                break
            except ViewChanged:
                network, sizes = session.begin_anew()
            except BudgetSpent as error:  # the others cannot do without this node
                raise RunFailed(str(error), told=error.told) from error
        missing = session.missing()
        if missing:
            log.warning("this is the answer of the remaining nodes", extra={"missing": missing})
        model = result.node_models[config.name]
        found = {"span_accuracy": model.span_accuracy_, "landmarks": result.n_landmarks}
        log.info("answer found", extra=found | {"transcript": (model.transcript or "")[:16]})
        for warning in result.warnings():
            log.warning(str(warning))
        config.model_file.parent.mkdir(parents=True, exist_ok=True)
        model.run, model.reading, model.missing = config.run, prepared.reading, tuple(missing)
        model.save(config.model_file)
        if settings.stream:
            keep_stream(prepared, result, str(model.transcript))
        session.note("answer", view=str(session.protocol.view), transcript=model.transcript)
        if report is not None:
            report(result, missing)
        said = summary(config, result, session.resumed, missing)
        said["unserved"] = session.finish()
        write_text(config.folder / FINISHED, json.dumps(said | {"data": fingerprint(samples)}))
        (config.folder / EARLIER).unlink(missing_ok=True)
        if not said["unserved"] and not missing:  # else it is needed when this node is started again
            (config.folder / EARLIER_STREAM).unlink(missing_ok=True)
        if not said["unserved"] and prepared.before is not None:
            config.adding_file.unlink(missing_ok=True)
        if settings.sealed and not said["unserved"]:  # else they are needed when this node is started again
            session.store.forget_secrets()
    return said


def tell_lost(config: Config, identity: Identity | None, names: list[str]) -> None:
    """The run was finished before without these neighbors: tell them so, if they are there."""
    prepared = prepare(config)
    more = prepared.features.sorted_names, prepared.settings.privacy is None, prepared.settings.sealed
    with Session(config, identity, prepared.samples, prepared.facts, *more, rows=prepared.rows) as session:
        session.meet()
        session.endpoint.tell_lost(names)


SUMMARY = {
    "run", "node", "nodes", "rows", "missing", "model", "report", "converged", "iterations", "eigenvalues", "span_accuracy",
    "span_accuracy_bound", "landmarks", "unserved",
}  # what is printed again after the end  # fmt: skip


def summary(config: Config, result: Result, resumed: bool, missing: list[dict[str, Any]]) -> dict[str, Any]:
    def number(x: float) -> float | None:
        return None if np.isnan(x) else float(x)

    model = result.node_models[config.name]
    return {
        "run": config.run,
        "node": config.name,
        "nodes": len(result.plan.network),
        "rows": None if result.ledger is not None else int(result.plan.sizes.sum()),
        "missing": missing,
        "model": str(config.model_file),
        "report": None if config.report is None else str(config.report),
        "converged": bool(result.converged),
        "iterations": int(result.n_iter),
        "eigenvalues": [float(v) for v in result.eigenvalues],
        "accuracy": list(map(number, model.accuracy_)),
        "span_accuracy": number(model.span_accuracy_),
        "span_accuracy_bound": number(model.span_accuracy_bound_),
        "accuracy_method": None if result.estimate is None else result.estimate.method,
        "landmarks": result.n_landmarks,
        "privacy": None if result.ledger is None else result.ledger.as_dict(),
        "explained_variance_ratio": [float(v) for v in result.explained_variance_ratio],
        "bytes_sent": {kind: int(sent.sum()) for kind, sent in result.history["bytes"].items()},
        "resumed": resumed,
        "transcript": model.transcript,
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # bytes; Linux counts in kB
    }
