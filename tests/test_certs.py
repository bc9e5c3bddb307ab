"""Certificates: what a node is refused with, and that TLS agrees; the private CA; the verbs."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from typer.testing import CliRunner

from dekpca.cli import app
from dekpca.cli.common import out
from dekpca.peers.net import authority, identity
from dekpca.peers.net.authority import SKEW, init_ca, issue
from dekpca.peers.net.identity import IdentityError, load, peer_name, public, read_certificates

LONG_AGO = datetime.now(UTC) - timedelta(days=9)
OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="compares with openssl")


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """A CA with nodes a and b, an expired and a future one; another CA of the same name under other/."""
    folder = tmp_path_factory.mktemp("certs")
    init_ca(folder, "group", 300)
    for name in ("a", "b"):
        issue(folder, name, 90)
    issue(folder, "old", 1, start=LONG_AGO)
    issue(folder, "early", 1, start=datetime.now(UTC) + timedelta(days=9))
    init_ca(folder / "other", "group", 300)
    issue(folder / "other", "a", 90)
    return folder


def of(folder: Path, name: str, ca: Path | None = None) -> identity.Identity:
    return load(folder / f"{name}.crt", folder / f"{name}.key", ca or folder / "ca.crt", name)


def sign(folder: Path, name: str, names=(), usage=None, key=None, ca=None, extra=b"") -> None:
    """A certificate that `issue` would not make, by the CA in `folder` or by `ca`, a (certificate, key)."""
    authority, secret = ca or authority_of(folder)
    key = key or ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(
        authority.subject, x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), key.public_key(),
        x509.random_serial_number(), datetime.now(UTC) - SKEW, datetime.now(UTC) + timedelta(days=1),
    )  # fmt: skip
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
    if usage:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    made = builder.sign(secret, hashes.SHA256())
    (folder / f"{name}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM) + extra)
    (folder / f"{name}.key").touch(0o600)
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / f"{name}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))


def authority_of(folder: Path):
    certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    return certificate, serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)


# ---------------------------------------------------------------------- loading
def test_a_good_identity(certs):
    a = of(certs, "a")
    assert a.name == "a"
    assert timedelta(days=89) < a.expires - datetime.now(UTC) <= timedelta(days=90)
    assert 89 < a.days_left <= 90
    assert "PRIVATE" not in repr(a)


@pytest.mark.parametrize(
    ("files", "name", "says"),
    [
        (("none.crt", "a.key", "ca.crt"), "a", r"certificate \S+none.crt: there is no such file"),
        (("a.crt", "none.key", "ca.crt"), "a", r"key \S+none.key: there is no such file"),
        (("a.crt", "a.key", "none.crt"), "a", r"CA \S+none.crt: there is no such file"),
        (("", "a.key", "ca.crt"), "a", r"certificate \S+: cannot be read \(Is a directory\)"),
        (("a.key", "a.key", "ca.crt"), "a", r"certificate \S+a.key: not what a PEM file should hold"),
        (("a.crt", "a.crt", "ca.crt"), "a", r"key \S+a.crt: others may read or change it \(mode 0\d44\); chmod 600"),
        (("a.crt", "b.key", "ca.crt"), "a", r"key \S+b.key: does not fit certificate \S+a.crt"),
        (("a.crt", "a.key", "ca.crt"), "b", r"certificate \S+a.crt: is for a, not for node b"),
        (("a.crt", "a.key", "other/ca.crt"), "a", r"certificate \S+a.crt: not signed by the CA in \S+other/ca.crt"),
        (("a.crt", "a.key", "b.crt"), "a", r"certificate \S+a.crt: not signed by the CA in \S+b.crt"),
        (("a.crt", "a.key", "ca.crt"), "A", r"node name 'A': use"),
        (("old.crt", "old.key", "ca.crt"), "old",
         r"certificate \S+old.crt: expired at \d{4}-\d\d-\d\d \d\d:\d\d UTC, and it is .*: dekpca certs request old --replace"),
        (("early.crt", "early.key", "ca.crt"), "early", r"certificate \S+early.crt: not valid before .*; check this machine's clock"),
    ],
)  # fmt: skip
def test_what_stops_a_node(certs, files, name, says):
    with pytest.raises(IdentityError, match=says):
        load(*(certs / f for f in files), name)


def test_damaged_files(certs, tmp_path):
    cut = tmp_path / "a.crt"
    cut.write_bytes((certs / "a.crt").read_bytes()[:200])
    with pytest.raises(IdentityError, match=r"a.crt: not what a PEM file should hold"):
        load(cut, certs / "a.key", certs / "ca.crt", "a")
    (tmp_path / "empty").touch()
    with pytest.raises(IdentityError, match=r"CA \S+empty: not what"):
        load(certs / "a.crt", certs / "a.key", tmp_path / "empty", "a")
    scrambled = tmp_path / "a.key"
    scrambled.touch(0o600)
    scrambled.write_bytes((certs / "a.key").read_bytes().replace(b"M", b"N"))
    with pytest.raises(IdentityError, match=r"key \S+a.key: not what"):
        load(certs / "a.crt", scrambled, certs / "ca.crt", "a")


def test_a_certificate_with_a_changed_byte_is_not_signed(certs, tmp_path):
    pem = x509.load_pem_x509_certificate((certs / "a.crt").read_bytes()).public_bytes(serialization.Encoding.DER)
    at = pem.index(b"\x82\x01a") + 2  # DNS:a
    forged = x509.load_der_x509_certificate(pem[:at] + b"b" + pem[at + 1 :])
    (tmp_path / "b.crt").write_bytes(forged.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(IdentityError, match="not signed by the CA"):
        load(tmp_path / "b.crt", certs / "a.key", certs / "ca.crt", "b")


def test_an_encrypted_key_is_refused(certs, tmp_path):
    key = serialization.load_pem_private_key((certs / "a.key").read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    (tmp_path / "a.key").touch(0o600)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    (tmp_path / "a.key").write_bytes(pem)
    with pytest.raises(IdentityError, match=r"a.key: encrypted"):
        load(certs / "a.crt", tmp_path / "a.key", certs / "ca.crt", "a")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused(certs, tmp_path, mode):
    shutil.copy(certs / "a.key", tmp_path / "a.key")
    (tmp_path / "a.key").chmod(mode)
    if mode == 0o640 and os.geteuid() == 0:  # root may let a group of services read it
        load(certs / "a.crt", tmp_path / "a.key", certs / "ca.crt", "a")
        return
    with pytest.raises(IdentityError, match=rf"a.key: others may read or change it \(mode {mode:04o}\); chmod 600"):
        load(certs / "a.crt", tmp_path / "a.key", certs / "ca.crt", "a")


def test_names_must_not_be_ambiguous(certs, tmp_path):
    shutil.copytree(certs, tmp_path, dirs_exist_ok=True)
    a, b = x509.DNSName("a"), x509.DNSName("b")
    for names, says in (
        ([], "has no DNS name"),
        ([x509.UniformResourceIdentifier("a"), x509.RFC822Name("a@b")], "has no DNS name"),
        ([a, b], r"has 2 DNS names \(a, b\)"),
        ([x509.DNSName("*.org")], r"is for \*.org, not for node x"),
    ):
        sign(tmp_path, "x", names)
        with pytest.raises(IdentityError, match=rf"x.crt: {says}"):
            of(tmp_path, "x")


def test_a_certificate_for_clients_only_is_refused(certs, tmp_path):
    shutil.copytree(certs, tmp_path, dirs_exist_ok=True)
    sign(tmp_path, "x", [x509.DNSName("x")], [x509.ExtendedKeyUsageOID.CLIENT_AUTH])
    with pytest.raises(IdentityError, match="lacks server authentication"):
        of(tmp_path, "x")


# ---------------------------------------------------------------------- TLS agrees
@contextmanager
def server(own: identity.Identity):
    """Answers every call with the name in the caller's certificate."""
    seen: list[str | None] = []

    def answer(_request, context):
        seen.append(peer_name(context.auth_context()))
        return repr(seen[-1]).encode()

    handler = grpc.method_handlers_generic_handler("test", {"name": grpc.unary_unary_rpc_method_handler(answer)})
    running = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    port = running.add_secure_port("127.0.0.1:0", own.server_credentials())
    running.start()
    try:
        yield port, seen
    finally:
        running.stop(None).wait(10)


