"""The version, to compare with that of another process or file."""

__version__ = "0.1.0"
