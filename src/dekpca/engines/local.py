"""The local engine: all nodes in one process. `drive` is the loop of every engine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import array_api_compat as aac
import numpy as np

from ..answer import Answer
from ..arrays import is_on_host
from ..chunks import threads
from ..data.checks import NOTHING_LEFT, placed
from ..data.columns import Features, Samples
from ..data.owners import More, deal_more
from ..messages import Exchange, Iteration, Sum
from ..network import Network
from ..parameters import Parameters, seed_of
from ..plan import Outcome, Plan, Traffic, Watch, make_plan
from ..program import program
from ..settings import Options, Settings
from ..site import Dealt, RowNumbers, Site
from ..solvers.sums import Basis, Stream

CANNOT: dict[str, str] = {}  # what cannot be had with this engine, as `parameters.refuse` takes it
# The part of a fit that ends with a sum of this kind, or begins with an exchange, for `history_["seconds"]`
PARTS = dict.fromkeys(("axes", "clusters", "landmarks"), "landmarks") | dict.fromkeys(("share", "power"), "iterations")
PARTS |= {"columns": "columns", "moments": "moments", "judge": "judging"}
PARTS |= {"data": "kernel matrices", "values": "separation"}


def run(plan: Plan, watch: Watch | None = None, script: Any = program) -> Outcome:
    """Run the program for all nodes; `script` as of `drive`.

    Ctrl-C during the iterations of the projection solver stops the nodes at their next check, with the last iterate as the result; a second
    one ends at once.
    """
    sites = plan.sites()
    if plan.options.sealed:
        simulate_sealers(sites)
    return drive(sites, plan.options, Delivery(sites), watch, script)


def simulate_sealers(sites: Sequence[Site]) -> None:
    """Each node gets its own key for this run. All keys are in one process: this simulates the messages, and protects nothing."""
    from ..privacy.masks import sealers

    if not aac.is_numpy_array(sites[0].X):
        raise ValueError(f"secure sums of {type(sites[0].X).__name__}: they are integers of NumPy; give NumPy arrays")
    made = sealers(sites[0].network.names, os.urandom(32))
    for site in sites:
        site.sealer = made[site.names[0]]


# ---------------------------------------------------------------------- rows that keep coming
@dataclass(frozen=True, eq=False)
class NewRows(More):
    """Rows that a stream is given, in this process. Other engines have subclasses."""

    seed: int  # of the first call
    lazy = True  # an answer is computed when it is asked for

    def run(self, plan: Plan, watch: Watch | None = None, script: Any = program) -> Outcome:
        return run(plan, watch, script)

    def plan(self, given: Parameters, settings: Settings, basis: Basis | None = None) -> Plan:
        """Of a fit of these rows, prepared as those of a stream if there is one."""
        if not len(self.node):
            raise ValueError(f"X: {NOTHING_LEFT}")
        rows = RowNumbers.of(self.node, np.ones_like(self.node), len(self.network))
        parts = Dealt(self.X if basis is None else basis.prepared(self.X), rows)
        return make_plan(given, settings, self.network, parts, self.features)

    def sizes(self, stream: Stream) -> np.ndarray:
        """(nodes,) the number of rows of each node of the network that are in the sums."""
        return stream.sizes

    def rows_of_all(self, count: int) -> int:
        """The sum of this count over all processes."""
        return count

    def add_to(self, stream: Stream) -> None:
        with self._working():
            addition = stream.adding(self.X, self.node)
        stream.take(addition)

    def take_from(self, stream: Stream, by_node: bool) -> int:
        """Forget these rows; returns how many of them are landmarks, and stay as such."""
        basis = stream.basis
        with self._working():
            node, number = stream.find(basis.fingerprints(self.X), self.node if by_node else None)
            rows = basis.rows(basis.prepared(self.X), node, number)
            total = basis.summed(rows.at(np.flatnonzero(stream.in_sums(node, number)))).total
            landmarks = basis.landmarks_among(self.X)
        if self.rows_of_all(len(node)) == self.sizes(stream).sum():
            raise ValueError(NO_ROW_LEFT)
        stream.forget(node, number, total)
        self.node_of[self.node_of >= 0] = node
        return landmarks

    def _working(self) -> AbstractContextManager[None]:
        return working(len(self.node) if aac.is_numpy_array(self.X) else 0)


@contextmanager
def working(rows: int) -> Iterator[None]:
    """Compute with so many rows, in threads, without warnings of NumPy: what is not finite is found and refused."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"), threads(rows):
        yield


NO_ROW_LEFT = "forget: no row would be left; make a new estimator instead"


class Before(NamedTuple):
    """What earlier calls of `partial_fit` have left."""

    stream: Stream
    network: Network
    features: Features


def new_rows(given: Parameters, X: Any, nodes: Any, before: Before | None, what: str) -> NewRows:
    """The rows that a call of `partial_fit`, `refresh` or `forget` (`what`) gives."""
    seed, wanted, ever = began_with(given, before, what)
    more = deal_more(X, nodes, wanted, seed, int(ever.sum()), given.dtype, given.missing)
    return NewRows(**vars(arranged(more, given, before)), seed=seed)


