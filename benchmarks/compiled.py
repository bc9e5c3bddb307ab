"""What each compiled routine gains, for a whole fit: the time without it over the time with it.

    python benchmarks/compiled.py --data mnist-0358.npz

8,000 rows of MNIST on 80 nodes, a ring with 4 neighbors, float64, 4 components: the default, and the projection solver. A routine is switched
off where its caller asks for it; array code takes over. Variants take turns, in an order that rotates, and the fastest of the rounds counts.
Code that gains less than 5 % of a fit does not earn its lines.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from common import arguments, console, load, table
from dekpca import DecentralizedKernelPCA, Network
from dekpca.backends.compiled import Compiled
from dekpca.core import landmarks, native, spectrum
from dekpca.core.gram import blocks
from dekpca.experiments import scale

OFF = SimpleNamespace(steps=None)


@contextmanager
def replaced(where: Any, name: str, by: Any) -> Iterator[None]:
    before = where.__dict__[name]
    setattr(where, name, by)
    try:
        yield
    finally:
        setattr(where, name, before)


def array_code_in(function: str) -> Callable[[Any], bool]:
    """As spectrum._native, but not for this caller."""
    usual = spectrum._native
    return lambda x: sys._getframe(1).f_code.co_name != function and usual(x)


ROUTINES = {
    "all": lambda: nullcontext(),
    "kernel_rows: kernel of rows and landmarks": lambda: replaced(landmarks, "native", OFF),
    "Nodes: the steps of an iteration": lambda: replaced(Compiled, "applies", classmethod(lambda cls, space: False)),
    "rest_blocks: Gram blocks": lambda: replaced(blocks, "native", OFF),
    "factors, all four below": lambda: replaced(spectrum, "_native", lambda x: False),
    "pseudo_inverses": lambda: replaced(spectrum, "_native", array_code_in("<lambda>")),
    "inverses": lambda: replaced(spectrum, "_native", array_code_in("invert")),
    "definite": lambda: replaced(spectrum, "_native", array_code_in("definite")),
    "tops: largest eigenvalues": lambda: replaced(spectrum, "_native", array_code_in("largest")),
}  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    if native.steps is None:
        sys.exit(f"nothing is compiled here: {native.problem}")
    warnings.simplefilter("ignore")
    X = scale.draw(load(given.data)[0], 8000)[0]
    network = Network.ring(80, 4)
    shown = table("seconds without a routine over seconds with all", "without", "default", "projection")
    seconds: dict[tuple[str, str], float] = {}
    order = list(ROUTINES)
    for solver in ("auto", "projection"):
        model = DecentralizedKernelPCA(4, network=network, solver=solver, random_state=0).fit(X)  # warm-up
        for turn in range(given.rounds):
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                with ROUTINES[name]():
                    start = time.perf_counter()
                    model.fit(X)
                    taken = time.perf_counter() - start
                seconds[name, solver] = min(taken, seconds.get((name, solver), taken))
    for name in ROUTINES:
        ratios = [seconds[name, solver] / seconds["all", solver] for solver in ("auto", "projection")]
        shown.add_row(name, *(f"{ratio:.2f}" for ratio in ratios))
    console.print(shown)
    console.print(f"all: default {seconds['all', 'auto']:.3f} s, projection {seconds['all', 'projection']:.3f} s")


if __name__ == "__main__":
    main()
