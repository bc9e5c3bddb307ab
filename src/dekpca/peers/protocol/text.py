"""Texts that come from neighbors and go to a log or a terminal; and names of nodes, which also go into certificates and file names."""

from __future__ import annotations

import ipaddress
import re

NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")  # lower case, since DNS names are case-insensitive
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


def name_problem(name: str) -> str | None:
    """Why a node cannot have this name; None if it can.

    >>> name_problem("hospital-a.example.org")
    >>> name_problem("Hospital A")
    "use 1 to 63 of a-z and 0-9, and of '-', '_', '.' inside"
    """
    if not NAME.fullmatch(name) or ".." in name:
        return "use 1 to 63 of a-z and 0-9, and of '-', '_', '.' inside"
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return None
    return "this is an IP address; give the node a name that stays when it moves"
