"""Storage of a node on disk."""
