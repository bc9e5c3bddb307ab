"""What a node shows its owner: a line on the terminal, or log lines about its progress; metrics, and a page for a browser."""

from __future__ import annotations

import html
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..protocol.node import NodeProtocol
from ..protocol.text import showable
from .config import ConfigError, split_address
from .logs import PATIENCE

log = logging.getLogger("dekpca.peer")

LOG_EVERY = 1.0  # seconds between two lines about iterations
SHOW_EVERY = 0.3  # seconds between two looks at the terminal's line
MOST_VISITORS = 16  # connections to the page and the metrics at once
VISIT = 10.0  # seconds in which a visitor must have asked


def state(node: NodeProtocol) -> dict[str, Any]:
    now = time.monotonic()
    neighbors = {
        n.name: {
            "up": n.up, "phase": n.heartbeat.phase, "iteration": n.heartbeat.iteration, "silent": node.live.silent(n, now), "sent": n.bytes_sent,
            "received": n.bytes_received, "waiting": len(n.window.unacknowledged), "trouble": n.stop_reason or n.trouble,
            "idle": n.idle(now), "waits_for": ", ".join(n.heartbeat.waits_for),
        }
        for n in node.neighbors.values()
    }  # fmt: skip
    return {
        "node": node.name, "run": node.run, "phase": node.phase, "iteration": node.iteration, "round": node.rounds.round,
        "residual": node.residual, "neighbors": neighbors,
    }  # fmt: skip


def line(node: NodeProtocol) -> str:
    """In a few words."""
    said = state(node)
    iterating = said["phase"] == "iterating"
    doing = f"iteration {said['iteration']}" if iterating else said["phase"]
    residual = f", residual {said['residual']:.1e}" if iterating and said["residual"] is not None else ""
    peers = ", ".join(f"{name} {'up' if n['up'] else 'DOWN'}" for name, n in said["neighbors"].items())
    sent, received = (sum(n[key] for n in said["neighbors"].values()) / 1e6 for key in ("sent", "received"))
    return f"{doing}{residual} | {peers} | sent {sent:.2f} MB, received {received:.2f} MB"


@contextmanager
def shown(node: NodeProtocol, console: Console) -> Iterator[None]:
    """A line on the terminal that is kept up to date; elsewhere a log line now and then. From a thread: a terminal may be stopped."""
    ended = threading.Event()

    def on_terminal() -> None:
        plain: Any = {"transient": True, "auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
        with Live(Text(line(node)), console=console, **plain) as live:
            while not ended.wait(SHOW_EVERY):
                live.update(Text(line(node)), refresh=True)

    def in_log() -> None:
        last = None
        while not ended.wait(LOG_EVERY):
            now = node.phase, node.iteration
            if now != last:
                last, said = now, state(node)
                log.info("progress", extra={key: said[key] for key in ("phase", "iteration", "residual", "round")})

    thread = threading.Thread(target=on_terminal if console.is_terminal else in_log, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE)


# ---------------------------------------------------------------------- metrics and a page
GAUGES = {
    "iteration": ("dekpca_iteration", "Iterations done"),
    "round": ("dekpca_round", "Rounds of messages begun"),
    "residual": ("dekpca_residual", "Relative disagreement with the neighbors"),
}
OF_PEERS = {
    "up": (GaugeMetricFamily, "dekpca_peer_up", "Whether the neighbor answers"),
    "silent": (GaugeMetricFamily, "dekpca_peer_silence_seconds", "Since messages last went both ways"),
    "idle": (GaugeMetricFamily, "dekpca_peer_idle_seconds", "Since anything last moved there, as the neighbor says"),
    "waiting": (GaugeMetricFamily, "dekpca_peer_unacknowledged", "Messages that the neighbor has not acknowledged"),
    "sent": (CounterMetricFamily, "dekpca_peer_sent_bytes", "Sent to the neighbor since the start"),
    "received": (CounterMetricFamily, "dekpca_peer_received_bytes", "Received from the neighbor since the start"),
}


class Metrics:
    """What Prometheus collects, made when it asks."""

    def __init__(self, node: NodeProtocol):
        self.node = node

    def collect(self) -> Iterable[Any]:
        said = state(self.node)
        for key, (name, what) in GAUGES.items():
            if said[key] is not None:
                yield GaugeMetricFamily(name, what, value=said[key])
        for key, (family, name, what) in OF_PEERS.items():
            metric: Any = family(name, what, labels=["peer"])
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


def page(node: NodeProtocol) -> str:
    said = state(node)
    rows = []
    for name, n in said["neighbors"].items():
        waits = f", waits for {n['waits_for']}" if n["waits_for"] else ""
        up = f"up, {n['phase']}{waits}" if n["up"] else f"down: {n['trouble'] or 'not seen yet'}"
        sizes = [f"{n[key] / 1e6:.2f} MB" for key in ("sent", "received")]
        cells = [html.escape(str(c)) for c in (name, up, n["iteration"], f"{n['silent']:.0f} s", *sizes)]
        style = "" if n["up"] else " class=down"
        rows.append(f"<tr><td>{cells[0]}</td><td{style}>{'</td><td>'.join(cells[1:])}</td></tr>")
    residual = "" if said["residual"] is None else f", residual {said['residual']:.2e}"
    texts = {key: html.escape(str(said[key])) for key in ("node", "run", "phase", "iteration")}
    return PAGE.format(**texts, residual=residual, rows="".join(rows))


class _Quiet(WSGIRequestHandler):
    timeout = VISIT

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingMixIn, WSGIServer):
    """With a limit on visitors: each has a thread and a file descriptor."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any, **kwargs: Any):
        self._free = threading.BoundedSemaphore(MOST_VISITORS)
        super().__init__(*args, **kwargs)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._free.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a visitor of the page left")


def health(node: NodeProtocol) -> tuple[bool, str]:
    """Whether the node makes progress, or waits as it should; and why, or why not."""
    now, limits = time.monotonic(), node.timeouts
    if node.error is not None:
        return False, f"stopping: {node.error or type(node.error).__name__}"
    if (idle := node.live.idle(now)) > limits.progress:
        return False, f"no progress for {idle:.0f} s (limit progress_timeout {limits.progress:g} s)"
    waited = [node.neighbors[name] for name in sorted(node.live.waits_for)]
    for n in waited if node.begun else ():
        if not n.up and (silent := node.live.silent(n, now)) > limits.peer / 2:
            heard = f"node {n.name} was not heard from for {silent:.0f} s"
            return False, f"{heard} (it counts as lost after {limits.peer:g} s)"
    waits = ", ".join(n.name for n in waited)
    return True, f"{node.phase}, waits for node {waits}" if waits else str(node.phase)


@contextmanager
def served(node: NodeProtocol, address: str) -> Iterator[str]:
    """Metrics at /metrics, health at /healthz and the page at /; yields the address."""
    host, port = split_address("--metrics", address)
    registry = CollectorRegistry()
    registry.register(Metrics(node))
    metrics = make_wsgi_app(registry)

    def answer(environment: Any, start: Any) -> Any:
        path = environment.get("PATH_INFO", "/")
        if path == "/metrics":
            return metrics(environment, start)
        if path == "/healthz":
            well, why = health(node)
            start("200 OK" if well else "503 Service Unavailable", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{showable(why)}\n".encode()]
        if path != "/":
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"not here\n"]
        safe = ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        start("200 OK", [("Content-Type", "text/html; charset=utf-8"), safe])
        return [page(node).encode()]

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
