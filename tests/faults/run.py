"""`make test-faults`: every scenario with many seeds; a table of outcomes, and how to repeat what failed.

PYTHONPATH=tests python -m faults.run --seeds 20
PYTHONPATH=tests python -m faults.run --only kill-share --first 7 --seeds 1 --keep /tmp/look
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import losses, scenarios
from .supervisor import Nursery


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="how many of each scenario")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--jobs", type=int, default=3, help="scenarios at a time; most of them wait most of the time")
    parser.add_argument(
        "--keep", type=Path, help="folder for configurations, logs and models, kept; default: a temporary one"
    )
    parser.add_argument("--list", action="store_true", help="name the scenarios and end")
    a = parser.parse_args()
    known = [*scenarios.SCENARIOS, *losses.NAMED]
    names = [name for name in known if a.only in name]
    if a.list or not names:
        print(*known, sep="\n")
        sys.exit(0 if a.list else f"no scenario has {a.only!r} in its name; these are all")
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        failures = repeat(names, range(a.first, a.first + a.seeds), a.jobs, a.keep or Path(temporary))
    sys.exit(1 if failures else 0)


def repeat(names: list[str], seeds: range, jobs: int, folder: Path) -> list[str]:
    """Run all, print the table; returns what failed."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, list[float]] = defaultdict(list)
    failures = []
    start = time.monotonic()
    with Nursery() as nursery, ThreadPoolExecutor(jobs) as pool:
        truth, truths = scenarios.Truth(nursery, folder / "undisturbed"), losses.Truths(nursery, folder / "survivors")

        def one(name: str, seed: int) -> tuple[str, float]:
            begun, here = time.monotonic(), folder / f"{name}-{seed}"
            if name in losses.NAMED:
                return losses.play(name, seed, nursery, truths, here), time.monotonic() - begun
            return scenarios.play(name, seed, nursery, truth, here), time.monotonic() - begun

        # seed by seed, so that an interrupted run has seen something of everything
        todo = {pool.submit(one, name, seed): (name, seed) for seed in seeds for name in names}
        try:
            for done in as_completed(todo):
                name, seed = todo[done]
                try:
                    outcome, took = done.result()
                    seconds[name].append(took)
                except Exception as error:
                    outcome = "FAILED"
                    failures.append(f"{name}, seed {seed}: {error}")
                    console.print(f"[red]{name}, seed {seed}[/]: {error}", markup=True, highlight=False)
                    if not isinstance(error, AssertionError):
                        traceback.print_exception(error)
                outcomes[name][outcome] += 1
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            console.print("interrupted; so far:")
    kinds = sorted({kind for counts in outcomes.values() for kind in counts}, key=lambda k: (k == "FAILED", k))
    shown = Table(
        title=f"{sum(map(len, seconds.values())) + len(failures)} runs in {time.monotonic() - start:.0f} s",
        title_justify="left",
    )
    shown.add_column("scenario")
    for heading in (*kinds, "seconds, longest"):
        shown.add_column(heading, justify="right")
    for name in names:
        if name in outcomes:
            cells = [str(outcomes[name][kind] or "") for kind in kinds]
            shown.add_row(
                name, *cells, f"{max(seconds[name], default=0):.0f}", style="red" if outcomes[name]["FAILED"] else None
            )
    console.print(shown)
    for failure in failures:
        name, seed = failure.split(":")[0].split(", seed ")
        console.print(
            f"{failure}\n  again: make test-faults ONLY={name} FIRST={seed} SEEDS=1 KEEP=/tmp/{name}-{seed}",
            markup=False,
        )
    return failures


if __name__ == "__main__":
    main()
