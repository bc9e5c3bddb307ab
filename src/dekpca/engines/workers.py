"""Workers that only add terms of sums, and a client that concludes: what the Dask engine and examples/on_spark.py have in common.

The client runs the program of a site that has no rows, and asks the workers for the total of each sum. A term is a pure function of some rows and of
the transcript: whoever has both can compute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from ..messages import Sum
from ..network import Network
from ..plan import Plan
from ..program import rounds_of
from ..rounds import named, run_round
from ..settings import Options
from ..site import Site, make_site
from .local import Delivery, working

About = tuple[Network, np.ndarray, Options]  # network, rows of every node, options


class Program:
    """The rows of some partitions and the rounds of their nodes. It can be told again from the start whatever it was told before.

    The rows of several partitions are copied into one array: a term for all of them takes less time than one for each. `numbered`: the node of each
    row and its number there, if partitions share nodes.
    """

    def __init__(
        self,
        parts: Sequence[Any],
        about: About,
        nodes: np.ndarray,
        numbered: tuple[np.ndarray, np.ndarray] | None = None,
    ):
        network, sizes, self.options = about
        site = make_site([getattr(part, "X", part) for part in parts], network, nodes.tolist(), sizes)
        self.site = replace(site, numbered=numbered)

    def __getstate__(self) -> dict[str, Any]:
        return {"site": self.site, "options": self.options}  # a copy elsewhere begins anew

    def __sizeof__(self) -> int:
        return int(self.site.X.nbytes)  # for Dask, which balances the memory of its workers

    def term(self, transcript: Sequence[np.ndarray]) -> np.ndarray:
        """Of the sum that follows after all this was told. No term before it is computed."""
        live = self.__dict__.pop("_live", None)  # nobody else may use it meanwhile
        if live is None or live[2] > len(transcript):
            rounds = rounds_of(self.site, self.options)
            live = rounds, next(rounds), 0
        rounds, current, heard = live
        with working(self.site.X.shape[0]):
            for told in transcript[heard:]:
                current = rounds.send(named(told, current.told()))
            value = next(run_round(self.site, current)).value
        self._live = rounds, current, len(transcript)
        return value


def add(terms: Sequence[np.ndarray]) -> np.ndarray:
    return reduce(np.add, terms)


class ClientDelivery(Delivery):
    """At the client: `workers_total(kind, transcript)` asks the workers for the total of the sum that follows after all this was told."""

    def __init__(self, plan: Plan):
        none = np.zeros((0, plan.features.count), dtype=plan.parts[0].dtype)
        self.site = Site(plan.network, plan.sizes, plan.nodes, none)
        super().__init__([self.site])
        self.transcript: list[Any] = []

    def workers_total(self, kind: str, transcript: Sequence[Any]) -> np.ndarray:
        raise NotImplementedError

    def keep(self, told: np.ndarray) -> Any:
        """What was told, in the form in which it goes to the workers."""
        return told

    def total(self, requests: Sequence[Sum]) -> np.ndarray:
        (request,) = requests
        if not len(request.value):  # the root tells something without a sum
            return request.value
        return self.workers_total(request.kind, self.transcript)

    def sum(self, requests: Sequence[Sum]) -> np.ndarray:
        told = super().sum(requests)
        self.transcript.append(self.keep(told))
        return told
