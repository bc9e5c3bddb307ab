"""A node as its owner runs it."""
