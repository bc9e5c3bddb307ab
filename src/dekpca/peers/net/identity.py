"""The identity of a node: its certificate, key and CAs; reading and checking their files, and the credentials for gRPC.

A node's name is the one DNS name in its certificate. There are no fallbacks: a file that is missing, expired or does
not match stops the node, and the error names the file and the remedy. The TLS library checks certificates again in
every handshake; the checks in `load` give clear errors before any connection.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from ...files import EXPOSED
from ...privacy.records import alternative_names, extension
from ..protocol.events import Refusal, Refused
from ..protocol.text import name_problem

# gRPC's texts for a failed connection, and their meaning between nodes.
UNTRUSTED = ("Hostname Verification Check failed", "CERTIFICATE_VERIFY_FAILED")  # as in gRPC's texts
MEANINGS = {
    "Hostname Verification Check failed": "the server there has no certificate with this neighbor's name",
    "certificate has expired": "the certificate of the server there is expired",
    "certificate is not yet valid": "the certificate of the server there is not valid yet, by our clock",
    "unable to get local issuer certificate": "the certificate of the server there is not by a CA in our file",
    "CERTIFICATE_VERIFY_FAILED": "the certificate of the server there is expired, or not by a CA in our file",
    "WRONG_VERSION_NUMBER": "the server there does not speak TLS",
    "Connection refused": "nobody listens there",
    "Socket closed": "it ends the connection; if that goes on, it may not take our certificate: its log says why",
}


class IdentityError(ValueError):
    """A certificate, key or CA that cannot be used; the text names the file, the reason and the remedy."""


# ---------------------------------------------------------------------- names
def check_name(name: str) -> None:
    """Raises IdentityError for a name that is not valid in a certificate, a file name or a log."""
    problem = name_problem(name)
    if problem is not None:
        raise IdentityError(f"node name {name!r}: {problem}")


def name_of(certificate: x509.Certificate) -> str | None:
    """The one DNS name of a certificate; None if there is not exactly one, or if it is not a valid node name (a wildcard, say)."""
    names = [name.lower() for name in alternative_names(certificate)]
    return names[0] if len(names) == 1 and name_problem(names[0]) is None else None


# ---------------------------------------------------------------------- reading and checking
def read_certificates(path: Path, what: str = "certificate") -> list[x509.Certificate]:
    """All certificates of a PEM file: a node's own and then the intermediate ones, or several CAs."""
    with reading(path, what, ValueError):
        return x509.load_pem_x509_certificates(path.read_bytes())


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256, as `openssl x509 -fingerprint -sha256` prints it."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


@contextmanager
def reading(path: Path, what: str, *malformed: type[Exception]) -> Iterator[None]:
    try:
        yield
    except IdentityError:
        raise
    except FileNotFoundError as error:
        raise IdentityError(f"{what} {path}: there is no such file; dekpca certs makes one, or ask your CA") from error
    except OSError as error:
        raise IdentityError(f"{what} {path}: cannot be read ({error.strerror})") from error
    except malformed as error:
        raise IdentityError(f"{what} {path}: not what a PEM file should hold ({error})") from error


def read_key(path: Path) -> Any:
    with reading(path, "key", ValueError, TypeError):
        # Only its owner may read it; a file of root may be readable by a group. PostgreSQL has the same rule.
        found = path.stat()
        allowed = stat.S_IRGRP if found.st_uid == 0 else 0
        if os.name == "posix" and found.st_mode & EXPOSED & ~allowed:
            remedy = f"chmod 600 {path}, and get a new one if somebody may have seen it"
            mode = stat.S_IMODE(found.st_mode)
            raise IdentityError(f"key {path}: others may read or change it (mode {mode:04o}); {remedy}")
        pem = path.read_bytes()
        if b"ENCRYPTED" in pem:
            remedy = f"openssl pkey -in {path} -out NEW writes it plain: protect the file instead"
            text = f"encrypted, and a node that is started again cannot ask for the passphrase; {remedy}"
            raise IdentityError(f"key {path}: {text}")
        return serialization.load_pem_private_key(pem, password=None)


