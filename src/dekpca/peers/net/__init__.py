"""Connections between nodes: gRPC, TLS, certificates."""
