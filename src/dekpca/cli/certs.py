"""`dekpca certs`: a private CA and node certificates for small groups, and details of any certificate (docs/explanation/security.md)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from .common import FAILED, Said, make_folder, peer_modules, print_plain, say, verb

HELP = "Make and show the certificates by which nodes know each other."
certs = typer.Typer(name="certs", help=HELP, no_args_is_help=True)

SOON = 30  # days; enough time to issue new ones

Folder = Annotated[Path, typer.Option("--folder", help="Where the CA's files are.")]


@certs.command()
@verb
def init(
    folder: Folder = Path("certs"),
    name: Annotated[str, typer.Option(help="What the CA is called, for people.")] = "dekpca",
    days: Annotated[float, typer.Option(help="How long it is valid.")] = 1825,
) -> Said:
    """Make a CA: ca.crt for every node, and ca.key, which signs and must stay secret.

    The holder of ca.key can make a certificate for any name. Existing files are not overwritten.

    Example: dekpca certs init --folder certs --name "our three hospitals"
    """
    authority = peer_modules("net.authority").authority
    made, key = authority.init_ca(make_folder(folder), name, days), folder / authority.CA_KEY
    return _made({"certificate": made, "key": key, "days": days}, "keep this one to yourself")


@certs.command()
@verb
def issue(
    node: Annotated[str, typer.Argument(help="The node's name, as its neighbors write it.")],
    folder: Folder = Path("certs"),
    days: Annotated[float, typer.Option(help="How long it is valid; short, since none can be revoked.")] = 90,
    replace: Annotated[bool, typer.Option("--replace", help="Renew: keep the old key and certificate aside.")] = False,
) -> Said:
    """Make a key and a certificate for a node: NODE.key and NODE.crt, for its owner, together with ca.crt.

    Examples:

      dekpca certs issue hospital-a

      dekpca certs issue hospital-a --days 30 --replace
    """
    made, key = peer_modules("net.authority").authority.issue(folder, node, days, replace)
    result = {"node": node, "certificate": made, "key": key, "days": days}
    return _made(result, "for the node's owner alone")


@certs.command()
@verb
def request(
    node: Annotated[str, typer.Argument(help="The node's name, as its neighbors write it.")],
    folder: Annotated[Path, typer.Option("--folder", help="Where the files go.")] = Path(),
    replace: Annotated[bool, typer.Option("--replace", help="Renew: keep the old key and request aside.")] = False,
) -> Said:
    """Make a key, which stays with its owner, and a request for a certificate: NODE.key and NODE.csr.

    Send NODE.csr to the CA, and compare the fingerprint of the key by telephone.

    Example: dekpca certs request hospital-a
    """
    peer = peer_modules("net.authority", "net.identity")
    asked, key = peer.authority.request(make_folder(folder), node, replace)
    told = peer.identity.key_fingerprint(peer.identity.read_key(key))
    text = f"wrote {asked}: for the CA\nwrote {key}: keep this one to yourself\nfingerprint of the key: {told}"
    return Said({"node": node, "request": asked, "key": key, "fingerprint": told}, lambda: print_plain(text))


@certs.command()
@verb
def sign(
    request: Annotated[Path, typer.Argument(help="The request, NODE.csr, of the node's owner.")],
    node: Annotated[str | None, typer.Option(help="The node's name; default: as the file is called.")] = None,
    folder: Folder = Path("certs"),
    days: Annotated[float, typer.Option(help="How long it is valid; short, since none can be revoked.")] = 90,
    replace: Annotated[bool, typer.Option("--replace", help="Renew: keep the old certificate aside.")] = False,
) -> Said:
    """Sign the request of a node's owner: NODE.crt, for the owner, together with ca.crt. The key never leaves its owner.

    Make sure who asks: compare the fingerprint of the key by telephone.

    Example: dekpca certs sign hospital-a.csr
    """
    peer, name = peer_modules("net.authority", "net.identity"), request.stem if node is None else node
    made = peer.authority.sign(folder, request, name, days, replace)
    key = peer.identity.key_fingerprint(peer.identity.read_certificates(made)[0])
    result = {"node": name, "certificate": made, "days": days, "fingerprint": key}
    return Said(result, lambda: print_plain(f"wrote {made}: for the node's owner\nfingerprint of the key: {key}"))


@certs.command()
@verb
def show(
    paths: Annotated[
        list[Path], typer.Argument(help="Certificates, folders of them (*.crt, *.pem), or requests (*.csr).")
    ],
    warn: Annotated[float, typer.Option(help="Warn this many days before the end.")] = SOON,
) -> Said:
    """Print names, validity, issuer and fingerprints of certificates and of their keys; exit code 1 if one is not valid now.

    Of a request it prints the name and the fingerprint of the key.

    Compare fingerprints by telephone: the file may have been replaced on the way.

    Example: dekpca certs show certs --warn 14
    """
    peer = peer_modules("net.authority", "net.identity")
    identity, requests = peer.identity, [path for path in paths if path.suffix == ".csr"]
    asked = [(path, *peer.authority.read_request(path)) for path in requests]
    keys = [{"file": path, "names": names, "fingerprint": identity.key_fingerprint(of)} for path, of, names in asked]
    found = [
        {"file": path, **_describe(identity, certificate, warn)}
        for path in _files([path for path in paths if path not in requests])
        for certificate in identity.read_certificates(path)
    ]
    for one in found:
        if one["state"] != "valid":
            say("warning", f"{one['file']}: {_called(one)} {_state(one)}")
    invalid = any(one["state"] in ("expired", "not yet valid") for one in found)
    told = {"certificates": found} | ({"requests": keys} if keys else {})
    return Said(told, lambda: _tell(found, keys), FAILED * invalid)


def _files(paths: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(p for p in path.iterdir() if p.suffix in (".crt", ".pem")) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path}: no .crt or .pem file in this folder")
        found += inside
    return found


def _describe(identity: ModuleType, certificate: Any, warn: float) -> dict[str, Any]:
    now, begin, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    left = (end - now).total_seconds() / 86400
    state = "expired" if left < 0 else "not yet valid" if now < begin else "expires soon" if left < warn else "valid"
    return {
        "kind": "CA" if identity.is_ca(certificate) else "node",
        "node": identity.name_of(certificate),
        "names": identity.alternative_names(certificate),
        "subject": identity.called(certificate.subject),
        "issuer": identity.called(certificate.issuer),
        "valid_from": identity.moment(begin),
        "valid_until": identity.moment(end),
        "days_left": round(left, 1),
        "state": state,
        "fingerprint": identity.fingerprint(certificate),
        "key": identity.key_fingerprint(certificate),
    }


def _made(result: dict[str, Any], whose: str) -> Said:
    return Said(result, lambda: print_plain(f"wrote {result['certificate']}\nwrote {result['key']}: {whose}"))


def _called(one: dict[str, Any]) -> str:
    return f"CA {one['subject']}" if one["kind"] == "CA" else f"node {one['node']}" if one["node"] else one["subject"]


def _state(one: dict[str, Any]) -> str:
    if one["state"] == "not yet valid":
        return f"is not valid before {one['valid_from']}"
    if one["state"] == "expired":
        return f"expired at {one['valid_until']}"
    return f"is valid until {one['valid_until']}, {one['days_left']:g} days"


def _tell(found: list[dict[str, Any]], keys: list[dict[str, Any]]) -> None:
    for key in keys:
        print_plain(
            f"{key['file']}: request of node {', '.join(key['names'])}\n  fingerprint of the key: {key['fingerprint']}"
        )
    for one in found:
        print_plain(f"{one['file']}: {_called(one)} {_state(one)}")
        for what in ("names", "subject", "issuer", "valid from", "fingerprint", "key"):
            value = one[what.replace(" ", "_")]
            if value:
                print_plain(f"  {what:<12} {', '.join(value) if what == 'names' else value}")
