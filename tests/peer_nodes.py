"""Peers as threads of one process: real sockets and files, without the time that processes take to start."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from dekpca import Network
from dekpca.engines.agreement import flattened, texts
from dekpca.kernels import make_kernel
from dekpca.peers.app.config import Config, free_addresses
from dekpca.peers.app.session import Session
from dekpca.peers.net.authority import issue
from dekpca.peers.net.endpoint import Endpoint
from dekpca.peers.net.identity import load
from dekpca.peers.protocol.handshake import HandshakeSettings
from dekpca.peers.protocol.membership import Membership
from dekpca.peers.protocol.node import NodeProtocol, Timeouts
from dekpca.peers.storage.database import FILE
from dekpca.peers.storage.folder import RunFolder
from dekpca.plan import Outcome, Plan, Traffic
from dekpca.settings import Settings, settle
from dekpca.solvers.projection import Projection

ASKED = Projection(n_landmarks=12, tol=0.0)
PATIENCE = 120  # seconds: a hang must end the test, a busy machine must not


class Stop(Exception):
    """A node is ended by its test."""


def problem(network: Network, sizes=None, max_iter=20, **changes):
    """Parts and settled options; `changes` are fields of `Settings`. The default iterates, so that a test may end a node meanwhile."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 5)) + j % 3 for j, n in enumerate(sizes or [20] * len(network))]
    settings = {"projection": replace(ASKED, max_iter=max_iter), "n_components": 2, "seed": 0} | changes
    return parts, settle(
        Settings(kernel=make_kernel("rbf", gamma=0.05), **settings), network, np.array([len(p) for p in parts])
    )


class Nodes:
    """A network of nodes in `folder`, started as often as one likes."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        parts,
        options,
        run="test",
        timeouts=None,
        private=False,
        certs=None,
    ):
        """`certs`: a folder with a CA, which gives each node a certificate; without, nodes talk without TLS."""
        self.network, self.parts, self.options, self.private = network, parts, options, private
        addresses = dict(zip(network.names, free_addresses(len(network)), strict=True))
        timeouts = timeouts or Timeouts(peer=60, start=60, beat=0.2)
        self.identities = dict.fromkeys(network.names) if certs is None else certified(certs, network.names)
        self.places = {}
        for j, name in enumerate(network.names):
            near = {network.names[q]: addresses[network.names[q]] for q in network.neighbors(j)}
            self.places[name] = place(name, run, addresses[name], near, folder / name, timeouts)
        self.answers: dict = {}
        self.outcomes: dict = {}
        self.errors: dict = {}
        self.sessions: dict = {}

    def start(self, name, observer=None, facts=None, samples=None):
        """A thread in which this node takes part; `observer` may raise to end it."""
        thread = threading.Thread(target=self._run, args=(name, observer, facts or {}, samples), daemon=True)
        thread.start()
        return thread

    def _run(self, name, observer, facts, samples):
        samples = self.parts[self.network.number[name]] if samples is None else samples
        self.answers.pop(name, None)
        self.errors.pop(name, None)
        try:
            with Session(
                self.places[name], self.identities[name], samples, texts(flattened(self.options)) | facts
            ) as session:
                self.sessions[name] = session
                network, _ = session.meet()
                options = self.options
                if self.private:  # with randomness of its own
                    options = replace(options, private_seed=session.store.private_seed())
                outcome = session.run(samples, network, options, observer)
                self.answers[name], self.outcomes[name] = outcome.answers[0], outcome
                session.finish()
        except BaseException as error:
            self.errors[name] = error

    @classmethod
    def engine(cls, folder: Path, certs: Path | None = None):
        """An engine, as the conformance suite wants it: every plan is run by nodes in a folder of its own."""
        count = itertools.count()

        def run(plan: Plan) -> Outcome:
            nodes = cls(folder / str(next(count)), plan.network, plan.parts, plan.options, certs=certs)
            answers = nodes.run()
            traffic = Traffic(plan.network)
            for outcome in nodes.outcomes.values():
                for kind, sent in outcome.traffic.along.items():
                    traffic.along[kind] = traffic.along.get(kind, 0) + sent
            return Outcome([answers[name] for name in plan.network.names], traffic, {})

        return run

    def run(self, observers=None):
        """All nodes, to their ends; returns the answers by name."""
        join([self.start(name, (observers or {}).get(name)) for name in self.network.names])
        assert not self.errors, self.errors
        return self.answers


def place(name, run, listen, neighbors, folder, timeouts=None):
    """The config of a node whose samples are not read from a file."""
    limits = timeouts or Timeouts()
    return Config(
        folder / "node.toml", name, run, folder / "data.npy", folder, neighbors, listen, peer_timeout=limits.peer,
        start_timeout=limits.start, heartbeat=limits.beat, progress_timeout=limits.progress,
    )  # fmt: skip


def certified(certs: Path, names):
    """The identities of nodes, whose certificates the CA in this folder issues if they have none yet."""
    return {
        name: load(certs / f"{name}.crt", certs / f"{name}.key", certs / "ca.crt", name)
        for name in names
        if (certs / f"{name}.crt").exists() or issue(certs, name)
    }


@contextmanager
def endpoint(folder, *neighbors, name="a", timeouts=None):
    """A node with a folder, and without connections; its clock runs."""
    store = RunFolder(folder / name)
    try:
        store.open({"run": "r"})
        yield Endpoint(
            protocol(name, *neighbors, now=time.monotonic(), timeouts=timeouts),
            store,
            dict.fromkeys(neighbors, "127.0.0.1:1"),
        )
    finally:
        store.close()


def protocol(name, *neighbors, now=0.0, timeouts=None, settings=None, views=None):
    """A node without a folder, connections or a clock."""
    membership = Membership(name, neighbors, 3)
    return NodeProtocol(
        name, "r", settings or HandshakeSettings({}), membership, neighbors, timeouts or Timeouts(), now, views=views
    )


def change(folder, statement, *values):
    """Change the database of a node that does not run, as damage would: checksums stay as they were. Returns what a query finds."""
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        return database.execute(statement, values).fetchall()


def stored(folder, query):
    """What a query finds on the disk of a node, which may run or not have begun."""
    try:
        with closing(sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True)) as database:
            return database.execute(query).fetchall()
    except sqlite3.Error:
        return []


def join(threads):
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a node hangs"


def bits(answers):
    """What must be the same to the last bit."""
    return {
        name: (
            a.eigenvalues.tobytes(),
            a.n_iter,
            *(
                x.tobytes()
                for terms in a.expansions(int(a.site.nodes[0])).values()
                for x in (terms.shared, *terms.coefficients)
            ),
        )
        for name, a in answers.items()
    }
