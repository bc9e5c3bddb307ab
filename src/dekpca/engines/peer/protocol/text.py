"""Texts that come from neighbors and go to a log or a terminal: one line, without control characters."""

from __future__ import annotations

MOST_TEXT = 1000  # characters of a displayed text


def is_showable(text: str, most: int = MOST_TEXT) -> bool:
    """Whether a neighbor's text may be displayed unchanged."""
    return len(text) <= most and text.isprintable()


def showable(text: str, most: int = MOST_TEXT) -> str:
    """Any text, made safe to display.

    >>> showable("stopped,\\nby \\x1b[31mits owner")
    'stopped, by ?[31mits owner'
    """
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in line)[:most]
