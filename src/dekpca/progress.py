"""Progress of a fit for people: lines of the logger "dekpca", which `verbose` shows on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from .messages import Iteration

log = logging.getLogger("dekpca")

EVERY = 5  # iterations


def say(about: Iteration) -> None:
    """Report an iteration now and then."""
    if about.number and about.number % EVERY == 0:
        which = "" if about.component is None else f"component {about.component}, "
        log.info("%siteration %d of at most %d, residual %.1e", which, about.number, about.most, about.residual)


def shown(verbose: bool) -> AbstractContextManager[None]:
    """Show the lines of the logger on standard error, if asked."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("dekpca: %(message)s"))
    return lines_to(handler) if verbose else nullcontext()


@contextmanager
def lines_to(handler: logging.Handler) -> Iterator[None]:
    """Give the lines of the logger to a handler, too."""
    before = log.level
    log.addHandler(handler)
    log.setLevel(min(logging.INFO, before) if before else logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
