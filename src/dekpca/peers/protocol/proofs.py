"""Proofs that a node has said its status itself: others pass it on, and none of them may change it."""

from __future__ import annotations

import logging
from dataclasses import replace

from .events import Heartbeat, Log
from .view_messages import signed_part
from .views import Kept, Status


class Proofs:
    """Without certificates: nothing is signed, and everything believed. app/proofs.py has those by certificates."""

    def __init__(self) -> None:
        self._good: dict[str, Status] = {}  # the latest of each node, which need not be checked again

    def sign(self, message: bytes) -> bytes:
        return b""

    def flaw(self, name: str, message: bytes, proof: bytes) -> str:
        """Why this does not prove that node `name` has said this; empty if it does."""
        return ""

    def signed(self, name: str, kept: Kept) -> Kept:
        """What this node, `name`, publishes."""
        return replace(kept, status=replace(kept.status, proof=self.sign(signed_part(name, kept.status))))

    def believed(self, sender: str, said: Heartbeat) -> tuple[Heartbeat, list[Log]]:
        """The heartbeat of a neighbor without the statuses that are not by the nodes they name; and what the owner should know."""
        flaws = {name: flaw for name, status in said.statuses.items() if (flaw := self._checked(name, status))}
        if not flaws:
            return said, []
        lines = [
            Log(logging.WARNING, f"node {sender} passed on a status of node {name} that {name} has not signed", {"peer": sender, "why": flaw})
            for name, flaw in flaws.items()
        ]  # fmt: skip
        return replace(said, statuses={n: s for n, s in said.statuses.items() if n not in flaws}), lines

    def _checked(self, name: str, status: Status) -> str:
        known = self._good.get(name)
        if known is not None and (status, status.proof) == (known, known.proof):
            return ""
        flaw = self.flaw(name, signed_part(name, status), status.proof)
        if not flaw and (known is None or status.version > known.version):
            self._good[name] = status
        return flaw
