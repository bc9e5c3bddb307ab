"""Certificates and keys as files: read, checked, named. What is wrong with one is said here, by file and with a remedy."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization

from ....files import EXPOSED
from ..protocol.names import name_problem


class IdentityError(ValueError):
    """A certificate, key or CA that cannot be used; the text says which file, why, and the remedy."""


# ---------------------------------------------------------------------- names
def check_name(name: str) -> str:
    """A name that can stand in a certificate, in a file name and in a log.

    >>> check_name("hospital-a.example.org")
    'hospital-a.example.org'
    >>> check_name("Hospital A")
    Traceback (most recent call last):
    ...
    dekpca.engines.peer.net.certificates.IdentityError: node name 'Hospital A': use 1 to 63 of a-z and 0-9, and of '-', '_', '.' inside
    """
    problem = name_problem(name)
    if problem is not None:
        raise IdentityError(f"node name {name!r}: {problem}")
    return name


def name_of(certificate: x509.Certificate) -> str | None:
    """The one DNS name of a certificate; None if there is not exactly one, or if it is no node's name (a wildcard, say)."""
    names = dns_names(certificate)
    if len(names) != 1:
        return None
    try:
        return check_name(names[0].lower())
    except IdentityError:
        return None


def dns_names(certificate: x509.Certificate) -> list[str]:
    return _alternative(certificate, x509.DNSName)


def addresses(certificate: x509.Certificate) -> list[str]:
    return [str(a) for a in _alternative(certificate, x509.IPAddress)]


def _alternative(certificate: x509.Certificate, kind: Any) -> list[Any]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return list(found.get_values_for_type(kind))


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
        if os.name == "posix":
            _check_private(path)
        pem = path.read_bytes()
        if b"ENCRYPTED" in pem:
            raise IdentityError(
                f"key {path}: encrypted, and a node that is started again cannot ask for the passphrase; "
                f"openssl pkey -in {path} -out NEW writes it plain: protect the file instead"
            )
        return serialization.load_pem_private_key(pem, password=None)


def _check_private(path: Path) -> None:
    """Readable by its owner only; a file of root may be readable by a group of services. PostgreSQL has the same rule."""
    found = path.stat()
    allowed = stat.S_IRGRP if found.st_uid == 0 else 0
    if found.st_mode & EXPOSED & ~allowed:
        raise IdentityError(
            f"key {path}: others may read or change it (mode {stat.S_IMODE(found.st_mode):04o}); chmod 600 {path}, "
            "and get a new one if somebody may have seen it"
        )


def check_time(path: Path, what: str, certificate: x509.Certificate, remedy: str) -> None:
    now, begin, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise IdentityError(f"{what} {path}: expired at {moment(end)}, and it is {moment(now)}; {remedy}")
    if now < begin:
        raise IdentityError(
            f"{what} {path}: not valid before {moment(begin)}, and it is {moment(now)}; check this machine's clock"
        )


def other_name(path: Path, certificate: x509.Certificate, name: str) -> str:
    names = dns_names(certificate)
    if not names:
        return f"certificate {path}: has no DNS name; node {name} needs one with exactly that name (subjectAltName DNS:{name})"
    if len(names) > 1:
        return (
            f"certificate {path}: has {len(names)} DNS names ({', '.join(names)}), and neighbors could not tell which is the node's; "
            f"get one with {name} alone"
        )
    return f"certificate {path}: is for {names[0]}, not for node {name}; give the node its own, or correct its name"


def check_issuer(cert: Path, ca: Path, chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate]) -> None:
    """From the node's certificate, by way of the intermediate ones in its file, to a CA that is believed."""
    current, between = chain[0], list(chain[1:])
    while True:
        believed = [root for root in roots if _signed(current, root)]
        if believed:
            latest = max(believed, key=lambda root: root.not_valid_after_utc)
            return check_time(ca, "CA", latest, "make a new CA and give it to all nodes")
        above = next((c for c in between if _signed(current, c)), None)
        if above is None:
            break
        check_time(cert, "intermediate certificate in", above, "get a new chain")
        between.remove(above)
        current = above
    way = "" if current is chain[0] else f" (by way of {called(current.subject)})"
    raise IdentityError(
        f"certificate {cert}: not signed by the CA in {ca} ({'; '.join(called(r.subject) for r in roots)}), "
        f"but by {called(current.issuer)}{way}; use the CA that all nodes share, or get a certificate from it"
    )


def _signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    if not is_ca(issuer):
        return False
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def is_ca(certificate: x509.Certificate) -> bool:
    constraints = extension(certificate, x509.BasicConstraints)
    return constraints is not None and constraints.ca


def extension(certificate: x509.Certificate, kind: Any) -> Any:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def called(name: x509.Name) -> str:
    return name.rfc4514_string() or "nobody"


def moment(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")


def public(holder: Any) -> bytes:
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return holder.public_key().public_bytes(encoding, form)


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: Any) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())