def ask(port: int, credentials: grpc.ChannelCredentials, target: str) -> str:
    options = [("grpc.ssl_target_name_override", target)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        return channel.unary_unary("/test/name")(b"", timeout=120, wait_for_ready=False).decode()


def presenting(folder: Path, name: str, roots: Path) -> grpc.ChannelCredentials:
    """Credentials that `load` would refuse to make."""
    return grpc.ssl_channel_credentials(
        *(p.read_bytes() for p in (roots, folder / f"{name}.key", folder / f"{name}.crt"))
    )


def test_neighbors_know_each_other_by_name(certs):
    with server(of(certs, "a")) as (port, seen):
        assert ask(port, of(certs, "b").channel_credentials(), "a") == "'b'"
        with pytest.raises(grpc.RpcError):  # the caller wants somebody else
            ask(port, of(certs, "b").channel_credentials(), "b")
    assert seen == ["b"]


def test_whom_the_handshake_refuses(certs):
    with server(of(certs, "a")) as (port, seen):
        for credentials in (
            presenting(certs, "old", certs / "ca.crt"),
            presenting(certs, "early", certs / "ca.crt"),
            presenting(certs / "other", "a", certs / "ca.crt"),
            grpc.ssl_channel_credentials((certs / "ca.crt").read_bytes()),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                ask(port, credentials, "a")
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert seen == []


def test_no_name_for_ambiguous_certificates(certs, tmp_path):
    shutil.copytree(certs, tmp_path, dirs_exist_ok=True)
    a, b = x509.DNSName("a"), x509.DNSName("b")
    cases = [[], [a, b], [x509.DNSName("*.org")], [x509.UniformResourceIdentifier("b")], [x509.RFC822Name("b")]]
    with server(of(certs, "a")) as (port, _):
        for names in cases:
            sign(tmp_path, "x", names)
            assert ask(port, presenting(tmp_path, "x", certs / "ca.crt"), "a") == "None"
        sign(tmp_path, "x", [x509.DNSName("B")])  # DNS names know no case
        assert ask(port, presenting(tmp_path, "x", certs / "ca.crt"), "a") == "'b'"


def test_no_name_without_tls():
    assert peer_name({}) is None
    assert peer_name({"transport_security_type": [b"insecure"], "x509_common_name": [b"a"]}) is None
    assert peer_name({"transport_security_type": [b"ssl"], "x509_common_name": [b"a"], "peer_dns": [b"a"]}) is None
    assert peer_name({"transport_security_type": [b"ssl"], "x509_pem_cert": [b"not a certificate"]}) is None


def test_change_of_the_ca_without_a_day_off(certs, tmp_path):
    """With both CAs in everybody's file, nodes with certificates of the old and of the new one talk to each other."""
    both = tmp_path / "both.crt"
    both.write_bytes((certs / "ca.crt").read_bytes() + (certs / "other" / "ca.crt").read_bytes())
    init_ca(tmp_path / "third", "group", 10)
    issue(tmp_path / "third", "c", 5)
    renewed, waiting = of(certs / "other", "a", both), of(certs, "b", both)
    with server(renewed) as (port, seen):
        assert ask(port, waiting.channel_credentials(), "a") == "'b'"
        with pytest.raises(grpc.RpcError):
            ask(port, presenting(tmp_path / "third", "c", both), "a")
    with server(waiting) as (port, _):
        assert ask(port, renewed.channel_credentials(), "b") == "'a'"
    assert seen == ["b"]


def make_ca(name, signed_by=None):
    key = rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer, secret = (signed_by[0].subject, signed_by[1]) if signed_by else (subject, key)
    begin, end = datetime.now(UTC) - SKEW, datetime.now(UTC) + timedelta(days=9)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), begin, end)
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    return builder.add_extension(constraints, critical=True).sign(secret, hashes.SHA256()), key


