"""The program of a site: a generator that yields requests (messages.py) and gets the replies from an engine.

It uses no files, sockets or clocks: it is a pure function of the rows of its nodes and of what it was told.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .answer import Answer, Terms
from .landmarks import digest
from .messages import Script
from .privacy.errors import PublicError
from .rounds import Arrays, Round, Shapes, Solver, Transcript, run_round, run_rounds
from .settings import Options
from .site import Site
from .solvers import exact, features, private, projection, sums
from .solvers.projection.solve import solve as solve_projection


def program(site: Site, options: Options) -> Script:
    """Kernel PCA of the rows of all nodes, at the nodes of a site; returns their `Answer`."""
    points, solver, transcript = options.landmarks.points, options.solver_options, Transcript()
    if points is not None:
        yield from compare_landmarks(site, points)
    match solver:
        case projection.ProjectionOptions():
            return (yield from solve_projection(site, solver))
        case private.PrivateOptions():
            rounds = private.solve(site, solver)
        case sums.SumsOptions() if options.exact:
            rounds = exact.solve(site, solver)
        case sums.SumsOptions() if options.random_features:
            rounds = features.solve(site, solver)
        case sums.SumsOptions():
            rounds = answered(site, solver)
    answer = yield from run_rounds(site, rounds, transcript)
    return replace(answer, transcript=transcript)


def answered(site: Site, options: sums.SumsOptions) -> Solver:
    """The answer of the default solver: components in the span of the landmarks, the same functions at every node."""
    found = yield from sums.solve(sums.rows_of(site, options), options)
    first = found.prepared
    return Answer(
        site=site, kernel=first.kernel, terms=Terms(site.array(found.weights)), eigenvalues=site.array(found.eigenvalues), trace=found.trace,
        marks=found.marks, kinds=found.kinds, mean=site.array(found.mean), columns=first.columns, fill=first.fill,
        accuracy=found.accuracy, stages=tuple(found.stages),
    )  # fmt: skip


# ---------------------------------------------------------------------- landmarks that were given to all nodes
class Fingerprint(Round):
    """The root tells a fingerprint of its landmarks."""

    kind = "fingerprint"

    def __init__(self, points: np.ndarray):
        self.mine = digest(points)

    def term(self) -> Arrays:
        return {}

    def told(self) -> Shapes:
        return {"digest": self.mine.shape}

    def conclude(self, total: Arrays) -> Arrays:
        return {"digest": self.mine}


def compare_landmarks(site: Site, points: np.ndarray) -> Script:
    """Check that all nodes were given the same landmarks."""
    ours = Fingerprint(points)
    told = yield from run_round(site, ours)
    if not np.array_equal(told["digest"], ours.mine):
        root = site.network.names[site.network.root]
        raise PublicError(f"node {site.names[0]}: its landmarks differ from those of node {root}; give all the same")
