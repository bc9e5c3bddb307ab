"""Kernel PCA with differential privacy: agreement by epsilon and number of rows, on 20 nodes; what secure sums cost; an attack.

    python benchmarks/privacy.py --data mnist-0358.npz [--rows 2000 20000 100000 1000000] [--seeds 3]

Agreement is the correlation of component values with those of 400 coordinates of public points without noise, of the worst seed, over at most 20,000
rows. Components 3 and 4 have nearly equal eigenvalues: for them the smallest cosine between the two planes. More rows than there are images
are images with noise on their pixels. Public points are images that no node has.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common import GAMMA, Floors, arguments, console, load, numbers, table
from dekpca import Network
from dekpca.columns import Features
from dekpca.engines import local
from dekpca.kernels import Kernel
from dekpca.node_model import NodeModels
from dekpca.options import Options, Settings, settle
from dekpca.plan import Plan
from dekpca.privacy.masks import sealers
from dekpca.privacy.releases import LARGEST_TOTAL, Release, releases
from dekpca.privacy.settings import Privacy
from dekpca.private_solver import components_of, cut_error

NODES, K, DELTA, POINTS, JUDGED = 20, 4, 1e-6, 1000, 20_000
NORM = 3200.0  # of pixel vectors, chosen after a look at this data; 5 % of the images are longer, and clipped
PIXEL_NOISE = 20.0  # deviation, of 255, that makes copies of images other rows


KERNEL = Kernel("rbf", gamma=GAMMA)
RANKS, TRUE_RANK = (60, 120), 400  # coordinates kept; and in the answer without noise
ENGINE_ROWS = (
    20_000  # up to which every fit is one of the engine; beyond, fits with public points share the nodes' sums
)


def plan(epsilon: float, rank: int) -> Release:
    return releases(epsilon, DELTA, {"all": rank}, {"all": 1.0}, NODES, 1)[0]


def options(landmarks, m: int, **changes) -> Options:
    asked = Settings.of(
        n_components=K, kernel=KERNEL, solver="landmarks", n_landmarks=m, landmarks=landmarks, seed=0, **changes
    )
    return settle(asked, Network.ring(NODES, 4), np.full(NODES, 100))


def fit(parts, settings: Options):
    begun = time.perf_counter()
    outcome = local.run(Plan.of(parts, Network.ring(NODES, 4), settings))
    seconds = time.perf_counter() - begun
    return NodeModels(outcome.answers, "landmarks", settings, Features(parts[0].shape[1]))[0], outcome, seconds


def more_rows(X: np.ndarray, rows: int) -> np.ndarray:
    """So many rows in float32: the images, then copies with noise."""
    rng = np.random.default_rng(1)
    made = np.empty((rows, X.shape[1]), dtype=np.float32)
    for start in range(0, rows, len(X)):
        some = X[: min(len(X), rows - start)]
        made[start : start + len(some)] = some if not start else some + PIXEL_NOISE * rng.normal(size=some.shape)
    return made


@dataclass(frozen=True)
class Shared:
    """What all fits with the same public points begin with, at once: every node's exact sums, by rank, and the answer without noise."""

    public: np.ndarray
    sums: dict[int, list[np.ndarray]]
    root: np.ndarray
    cut: dict[int, float]
    mean: np.ndarray
    directions: np.ndarray

    @classmethod
    def of(cls, parts, public: np.ndarray) -> Shared:
        values, vectors = np.linalg.eigh(KERNEL.gram(public, public))
        values, vectors = values[::-1], vectors[:, ::-1]
        root = vectors[:, :TRUE_RANK] / np.sqrt(values[:TRUE_RANK])
        first, second, count = np.zeros(TRUE_RANK), np.zeros((TRUE_RANK, TRUE_RANK)), 0
        sums = {rank: [] for rank in RANKS}
        for part in parts:
            mine = {rank: np.zeros(plan(1.0, rank).numbers, dtype=np.int64) for rank in RANKS}
            for start in range(0, len(part), 4096):
                psi = KERNEL.gram(part[start : start + 4096].astype(np.float64), public) @ root
                first, second, count = first + psi.sum(axis=0), second + psi.T @ psi, count + len(psi)
                for rank in RANKS:
                    release = plan(1.0, rank)
                    mine[rank] += release.sums(release.integers(psi[:, :rank]))
            for rank in RANKS:
                sums[rank].append(mine[rank])
        mean = first / count
        directions = np.linalg.eigh(second - count * np.outer(mean, mean))[1][:, ::-1][:, :K]
        cut = {rank: cut_error(values, vectors, rank, K, "global") for rank in RANKS}
        return cls(public, sums, root, cut, mean, directions)

    def central(self, judged: np.ndarray) -> np.ndarray:
        """Component values without noise."""
        return (KERNEL.gram(judged, self.public) @ self.root - self.mean) @ self.directions

    def fit(self, epsilon: float, rank: int, judged: np.ndarray) -> tuple[np.ndarray, float]:
        """Component values with noise and the estimated accuracy of the span: what the engine does after every node has its sums."""
        release = plan(epsilon, rank)
        made = sealers([str(j) for j in range(NODES)], b"benchmark")
        bound = 2.0 * LARGEST_TOTAL
        sealed = [
            node.seal("moments", release.with_noise(own, node), bound)
            for node, own in zip(made.values(), self.sums[rank], strict=True)
        ]
        total = made["0"].open("moments", np.sum(sealed, axis=0, dtype=np.uint64), bound, integers=True)
        found = components_of(release, total, K, "global", self.cut[rank])
        values = (KERNEL.gram(judged, self.public) @ self.root[:, :rank] - found.mean) @ found.directions
        return values, float(np.sqrt(1 - found.error))


