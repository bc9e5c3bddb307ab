"""Progress of a fit for people: a bar on a terminal, silence elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .core.spectrum import to_numpy
from .options import Options


@contextmanager
def watch(shown: bool, n_nodes: int, options: Options) -> Iterator[Callable[..., None] | None]:
    """An observer for an engine that draws the progress of the iterations on standard error."""
    iterates = options.random_features or (options.solver == "projection" and n_nodes > 1)
    if not shown or not iterates:
        yield None
        return
    from rich.console import Console  # only where something is shown: it is slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, emoji=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(f"{n_nodes} nodes, iteration", total=options.max_iter, note="setting up")
        sequential = options.update == "paper" and options.n_components > 1

        def observe(blocks: list[Any], checkpoints: list[Any]) -> None:
            state = checkpoints[0].state
            recorded = [c.state.history["residual"] for c in checkpoints]
            if sequential:
                bar.update(task, description=f"{n_nodes} nodes, component {len(state.finished) + 1}, iteration")
            note = f"residual {max(float(np.max(to_numpy(r[-1]))) for r in recorded):.1e}" if recorded[0] else ""
            bar.update(task, completed=state.iteration, note=note)

        yield observe
