"""The peer engine: one node a process, its owner's; gRPC with mutual TLS between neighbors.

    config    node.toml                     codec     values as bytes, without pickle
    node      an owner's run                store     the folder: checkpoints, what must not change
    session   one node's part in a run      journal   messages on disk before they are acknowledged
    mail      the program's rounds          letters   what a neighbor may send
    station   where program, server and     terms     what two nodes must hold alike
              links wait for each other     roster    what is known of the network
    listener  who may hold a connection     progress  who is stuck
    server    what neighbors call           identity  certificates
    links     what this node says           logs      lines that never hold up the run
    transport both, on a thread             status    metrics, the line on a terminal
    crew      processes on one machine, for trying and for tests

docs/protocol.md says what passes between two nodes, and why a node that was killed can go on. `run` starts a process for each node, here: to
try it, and for the conformance suite. Nodes that belong to different people are started by them: `dekpca node run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...network import Network
from ...options import Options
from ..local import Observer, Outcome
from .app.local_cluster import Crew


def run(
    parts: Sequence[Any], network: Network, options: Options, observer: Observer | None = None, resume: Any = None
) -> Outcome:
    """Run the program for all nodes, each in a process of its own on this machine, with certificates from a CA made for this run.

    `observer` is not called: no process sees all nodes. Kernels and penalties that are Python functions cannot cross.
    """
    with Crew(len(network)) as crew:
        return crew.run(parts, network, options, observer, resume)