def check_time(path: Path, what: str, certificate: x509.Certificate, remedy: str) -> None:
    now, begin, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise IdentityError(f"{what} {path}: expired at {moment(end)}, and it is {moment(now)}; {remedy}")
    if now < begin:
        text = f"not valid before {moment(begin)}, and it is {moment(now)}; check this machine's clock"
        raise IdentityError(f"{what} {path}: {text}")


def other_name(path: Path, certificate: x509.Certificate, name: str) -> str:
    names = alternative_names(certificate)
    if not names:
        return f"certificate {path}: has no DNS name; node {name} needs one with exactly that name (subjectAltName DNS:{name})"
    if len(names) > 1:
        why = f"neighbors could not tell which is the node's; get one with {name} alone"
        return f"certificate {path}: has {len(names)} DNS names ({', '.join(names)}), and {why}"
    return f"certificate {path}: is for {names[0]}, not for node {name}; give the node its own, or correct its name"


def check_issuer(cert: Path, ca: Path, chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate]) -> None:
    """Check the chain from the node's certificate, through the intermediate ones in its file, to a trusted CA."""
    current, between = chain[0], list(chain[1:])
    while not (believed := [root for root in roots if _signed(current, root)]):
        above = next((c for c in between if _signed(current, c)), None)
        if above is None:
            way = "" if current is chain[0] else f" (by way of {called(current.subject)})"
            trusted = f"not signed by the CA in {ca} ({'; '.join(called(r.subject) for r in roots)})"
            remedy = "use the CA that all nodes share, or get a certificate from it"
            raise IdentityError(f"certificate {cert}: {trusted}, but by {called(current.issuer)}{way}; {remedy}")
        check_time(cert, "intermediate certificate in", above, "get a new chain")
        between.remove(above)
        current = above
    latest = max(believed, key=lambda root: root.not_valid_after_utc)
    check_time(ca, "CA", latest, "make a new CA and give it to all nodes")


def _signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return is_ca(issuer)


def is_ca(certificate: x509.Certificate) -> bool:
    constraints = extension(certificate, x509.BasicConstraints)
    return constraints is not None and constraints.ca


def called(name: x509.Name) -> str:
    return name.rfc4514_string() or "nobody"


def moment(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")


def public(holder: Any) -> bytes:
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return holder.public_key().public_bytes(encoding, form)


def key_fingerprint(holder: Any) -> str:
    """SHA-256 of a public key: the same of a key, a request and a certificate."""
    try:
        return hashlib.sha256(public(holder)).hexdigest()[:32]
    except UnsupportedAlgorithm as error:
        raise IdentityError(f"a key of an unknown kind ({error})") from error


def pem(certificate: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: Any) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


# ---------------------------------------------------------------------- the identity
@dataclass(frozen=True, eq=False)
class Identity:
    """A node's certificate, its key, and the CAs that it trusts."""

    name: str
    chain: tuple[x509.Certificate, ...] = field(repr=False)  # its own first
    key: Any = field(repr=False)
    roots: tuple[x509.Certificate, ...] = field(repr=False)
    deny: frozenset[str] = frozenset()  # fingerprints of keys that are refused

    @property
    def expires(self) -> datetime:
        return self.chain[0].not_valid_after_utc

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.chain[0])

    @property
    def days_left(self) -> float:
        return (self.expires - datetime.now(UTC)).total_seconds() / 86400

    def denial(self, chain: Iterable[x509.Certificate]) -> str:
        """Why a node with these certificates is refused; nothing if it is not."""
        denied = [key for key in map(key_fingerprint, chain) if key in self.deny]
        return f"its key {denied[0]} is denied (deny in node.toml)" if denied else ""

    def peer_name(self, auth_context: Mapping[str, Iterable[bytes]]) -> str | None:
        """The name of the other side of a call (see below); raises Refused if its key is denied."""
        shown = list(auth_context.get("x509_pem_cert", ()))
        name = peer_name(auth_context)
        if name is not None and (why := self.denial([x509.load_pem_x509_certificate(shown[0])])):
            raise Refused(Refusal.STRANGER, f"node {name}: {why}")
        return name

    def _pem(self) -> tuple[bytes, bytes, bytes]:
        """Roots, key and chain."""
        return b"".join(map(pem, self.roots)), private_pem(self.key), b"".join(map(pem, self.chain))

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server that requires a certificate from one of our CAs."""
        roots, key, chain = self._pem()
        return grpc.ssl_server_credentials([(key, chain)], roots, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a channel; its option grpc.ssl_target_name_override must be the neighbor's name, which gRPC then checks."""
        return grpc.ssl_channel_credentials(*self._pem())


