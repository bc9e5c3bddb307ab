"""The version, for whoever must compare it with that of another process or file."""

__version__ = "0.1.0"
