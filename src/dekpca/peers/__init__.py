"""Nodes of different owners: a process for each, with gRPC and mutual TLS between neighbors.

    protocol/  the logic of the protocol: no threads, clocks, sockets or files
    storage/   messages on disk, in SQLite
    net/       server, clients, certificates; the endpoint, which connects them with the program
    app/       the application of an owner: config, session, log, status

Each imports only from those above it, and only the command line imports this package. docs/reference/protocol.md has the
messages and states, and says why a killed node can resume. Owners start their nodes by `dekpca node run`;
`dekpca node simulate` starts such nodes on one machine.
"""
