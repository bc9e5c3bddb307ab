"""A private CA in a folder, for trials and small groups; organisations use their own. Files are never overwritten."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from . import identity
from .identity import IdentityError, moment, pem, private_pem, public

SKEW = timedelta(minutes=5)  # certificates are valid from a little earlier, since clocks of different owners differ
CA_CERT, CA_KEY = "ca.crt", "ca.key"
ROTATION = "(docs/explanation/security.md, rotation)"


def init_ca(folder: Path, name: str = "dekpca", days: float = 1825) -> Path:
    """A new CA: ca.crt, to give to every node, and ca.key, to keep. Returns the certificate's path."""
    key = ec.generate_private_key(ec.SECP256R1())
    whose = _subject(name, "CA")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = _builder(whose, whose, key.public_key(), *_validity(days, None)).add_extension(usage, critical=True)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _check_free(folder / CA_KEY, folder / CA_CERT, remedy=f"a new CA goes into another folder {ROTATION}")
    _write(folder / CA_KEY, private_pem(key), 0o600)
    return _write(folder / CA_CERT, pem(builder.sign(key, hashes.SHA256())), 0o644)


def issue(
    folder: Path, node_name: str, days: float = 90, replace: bool = False, start: datetime | None = None
) -> tuple[Path, Path]:
    """A new key and its certificate by the CA in `folder`: NAME.crt and NAME.key there. Returns the two paths.

    `replace` keeps the old files beside the new ones.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    signed = _signed(Path(folder), node_name, key.public_key(), days, start)
    paths = _places(Path(folder), node_name, (".crt", ".key"), replace)
    _write(paths[1], private_pem(key), 0o600)
    _write(paths[0], pem(signed), 0o644)
    return paths[0], paths[1]


def request(folder: Path, node_name: str, replace: bool = False) -> tuple[Path, Path]:
    """A new key, which stays with the node's owner, and a request for its certificate: NAME.csr and NAME.key in `folder`."""
    identity.check_name(node_name)
    key = ec.generate_private_key(ec.SECP256R1())
    asked = x509.CertificateSigningRequestBuilder(_subject(node_name, "node"))
    asked = asked.add_extension(x509.SubjectAlternativeName([x509.DNSName(node_name)]), critical=False)
    paths = _places(Path(folder), node_name, (".csr", ".key"), replace)
    _write(paths[1], private_pem(key), 0o600)
    return _write(paths[0], pem(asked.sign(key, hashes.SHA256())), 0o644), paths[1]


def read_request(csr: Path) -> tuple[x509.CertificateSigningRequest, list[str]]:
    """A request whose sender has the key, and the names that it is for."""
    with identity.reading(csr, "request", ValueError):
        asked = x509.load_pem_x509_csr(csr.read_bytes())
        valid = asked.is_signature_valid
    if not valid:
        why = "its signature is wrong, so whoever sent it may not have the key; ask for another"
        raise IdentityError(f"request {csr}: {why}")
    common = asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return asked, identity.alternative_names(asked) or [str(name.value) for name in common]


def sign(folder: Path, csr: Path, node_name: str, days: float = 90, replace: bool = False) -> Path:
    """The certificate that a request asks for, by the CA in `folder`: NAME.crt there. Nothing of the request is taken over but its key."""
    asked, names = read_request(csr)
    if names != [node_name]:
        rule = "a certificate has the name that its request has; give that with --node, or ask for another request"
        raise IdentityError(f"request {csr}: is for {', '.join(names) or 'nobody'}, not for node {node_name}; {rule}")
    signed = _signed(Path(folder), node_name, asked.public_key(), days)
    (path,) = _places(Path(folder), node_name, (".crt",), replace)
    return _write(path, pem(signed), 0o644)


def _signed(folder: Path, node_name: str, key: Any, days: float, start: datetime | None = None) -> x509.Certificate:
    """A certificate for a node's public key by the CA in `folder`."""
    identity.check_name(node_name)
    if node_name == "ca":
        raise IdentityError("node name 'ca': its files would be those of the CA; choose another")
    if not (folder / CA_CERT).exists():
        raise IdentityError(f"CA {folder / CA_CERT}: there is no such file; give the CA's folder with --folder")
    authority = identity.read_certificates(folder / CA_CERT, "CA")[0]
    identity.check_time(folder / CA_CERT, "CA", authority, f"make a new CA in another folder {ROTATION}")
    secret = identity.read_key(folder / CA_KEY)
    if public(secret) != public(authority):
        raise IdentityError(f"key {folder / CA_KEY}: does not fit CA {folder / CA_CERT}; bring back the one that does")
    begin, end = _validity(days, start)
    if end > authority.not_valid_after_utc:
        limit = f"CA {folder / CA_CERT}, which ends at {moment(authority.not_valid_after_utc)}"
        remedy = f"give fewer days or make a new CA {ROTATION}"
        raise IdentityError(f"certificate of {node_name}: {days:g} days would outlive {limit}; {remedy}")
    builder = _builder(_subject(node_name, "node"), authority.subject, key, begin, end)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([x509.DNSName(node_name)]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),  # type: ignore[arg-type]
    ):
        builder = builder.add_extension(extension, critical)
    return builder.sign(secret, hashes.SHA256())


def _places(folder: Path, node_name: str, kinds: Sequence[str], replace: bool) -> list[Path]:
    """Where new files of a node go; `replace` moves old ones aside."""
    paths = [folder / f"{node_name}{kind}" for kind in kinds]
    if replace:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        for path in filter(Path.exists, paths):
            path.rename(path.with_name(f"{path.name}.replaced-{stamp}"))
    else:
        _check_free(*paths, remedy="to renew it and keep the old one aside: --replace")
    return paths


def _subject(name: str, kind: str) -> x509.Name:
    parts = {NameOID.COMMON_NAME: name, NameOID.ORGANIZATIONAL_UNIT_NAME: kind}
    try:
        return x509.Name([x509.NameAttribute(*part) for part in parts.items()])
    except ValueError as error:
        raise IdentityError(f"name {name!r}: {error}; use 1 to 64 characters") from error


def _validity(days: float, start: datetime | None) -> tuple[datetime, datetime]:
    if not 0 < days <= 36500:
        raise IdentityError(f"{days:g} days: a certificate is valid for more than 0 and at most 36500 days")
    begin = start or datetime.now(UTC)
    return begin - SKEW, begin + timedelta(days=days)


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, begin: datetime, end: datetime) -> Any:
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    builder = builder.not_valid_before(begin).not_valid_after(end)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign",
        "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _write(path: Path, content: bytes, mode: int) -> Path:
    """Create a new file with this `mode`; an existing file is an error."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise IdentityError(f"{path}: exists, and nothing is overwritten") from error
    except OSError as error:
        raise IdentityError(f"{path}: cannot be written ({error.strerror})") from error
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path


def _check_free(*paths: Path, remedy: str) -> None:
    for path in paths:
        if path.exists():
            raise IdentityError(f"{path}: exists, and nothing is overwritten; {remedy}")
