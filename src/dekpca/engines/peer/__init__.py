"""The peer engine: one node a process, its owner's; gRPC with mutual TLS between neighbors."""
