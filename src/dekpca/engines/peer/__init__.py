"""The peer engine: a process for each owner, with one node; gRPC with mutual TLS between neighbors.

    protocol/  the logic of the protocol: no threads, clocks, sockets or files
    storage/   messages and checkpoints on disk, in SQLite
    net/       server, clients, certificates; the endpoint, which connects them with the program
    app/       the application of an owner: config, session, log, status; and a cluster of processes on one machine

Each imports only from those above it. docs/protocol.md has the messages and states, and says why a killed node can
resume. `run` in app/local_cluster.py is the engine: it starts a process for each node on this machine, for trials
and the conformance suite. Owners start their nodes by `dekpca node run`.
"""