def test_an_intermediate_ca_and_rsa_keys(tmp_path):
    """As organisations have it: the root signs an intermediate CA, and that one the nodes, whose files hold the chain."""
    root = make_ca("root")
    department = make_ca("department", root)
    (tmp_path / "ca.crt").write_bytes(root[0].public_bytes(serialization.Encoding.PEM))
    node = {"key": rsa.generate_private_key(65537, 2048), "ca": department}
    sign(tmp_path, "a", [x509.DNSName("a")], **node)
    with pytest.raises(IdentityError, match=r"not signed by the CA in .*\(CN=root\), but by CN=department"):
        of(tmp_path, "a")
    sign(tmp_path, "a", [x509.DNSName("a")], **node, extra=department[0].public_bytes(serialization.Encoding.PEM))
    a = of(tmp_path, "a")
    with server(a) as (port, _):
        assert ask(port, a.channel_credentials(), "a") == "'a'"


def test_node_certificates_sign_nothing(certs, tmp_path):
    """A neighbor's certificate is no CA: what it signs is refused, here and by TLS."""
    neighbor = authority_of_node(certs, "b")
    (tmp_path / "ca.crt").write_bytes((certs / "ca.crt").read_bytes())
    sign(tmp_path, "c", [x509.DNSName("c")], ca=neighbor, extra=(certs / "b.crt").read_bytes())
    with pytest.raises(IdentityError, match=r"not signed by the CA in .*, but by OU=node,CN=b"):
        of(tmp_path, "c")
    with server(of(certs, "a")) as (port, seen), pytest.raises(grpc.RpcError):
        ask(port, presenting(tmp_path, "c", certs / "ca.crt"), "a")
    assert seen == []