def peer_name(auth_context: Mapping[str, Iterable[bytes]]) -> str | None:
    """The one DNS name in the certificate of the other side, from gRPC; None if there is not exactly one."""
    if list(auth_context.get("transport_security_type", ())) != [b"ssl"]:
        return None
    shown = list(auth_context.get("x509_pem_cert", ()))
    return _name_in(shown[0]) if len(shown) == 1 else None


@lru_cache(maxsize=256)  # used for every call; a node has few neighbors
def _name_in(shown: bytes) -> str | None:
    try:
        return name_of(x509.load_pem_x509_certificate(shown))
    except ValueError:
        return None


def denied_key(given: str) -> str:
    """A fingerprint of a key, as `key_fingerprint` writes it; raises IdentityError for what is none."""
    if not re.fullmatch("[0-9a-f]{32}", given.lower()):
        raise IdentityError(f"deny: {given!r} is no fingerprint of a key; copy the one that dekpca certs show prints")
    return given.lower()


def load(cert: Path, key: Path, ca: Path, name: str, deny: Iterable[str] = ()) -> Identity:
    """The identity of node `name`; raises IdentityError, naming the file, for files that would be refused later. `deny`: fingerprints of keys."""
    cert, key, ca = Path(cert), Path(key), Path(ca)
    check_name(name)
    roots, chain = read_certificates(ca, "CA"), read_certificates(cert, "certificate")
    own = chain[0]
    check_time(cert, "certificate", own, f"get a new one: dekpca certs request {name} --replace, and have it signed")
    if name_of(own) != name:
        raise IdentityError(other_name(cert, own, name))
    with reading(cert, "certificate", ValueError):
        usage = extension(own, x509.ExtendedKeyUsage)
    for purpose, what in ((ExtendedKeyUsageOID.CLIENT_AUTH, "client"), (ExtendedKeyUsageOID.SERVER_AUTH, "server")):
        if usage is not None and purpose not in usage:
            text = f"its extended key usage lacks {what} authentication"
            remedy = "a node both calls and is called, so ask for clientAuth and serverAuth"
            raise IdentityError(f"certificate {cert}: {text}; {remedy}")
    check_issuer(cert, ca, chain, roots)
    secret = read_key(key)
    if public(secret) != public(own):
        remedy = "give the key that this certificate was made for"
        raise IdentityError(f"key {key}: does not fit certificate {cert}; {remedy}")
    found = Identity(name, tuple(chain), secret, tuple(roots), frozenset(map(denied_key, deny)))
    if why := found.denial(chain):
        raise IdentityError(f"certificate {cert}: {why}; get a new one")
    return found


def explain(details: str) -> str:
    """The meaning of gRPC's text for a broken connection, or the text if that is not known.

    >>> explain("ipv4:192.0.2.7:7070: Failed to connect to remote host: Connection refused")
    'nobody listens there'
    """
    return next((meaning for words, meaning in MEANINGS.items() if words in details), details)
