"""The two inequalities on which, as we read it, the paper's proof of convergence rests, in numbers; and the one that the proximal step has instead.

    python benchmarks/lemmas.py

Lemma 1 needs |b|² - |a|² <= |a - b|², which is <a, b> <= |a|²; Lemma 2 needs |A| <= |A E'| (Frobenius norms). Seconds.
"""

from __future__ import annotations

import numpy as np

from common import Floors, console, table

DRAWS = 10_000
EXACT = 1e-12  # relative: rounding of sums of tens of products


def main() -> None:
    rng, floors = np.random.default_rng(0), Floors()
    shown = table(f"{DRAWS:,} random draws each", "inequality", "for", "broken by")

    def say(inequality: str, what: str, broken: float, holds: bool) -> None:
        shown.add_row(inequality, what, f"{broken:.1%}")
        floors.require(holds, f"{inequality}, {what}: broken by {broken:.1%}")

    floors.require(2**2 - 1**2 > (1 - 2) ** 2, "Lemma 1: a = 1 and b = 2 break it, 3 <= 1")
    for near in (1.0, 0.1):  # iterates that follow each other are near each other
        a = rng.normal(size=(DRAWS, 20))
        b = a + near * rng.normal(size=a.shape)
        broken = ((b**2 - a**2).sum(1) > ((a - b) ** 2).sum(1) * (1 + EXACT)).mean()
        say("Lemma 1: |b|² - |a|² <= |a - b|²", f"b = a + {near:g} x noise, 20 numbers", broken, broken > 0.4)
    for rank in (9, 10):
        A = rng.normal(size=(DRAWS, 3, 10))
        Q = np.linalg.qr(rng.normal(size=(DRAWS, 10, rank)))[0]  # E = Q Q', a projection
        broken = (np.linalg.norm(A, axis=(1, 2)) > np.linalg.norm(A @ Q, axis=(1, 2)) * (1 + EXACT)).mean()
        say("Lemma 2: |A| <= |A E'|", f"E a projection of rank {rank} of 10", broken, (broken == 0) == (rank == 10))

    # f(z) = sum of rho |w - P z|². The proximal step has f(z) + (sum of rho) |z - old|² <= f(old).
    P = [Q @ Q.mT for Q in np.linalg.qr(rng.normal(size=(4, DRAWS, 6, 2)))[0]]
    w, rho = [p @ rng.normal(size=(DRAWS, 6, 1)) for p in P], rng.uniform(1, 100, size=4)

    def f(z: np.ndarray) -> np.ndarray:
        return sum(r * ((v - p @ z) ** 2).sum((1, 2)) for r, v, p in zip(rho, w, P, strict=True))

    old = rng.normal(size=(DRAWS, 6, 1))
    proximal = old + sum(r * (v - p @ old) for r, v, p in zip(rho, w, P, strict=True)) / rho.sum()
    papers = sum(r * v for r, v in zip(rho, w, strict=True)) / rho.sum()
    for name, z in (("proximal", proximal), ("the paper's", papers)):
        broken = (f(z) + rho.sum() * ((z - old) ** 2).sum((1, 2)) > f(old) * (1 + EXACT)).mean()
        say(
            "f(z) + rho |z - old|² <= f(old)",
            f"the {name} step".replace("the the", "the"),
            broken,
            (name == "proximal") == (broken == 0),
        )
    console.print(shown)
    floors.finish()


if __name__ == "__main__":
    main()
