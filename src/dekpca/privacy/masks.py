"""Masks: what a node adds to its integers before they leave it, so that they are uniformly random to all other nodes.

Each two nodes share a key for a run: X25519, then HKDF-SHA256 over the run and both nodes' names and keys. For each sum they derive another key
from it, from the number of the sum, and from a hash of everything that the node was told so far (its history). ChaCha20 makes as many 64-bit words of
that key as the sum has numbers. The node that comes first by name adds the words, the other subtracts them, so that they cancel in the total modulo
2^64 and nowhere else. A word that every node counts by one shows whether they did.

Totals of numbers that each node rounds by itself tell more than their sum: a root that lies has one function summed at many scales around a unit, and
reads the sums of each node. So each two nodes share a fraction of a unit for each number, too, which the one adds before it rounds and the other
subtracts. Then the errors of rounding are random, and how they add up depends on the total alone.

Float64 rounds, too: a large term has no digits where a small one has its last ones, and there the total would be the small one's alone. So a node
puts random digits, which nobody else knows, where its numbers have none.

So masks of nodes that were told different things do not cancel: whoever told them gets random numbers. And a node that is told something else after a
restart has other masks than before: no mask is used for two values.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .errors import PublicError
from .fixed_point import FixedPoint
from .noise import discrete_gaussian

try:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    from .records import joined
except ImportError as error:
    raise ImportError(f"secure sums need the package cryptography ({error}); pip install 'dekpca[privacy]'") from error

PURPOSE = b"dekpca secure sum, version 3"


class BadMasks(PublicError):
    """Masks did not cancel: the total is noise, and nothing is made of it."""


def public_of(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def pair_key(own: X25519PrivateKey, name: str, other: str, other_public: bytes, run: bytes) -> bytes:
    """The 256-bit key of two nodes for a run, the same at both ends. `own` is never used for another run."""
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other_public))
    except ValueError as error:  # of the wrong length, or a point of low order, whose secret is zero
        raise BadMasks(f"node {name}: the key of node {other} is no X25519 key ({error}); nothing was sent") from error
    return derived(secret, run, sorted([(name.encode(), public_of(own)), (other.encode(), other_public)]))


def derived(secret: bytes, run: bytes, ends: list[tuple[bytes, bytes]]) -> bytes:
    """256 bits of a shared secret, for this run and these two ends (names and public keys) alone."""
    about = joined((PURPOSE, run, *(x for end in ends for x in end)))
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=about).derive(secret)


def masks_of(keys: Iterable[bytes], number: int, history: bytes, length: int) -> Iterator[np.ndarray]:
    """The words (length,) of each pair's mask for sum `number` of a run, of nodes that have this history.

    In one buffer: a mask is overwritten by the next one.
    """
    about = number.to_bytes(8, "big") + history
    zeros, stream = bytes(8 * length), bytearray(8 * length + 63)  # update_into wants room for a block
    words = np.frombuffer(stream, dtype="<u8", count=length)
    for key in keys:
        once = hmac.digest(key, about, "sha256")
        Cipher(algorithms.ChaCha20(once, bytes(16)), mode=None).encryptor().update_into(zeros, stream)
        yield words


@dataclass(eq=False)
class Sealer:
    """Seals what one node adds to network sums, and opens totals at the root. All nodes seal the same sums in the same order.

    `keys` are the pair keys with all other nodes of the network; `history` is a hash of what all nodes have agreed on, and then of everything told.
    """

    name: str
    keys: Mapping[str, bytes]
    history: bytes = bytes(32)
    _sealed: int = field(default=0, init=False)  # a number is used for one sum, and then never again

    @property
    def n_nodes(self) -> int:
        return len(self.keys) + 1

    @cached_property
    def _own(self) -> bytes:
        """A key that no other node knows, unless all others collude. It follows from those of the pairs, so it is the same after a restart."""
        return hashlib.sha256(joined([PURPOSE, *(self.keys[other] for other in sorted(self.keys))])).digest()

    def hear(self, told: np.ndarray) -> None:
        """All nodes were told this: whatever is sealed from now on depends on it."""
        self.history = hashlib.sha256(self.history + told.astype("<f8").tobytes()).digest()

    def seal(self, kind: str, values: Any, bound: Any) -> np.ndarray:
        """Integers (length + 1,) modulo 2^64 that can leave the node. `values` are float, or int64 that go as they are."""
        what = f"node {self.name}: network sum {kind!r}"
        if bound is None:
            raise PublicError(f"{what} has no public bound, so it cannot be a secure sum; use solver='auto'")
        integers, length = values.dtype == np.int64, len(values)
        masks, shift = np.zeros(length + 1, dtype=np.uint64), np.zeros(0 if integers else length)
        drawn = masks_of(self.keys.values(), self._sealed, self.history, length + 1 + -(-len(shift) // 2))
        for other, words in zip(self.keys, drawn, strict=True):
            add = np.add if self.name < other else np.subtract
            add(masks, words[: length + 1], out=masks)
            # in float64, where shifts cancel: modulo 1 they would not
            add(shift, words[length + 1 :].view("<u4")[: len(shift)], out=shift)
        if integers:
            code = _integers(values, bound, what)
        else:
            (below,) = masks_of([self._own], self._sealed, self.history, length)
            code = FixedPoint(bound).encode(values, what, shift / 2**32, below.view(np.int64) / 2.0**64)
        self._sealed += 1
        return masks + np.append(code, np.uint64(1))

    def open(self, kind: str, total: np.ndarray, bound: Any, integers: bool = False) -> np.ndarray:
        """The total (length,) of what all nodes sealed, as float, or as int64 if that is what they gave."""
        count = int(total[-1])
        if count != self.n_nodes:
            raise BadMasks(
                f"network sum {kind!r}: the masks of {self.n_nodes} nodes do not cancel: their count came out as {count}; members were told "
                "different things, or a node left out its masks or used other keys. Nothing was made of the total; start all nodes anew"
            )
        if integers:
            return total[:-1].view(np.int64)
        return FixedPoint(bound).decode(total[:-1], f"network sum {kind!r}", self.n_nodes)

    def noise(self, sigma: int, length: int) -> np.ndarray:
        """This node's share of the noise, which no other node knows: int64."""
        return discrete_gaussian(sigma, length)


def _integers(values: np.ndarray, bound: Any, what: str) -> np.ndarray:
    inside = np.abs(values) <= bound
    if not inside.all() or float(np.max(bound)) > 2.0**62:
        raise PublicError(f"{what}: an integer is beyond its public bound {np.max(bound):.6g}; nothing was sent")
    return values.view(np.uint64)


def sealers(names: Iterable[str], run: bytes) -> dict[str, Sealer]:
    """A sealer for each node of a network that one process simulates; every node has a key of its own. `run`: a name that was never used before."""
    made = {name: X25519PrivateKey.generate() for name in names}
    public = {name: public_of(key) for name, key in made.items()}
    return {name: Sealer(name, pair_keys(name, key, public, run)) for name, key in made.items()}


def pair_keys(name: str, own: X25519PrivateKey, public: Mapping[str, bytes], run: bytes) -> dict[str, bytes]:
    """The keys of a node with all others, from their public keys for this run (records.py)."""
    return {other: pair_key(own, name, other, key, run) for other, key in public.items() if other != name}
