"""`dekpca node`: take part in a run of nodes of different owners (docs/howto/peers.md)."""

from __future__ import annotations

import select
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ..estimator import DecentralizedKernelPCA
from ..network import listing
from .common import (
    FAILED,
    NOT_CONVERGED,
    USAGE,
    Debug,
    Json,
    Said,
    err,
    peer_modules,
    print_accuracy,
    print_plain,
    say,
    verb,
)
from .simulate import private_files, simulate

STOPPED = 4  # exit code: a neighbor was lost, or this node could not go on; the same command resumes
MISSING = 5  # exit code: done and saved, by the remaining nodes
EXCLUDED = 6  # exit code: the others go on, or have finished, without this node
INSECURE = "Without certificates, within 127.0.0.0/8 only: for trying."
ADD = "New rows, for the landmarks and sums of an earlier run of the same nodes with stream = true; none: this node has no new rows."
MOST_ERROR = 4000  # characters that a writable pipe accepts without blocking

node = typer.Typer(name="node", help="Run a node of one's own among those of others.", no_args_is_help=True)
node.command()(simulate)


@node.command()
@verb
def run(
    config: Annotated[Path, typer.Argument(help="The node's node.toml.")],
    yes: Annotated[bool, typer.Option("--yes", help="Agree to what will leave this machine; do not ask.")] = False,
    metrics: Annotated[str | None, typer.Option(help="Serve a status page and metrics at this host:port.")] = None,
    resume: Annotated[str | None, typer.Option(help="Id of an earlier run: begin with its landmarks.")] = None,
    add: Annotated[Path | None, typer.Option(help=ADD)] = None,
    insecure_loopback: Annotated[bool, typer.Option("--insecure-loopback", help=INSECURE)] = False,
    debug: Debug = False,
) -> Said:
    """Take part in a run: print what will leave this machine, wait for the neighbors, compute with them, save this node's model.

    After a kill or stop the same command resumes. Exit codes: 0, the model is saved; 1, the run cannot go on; 2, there is an
    error in the config, the certificates or the agreement, or the owner did not consent; 3, the model is saved, but has not
    converged; 4, a neighbor was lost, or this node could not go on: its data is kept, and the same command resumes later;
    5, the model is saved, but without the rows of lost nodes; 6, the others went on without this node; 130, the node was
    interrupted by Ctrl-C or SIGTERM, and the same command resumes.

    Example: dekpca node run node.toml --metrics 127.0.0.1:9100
    """
    apps = ("app.config", "app.disclosure", "app.logs", "app.node", "app.status")
    peer = peer_modules("errors", *apps, "protocol.text")
    settings = peer.config.read(config, resume, add)
    identity = None if insecure_loopback else settings.identity()
    if insecure_loopback:
        peer.config.check_loopback(settings)
    before = peer.node.finished(settings)
    if before is not None and before["unserved"]:
        late = ", ".join(before["unserved"])
        print_plain(f"run {settings.run} was finished before, but not by node {late}: handing over what it lacks", err)
    elif before is not None:
        print_plain(f"run {settings.run} was finished before; another run needs another run id", err)
        if peer.node.has_other_rows(settings, before.pop("data", None)):
            print_plain(
                f"warning: the data file differs from the data of run {settings.run}, of which this is the answer", err
            )
        if not settings.model_file.exists():
            gone = "the model is not there any more; bring it back, or ask another node's owner"
            print_plain(f"{settings.model_file}: {gone}", err)
        _tell_lost(peer, settings, identity, before)
        return _ended(before)
    if settings.report is not None:
        import_module("dekpca.report.charts")  # before the work: raises if a package for the report is missing
    prepared = peer.node.prepare(settings)
    _disclose(peer, prepared, yes)
    signal.signal(signal.SIGINT, _interrupt)  # this node stops, the others wait for it
    signal.signal(signal.SIGTERM, _interrupt)

    @contextmanager
    def watch(station: Any) -> Iterator[None]:
        with ExitStack() as open_:
            if metrics is not None:
                address = open_.enter_context(peer.status.served(station, metrics))
                print_plain(f"status and metrics: http://{address}/", err)
            open_.enter_context(peer.status.shown(station, err))
            yield

    report = None if settings.report is None or not len(prepared.samples) else partial(_write_report, prepared)
    try:
        with private_files(), peer.logs.library_lines():
            peer.logs.log_to(sys.stderr, settings.name, not err.is_terminal)
            try:
                result = peer.node.run(prepared, identity, watch, report)
            finally:
                for handler in peer.logs.log.handlers:
                    handler.flush()
    except (peer.errors.PeerError, OSError, ValueError) as error:
        if debug:
            raise
        code, advice = _ending(peer, error, settings)
        if _is_read(sys.stderr):
            say("error", peer.text.showable(str(error) + advice, MOST_ERROR))
        raise typer.Exit(code) from error
    return _ended(result)


