"""Many seeds in several processes: a table of outcomes, and how to see again what failed.

PYTHONPATH=tests python -m simulator.run --seeds 10000
PYTHONPATH=tests python -m simulator.run --first 4711 --seeds 1 --trace
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from . import cases

BLOCK = 100  # seeds that a process plays at once


def play_some(seeds: range) -> tuple[Counter[str], list[str]]:
    outcomes: Counter[str] = Counter()
    failures = []
    for seed in seeds:
        try:
            outcomes[cases.play(seed)] += 1
        except Exception as error:
            outcomes["FAILED"] += 1
            text = str(error) if isinstance(error, cases.Failure) else f"seed {seed}: {error!r}"
            failures.append(
                f"{text}\n  again: PYTHONPATH=tests python -m simulator.run --first {seed} --seeds 1 --trace"
            )
    return outcomes, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="show what happens, of a single seed")
    a = parser.parse_args()
    if a.trace:
        print(cases.play(a.first, show=True))
        return
    begun, outcomes, failures = time.monotonic(), Counter(), []
    with ProcessPoolExecutor(a.jobs) as pool:
        end = a.first + a.seeds
        blocks = [range(start, min(start + BLOCK, end)) for start in range(a.first, end, BLOCK)]
        for counted, failed in pool.map(play_some, blocks):
            outcomes += counted
            failures += failed
            for text in failed:
                print(text, flush=True)
    seconds = time.monotonic() - begun
    print(f"{a.seeds} seeds from {a.first} in {seconds:.0f} s, {60 * a.seeds / seconds:.0f} a minute")
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8d}  {outcome}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
