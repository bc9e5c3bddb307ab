"""The peer engine: one node a process, its owner's; gRPC with mutual TLS between neighbors.

    protocol/  what two nodes say to each other, and what follows: no threads, clocks, sockets or files
    storage/   what a node keeps on disk: messages and checkpoints, in SQLite
    net/       server, clients, certificates; the endpoint, where these and the program meet
    app/       a node as its owner runs it: config, session, log, status; and a cluster of processes on one machine

Each imports only from those above it. docs/protocol.md has the messages and states, and says why a node that was killed can go on. `run` in
app/local_cluster.py is the engine: it starts a process for each node on this machine, to try it and for the conformance suite. Nodes of different
owners are started by them: `dekpca node run`.
"""