def authority_of_node(folder, name):
    certificate = x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())
    return certificate, serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), None)


def test_a_denied_key_is_denied_with_every_certificate(tmp_path):
    """Whoever has the key may have another certificate of it: of an ECDSA signature anybody can make a second one, and CAs renew."""
    init_ca(tmp_path, "group", 9)
    issue(tmp_path, "a", 5)
    (stolen,) = read_certificates(tmp_path / "a.crt")
    builder = x509.CertificateSigningRequestBuilder(stolen.subject)
    asked = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("a")]), critical=False)
    request = asked.sign(identity.read_key(tmp_path / "a.key"), hashes.SHA256())
    (tmp_path / "a.csr").write_bytes(identity.pem(request))
    authority.sign(tmp_path, tmp_path / "a.csr", "a", 7, replace=True)
    (again,) = read_certificates(tmp_path / "a.crt")
    assert identity.fingerprint(again) != identity.fingerprint(stolen)
    with pytest.raises(IdentityError, match="is denied"):
        load(tmp_path / "a.crt", tmp_path / "a.key", tmp_path / "ca.crt", "a", [identity.key_fingerprint(stolen)])
    issue(tmp_path, "a", 5, replace=True)
    load(tmp_path / "a.crt", tmp_path / "a.key", tmp_path / "ca.crt", "a", [identity.key_fingerprint(stolen)])


# ---------------------------------------------------------------------- making them
def test_keys_are_private_and_nothing_is_overwritten(tmp_path):
    init_ca(tmp_path, "group", 10)
    issue(tmp_path, "a", 5)
    assert [stat.S_IMODE((tmp_path / f).stat().st_mode) for f in ("ca.key", "a.key")] == [0o600, 0o600]
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    for again in (lambda: init_ca(tmp_path, "group", 10), lambda: issue(tmp_path, "a", 5)):
        with pytest.raises(IdentityError, match="exists, and nothing is overwritten"):
            again()
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_renewal_keeps_the_old_one_aside(tmp_path):
    init_ca(tmp_path, "group", 10)
    issue(tmp_path, "a", 5)
    old = {(tmp_path / f).read_bytes() for f in ("a.crt", "a.key")}
    issue(tmp_path, "a", 6, replace=True)
    issue(tmp_path, "a", 7, replace=True)
    aside = list(tmp_path.glob("a.*.replaced-*"))
    assert len(aside) == 4
    assert old < {p.read_bytes() for p in aside}
    assert of(tmp_path, "a").expires > datetime.now(UTC) + timedelta(days=6.5)


