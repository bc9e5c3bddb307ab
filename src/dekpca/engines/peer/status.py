"""What a node tells its owner: log lines (JSON where nobody watches), a line on the terminal, metrics and a page for a browser."""

from __future__ import annotations

import html
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from rich.console import Console
from rich.live import Live
from rich.text import Text

from .config import ConfigError, split_address
from .station import Station

log = logging.getLogger("dekpca.peer")

STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
LOG_EVERY = 1.0  # seconds between two lines about iterations


# ---------------------------------------------------------------------- logs
class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, node, message, and whatever else the call gave."""

    def __init__(self, node: str):
        super().__init__()
        self.node = node

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "node": self.node,
            "message": record.getMessage(),
        }
        said |= {key: value for key, value in vars(record).items() if key not in STANDARD}
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


class Plain(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        more = ", ".join(f"{key} {value}" for key, value in vars(record).items() if key not in STANDARD)
        return f"{time.strftime('%H:%M:%S')} {record.getMessage()}" + (f": {more}" if more else "")


def log_to(stream: Any, node: str, as_json: bool) -> None:
    """Send the log of this process there."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(node) if as_json else Plain())
    logger = logging.getLogger("dekpca.peer")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)


# ---------------------------------------------------------------------- what is going on, for whoever asks
def state(station: Station) -> dict[str, Any]:
    now = time.monotonic()
    neighbors = {
        n.name: {
            "up": n.up, "phase": n.phase, "iteration": n.iteration, "silent": n.silent(now, station.started), "sent": n.sent,
            "received": n.received, "waiting": len(n.outbox), "trouble": n.stopped or n.trouble,
        }
        for n in station.neighbors.values()
    }  # fmt: skip
    return {
        "node": station.name, "run": station.run, "phase": station.phase, "iteration": station.iteration, "round": station.reached,
        "residual": station.residual, "neighbors": neighbors,
    }  # fmt: skip


def line(station: Station) -> str:
    """In a few words."""
    said = state(station)
    parts = [said["phase"]]
    if said["phase"] == "iterating":
        parts = [f"iteration {said['iteration']}"]
        if said["residual"] is not None:
            parts.append(f"residual {said['residual']:.1e}")
    peers = [f"{name} {'up' if n['up'] else 'DOWN'}" for name, n in said["neighbors"].items()]
    sent, received = (sum(n[key] for n in said["neighbors"].values()) / 1e6 for key in ("sent", "received"))
    return f"{', '.join(parts)} | {', '.join(peers)} | sent {sent:.2f} MB, received {received:.2f} MB"


@contextmanager
def shown(station: Station, console: Console) -> Iterator[None]:
    """A line on the terminal that is kept up to date; elsewhere a log line now and then."""
    ended = threading.Event()

    def follow(update: Callable[[], None], period: float) -> None:
        while not ended.wait(period):
            update()

    if console.is_terminal:
        with Live(
            Text(line(station)), console=console, transient=True, auto_refresh=False, redirect_stderr=True
        ) as live:
            thread = threading.Thread(
                target=follow, args=(lambda: live.update(Text(line(station)), refresh=True), 0.3), daemon=True
            )
            thread.start()
            try:
                yield
            finally:
                ended.set()
                thread.join()
        return
    last: list[Any] = [None]

    def say() -> None:
        now = station.phase, station.iteration
        if now != last[0]:
            last[0] = now
            log.info(
                "progress",
                extra={k: v for k, v in state(station).items() if k in ("phase", "iteration", "residual", "round")},
            )

    thread = threading.Thread(target=follow, args=(say, LOG_EVERY), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# ---------------------------------------------------------------------- metrics and a page
class Metrics:
    """What Prometheus collects, made when it asks."""

    def __init__(self, station: Station):
        self.station = station

    def collect(self) -> Iterable[Any]:
        said = state(self.station)
        yield GaugeMetricFamily("dekpca_iteration", "Iterations done", value=said["iteration"])
        yield GaugeMetricFamily("dekpca_round", "Rounds of messages begun", value=said["round"])
        if said["residual"] is not None:
            yield GaugeMetricFamily(
                "dekpca_residual", "Relative disagreement with the neighbors", value=said["residual"]
            )
        kinds: tuple[tuple[type, str, str, str], ...] = (
            (GaugeMetricFamily, "up", "dekpca_peer_up", "Whether the neighbor answers"),
            (GaugeMetricFamily, "silent", "dekpca_peer_silence_seconds", "Since messages last went both ways"),
            (
                GaugeMetricFamily,
                "waiting",
                "dekpca_peer_unacknowledged",
                "Messages that the neighbor has not acknowledged",
            ),
            (CounterMetricFamily, "sent", "dekpca_peer_sent_bytes", "Sent to the neighbor since the start"),
            (
                CounterMetricFamily,
                "received",
                "dekpca_peer_received_bytes",
                "Received from the neighbor since the start",
            ),
        )
        for family, key, name, what in kinds:
            metric = family(name, what, labels=["peer"])
            for peer, values in said["neighbors"].items():
                metric.add_metric([peer], float(values[key]))
            yield metric


PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>{node}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}}
table{{border-collapse:collapse}}td,th{{padding:.3em .8em;border-bottom:1px solid #ddd;text-align:right}}
td:first-child,th:first-child{{text-align:left}}
.down{{color:#b00020;font-weight:bold}}</style></head><body><h1>Node {node}</h1>
<p>Run {run}: {phase}, iteration {iteration}{residual}.</p>
<table><tr><th>neighbor</th><th>state</th><th>iteration</th><th>silent for</th><th>sent</th><th>received</th></tr>{rows}</table>
<p><a href="metrics">metrics for Prometheus</a></p></body></html>"""


def page(station: Station) -> str:
    said = state(station)
    rows = []
    for name, n in said["neighbors"].items():
        up = f"up, {n['phase']}" if n["up"] else f"down: {n['trouble'] or 'not seen yet'}"
        cells = [
            up,
            n["iteration"],
            f"{n['silent']:.0f} s",
            f"{n['sent'] / 1e6:.2f} MB",
            f"{n['received'] / 1e6:.2f} MB",
        ]
        style = "" if n["up"] else " class=down"
        rows.append(
            f"<tr><td>{html.escape(name)}</td><td{style}>"
            + "</td><td>".join(html.escape(str(c)) for c in cells)
            + "</td></tr>"
        )
    residual = "" if said["residual"] is None else f", residual {said['residual']:.2e}"
    texts = {key: html.escape(str(said[key])) for key in ("node", "run", "phase", "iteration")}
    return PAGE.format(**texts, residual=residual, rows="".join(rows))


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


@contextmanager
def served(station: Station, address: str) -> Iterator[str]:
    """Metrics at /metrics and the page at /; yields the address."""
    host, port = split_address("--metrics", address)
    registry = CollectorRegistry()
    registry.register(Metrics(station))
    metrics = make_wsgi_app(registry)

    def answer(environment: Any, start: Any) -> Any:
        path = environment.get("PATH_INFO", "/")
        if path == "/metrics":
            return metrics(environment, start)
        if path != "/":
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"not here\n"]
        safe = ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        start("200 OK", [("Content-Type", "text/html; charset=utf-8"), safe])
        return [page(station).encode()]

    try:
        server = make_server(host, port, answer, _Server, _Quiet)
    except OSError as error:
        raise ConfigError(f"--metrics {address}: cannot be bound ({error.strerror}); choose another address") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
