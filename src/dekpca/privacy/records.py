"""Key records: a node's public keys for one run, and a hash of what it runs with (settings, members and their numbers of rows), signed by the key of
its certificate. Any node can pass them on; none can change them. Statuses of peers (peers/app/proofs.py) are signed and checked by the same
functions.

Nodes that are not neighbors mask for each other too, so a record is checked from the certificate up to the CA, not by who handed it over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from .errors import PublicError

PURPOSE = b"dekpca key record, version 3"
KEY = 32  # bytes of X25519 and Ed25519
Certificates = Sequence[x509.Certificate]


class BadRecord(PublicError):
    """A key record that is not what it says; nothing may be sent under it."""

    @classmethod
    def of(cls, name: str, why: object) -> BadRecord:
        return cls(f"key record of node {name}: {why}. Nothing was sent")


class BadSignature(ValueError):
    """A certificate that no CA stands behind, or a signature that does not fit."""


@dataclass(frozen=True)
class KeyRecord:
    """`run` names the run and its epoch, so that a record of another run is refused. `settings` is a hash of the settings, of all members and their
    numbers of rows. `public` is the key for masks; `confirming` verifies what the node signs in this run, also after its certificate was renewed.
    `chain` are DER certificates, the node's own first."""

    run: bytes
    name: str
    public: bytes
    confirming: bytes
    settings: bytes
    chain: tuple[bytes, ...]
    signature: bytes

    @property
    def signed(self) -> bytes:
        """What the signature is over."""
        return joined((PURPOSE, self.run, self.name.encode(), self.public, self.confirming, self.settings))

    def pack(self) -> bytes:
        """As bytes, to be passed on."""
        keys = self.public, self.confirming
        return joined((self.run, self.name.encode(), *keys, self.settings, self.signature, *self.chain))

    @classmethod
    def unpack(cls, name: str, data: bytes) -> KeyRecord:
        """The record that is said to be that of node `name`; zeros may follow it."""
        try:
            run, own, public, confirming, settings, signature, *chain = parted(data)
            if own != name.encode() or not len(public) == len(confirming) == KEY:
                raise ValueError(f"node {own.decode()}, with keys of {len(public)} and {len(confirming)} bytes")
            return cls(run, name, public, confirming, settings, tuple(chain), signature)
        except ValueError as error:
            raise BadRecord.of(name, f"it cannot be read ({error})") from error


def sign_record(
    run: bytes, name: str, public: bytes, confirming: bytes, settings: bytes, key: Any, chain: Certificates
) -> KeyRecord:
    """The record of a node, by the private key of its certificate."""
    record = KeyRecord(run, name, public, confirming, settings, in_der(chain), b"")
    return replace(record, signature=sign(key, record.signed))


def check_record(record: KeyRecord, run: bytes, roots: Certificates, now: datetime | None = None) -> None:
    """Refuse a record that is not of this run, or that no CA in `roots` stands behind."""
    if record.run != run:
        raise BadRecord.of(record.name, "it is of another run or epoch; a record cannot be used again")
    try:
        verify(certified_key(record.name, record.chain, roots, now), record.signature, record.signed)
    except BadSignature as error:
        raise BadRecord.of(record.name, error) from error


def check_records(records: Mapping[str, KeyRecord], run: bytes, settings: bytes, roots: Certificates) -> None:
    """Refuse the records of a network, by name, if one is not good, or was signed for other settings or members, or if two have the same key."""
    for name, record in records.items():
        check_record(record, run, roots)
        if record.settings != settings:
            raise BadRecord(
                f"key record of node {name}: it is signed for other settings, other members, or other numbers of rows, than this node has; "
                "a node between them hides the difference, or a member tells different numbers to different nodes. Nothing was sent; compare "
                "node.toml with its owner, and the number of all rows in the log"
            )
    if len({record.public for record in records.values()}) < len(records):
        raise BadRecord("two nodes have the same key for this run. Nothing was sent")


def epoch(run: str, view: str, challenges: Mapping[str, bytes]) -> bytes:
    """The name of an epoch of a run between peers. Every node's random challenge is in it, so that no node takes a record that was signed before."""
    said = [x for name, challenge in sorted(challenges.items()) for x in (name.encode(), challenge)]
    return hashlib.sha256(joined((PURPOSE, run.encode(), view.encode(), *said))).digest()


def settings_hash(settings: Mapping[str, str], members: Iterable[str]) -> bytes:
    """Of the settings of a run, and of all that take part: names and numbers of rows."""
    texts = [*(x for item in sorted(settings.items()) for x in item), *members]
    return hashlib.sha256(joined(text.encode() for text in texts)).digest()


def longest(key: Any, run: bytes, name: str, chain: Certificates) -> int:
    """Bytes of a packed record of this node at most; those of an ECDSA signature vary."""
    ends = sum(4 + len(c.public_bytes(serialization.Encoding.DER)) for c in chain)
    return 6 * 4 + len(run) + len(name.encode()) + 3 * 32 + (3 * key.key_size) // 8 + 64 + ends


# ---------------------------------------------------------------------- signatures and certificates
def joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def parted(data: bytes) -> list[bytes]:
    """The parts of joined data, up to an empty one; zeros may follow."""
    parts, at = [], 0
    while size := int.from_bytes(data[at : at + 4], "big"):
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if at > len(data):
        raise ValueError("it was cut short")
    return parts


def in_der(chain: Certificates) -> tuple[bytes, ...]:
    return tuple(c.public_bytes(serialization.Encoding.DER) for c in chain)


def certified_key(name: str, chain: Sequence[bytes], roots: Certificates, now: datetime | None = None) -> Any:
    """The public key of a node's certificate, the first of these in DER, which a CA in `roots` stands behind."""
    now = datetime.now(UTC) if now is None else now
    try:
        own, *between = map(x509.load_der_x509_certificate, chain)
        names, key = [name.lower() for name in alternative_names(own)], own.public_key()
        if names == [name]:
            PolicyBuilder().store(Store(list(roots))).time(now).build_client_verifier().verify(own, between)
    except VerificationError as error:
        wrong = f"its certificate does not lead to the CA of this network, or is not valid now ({error})"
        raise BadSignature(wrong) from error
    except Exception as error:  # whatever a malformed certificate makes the parser raise
        raise BadSignature(f"its certificate cannot be read ({error})") from error
    if names != [name]:
        raise BadSignature(f"its certificate is for {names}")
    return key


def alternative_names(certificate: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """The DNS names of a certificate."""
    found = extension(certificate, x509.SubjectAlternativeName)
    return [] if found is None else [str(name) for name in found.get_values_for_type(x509.DNSName)]


def extension(certificate: x509.Certificate | x509.CertificateSigningRequest, kind: Any) -> Any:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


def sign(key: Any, message: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(message, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(message, _PSS, hashes.SHA256())
    raise BadRecord(f"a key of type {type(key).__name__} cannot sign; use ECDSA or RSA")


def verify(key: Any, signature: bytes, message: bytes) -> None:
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, message, _PSS, hashes.SHA256())
        else:
            raise InvalidSignature
    except InvalidSignature as error:
        raise BadSignature("the signature does not fit; somebody changed the record on its way") from error