def test_serial_numbers_and_keys_differ(certs):
    shown = [x509.load_pem_x509_certificates(p.read_bytes())[0] for p in certs.glob("*.crt")]
    assert len({c.serial_number for c in shown}) == len({public(c) for c in shown}) == len(shown) == 5
    assert min(c.serial_number.bit_length() for c in shown) > 100


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda d: issue(d / "none", "b", 5), r"CA \S+none/ca.crt: there is no such file"),
        (lambda d: issue(d, "b", 11), r"11 days would outlive CA \S+ca.crt, which ends at"),
        (lambda d: issue(d, "b", 0), r"0 days: a certificate is valid for more than 0"),
        (lambda d: issue(d, "ca", 5), r"node name 'ca'"),
        (lambda d: issue(d, "../b", 5), r"node name '../b': use"),
        (lambda d: issue(d, "b..c", 5), r"node name 'b..c': use"),
        (lambda d: issue(d, "10.0.0.1", 5), r"node name '10.0.0.1': this is an IP address"),
        (lambda d: issue(d, "x" * 64, 5), r"use 1 to 63"),
        (lambda d: init_ca(d / "x", "y" * 65, 5), r"use 1 to 64 characters"),
    ],
)
def test_what_is_not_made(tmp_path, call, says):
    init_ca(tmp_path, "group", 10)
    with pytest.raises(IdentityError, match=says):
        call(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["ca.crt", "ca.key"]


def test_a_ca_key_of_another_ca(certs, tmp_path):
    init_ca(tmp_path, "group", 10)
    shutil.copy(certs / "ca.key", tmp_path / "ca.key")
    with pytest.raises(IdentityError, match=r"ca.key: does not fit CA"):
        issue(tmp_path, "a", 5)


@OPENSSL
@pytest.mark.parametrize("purpose", ["sslclient", "sslserver"])
def test_openssl_is_content(certs, purpose):
    command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", certs / "ca.crt", certs / "a.crt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@OPENSSL
def test_the_commands_for_an_own_ca_work(tmp_path):
    """docs/explanation/security.md: the lines for openssl, as they stand there; and dekpca's own CA signs a request the same way."""
    text = (Path(__file__).parent.parent / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
    lines = next(b for b in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "openssl req -x509" in b)
    subprocess.run(["sh", "-e", "-c", lines], cwd=tmp_path, check=True, capture_output=True)
    a = of(tmp_path, "hospital-a")
    with server(a) as (port, _):
        assert ask(port, a.channel_credentials(), "hospital-a") == "'hospital-a'"
    ours = tmp_path / "ours"
    init_ca(ours, "group", 300)
    signing = (
        lines[lines.index("openssl x509 -req") :].replace("ca.crt", "ours/ca.crt").replace("ca.key", "ours/ca.key")
    )
    subprocess.run(["sh", "-e", "-c", signing], cwd=tmp_path, check=True, capture_output=True)
    assert of(tmp_path, "hospital-a", ours / "ca.crt").fingerprint != a.fingerprint


# ---------------------------------------------------------------------- the verbs
def invoke(*words):
    return CliRunner().invoke(app, ["certs", *map(str, words)])


def test_a_fingerprint_is_not_drawn_as_pictures(capsys):
    out.print("12:CD:34:AB:56")  # rich knows a picture for :CD:
    assert capsys.readouterr().out == "12:CD:34:AB:56\n"


def test_init_issue_show(tmp_path):
    folder = tmp_path / "new" / "certs"
    assert invoke("init", "--folder", folder, "--name", "three hospitals", "--days", 100).exit_code == 0
    assert invoke("issue", "hospital-a", "--folder", folder).exit_code == 0
    assert of(folder, "hospital-a").name == "hospital-a"
    again = invoke("issue", "hospital-a", "--folder", folder)
    assert again.exit_code == 2
    assert "--replace" in again.stderr
    assert invoke("issue", "hospital-a", "--folder", folder, "--replace", "--days", 20).exit_code == 0

    shown = invoke("show", folder)
    assert shown.exit_code == 0
    assert "hospital-a.crt: node hospital-a is valid until" in shown.stdout
    assert of(folder, "hospital-a").fingerprint in shown.stdout
    assert "issuer       OU=CA,CN=three hospitals" in shown.stdout
    assert "hospital-a.crt: node hospital-a is valid until" in shown.stderr  # within 30 days: a warning
    assert "ca.crt" not in shown.stderr
    assert invoke("show", folder, "--warn", 5).stderr == ""


def test_show_as_json_and_expired(certs):
    shown = invoke("show", certs / "old.crt", certs / "a.crt", "--json")
    assert shown.exit_code == 1
    assert "old.crt: node old expired at" in shown.stderr
    old, a = json.loads(shown.stdout)["certificates"]
    assert (old["state"], a["state"], a["node"], a["names"], a["kind"]) == ("expired", "valid", "a", ["a"], "node")
    assert invoke("show", certs / "early.crt").exit_code == 1


@OPENSSL
def test_fingerprint_as_openssl_prints_it(certs):
    command = ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", certs / "a.crt"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip().partition("=")[2] == of(certs, "a").fingerprint


def test_show_says_what_it_cannot_read(tmp_path):
    (tmp_path / "text.crt").write_text("hello")
    for path, says in (
        (tmp_path / "text.crt", "not what a PEM file should hold"),
        (tmp_path / "none.crt", "there is no such file"),
    ):
        shown = invoke("show", path)
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert says in shown.stderr
    (tmp_path / "empty").mkdir()
    assert "no .crt or .pem file" in invoke("show", tmp_path / "empty").stderr


def test_a_request_is_signed_and_the_key_stays_with_its_owner(tmp_path):
    """Two owners: the CA gets the request, the node its certificate; both read the same fingerprint of the key to each other."""
    ca, node = tmp_path / "ca", tmp_path / "node"
    invoke = lambda *words: CliRunner().invoke(app, ["certs", *map(str, words)])  # noqa: E731
    assert invoke("init", "--folder", ca).exit_code == 0
    asked = invoke("request", "hospital-a", "--folder", node)
    assert asked.exit_code == 0, asked.output
    assert (node / "hospital-a.key").stat().st_mode & 0o777 == 0o600
    signed = invoke("sign", node / "hospital-a.csr", "--folder", ca)
    assert signed.exit_code == 0, signed.output
    assert asked.output.splitlines()[-1] == signed.output.splitlines()[-1]
    shown = invoke("show", node / "hospital-a.csr")
    assert "hospital-a.csr: request of node hospital-a\n" in shown.stdout
    assert shown.stdout.splitlines()[-1].strip() == asked.output.splitlines()[-1]
    nowhere = invoke("sign", node / "hospital-a.csr", "--folder", node)
    assert (nowhere.exit_code, "give the CA's folder with --folder" in nowhere.stderr) == (2, True)
    assert sorted(path.name for path in ca.iterdir()) == ["ca.crt", "ca.key", "hospital-a.crt"]
    load(ca / "hospital-a.crt", node / "hospital-a.key", ca / "ca.crt", "hospital-a")
    again = invoke("sign", node / "hospital-a.csr", "--folder", ca)
    assert (again.exit_code, "nothing is overwritten" in again.stderr) == (2, True)
    other = invoke("sign", node / "hospital-a.csr", "--node", "hospital-b", "--folder", ca)
    assert other.exit_code == 2
    assert "is for hospital-a, not for node hospital-b" in other.stderr
    assert "give that with --node" in other.stderr
    pem = (node / "hospital-a.csr").read_text().splitlines()
    pem[-2] = pem[-2][:-6] + "A" * 6
    (node / "hospital-b.csr").write_text("\n".join(pem))
    assert invoke("sign", node / "hospital-b.csr", "--folder", ca).exit_code == 2