def began_with(given: Parameters, before: Before | None, what: str) -> tuple[int, Any, np.ndarray]:
    """Of a stream: its seed, its network, or what the user wants for one; and (nodes,) how many rows each node has got so far."""
    if before is None:
        return seed_of(given), given.network, np.zeros(0, dtype=np.int64)
    ever = before.stream.ever
    return before.stream.basis.options.seed, before.network, 0 * ever if what == "refresh" else ever


def arranged(more: More, given: Parameters, before: Before | None) -> More:
    """With the columns of the first rows, on the device to compute on."""
    if before is not None:
        samples = Samples(more.features.from_sorted(more.X), more.features.names)
        more = replace(more, X=before.features.arrange(samples, "X", "the first rows"))
    return replace(more, X=placed(more.X, given.device))


# ---------------------------------------------------------------------- messages
class Delivery:
    """Carries what the programs of the sites of this process send; here these are all sites of the network."""

    def __init__(self, sites: Sequence[Site]):
        self.sites, self.network = sites, sites[0].network
        self.nodes = np.concatenate([site.nodes for site in sites])
        self.traffic = Traffic(self.network)

    def sum(self, requests: Sequence[Sum]) -> np.ndarray:
        """The root's conclusion from the terms of all sites."""
        total = self.total(requests)
        told = self.conclude(requests, total)
        self.traffic.add_sum(requests[0].kind, total.nbytes, told.nbytes, self.nodes)
        return told

    def total(self, requests: Sequence[Sum]) -> np.ndarray:
        """The sum of the terms of these sites."""
        return reduce(np.add, [request.value for request in requests])

    def conclude(self, requests: Sequence[Sum], total: np.ndarray) -> np.ndarray:
        """What the site of the root makes of the total."""
        (request,) = [request for site, request in zip(self.sites, requests, strict=True) if site.has_root]
        return request.conclude(total).astype(request.dtype, copy=False)

    def exchange(self, requests: Sequence[Exchange]) -> dict[tuple[int, int], np.ndarray]:
        """All messages that arrive at the sites, by edge."""
        sent = self.sent(requests)
        for request in requests:
            for (sender, receiver), shape in request.expected.items():
                if (sender, receiver) not in sent or sent[sender, receiver].shape != shape:
                    there, here = self.network.names[sender], self.network.names[receiver]
                    what = f"node {here} expects an array {shape} of node {there}, which says nothing like it"
                    raise RuntimeError(f"{request.kind}: {what}")
        return sent

    def sent(self, requests: Sequence[Exchange]) -> dict[tuple[int, int], np.ndarray]:
        """All messages of the sites, by edge; they are counted."""
        sent = {edge: message for request in requests for edge, message in request.messages.items()}
        self.traffic.add_messages(requests[0].kind, sent)
        return sent


def drive(
    sites: Sequence[Site], options: Options, delivery: Any, watch: Watch | None = None, script: Any = program
) -> Outcome:
    """Run the programs of some sites, whose requests `delivery` answers. `script` is the program, or wraps it."""
    scripts = [script(site, options) for site in sites]
    array = sites[0].like
    theirs = is_on_host(array) and not aac.is_numpy_array(array)  # a library with threads of its own
    rows = 0 if theirs else sum(site.X.shape[0] for site in sites)
    with _interrupts() as interrupt, working(rows):
        seconds: dict[str, float] = defaultdict(float)
        part, since = "meeting", time.perf_counter()
        requests, answers = _step(scripts, None)
        while requests:
            now, reply = time.perf_counter(), None
            match requests[0]:
                case Sum(kind=kind):
                    part = PARTS.get(
                        kind, part
                    )  # its terms are computed before it is asked for, and its conclusion after
                    reply = delivery.sum(requests)
                    now = time.perf_counter()
                    seconds[part] += now - since
                case Exchange(kind=kind):
                    seconds[part] += now - since
                    part, reply = PARTS.get(kind, part), delivery.exchange(requests)
                case Iteration() as about:
                    seconds[part] += now - since
                    interrupt["armed"], reply = True, interrupt["asked"]
                    if watch is not None:
                        watch(about)
            since = now
            requests.clear()  # they keep what their rounds made of the rows
            requests, answers = _step(scripts, reply)
        seconds[part] += time.perf_counter() - since
    return Outcome(answers, delivery.traffic, dict(seconds))


def _step(scripts: Sequence[Any], reply: Any) -> tuple[list[Any], list[Answer]]:
    """Send each script the reply; returns their next requests, or their answers. All end in the same round."""
    requests, answers = [], []
    for script in scripts:
        try:
            requests.append(script.send(reply))
        except StopIteration as end:
            answers.append(end.value)
    if requests and answers:
        raise RuntimeError("the nodes of one network do not end together")
    if len({(type(request), getattr(request, "kind", "")) for request in requests}) > 1:
        raise RuntimeError("the nodes of one network say different things")
    return requests, answers


@contextmanager
def _interrupts() -> Iterator[dict[str, bool]]:
    """Ctrl-C requests a stop if there is an iterate to keep; before that, and the second time, it interrupts."""
    flags: dict[str, bool] = defaultdict(bool)
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before is not signal.default_int_handler:  # another handler is installed
        yield flags
        return

    def on_interrupt(signum: int, frame: Any) -> None:
        if flags["asked"] or not flags["armed"]:
            raise KeyboardInterrupt
        flags["asked"] = True

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield flags
    finally:
        signal.signal(signal.SIGINT, before)
