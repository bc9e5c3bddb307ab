"""Names of nodes: valid in a certificate, in a file name and in a log."""

from __future__ import annotations

import ipaddress
import re

NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")  # lower case, since DNS names are case-insensitive


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