@node.command()
@verb
def check(
    config: Annotated[Path, typer.Argument(help="The node's node.toml.")],
    seconds: Annotated[float, typer.Option(help="How long to call the neighbors, and to listen for their calls.")] = 30,
    as_json: Json = False,
) -> Said:
    """Before the day: check config, certificate, folder, data and port, then the connection to every neighbor that is up.

    A neighbor is up that runs this command at the same time, or that runs already, which it does not disturb. Of the rows
    nothing leaves. Exit codes: 0, all is well; 2, something has to be corrected; 4, a neighbor is missing, or no connection to it works in either
    direction.

    Example: dekpca node check node.toml --seconds 300
    """
    peer = peer_modules("app.check", "app.config", "app.logs", "app.node")
    settings = peer.config.read(config)
    identity, found = settings.identity(), {"config": str(config)}
    prepared = peer.node.prepare(settings)
    found |= peer.check.here(settings, identity, prepared)
    if not as_json:
        for what, how in found.items():
            print_plain(f"{what:<12} {how}")
        print_plain(f"calling {listing(list(settings.neighbors))} for up to {seconds:g} s")
    with peer.logs.library_lines(), peer.logs.quiet():
        rows = peer.check.neighbors(settings, identity, prepared, seconds)
    result = {
        "node": settings.name,
        "run": settings.run,
        "here": found,
        "neighbors": rows,
        "exit": peer.check.exit_code(rows),
    }
    told = result | {"neighbors": [vars(row) for row in rows]}
    return Said(told, lambda: _tell_check(peer, rows, found), result["exit"])


def _tell_check(peer: Any, rows: list[Any], found: dict[str, str]) -> None:
    heads = ["neighbor", "we reach it", "it reaches us", "who calls", "certificate", "settings", "remark"]
    _print_table([heads, *([str(value) for value in vars(row).values()][: len(heads)] for row in rows)])
    print_plain(peer.check.summary(rows))
    for few in (found[what] for what in ("secure sums", "after a loss") if what in found):
        print_plain(f"but {few}")


