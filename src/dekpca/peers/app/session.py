"""A session: one node's part in a run, from the first handshake to the last heartbeat.

    with Session(config, identity, samples, facts) as session:
        network, sizes = session.meet()
        outcome = session.run([samples], network, options)
        session.agree()                       # that this is the answer
        ...                                   # keep the answer
        session.finish()

Where the run goes on without lost nodes, `run` and `agree` raise ViewChanged; `network, sizes = session.begin_anew()`, and then `run` again.

Whatever ends it otherwise, the folder keeps what is needed to go on: the same again, with the same folder.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ..._version import __version__
from ...engines.local import drive
from ...engines.tree import over_tree
from ...messages import Iteration
from ...network import Network, listing
from ...plan import Outcome, Watch
from ...privacy.errors import PublicError
from ...privacy.ledger import Entry
from ...program import program
from ...settings import Options
from ...site import make_site
from ...solvers.sums import Stream
from ..errors import Disagreement, PeerError, RunFailed
from ..net.endpoint import Endpoint
from ..net.identity import Identity, moment
from ..net.transport import Transport
from ..protocol.checks import PROTOCOL, Limits
from ..protocol.events import Phase
from ..protocol.handshake import HandshakeSettings
from ..protocol.membership import Membership
from ..protocol.node import NodeProtocol
from ..protocol.views import Quorum, Views
from ..storage.folder import RunFolder
from .audit import Audit
from .config import Config
from .delivery import PeerDelivery
from .keys import KeyAgreement
from .proofs import CertificateProofs

log = logging.getLogger("dekpca.peer")

EXPIRY_WARNING = 14  # days
# Heartbeats for which too few nodes must be left before a node stops, and for which fallback neighbors are tried before nodes beyond a cut are lost.
SETTLE = 3
NO_CERTIFICATES = "secure sums without certificates: a node signs its key for the run with its certificate; give certificate, key and ca"


class Session:
    """The node of `config` with its samples (n, M). `facts` are settings that must be the same at all nodes, as texts.

    `identity` None: without TLS, on loopback only. `columns` are the names of the columns, in the order they have in the samples, if they have
    names. `tell_rows`: how many rows each node has is told to all; else it is None, or 1, wherever others' rows are counted. `sealed`: sums are
    secure or private, and errors tell no numbers. `consent`: the text that the owner agreed to. `rows`: how many rows this node has, if others
    than the samples are in its sums already.
    """

    def __init__(
        self, config: Config, identity: Identity | None, samples: np.ndarray, facts: Mapping[str, str], columns: Sequence[str] | None = None,
        tell_rows: bool = True, sealed: bool = False, consent: str = "", rows: int | None = None,
    ):  # fmt: skip
        self.config, self.identity, self.tell_rows = config, identity, tell_rows
        self.rows = len(samples) if rows is None else rows
        self.settings = agreed_settings(config, samples, facts, columns)
        own = {"protocol": str(PROTOCOL), "run": config.run, "node": config.name}
        own |= {"neighbors": ", ".join(sorted(config.neighbors))}
        own |= {"data": fingerprint(samples), "threads": str(config.threads)}
        self.store, self.audit = RunFolder(config.folder), None  # type: RunFolder, Audit | None
        membership = Membership(config.name, list(config.neighbors), self.rows if tell_rows else 1, config.members)
        views: Views | None = None
        refusal: PeerError | None = None
        try:
            self.store.open({**own, **self.settings.values})
            membership.add(self.store.records, config.name)
            if config.on_loss == "continue":
                settle, seen = SETTLE * config.timeouts.beat, self.store.statuses
                views = Views(config.name, Quorum(config.quorum, config.quorum_rows), self.store.views, settle, seen)
                views.tell_rows = tell_rows
            agreed = hashlib.sha256(consent.encode()).hexdigest() if consent else None
            about = {"node": config.name, "run": config.run, "protocol": PROTOCOL, "consent_sha256": agreed}
            self.audit = Audit(config.folder, identity, **about, settings=self.settings.values)
        except PeerError as error:
            refusal = error
        except BaseException:
            self.store.close()
            raise
        store, near = self.store if refusal is None else None, {**config.neighbors, **config.fallback}
        held = {} if store is None else {name: store.messages.held(name) for name in near}
        self.resumed = any(held.values())
        self.protocol = NodeProtocol(
            config.name, config.run, self.settings, membership, config.neighbors, config.timeouts, time.monotonic(), held,
            [] if store is None else store.finished, views, config.fallback, secrets.randbits(63), time.time(),
        )  # fmt: skip
        self.protocol.sealed = sealed
        proofs = None if identity is None else CertificateProofs(identity, config.run)
        self.endpoint = Endpoint(self.protocol, store, near, proofs)
        if refusal is not None:  # the neighbors wait for this node: they are told why before it stops
            self.protocol.phase = Phase.REFUSING
            self.endpoint.fail(refusal)
        self.transport = Transport(self.endpoint, config.folder, identity, config.listen)
        self._pinned = threadpool_limits(config.threads)

    def __enter__(self) -> Session:
        try:
            self.transport.__enter__()
        except BaseException as error:
            self._close(error)
            if self.protocol.error is not None:
                raise self.protocol.error from error
            raise
        text = "listening" if self.transport.address else "no port is open: this node calls its neighbors"
        log.info(text, extra={"address": self.transport.address, "resumed": self.resumed})
        if self.identity is not None and self.identity.days_left < EXPIRY_WARNING:
            until = {"valid_until": moment(self.identity.expires)}
            log.warning("certificate expires soon: renew it (docs/explanation/security.md)", extra=until)
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self.transport.__exit__(*error)
        finally:
            self._forget_after(error[1])
            self._close(error[1])

    def _close(self, error: BaseException | None) -> None:
        if self.audit is not None:
            self.audit.close("finished" if error is None else f"{type(error).__name__}: {error}")
        self.store.close()
        self._pinned.restore_original_limits()

    def _forget_after(self, error: BaseException | None) -> None:
        """Keys and noise are deleted after an end that cannot be resumed. (After a disagreement nothing was drawn, or the owner corrects it.)"""
        if not isinstance(error, PeerError) or error.resumable or isinstance(error, Disagreement):
            return
        try:
            self.store.end(error)
        except (PeerError, OSError) as trouble:  # the folder may be what is damaged
            log.warning("keys of this run could not be deleted: delete the folder", extra={"why": str(trouble)})

    def meet(self) -> tuple[Network, np.ndarray]:
        """Wait for the neighbors and learn the network; returns it, and the rows of every node."""
        self.store.keep_records(self.endpoint.meet())
        network, sizes = self.network()
        # Nodes that are lost since then were members, too; a record of another node was refused when it came.
        if absent := set(self.config.members or ()).difference(self.protocol.membership.records):
            raise Disagreement(
                f"node {self.config.name}: its members are not those of the network: {listing(sorted(absent))} missing; a node between hides "
                "some, or members in node.toml is wrong"
            )
        self.note("members", view=str(self.protocol.view), names=list(network.names))
        log.info("network known", extra={"nodes": len(network), "edges": network.n_edges, **self._all_rows(sizes)})
        return network, sizes

    def network(self) -> tuple[Network, np.ndarray]:
        """The network that the program runs on, and the rows of its nodes."""
        views = self.protocol.views
        network, sizes = self.protocol.membership.network() if views is None else views.network(self.protocol.view)
        sizes[network.number[self.config.name]] = self.rows
        return network, sizes

    def begin_anew(self) -> tuple[Network, np.ndarray]:
        """After ViewChanged: forget what was computed with nodes that are lost; returns the network of the others, and the rows of each.

        The program starts from nothing. So the answer is that of a run of these nodes alone: bit for bit, or under masks to rounding.
        """
        self.endpoint.enter_view()
        self.resumed = False
        self.transport.acknowledge_at_once(False)
        network, sizes = self.network()
        self.note("members", view=str(self.protocol.view), names=list(network.names))
        log.warning("begun anew", extra={"nodes": len(network), **self._all_rows(sizes), "missing": self.missing()})
        return network, sizes

    def _all_rows(self, sizes: np.ndarray) -> dict[str, int]:
        return {"rows": int(sizes.sum())} if self.tell_rows else {}

    def missing(self) -> list[dict[str, Any]]:
        """The nodes whose rows are not in this node's answer: name, rows, and when they were declared lost."""
        records = self.protocol.membership.records
        since = {lost.name: datetime.fromtimestamp(lost.since, UTC) for lost in self.protocol.view.lost}
        rows = {name: records[name][1] if self.tell_rows else None for name in since}
        return [{"node": n, "rows": rows[n], "since": at.isoformat(timespec="seconds")} for n, at in since.items()]

    def releases(self) -> tuple[str, dict[str, tuple[Entry, ...]]]:
        """The name of the release that this view makes, in the owner's ledger: the same after a restart, and in views after one without a release.
        And what was released in earlier views of this run, by such names."""
        fit, view = self.store.fit, str(self.protocol.view)
        earlier = [tuple(Entry(**e) for e in entries) for of, entries in self.store.releases.items() if of != view]
        return f"{fit}-{len(earlier)}", {f"{fit}-{i}": entries for i, entries in enumerate(earlier)}

    def agree(self) -> None:
        """Wait until it is certain that the answer is the one that all others have, or will have. Raises ViewChanged if it is not."""
        if self.protocol.views is not None:
            self.endpoint.agree()

    def run(
        self,
        part: np.ndarray,
        network: Network,
        options: Options,
        watch: Watch | None = None,
        stream: Stream | None = None,
    ) -> Outcome:
        """Run the program from its start: what was heard before a restart is read from disk. `part` are this node's samples; if there is a
        stream, which has them, its landmarks."""
        self.protocol.sealed |= options.sealed
        _, sizes = self.network()
        site = make_site([part], network, [network.number[self.config.name]], sizes)
        delivery = PeerDelivery(site, self.endpoint, self.audit)
        dtype = part.dtype.newbyteorder("<").str
        limits = Limits.of(self.config.run, dtype, options, sizes, part.shape[1], network)
        self.endpoint.begin(limits)
        log.info("begun", extra={"resumed": self.resumed})

        def observe(about: Iteration) -> None:
            self.protocol.phase, self.protocol.iteration = Phase.ITERATING, about.number
            if about.number:
                self.protocol.residual = about.residual
            if watch is not None:
                watch(about)

        try:
            script: Any = partial(program, stream=stream)
            if options.sealed:
                if self.identity is None:
                    raise PublicError(NO_CERTIFICATES)
                agreed = self.identity, self.config.run, str(self.protocol.view), self.settings.values, self.store
                script = KeyAgreement(*agreed, self.config.allow_two).before(script)
            outcome = drive([site], options, delivery, observe, over_tree(script))
        except PeerError:
            raise
        except ValueError as error:
            # the program cannot go on, nor will it after a restart: nobody need wait for this node
            raise RunFailed(str(error), told=told(error) if options.sealed else None) from error
        self.protocol.start_finishing(time.monotonic())
        self.transport.acknowledge_at_once()
        return outcome

    def finish(self) -> list[str]:
        """The answer is kept: stay until the neighbors have theirs. Returns those that may not have it, and are not heard from any more."""
        near = map(self.protocol.neighbors.get, sorted(self.protocol.near))
        if late := [n.name for n in near if n is not None and not n.up and not n.finished]:
            text = f"model saved; waiting up to {self.config.timeouts.peer:g} s to hear from node {listing(late)}"
            log.info(f"{text}, which may lack its answer")
        gone = self.endpoint.finish()
        for name in gone:
            log.warning("neighbor was not heard from any more; this node has its answer", extra={"peer": name})
        log.info("finished")
        return gone

    def note(self, what: str, **about: Any) -> None:
        """Add a line to the audit file."""
        if self.audit is not None:
            self.audit.note(what, **about)


