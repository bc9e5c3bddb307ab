"""Rounds of sums, and the transcript of what all nodes were told.

A solver is a generator that yields rounds. In a round every node computes a term from its own rows, the network adds the terms, the root concludes,
and all nodes are told the conclusion, which the solver gets back:

    told = yield Moments(...)        told["mean"], told["values"], ...

Conclusions are named arrays of float64 on the host; so are terms, or they are arrays of the device of the rows, which come to the host together. A
solver keeps no state but its arguments and what it was told. So the list of what it was told, the transcript, is all that is needed to bring another
process to the same point, without computing a term.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from .arrays import all_on_host
from .messages import Sum
from .privacy.errors import PublicError
from .privacy.fixed_point import OutOfBounds
from .site import Site

Arrays = dict[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]
Solver = Generator["Round", Arrays, Any]


class Round:
    """One sum over all nodes, and what the root makes of the total.

    `kind` is the phase under which the bytes of the round are counted. `integers`: terms are int64, which only sealed sums can carry.
    """

    kind = "sum"
    integers = False

    def term(self) -> dict[str, Any]:
        """What this process adds: named arrays of its own rows. Terms of disjoint sets of rows add up."""
        raise NotImplementedError

    def bounds(self) -> dict[str, Any] | None:
        """For sums under masks: public bounds on the sums of the absolute values over all nodes, a number or an array for each name.

        None, or infinity: there are none that are tight enough. Then all nodes are told first how large terms are (`Magnitudes`).
        """
        return None

    def implausible(self, total: Arrays, rows: int) -> str | None:
        """Why this cannot be a sum over at most so many rows, as the end of a sentence; None if nothing speaks against it. Members may lie.

        By default every number must be finite, and an array named `count` has numbers of rows.
        """
        if not all(np.isfinite(value).all() for value in total.values()):
            return "NaN or infinity"
        counts = np.ravel(total.get("count", 0.0))
        wrong = counts[(counts < -0.5) | (counts > rows + 0.5)]  # under masks numbers are rounded
        return f"{wrong[0]:.6g} rows, where there are {rows}" if len(wrong) else None

    def told(self) -> Shapes:
        """The shapes of the conclusion, which all nodes know before they are told."""
        raise NotImplementedError

    def conclude(self, total: Arrays) -> Arrays:
        """What all nodes are told, given the total. Only the root computes it: rounding may differ between machines."""
        raise NotImplementedError

    def check(self, told: Arrays) -> None:
        """Refuse a conclusion that cannot be: the root may lie. By default every number must be finite."""
        for name, value in told.items():
            if not np.isfinite(value).all():
                raise BadConclusion(f"round {self.kind!r}: the root told NaN or infinity as {name!r}")


class BadTerm(PublicError):
    """A member gave terms of a sum that cannot come from rows."""


class BadConclusion(ValueError):
    """The root told something that cannot follow from sums of rows."""


@dataclass
class Transcript:
    """What a node was told, round by round."""

    told: list[Arrays] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """A hash of everything told, in order: nodes with the same digest were told the same."""
        state = blake2b(digest_size=32)
        for round_ in self.told:
            for name, value in round_.items():
                state.update(f"{name}{value.shape}".encode())
                state.update(np.ascontiguousarray(value, dtype="<f8").tobytes())
        return state.hexdigest()


EXPONENTS = 256  # powers of two from 2^-128 on: sizes of terms that secure sums can scale


@dataclass(frozen=True, eq=False)
class Magnitudes(Round):
    """How many nodes have a largest entry below each power of two, for each array of a term. All are told the largest of these powers."""

    arrays: Arrays
    nodes: int
    kind = "sizes"

    @cached_property
    def places(self) -> dict[str, int]:
        """In the histogram, of the largest entry of each array of this process."""
        found = {}
        for name, value in self.arrays.items():
            _, exponent = np.frexp(np.nanmax(np.abs(value), initial=0.0))  # every entry is below 2^exponent
            if exponent >= EXPONENTS // 2:  # else totals might wrap
                limit = f"2^{EXPONENTS // 2 - 1}"
                told = f"secure sums: a number is beyond {limit}; nothing was sent; scale the columns down"
                raise OutOfBounds(f"{told} (the largest is {np.nanmax(np.abs(value)):.6g})", told=told)
            found[name] = int(np.clip(exponent + EXPONENTS // 2, 0, EXPONENTS - 1))
        return found

    def term(self) -> Arrays:
        return {name: np.eye(EXPONENTS)[place] for name, place in self.places.items()}

    def bounds(self) -> dict[str, Any]:
        return dict.fromkeys(self.arrays, self.nodes)

    def told(self) -> Shapes:
        return dict.fromkeys(self.arrays, (1,))

    def conclude(self, total: Arrays) -> Arrays:
        largest = {name: np.flatnonzero(np.rint(counts)).max(initial=0) for name, counts in total.items()}
        return {name: np.array([2.0 ** (place - EXPONENTS // 2)]) for name, place in largest.items()}

    def check(self, told: Arrays) -> None:
        """Refuse a power of two that an entry of this node exceeds. With it a root that lies would choose the bounds of sums, and see by whether this
        node stops whether its own sums exceed them."""
        super().check(told)
        if any(told[name][0] < 2.0 ** (place - EXPONENTS // 2) for name, place in self.places.items()):
            raise BadConclusion("the root tells a largest number that is smaller than one of this node; start all anew")


def run_rounds(site: Site, solver: Solver, transcript: Transcript) -> Generator[Sum, Any, Any]:
    """Run a solver's rounds as network sums, sealed if the site has a sealer, and note what was told. To be used with `yield from`."""
    reply: Any = None
    while True:
        try:
            round_ = solver.send(reply)
        except StopIteration as end:
            return end.value
        reply = yield from run_round(site, round_)
        transcript.told.append(reply)