def _print_table(table: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print_plain(" | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


@node.command()
@verb
def audit(
    folder: Annotated[Path, typer.Argument(help="The node's folder, or a copy of its audit.jsonl.")],
    ca: Annotated[Path | None, typer.Option(help="The CA of the network: checks the node's certificate too.")] = None,
) -> Said:
    """Verify the audit file of a node and print it: what its owner agreed to, settings, members, and every message with its hash.

    Exit code 2: the file was changed or is empty, or the node has not signed it. A node without certificates signs nothing: its file verifies without
    --ca only, as a whole chain.

    Example: dekpca node audit oslo-run --ca ca.crt
    """
    from ..peers.app import audit as audits
    from ..peers.net.identity import read_certificates

    lines, about = audits.read(folder, read_certificates(ca, "CA") if ca is not None else [])

    def tell() -> None:
        heads = ["what", "view", "round", "kind", "node", "bytes", "sha256"]
        cells = [[str(line.get(head, "")) for head in heads] for line in lines]
        for row, line in zip(cells, lines, strict=True):
            more = {k: v for k, v in line.items() if k not in {*heads, "chain", "signature", "certificates"}}
            row[-1] = row[-1][:16] or "; ".join(f"{k} {v}" for k, v in more.items())
        _print_table([heads, *cells])
        by = f"by certificate {about['certificate']}" if about["certificate"] else "by nobody: it has no certificate"
        trusted = " of this CA" if about["checked_by_ca"] else "; compare it with dekpca certs show, or give --ca"
        print_plain(f"{about['lines']} lines, a whole chain; signed {by}{trusted if about['certificate'] else ''}")
        if about["unsigned"]:
            print_plain(f"the last {about['unsigned']} lines are not signed: the node was killed, or runs")

    return Said({**about, "entries": lines}, tell)


def _ending(peer: Any, error: BaseException, settings: Any) -> tuple[int, str]:
    """The exit code for an error, and the remedy if its text has none."""
    if isinstance(error, peer.errors.Excluded):
        return EXCLUDED, f" ({settings.folder})"
    if isinstance(error, OSError) or getattr(error, "resumable", False):
        return STOPPED, f"; {settings.folder} keeps what is needed to go on: start this node again"
    return USAGE if isinstance(error, ValueError) else FAILED, ""


def _ended(result: dict[str, Any]) -> Said:
    code = MISSING if result.get("missing") else 0 if result["converged"] else NOT_CONVERGED
    return Said(result, lambda: _tell(result), code)


def _tell_lost(peer: Any, settings: Any, identity: Any, before: dict[str, Any]) -> None:
    """A neighbor that was lost, and comes back, would wait for ever where nobody tells it that the run has ended."""
    names = [lost["node"] for lost in before["missing"] if lost["node"] in settings.neighbors]
    if not names:
        return
    print_plain(f"for up to a minute, or until Ctrl-C, this node tells node {listing(names)} that it is left out", err)
    try:
        with private_files(), peer.logs.library_lines(), peer.logs.quiet():
            peer.node.tell_lost(settings, identity, names)
    except (KeyboardInterrupt, peer.errors.PeerError, OSError, ValueError) as error:  # its own answer is there
        print_plain(f"node {listing(names)} was not told: {peer.text.showable(str(error) or 'interrupted')}", err)


def _is_read(stream: Any) -> bool:
    """Whether a line can be written without blocking on a pipe that nobody reads."""
    try:
        return bool(select.select([], [stream], [], 1.0)[1])
    except (OSError, ValueError):
        return True  # not a real file


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _disclose(peer: Any, prepared: Any, yes: bool) -> None:
    """Print what will leave this machine, and to whom, and ask for consent."""
    settings = prepared.config
    rows, columns = prepared.rows, prepared.samples.shape[1]
    named = "" if prepared.features.names is None else "fingerprint" if settings.secret_columns else "names"
    whom = [*settings.neighbors, *(f"{name} (if nodes are lost)" for name in settings.fallback)]
    lines = [f"Node {settings.name}, run {settings.run}. What will leave this machine:"]
    before = prepared.before
    added = None if before is None else (before.run, len(prepared.samples))
    leaves = peer.disclosure.disclosure(prepared.settings, rows, columns, whom, named, added)
    lines += [f"  - {what}\n      {to}" for what, to in leaves]
    if prepared.twice:
        was = "was this file added before, or are they other rows with the same values?"
        lines.append(
            f"warning: {prepared.twice} of the {len(prepared.samples)} new rows are equal to rows of earlier runs: {was}"
        )
    begun, known = settings.folder.exists(), len(settings.neighbors) + 1
    lines += peer.disclosure.guarantee(prepared.settings, columns, known, begun, settings.on_loss == "continue")
    sealed = prepared.settings.sealed
    lines += filter(None, (few(sealed, settings) for few in (peer.disclosure.too_few, peer.disclosure.after_a_loss)))
    lines.append("docs/explanation/privacy.md says what can be learned from each.")
    prepared.consent = "\n".join(lines)
    print_plain(prepared.consent, err)
    if yes:
        return
    if not (sys.stdin.isatty() and err.is_terminal):
        remedy = "give --yes if the above may leave this machine"
        raise ValueError(f"this is not a terminal, so consent cannot be asked for; {remedy}")
    try:
        agreed = typer.confirm("May it?", default=False, err=True)
    except typer.Abort as ended:  # Ctrl-C, or the end of input
        print_plain("", err)
        if isinstance(ended.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt("nothing was sent") from None
        agreed = False
    if not agreed:
        raise ValueError("nothing was sent")


def _write_report(prepared: Any, result: Any, missing: list[dict[str, Any]]) -> None:
    """The report of this node; it has no data of other nodes."""
    from ..report import fit_report

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are in the log
        model = DecentralizedKernelPCA.from_result(result)
    path = prepared.config.report
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"dekpca, node {prepared.config.name}" + (f", without {_absent(missing)}" if missing else "")
    fit_report(path, model, prepared.samples, prepared.labels, node_of=model.nodes_, title=title)


def _absent(missing: list[dict[str, Any]]) -> str:
    """The nodes that are missing in the answer.

    >>> _absent([{"node": "rome", "rows": 120, "since": "2026-11-17T03:02:01+00:00"}])
    'node rome (120 rows, lost since 2026-11-17T03:02:01+00:00)'
    """
    rows = ["" if m["rows"] is None else f"{m['rows']} rows, " for m in missing]
    return ", ".join(f"node {m['node']} ({r}lost since {m['since']})" for m, r in zip(missing, rows, strict=True))


def _tell(result: dict[str, Any]) -> None:
    missing, rows = result["missing"], result["rows"]
    of = "" if rows is None else f" with {rows} of {rows + sum(m['rows'] for m in missing)} rows"
    without = f"{of}, without {_absent(missing)}" if missing else ""
    print_plain(f"the answer of {result['nodes']} nodes{without}")
    print_plain(f"eigenvalues {' '.join(f'{v:.6g}' for v in result['eigenvalues'])}")
    print_accuracy(result)
    print_plain(f"model: {result['model']}")
    if result.get("transcript"):
        print_plain(f"transcript: {result['transcript'][:16]}, the same at all owners if their models agree")
    if result["report"] is not None:
        print_plain(f"report: {result['report']}")
