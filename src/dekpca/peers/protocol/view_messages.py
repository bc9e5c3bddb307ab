"""Encoding of views and statuses for the wire and the disk, with checks when decoding."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...privacy.settings import MOST_RECORD
from ..errors import ProtocolError
from . import wire_pb2 as wire
from .membership import MOST_NODES
from .text import NAME
from .views import Edge, Kept, Key, Lost, Status, View, Vote

MOST_NUMBER = 1 << 40  # of views, and versions of a status


def parse_key(text: str) -> Key:
    """The key of a view from its text, as in `str(view)`.

    >>> parse_key("3 oslo"), parse_key("0")
    ((3, 'oslo'), (0, ''))
    """
    number, _, proposer = text.partition(" ")
    if not number.isdecimal() or len(number) > 12 or (proposer and not NAME.fullmatch(proposer)):
        raise ProtocolError(f"a view named {text[:80]!r}")
    return int(number), proposer


def pack_view(view: View) -> wire.View:
    return wire.View(
        key=_pack_key(view.key),
        lost=[wire.Lost(name=lost.name, since=lost.since) for lost in view.lost],
        broken=[wire.Edge(a=a, b=b) for a, b in view.broken],
        fallback=[wire.Edge(a=a, b=b) for a, b in view.fallback],
    )


def unpack_view(view: wire.View) -> View:
    lost = tuple(Lost(each.name, each.since) for each in view.lost)
    _check_names([each.name for each in lost], "a view")
    if not all(math.isfinite(each.since) and each.since >= 0 for each in lost):
        raise ProtocolError("a view with a time that is none")
    number, proposer = _unpack_key(view.key)
    return View(number, proposer, lost, _unpack_edges(view.broken), _unpack_edges(view.fallback))


def pack_status(name: str, status: Status) -> wire.Status:
    ballot, vote = status.vote or (None, None)
    return wire.Status(
        name=name, version=status.version, view=pack_view(status.view), entered=pack_view(status.entered), down=status.down,
        fallback=status.fallback, answered=_pack_key(status.answered), ballot=_pack_key(ballot), vote=_pack_key(vote),
        final=_pack_key(status.final), proof=status.proof,
    )  # fmt: skip


def signed_part(name: str, status: Status) -> bytes:
    """What the node signs, the same at all nodes."""
    packed = pack_status(name, status)
    packed.ClearField("proof")
    return packed.SerializeToString(deterministic=True)


def unpack_status(packed: wire.Status) -> tuple[str, Status]:
    for names in ([packed.name], packed.down, packed.fallback):
        _check_names(names, "a status")
    if not 1 <= packed.version <= MOST_NUMBER:
        raise ProtocolError(f"a status of version {packed.version}")
    if len(packed.proof) > MOST_RECORD:
        raise ProtocolError(f"a status with a proof of {len(packed.proof)} bytes, where {MOST_RECORD} are allowed")
    keys = ("answered", "vote", "final")
    answered, voted, final = (_unpack_key(getattr(packed, key)) if packed.HasField(key) else None for key in keys)
    vote = None if voted is None else Vote(_unpack_key(packed.ballot), voted)
    view, entered = map(unpack_view, (packed.view, packed.entered))
    down, fallback = tuple(packed.down), tuple(packed.fallback)
    return packed.name, Status(packed.version, view, entered, answered, vote, final, down, fallback, packed.proof)


def pack_kept(name: str, kept: Kept) -> list[bytes]:
    """For the disk."""
    views = [pack_view(view) for view in (kept.program, *(View(*key) for key in kept.accepted))]
    return [pack_status(name, kept.status).SerializeToString(), *(view.SerializeToString() for view in views)]


def unpack_kept(parts: Iterable[bytes]) -> Kept:
    status, *views = parts
    program, *accepted = (unpack_view(wire.View.FromString(view)) for view in views)
    return Kept(unpack_stored(status)[1], program, tuple(view.key for view in accepted))


def unpack_stored(status: bytes) -> tuple[str, Status]:
    return unpack_status(wire.Status.FromString(status))


def _pack_key(key: Key | None) -> wire.ViewKey | None:
    return None if key is None else wire.ViewKey(number=key[0], proposer=key[1])


def _unpack_key(key: wire.ViewKey) -> Key:
    if key.number > MOST_NUMBER or not (NAME.fullmatch(key.proposer) if key.number else key.proposer == ""):
        raise ProtocolError(f"view {key.number} of {key.proposer[:80]!r}")
    return int(key.number), key.proposer


def _unpack_edges(edges: Iterable[wire.Edge]) -> tuple[Edge, ...]:
    found = tuple((edge.a, edge.b) for edge in edges)
    _check_names({name for edge in found for name in edge}, "an edge")
    if list(found) != sorted(set(found)) or not all(a < b for a, b in found):
        raise ProtocolError("edges that are not in order")
    return found


def _check_names(names: Iterable[str], where: str) -> None:
    names = list(names)
    if len(names) > MOST_NODES or len(set(names)) < len(names) or not all(map(NAME.fullmatch, names)):
        raise ProtocolError(f"{where} with {len(names)} names: too many, repeated, or no names of nodes")