def agreement(Z: np.ndarray, central: np.ndarray) -> np.ndarray:
    """Of components 1 and 2, and of the plane of 3 and 4."""
    found = [abs(np.corrcoef(Z[:, i], central[:, i])[0, 1]) for i in range(2)]
    planes = [np.linalg.qr(x[:, 2:] - x[:, 2:].mean(axis=0))[0] for x in (Z, central)]
    return np.array([*found, np.linalg.svd(planes[0].T @ planes[1], compute_uv=False)[-1]])


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[2000, 20_000, 100_000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 4.0])
    parser.add_argument(
        "--synthetic", type=int, default=100_000, help="most rows with synthetic points, which take two passes a fit"
    )
    parser.add_argument("--seeds", type=int, default=3, help="fits of each, whose noise differs")
    a = parser.parse_args()
    X, _ = load(a.data)
    X = X[np.random.default_rng(0).permutation(len(X))]
    public, X = X[-POINTS:], X[:-POINTS]
    floors = Floors()
    shown = table(
        f"{NODES} nodes, delta = {DELTA:g}, one colluding node; agreement of components 1, 2 and of the plane of 3, 4; worst of {a.seeds}",
        "rows", "landmarks, rank", "epsilon", "agreement", "estimated span", "seconds", "kB sent a node",
    )  # fmt: skip
    for rows in a.rows:
        together = more_rows(X, rows)
        parts = [np.ascontiguousarray(part) for part in np.array_split(together, NODES)]
        judged = together[:: max(1, rows // JUDGED)].astype(np.float64)
        shared = Shared.of(parts, public)
        central = shared.central(judged)
        del together
        for kind in ("public points", "synthetic points")[: 2 if rows <= a.synthetic else 1]:
            rank = 60 if rows < 100_000 or kind != "public points" else 120
            for epsilon in a.epsilon:
                found = []
                for _ in range(a.seeds):
                    if kind == "public points" and rows > ENGINE_ROWS:
                        Z, span = shared.fit(epsilon, rank, judged)
                        found.append((agreement(Z, central), span, np.nan, np.nan))
                        continue
                    privacy = Privacy.of({"epsilon": epsilon, "delta": DELTA, "rank": rank, "norm": NORM})
                    settings = options(public if kind == "public points" else "gaussian", POINTS, privacy=privacy)
                    model, outcome, seconds = fit(parts, settings)
                    sent = sum(outcome.traffic.bytes.values()).mean() / 1e3
                    found.append((agreement(model.transform(judged), central), model.span_accuracy_, seconds, sent))
                worst = np.min([f[0] for f in found], axis=0)
                shown.add_row(
                    f"{rows:,}", f"{kind}, {rank}", f"{epsilon:g}", numbers(worst), f"{np.mean([f[1] for f in found]):.4f}",
                    f"{np.median([f[2] for f in found]):.1f}", f"{found[0][3]:.0f}",
                )  # fmt: skip
                if rows == 20_000 and epsilon == 1.0:
                    least = 0.999 if kind == "public points" else 0.99
                    floors.require(bool(worst[:2].min() >= least), f"{kind}, 20,000 rows, epsilon 1: {worst[:2]}")
    console.print(shown)
    secure_cost(X, public, floors)
    attack(floors)
    floors.finish()


def secure_cost(X: np.ndarray, public: np.ndarray, floors: Floors) -> None:
    """Secure sums against sums in clear, with 400 landmarks; nodes as blocks of their own in both."""
    parts = np.array_split(X[:2000], NODES)
    shown = table(
        f"secure sums: {NODES} nodes of 100 rows, 400 landmarks", "sums", "seconds", "MB a node", "difference"
    )
    found = {}
    for name, secure in (("in clear", False), ("secure", True)):
        settings = options(public[:400], 400, secure_sums=255.0 if secure else False)
        network = Network.ring(NODES, 4)

        def once(settings=settings, network=network):
            blocks = Plan.of(parts, network, settings).blocks(apart=True)
            begun = time.perf_counter()
            if settings.sealed:
                local.simulate_sealers(blocks, settings)
            agreed = time.perf_counter() - begun
            begun = time.perf_counter()
            outcome = local.drive(blocks, settings)
            return outcome, time.perf_counter() - begun, agreed

        runs = [once() for _ in range(5)]
        outcome = runs[0][0]
        seconds, agreed = np.median([r[1] for r in runs]), np.median([r[2] for r in runs])
        sent = sum(outcome.traffic.bytes.values()).mean() / 1e6
        found[name] = seconds, sent, outcome.answers[0].w[0], agreed
        apart = np.abs(found[name][2] - found["in clear"][2]).max() / np.abs(found["in clear"][2]).max()
        shown.add_row(name, f"{seconds:.2f} (and {agreed:.2f} for keys)", f"{sent:.2f}", f"{apart:.1e}")
    clear, secure = found["in clear"], found["secure"]
    console.print(shown)
    floors.require(secure[1] <= 1.2 * clear[1], f"bytes: {secure[1] / clear[1]:.2f} times")
    floors.require(secure[0] <= 1.5 * clear[0], f"time: {secure[0] / clear[0]:.2f} times")
    floors.require(bool(np.abs(secure[2] - clear[2]).max() <= 1e-9 * np.abs(clear[2]).max()), "the same answer")


def attack(floors: Floors) -> None:
    """Likelihood-ratio attack on one row, as tests/test_privacy.py mounts it, with more runs."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from test_privacy import attacked_epsilons

    (release,) = releases(1.0, DELTA, {"all": 2}, {"all": 1.0}, 4, 2)
    shown = table(
        "membership attack, epsilon 1: 500,000 runs on each of two neighboring data sets", "noise", "epsilon, at least"
    )
    whole, half = attacked_epsilons(release, 500_000, 1)
    shown.add_row("all of it", f"{whole:.3f}")
    shown.add_row("half of it", f"{half:.3f}")
    console.print(shown)
    floors.require(whole < 1.0, f"the attack reaches epsilon {whole:.3f}")
    floors.require(half > 1.0, f"with half of the noise the attack reaches only {half:.3f}")


if __name__ == "__main__":
    main()
