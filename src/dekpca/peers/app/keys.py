"""Keys for secure sums between peers, agreed on anew for every run and view, before anything else of the program is sent.

    challenges   each node gives 32 random bytes; with the run, the view and the names they make the name of the epoch
    records      each node's public keys for this epoch, with a hash of its settings, of all members and of their numbers of rows, signed by its
                 certificate; passed on along the tree to all, and checked by all
    confirmations  at the end of the program, before anybody has an answer: each node has signed a hash of everything that it was told, by its key of
                 this epoch, and all check that it is theirs. So there are no two answers, whatever the root or a node between tells

Whoever passes records on cannot hide that another node runs with other settings or members, or was told other numbers of rows. A record of another
run or view names another epoch, and is refused. What a node draws for this (challenge, keys, noise) is in its folder, since a node that was killed
must send the same again; it is deleted with the view, and at the end of the run. So is its record, and a hash of all records once they are checked:
certificates may be renewed, or run out, while a run goes on, and records that differ after a restart are refused.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ...messages import Sum
from ...privacy.errors import PublicError
from ...privacy.masks import Sealer, pair_keys, public_of
from ...privacy.noise import discrete_gaussian
from ...privacy.records import (
    KEY,
    BadRecord,
    KeyRecord,
    check_records,
    epoch,
    joined,
    longest,
    settings_hash,
    sign_record,
)
from ...privacy.settings import MOST_RECORD
from ...settings import Options
from ...site import Site
from ..errors import NEW_RUN
from ..net.identity import Identity
from ..storage.folder import RunFolder

log = logging.getLogger("dekpca.peer")

CHALLENGE, SIGNATURE = 32, 64  # bytes
WORD = 8  # bytes
KIND = "keys"  # of the messages
CONFIRMED = b"dekpca confirmation, version 2"
LEAST_MEMBERS = 3  # of two, each would learn the other's sums from the totals

Script = Callable[..., Generator[Any, Any, Any]]


@dataclass(eq=False)
class PeerSealer(Sealer):
    """Draws noise once: a node that was killed and goes on sends what it has sent before.

    Noise belongs to what the node was told until then. If it is told something else after a restart, it releases nothing: two releases with the same
    noise would tell the rows."""

    secrets: RunFolder = field(kw_only=True)
    releasing: Callable[[], None] = field(default=lambda: None, kw_only=True)  # called before noise is drawn
    _drawn: int = field(default=0, init=False)

    def noise(self, sigma: int, length: int) -> np.ndarray:
        self.releasing()
        self._drawn += 1
        name = f"noise-{self._drawn}-{sigma}-{length}"
        kept = self.secrets.secret(name, lambda: self.history + discrete_gaussian(sigma, length).tobytes())
        history, drawn = kept[: len(self.history)], kept[len(self.history) :]
        if history != self.history:
            raise PublicError(
                f"node {self.name}: it was told something else than before it was restarted, when it had drawn its noise; another member "
                f"lies, or runs in an older copy of its folder. Nothing more was sent; {NEW_RUN}"
            )
        return np.frombuffer(drawn, dtype=np.int64)


@dataclass(frozen=True)
class KeyAgreement:
    """How one node agrees on keys: its certificate, the run and the view, its settings, and where it keeps secrets."""

    identity: Identity
    run: str
    view: str
    settings: Mapping[str, str]  # which all nodes must have
    secrets: RunFolder
    allow_two: bool = False  # two members may take part, of whom each learns the other's sums

    def before(self, script: Script) -> Script:
        """The same program, whose network sums are secure."""

        def sealed(site: Site, options: Options, *more: Any) -> Generator[Any, Any, Any]:
            site.sealer, records = yield from self.sealer(site, options)
            answer = yield from script(site, options, *more)
            yield from self._confirm(site, site.sealer.history, records)
            return answer

        return sealed

    def _confirm(self, site: Site, history: bytes, records: dict[str, KeyRecord]) -> Generator[Any, Any, None]:
        (name,), own = site.names, self._signer().sign(_confirmation(site.names[0], history))
        said = yield from _gathered(site, own, [SIGNATURE // WORD] * len(site.network))
        for other, signature in said.items():
            try:
                key = Ed25519PublicKey.from_public_bytes(records[other].confirming)
                key.verify(signature, _confirmation(other, history))
            except InvalidSignature as error:
                text = f"node {other} has not signed that it was told the same: members were told different things"
                raise BadRecord(f"node {name}: {text}, or a node between changed what it said; {NEW_RUN}") from error

    def _signer(self) -> Ed25519PrivateKey:
        """Of this epoch: a certificate that is renewed meanwhile has another key."""
        return Ed25519PrivateKey.from_private_bytes(self.secrets.secret("signing key", lambda: os.urandom(KEY)))

    def sealer(self, site: Site, options: Options) -> Generator[Any, Any, tuple[Sealer, dict[str, KeyRecord]]]:
        """Agree with all nodes of the network: the sealer of this node, and the records of all. Raises BadRecord, before anything is summed, where
        a record is not what it should be."""
        (name,), network = site.names, site.network
        if len(network) < LEAST_MEMBERS and not self.allow_two:
            raise PublicError(
                f"secure sums of {len(network)} nodes: each could take its own term off a total, and read the other's; "
                f"{LEAST_MEMBERS} nodes are needed, or allow_two = true in the node.toml of both. Nothing was sent"
            )
        # With differential privacy nobody knows the others' numbers of rows.
        rows = [] if options.privacy is not None else [f"{n} rows" for n in site.sizes.tolist()]
        agreed = settings_hash(self.settings, [*network.names, *rows])
        challenge = self.secrets.secret("challenge", lambda: os.urandom(CHALLENGE))
        own = X25519PrivateKey.from_private_bytes(self.secrets.secret("key", lambda: os.urandom(KEY)))

        def longest_record() -> bytes:
            most = longest(self.identity.key, bytes(32), name, self.identity.chain)
            return most.to_bytes(WORD, "little")

        size = -(-int.from_bytes(self.secrets.secret("record size", longest_record), "little") // WORD)
        said = yield from _gathered(site, challenge, [CHALLENGE // WORD] * len(network))
        if said[name] != challenge:
            raise BadRecord(
                f"node {name}: its challenge came back as another: its folder is not the one that it had when the run began, or a node between "
                f"changed it. Nothing more was sent; bring the latest folder back if it was moved away (never an older copy); else {NEW_RUN}"
            )
        sizes = yield from _gathered(site, size.to_bytes(WORD, "little"), [1] * len(network))
        counts = {other: int.from_bytes(data, "little") for other, data in sizes.items()}
        for other, count in counts.items():
            if not 0 < count <= MOST_RECORD // WORD:
                why = f"{count * WORD} bytes with its certificates, where {MOST_RECORD} are allowed"
                raise BadRecord.of(other, why)

        now = epoch(self.run, self.view, said)

        def signed() -> bytes:
            confirming = self._signer().public_key().public_bytes_raw()
            return sign_record(
                now, name, public_of(own), confirming, agreed, self.identity.key, self.identity.chain
            ).pack()

        record = self.secrets.secret("record", signed).ljust(size * WORD, b"\0")
        told = yield from _gathered(site, record, list(counts.values()))
        records = {other: KeyRecord.unpack(other, data) for other, data in told.items()}
        self._refuse_denied(records)
        seen = hashlib.sha256(b"".join(told.values())).digest()

        def checked() -> bytes:
            check_records(records, now, agreed, self.identity.roots)
            return seen

        if self.secrets.secret("checked records", checked) != seen:
            raise BadRecord(
                f"node {name}: it was told other key records than before it was restarted; another member lies, or runs in an older copy of "
                f"its folder. Nothing more was sent; {NEW_RUN}"
            )
        if records[name].public != public_of(own):
            raise BadRecord.of(name, "its own came back with another key")

        def releasing() -> None:
            releases = options.private_options().releases(site.X.shape[1], len(network))
            self.secrets.keep_release(self.view, [asdict(release.entry()) for release in releases])

        log.info("keys agreed on", extra={"nodes": len(network), "epoch": now.hex()[:16]})
        history = hashlib.sha256(now + agreed + seen).digest()
        pairs = pair_keys(name, own, {other: record.public for other, record in records.items()}, now)
        return PeerSealer(name, pairs, history, secrets=self.secrets, releasing=releasing), records

    def _refuse_denied(self, records: dict[str, KeyRecord]) -> None:
        """Also after a restart, with which an owner may have denied a key that was checked before: all else is checked once."""
        for other, record in records.items() if self.identity.deny else ():
            try:
                why = self.identity.denial(map(x509.load_der_x509_certificate, record.chain))
            except ValueError as error:
                raise BadRecord.of(other, f"its certificate cannot be read ({error})") from error
            if why:
                raise BadRecord.of(other, why)


def _confirmation(name: str, history: bytes) -> bytes:
    """What node `name` signs if it was told all this."""
    return joined((CONFIRMED, name.encode(), history))


def _gathered(site: Site, own: bytes, counts: Sequence[int]) -> Generator[Any, Any, dict[str, bytes]]:
    """What each node gives, by name; `counts` are the words of each, in the order of the network."""
    network, node = site.network, int(site.nodes[0])
    ends = np.cumsum(counts)
    mine = np.zeros(int(ends[-1]), dtype=np.uint64)  # a sum in which each node has places of its own
    mine[ends[node] - counts[node] : ends[node]] = np.frombuffer(own, dtype="<u8")
    total = yield Sum(KIND, mine, lambda total: total, len(mine), np.dtype(np.uint64))
    parts = zip(network.names, np.split(total, ends[:-1]), strict=True)
    return {name: part.astype("<u8").tobytes() for name, part in parts}
