"""Progress of a fit for people: lines of the logger "dekpca", which `verbose` shows on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .messages import Iteration

log = logging.getLogger("dekpca")

EVERY = 5  # iterations


def say(about: Iteration) -> None:
    """Report an iteration now and then."""
    if about.number and about.number % EVERY == 0:
        which = "" if about.component is None else f"component {about.component}, "
        log.info("%siteration %d of at most %d, residual %.1e", which, about.number, about.most, about.residual)


@contextmanager
def shown(verbose: bool) -> Iterator[None]:
    """Show the lines of the logger on standard error, if asked."""
    if not verbose:
        yield
        return
    handler, before = logging.StreamHandler(sys.stderr), log.level
    handler.setFormatter(logging.Formatter("dekpca: %(message)s"))
    log.addHandler(handler)
    log.setLevel(min(logging.INFO, before) if before else logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