def agreed_settings(
    config: Config, samples: np.ndarray, facts: Mapping[str, str], columns: Sequence[str] | None
) -> HandshakeSettings:
    """What a node compares with its neighbors when they meet."""
    known = {"dekpca": __version__, "number of columns": str(samples.shape[1]), "dtype": str(samples.dtype)}
    members = "whoever takes part" if config.members is None else ", ".join(sorted(config.members))
    known |= {"on_loss": config.on_loss, "members": members, "allow_two": str(config.allow_two), **facts}
    if config.on_loss == "continue":
        known["quorum"] = "more than half" if config.quorum is None else str(config.quorum)
        known["quorum_rows"] = str(float(config.quorum_rows))
    return HandshakeSettings.of(known, columns, config.run, config.secret_columns)


def told(error: BaseException) -> str:
    """What neighbors hear of an error where sums are secure or private: its text may hold numbers of rows, unless it says that it does not."""
    return getattr(error, "told", None) or f"{type(error).__name__}; its owner's log says more"


def fingerprint(samples: np.ndarray) -> str:
    """Of the data, so that a restart with other data is noticed."""
    digest = hashlib.sha256(f"{samples.shape} {samples.dtype}".encode())
    for start in range(0, len(samples), 4096):
        digest.update(np.ascontiguousarray(samples[start : start + 4096]).tobytes())
    return f"{samples.shape[0]} x {samples.shape[1]}, {digest.hexdigest()[:16]}"
