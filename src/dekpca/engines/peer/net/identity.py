"""The identity of a node: its certificate, key and CAs, and the credentials for gRPC.

A node's name is the one DNS name in its certificate. There are no fallbacks: a file that is missing, expired or does
not match stops the node, and the error names the file and the remedy. The TLS library checks certificates again in
every handshake; the checks in `load` give clear errors before any connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from .authority import init_ca, issue
from .certificates import (
    IdentityError,
    check_issuer,
    check_name,
    check_time,
    extension,
    fingerprint,
    name_of,
    other_name,
    pem,
    private_pem,
    public,
    read_certificates,
    read_key,
    reading,
)  # fmt: skip

__all__ = ["Identity", "IdentityError", "check_name", "explain", "init_ca", "issue", "load", "peer_name"]


# gRPC's texts for a failed connection, and their meaning between nodes.
MEANINGS = {
    "Hostname Verification Check failed": "the server there has no certificate with this neighbor's name",
    "CERTIFICATE_VERIFY_FAILED": "the certificate of the server there is expired, or not by a CA in our file",
    "WRONG_VERSION_NUMBER": "the server there does not speak TLS",
    "Connection refused": "nobody listens there",
    "Socket closed": "it ends the connection; if that goes on, it may not take our certificate: its log says why",
}


@dataclass(frozen=True, eq=False)
class Identity:
    """A node's certificate, its key, and the CAs that it trusts."""

    name: str
    expires: datetime
    fingerprint: str
    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)
    roots: bytes = field(repr=False)

    @property
    def days_left(self) -> float:
        return (self.expires - datetime.now(UTC)).total_seconds() / 86400

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server that requires a certificate from one of our CAs."""
        return grpc.ssl_server_credentials([(self.key, self.chain)], self.roots, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a channel; its option grpc.ssl_target_name_override must be the neighbor's name, which gRPC then checks."""
        return grpc.ssl_channel_credentials(self.roots, self.key, self.chain)


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


def load(cert: Path, key: Path, ca: Path, name: str) -> Identity:
    """The identity of node `name`; raises IdentityError, naming the file, for files that would be refused later."""
    cert, key, ca = Path(cert), Path(key), Path(ca)
    check_name(name)
    roots, chain = read_certificates(ca, "CA"), read_certificates(cert, "certificate")
    own = chain[0]
    check_time(cert, "certificate", own, "get a new one")
    if name_of(own) != name:
        raise IdentityError(other_name(cert, own, name))
    with reading(cert, "certificate", ValueError):
        usage = extension(own, x509.ExtendedKeyUsage)
    for purpose, what in ((ExtendedKeyUsageOID.CLIENT_AUTH, "client"), (ExtendedKeyUsageOID.SERVER_AUTH, "server")):
        if usage is not None and purpose not in usage:
            raise IdentityError(
                f"certificate {cert}: its extended key usage lacks {what} authentication; a node both calls and is called, "
                "so ask for clientAuth and serverAuth"
            )
    check_issuer(cert, ca, chain, roots)
    secret = read_key(key)
    if public(secret) != public(own):
        raise IdentityError(
            f"key {key}: does not fit certificate {cert}; give the key that this certificate was made for"
        )
    return Identity(
        name, own.not_valid_after_utc, fingerprint(own),
        b"".join(map(pem, chain)), private_pem(secret), b"".join(map(pem, roots)),
    )  # fmt: skip


def explain(details: str) -> str:
    """gRPC's text for a broken connection, preceded by its meaning if known.

    >>> explain("ipv4:192.0.2.7:7070: Failed to connect to remote host: Connection refused")
    'nobody listens there (ipv4:192.0.2.7:7070: Failed to connect to remote host: Connection refused)'
    """
    meaning = next((meaning for words, meaning in MEANINGS.items() if words in details), None)
    return details if meaning is None else f"{meaning} ({details})"
