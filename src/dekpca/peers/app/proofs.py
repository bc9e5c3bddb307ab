"""Statuses are signed by the key of the node's certificate, for one run, and checked up to the CA by whoever receives them (protocol/proofs.py)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cryptography import x509

from ...privacy.records import BadSignature, certified_key, in_der, joined, parted, sign, verify
from ..net.identity import Identity
from ..protocol.proofs import Proofs

PURPOSE = b"dekpca status, version 1"
CHAINS = 1000  # that are remembered


class CertificateProofs(Proofs):
    """A proof is a signature and then the certificates, the node's own first. Each chain of certificates is checked once."""

    def __init__(self, identity: Identity, run: str):
        super().__init__()
        self._run, self._key, self._chain = run.encode(), identity.key, in_der(identity.chain)

        @lru_cache(CHAINS)
        def key_of(name: str, chain: tuple[bytes, ...]) -> Any:
            if why := identity.denial(map(x509.load_der_x509_certificate, chain)):
                raise BadSignature(why)
            return certified_key(name, chain, identity.roots)

        self._key_of = key_of

    def sign(self, message: bytes) -> bytes:
        return joined((sign(self._key, joined((PURPOSE, self._run, message))), *self._chain))

    def flaw(self, name: str, message: bytes, proof: bytes) -> str:
        try:
            signature, *chain = parted(proof)
            verify(self._key_of(name, tuple(chain)), signature, joined((PURPOSE, self._run, message)))
        except ValueError as error:
            return str(error)
        return ""