def run_round(site: Site, round_: Round) -> Generator[Sum, Any, Arrays]:
    """One round as a network sum; returns what was told."""
    shapes, kind, term = dict(round_.told()), round_.kind, all_on_host(round_.term())
    sealer = site.sealer if term else None  # a round without terms tells what the root has
    of_term = {name: value.shape for name, value in term.items()}
    value, bound = _flat(term, np.int64 if round_.integers else np.float64), None
    if sealer is not None:
        found = round_.bounds()
        if found is None or not all(np.isfinite(bound).all() for bound in found.values()):
            magnitudes = yield from run_round(site, Magnitudes(term, sealer.n_nodes))
            found = {name: sealer.n_nodes * value for name, value in magnitudes.items()}
        least = {name: np.maximum(found[name], LEAST_BOUND) for name in of_term}
        bound = _flat({name: np.broadcast_to(least[name], shape) for name, shape in of_term.items()})
        value = sealer.seal(kind, value, bound)

    def refuse(total: np.ndarray, rows: int, who: str) -> None:
        why = round_.implausible(named(total, of_term), rows)
        if why is not None:
            raise BadTerm(f"network sum {kind!r}: {who} gave what no rows give: {why}; start all nodes anew without it")

    def conclude(total: np.ndarray) -> np.ndarray:
        total = total if sealer is None else sealer.open(kind, total, bound, round_.integers)
        refuse(total, site.total, "a member")
        told = round_.conclude(named(total, of_term))
        return _flat({name: told[name] for name in shapes})

    size = sum(math.prod(shape) for shape in shapes.values())
    heard = yield Sum(kind, value, conclude, size, refuse=refuse if sealer is None else (lambda *sealed: None))
    if site.sealer is not None:
        site.sealer.hear(heard)
    told = named(heard, shapes)
    round_.check(told)
    return told


LEAST_BOUND = 1e-60  # of a sum that is zero


def _flat(arrays: Arrays, dtype: Any = np.float64) -> np.ndarray:
    parts = [np.asarray(value, dtype=dtype).ravel() for value in arrays.values()]
    return np.concatenate([np.zeros(0, dtype=dtype), *parts])


def named(flat: np.ndarray, shapes: Shapes) -> Arrays:
    """Arrays of these names and shapes, from one array."""
    ends = list(accumulate((math.prod(shape) for shape in shapes.values()), initial=0))
    return {name: flat[a:b].reshape(shapes[name]) for name, (a, b) in zip(shapes, pairwise(ends), strict=True)}
