"""The audit file of a node: what its owner agreed to, with whom, and a hash of every message that left or arrived.

Each line is a JSON object with a `chain`: a hash of the line and of the `chain` before it. So no line can be changed, removed or put in between
without changing all that follow. The lines `start` and `end` are signed by the node's key, and `start` holds its certificates. A process that was
killed leaves no `end`; the `start` of the next one signs what came before it. Messages that a restarted node sends or reads again are not repeated,
unless they differ.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from ...files import private
from ...privacy.records import BadSignature, certified_key, in_der, sign, verify
from ..net.identity import Identity, fingerprint

log = logging.getLogger("dekpca.peer")

AUDIT = "audit.jsonl"
PURPOSE = b"dekpca audit, version 1"
SIGNED = ("start", "end")


class BadAudit(ValueError):
    """An audit file that was changed, or that its node did not sign."""


class Audit:
    """The audit file in a node's folder, open for one process of the node."""

    def __init__(self, folder: Path, identity: Identity | None, **about: Any):
        self.path, self._key = folder / AUDIT, None if identity is None else identity.key
        whole = self._keep_whole_lines()
        self._chain = whole[-1]["chain"] if whole else ""
        self._before = {_content(line) for line in whole if line["what"] not in SIGNED}
        self._file = open(self.path, "a", encoding="utf-8", opener=private)  # noqa: SIM115 - open as long as the node runs
        chain = [] if identity is None else [base64.b64encode(c).decode() for c in in_der(identity.chain)]
        self.note("start", **about, certificates=chain)

    def _keep_whole_lines(self) -> list[dict[str, Any]]:
        """The lines of earlier processes, without one that a power cut has cut short. A file that was changed is put aside."""
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        try:
            found = list(_lines(data[: data.rfind(b"\n") + 1]))
        except BadAudit as error:
            names = (self.path.with_suffix(f".changed-{number}") for number in itertools.count(1))
            aside = next(name for name in names if not name.exists())
            self.path.rename(aside)
            log.warning("the audit file was changed: it is put aside", extra={"file": str(aside), "why": str(error)})
            return []
        if not data.endswith(b"\n"):
            with open(self.path, "r+b", opener=private) as file:
                file.truncate(data.rfind(b"\n") + 1)
        return found

    def note(self, what: str, **about: Any) -> None:
        """Add a line; returns when the operating system has it."""
        if what in SIGNED:
            about |= {"time": datetime.now(UTC).isoformat(timespec="seconds")}
        line = {"what": what, **about}
        if _content(line) in self._before:
            return
        self._chain = line["chain"] = _next(self._chain, line)
        if self._key is not None and what in SIGNED:
            line["signature"] = base64.b64encode(sign(self._key, PURPOSE + self._chain.encode())).decode()
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def message(self, what: str, view: str, round: int, kind: str, node: str, data: memoryview) -> None:
        """A message that is `sent` to a node or `received` from it."""
        digest = hashlib.sha256(data).hexdigest()
        self.note(what, view=view, round=round, kind=kind, node=node, bytes=len(data), sha256=digest)

    def close(self, outcome: str) -> None:
        try:
            self.note("end", outcome=outcome)
            self._file.close()
        except OSError as error:  # a full disk, which has stopped the node already
            log.warning("the audit file has no end", extra={"why": str(error)})


def read(folder: Path, roots: Sequence[x509.Certificate] = ()) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The lines of an audit file, and what was verified; raises BadAudit. With `roots`, certificates are checked up to these, and there must be some.
    Whoever has no key of the node can only add lines of messages where it was killed, which are counted as `unsigned`."""
    path = folder / AUDIT if folder.is_dir() else folder
    try:
        lines = list(_lines(path.read_bytes()))
    except OSError as error:
        raise BadAudit(f"{path}: {error.strerror}") from error
    except BadAudit as error:
        raise BadAudit(f"{path}: {error}") from error
    key, who, signed, last, before = None, "", 0, 0, "end"
    if not lines:
        raise BadAudit(f"{path}: it is empty")
    for number, line in enumerate(lines, 1):
        if before == "end" and line["what"] != "start":
            raise BadAudit(f"{path}: line {number}: a node that has not started, or has ended, writes nothing")
        before = line["what"]
        if before not in SIGNED:
            continue
        try:
            if before == "start":
                needed = bool(roots) or key is not None
                key, who = _certified(line, roots)
                if key is None and needed:
                    raise BadSignature("it has no certificate")
                if line.get("node") != lines[0].get("node"):
                    raise BadSignature(f"it is of node {line.get('node')}, not of node {lines[0].get('node')}")
            if key is not None:
                verify(key, base64.b64decode(line["signature"]), PURPOSE + line["chain"].encode())
                signed, last = signed + 1, number
        except (ValueError, KeyError, TypeError) as error:
            raise BadAudit(f"{path}: line {number}: its signature does not hold ({error})") from error
    about = {"lines": len(lines), "signatures": signed, "unsigned": len(lines) - last, "certificate": who}
    return lines, about | {"checked_by_ca": bool(roots)}


def _certified(start: dict[str, Any], roots: Sequence[x509.Certificate]) -> tuple[Any, str]:
    """The public key of the node's certificate, and its fingerprint."""
    chain = [base64.b64decode(c) for c in start["certificates"]]
    if not chain:
        return None, ""
    own = x509.load_der_x509_certificate(chain[0])
    at = datetime.fromisoformat(start["time"])
    return certified_key(start["node"], chain, roots, at) if roots else own.public_key(), fingerprint(own)


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    chain = ""
    for number, text in enumerate(data.splitlines(), 1):
        try:
            line = json.loads(text)
            good = isinstance(line, dict) and line.get("chain") == _next(chain, line) and isinstance(line["what"], str)
        except (ValueError, KeyError, RecursionError):
            good = False
        if not good:
            raise BadAudit(f"line {number} does not follow from the one before: a line was changed, added or removed")
        chain = line["chain"]
        yield line


def _content(line: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in line.items() if key not in ("chain", "signature")}, sort_keys=True)


def _next(chain: str, line: dict[str, Any]) -> str:
    return hashlib.sha256(chain.encode() + _content(line).encode()).hexdigest()
