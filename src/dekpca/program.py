"""The program of a site: a generator that yields requests (messages.py) and gets the replies from an engine.

It uses no files, sockets or clocks: it is a pure function of the rows of its nodes and of what it was told.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .landmarks import digest
from .messages import Script
from .privacy.errors import PublicError
from .rounds import Arrays, Round, Shapes, Solver, Transcript, run_rounds
from .settings import Options
from .site import Site
from .solvers import exact, features, private, projection, sums
from .solvers.histogram import with_histogram
from .solvers.projection.solve import solve as solve_projection


def program(site: Site, options: Options, stream: sums.Stream | None = None) -> Script:
    """Kernel PCA of the rows of all nodes, at the nodes of a site; returns their `Answer`. `stream`: of rows that came before, in its sums."""
    transcript = Transcript()
    if isinstance(options.solver_options, projection.ProjectionOptions):
        yield from run_rounds(site, same_landmarks(site, options), transcript)
        return (yield from solve_projection(site, options.solver_options, transcript))
    answer = yield from run_rounds(site, rounds_of(site, options, stream), transcript)
    return replace(answer, transcript=transcript)


def rounds_of(site: Site, options: Options, stream: sums.Stream | None = None) -> Solver:
    """The rounds of a fit that consists of nothing else, as all do but those of the projection solver; returns the `Answer`."""
    yield from same_landmarks(site, options)
    if stream is not None:
        return (yield from sums.solve_stream(site, stream))
    answer = yield from components(site, options)
    return answer if options.contamination is None else (yield from with_histogram(answer))


def components(site: Site, options: Options) -> Solver:
    """Returns the `Answer` of one of the solvers."""
    match options.solver_options:
        case private.PrivateOptions() as asked:
            return (yield from private.solve(site, asked))
        case sums.SumsOptions() as asked if options.exact:
            return (yield from exact.solve(site, asked))
        case sums.SumsOptions() as asked if options.random_features:
            return (yield from features.solve(site, asked))
        case sums.SumsOptions() as asked:
            return (yield from sums.solve(site, asked))
        case other:
            raise TypeError(f"{type(other).__name__}: no solver of rounds")


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


def same_landmarks(site: Site, options: Options) -> Solver:
    """Check that all nodes were given the same landmarks, if they were given any."""
    if options.landmarks.points is None:
        return
    ours = Fingerprint(options.landmarks.points)
    told = yield ours
    if not np.array_equal(told["digest"], ours.mine):
        root = site.network.names[site.network.root]
        raise PublicError(f"node {site.names[0]}: its landmarks differ from those of node {root}; give all the same")
