"""The peer engine: one node a process, its owner's; gRPC with mutual TLS between neighbors.

    protocol/  what two nodes say to each other, and what follows: no threads, clocks, sockets or files
    storage/   what a node keeps on disk: messages and checkpoints, in SQLite
    net/       server, clients, certificates; the endpoint, where these and the program meet
    app/       a node as its owner runs it: config, session, log, status; and a cluster of processes on one machine

Each imports only from those above it. docs/protocol.md has the messages and states, and says why a node that was killed can go on. `run`
starts a process for each node on this machine, to try it and for the conformance suite. Nodes of different owners are started by them:
`dekpca node run`.
"""

from __future__ import annotations

from ...plan import Observer, Outcome, Plan
from .app.local_cluster import LocalCluster


def run(plan: Plan, observer: Observer | None = None) -> Outcome:
    """Run the program for all nodes, each in a process of its own on this machine, with certificates from a CA made for this run.

    `observer` is not called: no process sees all nodes. Kernels and penalties that are Python functions cannot cross.
    """
    if plan.resume is not None:
        raise ValueError("engine='peer' goes on from the folder of each node, not from a state; use dekpca node run")
    with LocalCluster(len(plan.network)) as cluster:
        return cluster.run(plan)
