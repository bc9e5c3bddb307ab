"""Kernel PCA with differential privacy: agreement by epsilon and number of rows, on 20 nodes; what secure sums cost; an attack; how often
two runs on other columns tell a row of a small node; how many rows a search finds in the products of their coordinates; and whether sums of features
times functions determine rows.

    python benchmarks/privacy.py --data mnist-0358.npz [--rows 2000 20000 100000 1000000] [--seeds 3]
        [--sections agreement cost peers audit groups rows features]

Agreement is the correlation of component values with those of 400 coordinates of public points without noise, of the worst seed, over at most 20,000
rows. Components 3 and 4 have nearly equal eigenvalues: for them the smallest cosine between the two planes. More rows than there are images
are images with noise on their pixels. Public points are images that no node has. Told: the span's accuracy as the model estimates it, the highest
of the seeds, against the true one.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import beta
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import scale

from common import GAMMA, Floors, arguments, console, load, numbers, table
from dekpca import Network
from dekpca.data.columns import Features
from dekpca.engines import local
from dekpca.engines.tree import over_tree
from dekpca.kernels import make_kernel
from dekpca.landmarks import Landmarks
from dekpca.node_model import NodeModels
from dekpca.plan import Plan
from dekpca.privacy.masks import Sealer, sealers
from dekpca.privacy.noise import discrete_gaussian
from dekpca.privacy.releases import LARGEST_TOTAL, Release, releases
from dekpca.privacy.settings import Privacy
from dekpca.program import program
from dekpca.settings import LandmarkSource, Options, Settings, settle
from dekpca.site import apart
from dekpca.solvers import private as private_solver
from dekpca.solvers.private import REST, Embedding, components_of
from dekpca.solvers.sums.groups import grouped
from dekpca.solvers.sums.options import LEAST_CLUSTER
from dekpca.solvers.sums.rows import SiteRows
from peers import Nodes

NODES, K, DELTA, POINTS, JUDGED = 20, 4, 1e-6, 1000, 20_000
NORM = 3200.0  # of pixel vectors, chosen after a look at this data; 5 % of the images are longer, and clipped
MANY = 60  # fits by which the floor for 20,000 rows is put in numbers
PIXEL_NOISE = 20.0  # deviation, of 255, that makes copies of images other rows


KERNEL = make_kernel("rbf", gamma=GAMMA)
RANKS, TRUE_RANK = (60, 120), 400  # coordinates kept; and in the answer without noise
# rows, columns, features, functions
FEATURES = (
    (20, 10, 384, 0), (40, 10, 128, 0), (40, 10, 128, 4), (60, 10, 128, 0), (60, 10, 128, 8),
    (25, 30, 768, 0), (40, 30, 768, 0), (40, 30, 128, 12),
)  # fmt: skip
ENGINE_ROWS = (
    20_000  # up to which every fit is one of the engine; beyond, fits with public points share the nodes' sums
)


def plan(epsilon: float, rank: int) -> Release:
    return releases(epsilon, DELTA, {"all": rank + REST}, {"all": 1.0}, NODES, 1)[0]


def options(landmarks, **changes) -> Options:
    """With these points as landmarks; a number: so many synthetic points (differential privacy)."""
    source, count = LandmarkSource("points", landmarks), "auto"
    if isinstance(landmarks, int):
        source, count = LandmarkSource("synthetic"), landmarks
    asked = Settings(n_components=K, kernel=KERNEL, landmarks=source, n_landmarks=count, seed=0, **changes)
    return settle(asked, Network.ring(NODES, 4), np.full(NODES, 100))


def fit(parts, settings: Options):
    begun = time.perf_counter()
    outcome = local.run(Plan.of(parts, Network.ring(NODES, 4), settings))
    seconds = time.perf_counter() - begun
    return NodeModels(outcome.answers, True, Features(parts[0].shape[1]))[0], outcome, seconds


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
    mean: np.ndarray
    directions: np.ndarray

    @classmethod
    def of(cls, parts, public: np.ndarray) -> Shared:
        values, vectors = np.linalg.eigh(KERNEL.gram(public, public))
        values, vectors = values[::-1], vectors[:, ::-1]
        root = vectors[:, :TRUE_RANK] / np.sqrt(values[:TRUE_RANK])
        first, second, count = np.zeros(TRUE_RANK), np.zeros((TRUE_RANK, TRUE_RANK)), 0
        sums = {rank: [] for rank in RANKS}
        seen = {rank: Embedding.of(KERNEL, public, root[:, :rank], 0) for rank in RANKS}
        for part in parts:
            mine = {rank: np.zeros(plan(1.0, rank).numbers, dtype=np.int64) for rank in RANKS}
            for start in range(0, len(part), 4096):
                rows = part[start : start + 4096].astype(np.float64)
                psi = KERNEL.gram(rows, public) @ root
                first, second, count = first + psi.sum(axis=0), second + psi.T @ psi, count + len(psi)
                for rank in RANKS:
                    release = plan(1.0, rank)
                    kept = psi[:, :rank]
                    mine[rank] += release.sums(
                        release.integers(np.concatenate([kept, seen[rank].rest(rows, kept)], axis=1))
                    )
            for rank in RANKS:
                sums[rank].append(mine[rank])
        mean = first / count
        directions = np.linalg.eigh(second - count * np.outer(mean, mean))[1][:, ::-1][:, :K]
        return cls(public, sums, root, mean, directions)

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        return KERNEL.gram(rows, self.public) @ self.root

    def fit(self, epsilon: float, rank: int, psi: np.ndarray) -> tuple[np.ndarray, float]:
        """Component values with noise and the estimated accuracy of the span: what the engine does after every node has its sums."""
        release = plan(epsilon, rank)
        made = sealers([str(j) for j in range(NODES)], b"benchmark")
        bound = 2.0 * LARGEST_TOTAL
        sealed = [
            node.seal("moments", release.with_noise(own, node.noise), bound)
            for node, own in zip(made.values(), self.sums[rank], strict=True)
        ]
        total = made["0"].open("moments", np.sum(sealed, axis=0, dtype=np.uint64), bound, integers=True)
        found = components_of(release, total, K, rank)
        return (psi[:, :rank] - found["mean"]) @ found["directions"], float(np.sqrt(1 - found["error"][0]))


def agreement(Z: np.ndarray, central: np.ndarray) -> np.ndarray:
    """Of components 1 and 2, of the plane of 3 and 4, and of the span of all."""
    found = [abs(np.corrcoef(Z[:, i], central[:, i])[0, 1]) for i in range(2)]
    return np.array([*found, cosine(Z[:, 2:], central[:, 2:]), cosine(Z, central)])


def cosine(Z: np.ndarray, central: np.ndarray) -> float:
    """The smallest between two spans."""
    bases = [np.linalg.qr(x - x.mean(axis=0))[0] for x in (Z, central)]
    return float(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)[-1])


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    sections = ("agreement", "cost", "peers", "audit", "groups", "rows", "features")
    parser.add_argument("--sections", nargs="+", choices=sections, default=list(sections))
    parser.add_argument("--rows", type=int, nargs="+", default=[2000, 20_000, 100_000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 4.0])
    parser.add_argument("--kinds", nargs="+", choices=("public", "synthetic"), default=["public", "synthetic"])
    parser.add_argument("--seeds", type=int, default=5, help="fits of each, whose noise differs")
    parser.add_argument("--runs", type=int, default=4000, help="fits on each of two data sets, for the audit")
    a = parser.parse_args()
    floors = Floors()
    X, _ = load(a.data)
    X = X[np.random.default_rng(0).permutation(len(X))]
    public, X = X[-POINTS:], X[:-POINTS]
    if "agreement" in a.sections:
        for kind in a.kinds:
            for rows in a.rows:
                agreements(X, public, kind, rows, a.epsilon, a.seeds, floors)
    if "cost" in a.sections:
        secure_cost(X, public, floors)
    if "peers" in a.sections:
        peer_cost(X, public, floors)
    if "audit" in a.sections:
        attack(floors)
        audit(a.runs, floors)
    if "groups" in a.sections:
        groups_of_two_runs()
    if "rows" in a.sections:
        rows_of_products()
    if "features" in a.sections:
        rows_of_features(floors)
    floors.finish()


def agreements(X, public, kind: str, rows: int, epsilons, seeds: int, floors: Floors) -> None:
    together = more_rows(X, rows)
    parts = [np.ascontiguousarray(part) for part in np.array_split(together, NODES)]
    judged = together[:: max(1, rows // JUDGED)].astype(np.float64)
    shared = Shared.of(parts, public)
    psi = shared.coordinates(judged)
    central = (psi - shared.mean) @ shared.directions
    del together
    rank = 60 if rows < 100_000 or kind == "synthetic" else 120
    shown = table(
        f"{rows:,} rows on {NODES} nodes, {kind} points, rank {rank}, delta = {DELTA:g}, one colluding node; worst of {seeds}",
        "epsilon", "components 1, 2", "medians", "plane of 3, 4", "span", "told", "seconds", "kB sent a node",
    )  # fmt: skip
    told_of_many = ""
    for epsilon in epsilons:
        found = []
        for _ in range(seeds):
            if kind == "public" and rows > ENGINE_ROWS:
                Z, span = shared.fit(epsilon, rank, psi)
                found.append((agreement(Z, central), span, np.nan, np.nan))
                continue
            privacy = Privacy.of({"epsilon": epsilon, "delta": DELTA, "rank": rank, "norm": NORM})
            settings = options(public if kind == "public" else POINTS, privacy=privacy)
            model, outcome, seconds = fit(parts, settings)
            sent = sum(outcome.traffic.bytes.values()).mean() / 1e3
            found.append((agreement(model.transform(judged), central), model.span_accuracy_, seconds, sent))
        worst, middle = (of([f[0] for f in found], axis=0) for of in (np.min, np.median))
        told, seconds = max(f[1] for f in found), float(np.median([f[2] for f in found]))
        shown.add_row(
            f"{epsilon:g}", numbers(worst[:2]), numbers(middle[:2]), f"{worst[2]:.4f}", f"{worst[3]:.4f}", f"{told:.4f}",
            "" if math.isnan(seconds) else f"{seconds:.1f}", "" if math.isnan(seconds) else f"{found[0][3]:.0f}",
        )  # fmt: skip
        if rows == 20_000 and epsilon == 1.0:
            least = 0.999 if kind == "public" else 0.99
            if kind == "public":
                many = [agreement(shared.fit(epsilon, rank, psi)[0], central)[:2].min() for _ in range(MANY)]
                share = np.mean(np.array(many) >= least)
                told_of_many = (
                    f"20,000 rows, epsilon 1: {share:.0%} of {MANY} fits have both components at {least} or above"
                )
            floors.require(
                bool(middle[:2].min() >= least), f"{kind} points, 20,000 rows, epsilon 1: median {middle[:2]}"
            )
        above = max(f[1] - f[0][3] for f in found)
        floors.require(
            above <= 0.02, f"{kind} points, {rows} rows, epsilon {epsilon:g}: told {above:.3f} above the truth"
        )
    console.print(shown)
    if told_of_many:
        console.print(told_of_many)


def secure_cost(X: np.ndarray, public: np.ndarray, floors: Floors) -> None:
    """Secure sums against sums in clear, with 400 landmarks; messages along the tree in both. Seconds of processor time, all nodes together."""
    parts, network = np.array_split(X[:2000], NODES), Network.ring(NODES, 4)
    shown = table(
        f"secure sums: {NODES} nodes of 100 rows, 400 landmarks; medians of 5 runs in turn",
        "sums", "processor seconds of a node", "keys", "MB a node", "difference",
    )  # fmt: skip
    choices = {"in clear": options(public[:400]), "secure": options(public[:400], secure_sums=True)}
    runs: dict[str, list] = {name: [] for name in choices}
    for _ in range(5):
        for name, settings in choices.items():
            sites = apart(parts, network)
            begun = time.process_time()
            if settings.sealed:
                local.simulate_sealers(sites)
            agreed = time.process_time()
            outcome = local.drive(sites, settings, local.Delivery(sites), script=over_tree(program))
            runs[name].append((outcome, time.process_time() - agreed, agreed - begun))
    found = {}
    for name in choices:
        outcome = runs[name][0][0]
        seconds, agreed = (float(np.median([run[i] for run in runs[name]])) / NODES for i in (1, 2))
        sent = sum(outcome.traffic.bytes.values()).mean() / 1e6
        model = NodeModels(outcome.answers, True, Features(X.shape[1]))[0]
        found[name] = seconds + agreed, sent, model.transform(X[:2000])
        differ = np.abs(found[name][2] - found["in clear"][2]).max() / np.abs(found["in clear"][2]).max()
        shown.add_row(name, f"{seconds:.3f}", f"{agreed:.3f}", f"{sent:.2f}", f"{differ:.1e}")
    clear, secure = found["in clear"], found["secure"]
    # what rounding alone does: the sums in clear, added up along another tree
    settings, other = choices["in clear"], Network.star(NODES)
    sites = apart(parts, other)
    outcome = local.drive(sites, settings, local.Delivery(sites), script=over_tree(program))
    again = NodeModels(outcome.answers, True, Features(X.shape[1]))[0].transform(X[:2000])
    shown.add_row(
        "in clear, another tree", "", "", "", f"{np.abs(again - clear[2]).max() / np.abs(clear[2]).max():.1e}"
    )
    console.print(shown)
    floors.require(secure[1] <= 1.2 * clear[1], f"bytes: {secure[1] / clear[1]:.2f} times")
    floors.require(secure[0] <= 1.5 * clear[0], f"time: {secure[0] / clear[0]:.2f} times")
    floors.require(bool(differ <= 1e-9), f"component values differ by {differ:.1e}")


PEERS, PEER_ROWS, TURNS = 6, 300, 7


def peer_cost(X: np.ndarray, public: np.ndarray, floors: Floors) -> None:
    """The same between processes with TLS, all on this machine: what a node sends, and seconds from the known network to the answers."""
    parts, network = np.array_split(X[: PEERS * PEER_ROWS], PEERS), Network.ring(PEERS, 4)
    seconds: dict[str, list[float]] = {"in clear": [], "secure": []}
    sent: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/public.npy", public[:400])
        asked = {"n_components": K, "gamma": GAMMA, "landmarks": f"{folder}/public.npy"}
        for _ in range(TURNS):
            for name, took in seconds.items():
                with Nodes(parts, network, asked | {"privacy": "secure-sums" if name == "secure" else "none"}) as nodes:
                    nodes.watch()
                    took.append(nodes.seconds())
                    sent[name] = np.mean([sum(said["bytes_sent"].values()) for said in nodes.said().values()]) / 1e6
    shown = table(
        f"secure sums between {PEERS} processes with TLS, {PEER_ROWS} rows each, 400 landmarks; {TURNS} runs in turn",
        "sums", "seconds, median", "best", "MB a node",
    )  # fmt: skip
    for name, took in seconds.items():
        shown.add_row(name, f"{np.median(took):.2f}", f"{min(took):.2f}", f"{sent[name]:.2f}")
    console.print(shown)
    clear, secure = (float(np.median(took)) for took in seconds.values())
    floors.require(
        sent["secure"] <= 1.2 * sent["in clear"], f"peers, bytes: {sent['secure'] / sent['in clear']:.2f} times"
    )
    floors.require(secure <= 1.5 * clear, f"peers, time: {secure / clear:.2f} times")


def attack(floors: Floors) -> None:
    """Likelihood-ratio attack on one row, as tests/test_privacy.py mounts it, with more runs."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from test_privacy import attacked_epsilons

    (release,) = releases(1.0, DELTA, {"all": 2}, {"all": 1.0}, 4, 2)
    shown = table(
        "attack on a release, epsilon 1: 500,000 releases of each of two neighboring data sets",
        "noise",
        "epsilon, at least",
    )
    whole, half = attacked_epsilons(release, 500_000, 1)
    shown.add_row("all of it", f"{whole:.3f}")
    shown.add_row("half of it", f"{half:.3f}")
    console.print(shown)
    floors.require(whole < 1.0, f"the attack reaches epsilon {whole:.3f}")
    floors.require(half > 1.0, f"with half of the noise the attack reaches only {half:.3f}")


AUDITED, AUDITED_DELTA = 0.5, 0.05  # a large delta leaves so little noise that thousands of fits can show it
LEVEL = 1e-3 / 16  # of a bound: 99.9 % for eight thresholds of two bounds


def audit(runs: int, floors: Floors) -> None:
    """Whole fits on two data sets that differ by one row, by an attacker that knows both and takes the likelihood ratio of what is released."""
    rng = np.random.default_rng(3)
    parts = [rng.normal(size=(12, 3)) for _ in range(3)]
    with_victim = [parts[0], np.concatenate([parts[1], [[3.0, -3.0, 3.0]]]), parts[2]]  # far from all others
    points = rng.normal(size=(8, 3))
    privacy = Privacy.of({"epsilon": AUDITED, "delta": AUDITED_DELTA, "rank": 4, "colluding": 0})
    asked = Settings(
        n_components=2, kernel=make_kernel("rbf", gamma=0.3), landmarks=LandmarkSource("points", points), seed=0, privacy=privacy
    )  # fmt: skip
    totals: list[np.ndarray] = []
    finish, noise = private_solver.components_of, Sealer.noise

    def keep(release, total, *more):
        totals.append(total.astype(np.float64))
        return finish(release, total, *more)

    def released(data, count: int, share) -> np.ndarray:
        """What `count` fits release, the noise of each node as `share` makes it."""
        network = Network.complete(3)
        settings = settle(asked, network, np.array([len(part) for part in data]))
        Sealer.noise = lambda sealer, sigma, length: share(sigma, length)
        totals.clear()
        for _ in range(count):
            local.run(Plan.of(data, network, settings))
        return np.array(totals)

    private_solver.components_of = keep
    try:
        nothing = [
            released(data, 1, lambda sigma, length: np.zeros(length, dtype=np.int64))[0]
            for data in (parts, with_victim)
        ]
        (release,) = asked.private_options().releases(3, 3)
        change, deviations = nothing[1] - nothing[0], release.deviations()
        weights = change / deviations**2
        moved = math.sqrt(float(weights @ change) / release.n_nodes)
        shown = table(
            f"audit: {runs} fits on each of two data sets, epsilon {AUDITED:g}, delta {AUDITED_DELTA:g}; the row moves the release by {moved:.2f} "
            f"of its noise, where {1 / release.multiplier:.2f} are allowed", "noise", "epsilon, at least",
        )  # fmt: skip
        found = {}
        for name, share in (
            ("all of it", discrete_gaussian),
            ("half of it", lambda *asked: discrete_gaussian(*asked) // 2),
        ):
            scores = [(released(data, runs, share) - nothing[0]) @ weights for data in (parts, with_victim)]
            found[name] = least_epsilon(*scores, math.sqrt(release.n_nodes * float(weights @ change)))
            shown.add_row(name, f"{found[name]:.3f}")
    finally:
        private_solver.components_of, Sealer.noise = finish, noise
    console.print(shown)
    floors.require(found["all of it"] < AUDITED, f"the audit reaches epsilon {found['all of it']:.3f}")
    floors.require(found["half of it"] > AUDITED, f"with half of the noise it reaches only {found['half of it']:.3f}")


CASES = 60


def groups_of_two_runs() -> None:
    """How often a group of one run has all rows of a group of another run and one more, which is then the difference of what k-means is told."""

    def groups(X: np.ndarray, scaled: bool = False) -> list[set[int]]:
        nobody = np.zeros(len(X), dtype=np.int64)
        number = grouped(SiteRows(X, nobody, nobody, len(X), 1, least=LEAST_CLUSTER), scaled)
        return [set(np.flatnonzero(number == i)) for i in range(number.max() + 1)]

    shown = table(
        f"of {CASES} tables of random normal rows, those of which a row is the difference of two runs' groups",
        "rows of the node", "columns", "one column less", "another standardize",
    )  # fmt: skip
    for rows in (11, 41):
        for columns in (3, 5, 10, 20):
            found = np.zeros(2, dtype=int)
            for seed in range(CASES):
                X = np.random.default_rng(seed).normal(size=(rows, columns))
                others = groups(X[:, :-1]), groups(X, scaled=True)
                found += [any(len(a ^ b) == 1 for a in groups(X) for b in other) for other in others]
            shown.add_row(str(rows), str(columns), *map(str, found))
    console.print(shown)


def rows_of_products() -> None:
    """How many starts of a search end at a row, given nothing but the products of the landmark coordinates of so many rows."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from test_peer_totals import RBF, nearest, products, rows_found

    X = np.random.default_rng(0).permutation(load_digits().data)
    marks = Landmarks.none(X).plus(X[600:1384:7], "points", RBF)
    shown = table(
        f"digits of {X.shape[1]} columns with entries from 0 to 16, {marks.size} landmarks, gamma {RBF.gamma:g}",
        "rows", "starts", "ended within 0.01 of a row", "the farthest of these",
    )  # fmt: skip
    for rows in (40, 48, 80, 160):
        off = nearest(rows_found(products(X[:rows], marks), marks, X[600:], 20), X[:rows])
        found = off[off < 0.01]
        shown.add_row(str(rows), "20", str(len(found)), f"{found.max():.1e}" if len(found) else "")
    console.print(shown)


def rows_of_features(floors: Floors) -> None:
    """Whether sums of features times functions determine rows: a search by least squares, which begins near them."""
    X = scale(load_breast_cancer().data)[np.random.default_rng(0).permutation(569)]
    shown = table(
        "breast cancers in standard units, gamma = 1 / columns; a search that begins 0.3 deviations off",
        "rows", "columns", "features", "functions", "sums / numbers", "median error / length", "before",
    )  # fmt: skip
    for rows, columns, features, functions in FEATURES:
        sums = sums_of_features(X[300:, :columns], features, functions)
        true, rng = X[:rows, :columns], np.random.default_rng(1)
        y, start = sums(true)[0], true + 0.3 * rng.normal(size=true.shape)

        def off(found, true=true):
            return np.median(np.linalg.norm(found.reshape(true.shape) - true, axis=1) / np.linalg.norm(true, axis=1))

        def missing(p, sums=sums, shape=true.shape, y=y):
            return sums(p.reshape(shape))[0] - y

        def slopes(p, sums=sums, shape=true.shape):
            return sums(p.reshape(shape))[1]

        exact = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
        found = least_squares(missing, start.ravel(), slopes, max_nfev=300, **exact).x
        ratio = len(y) / true.size
        cells = map(str, (rows, columns, features, functions))
        shown.add_row(*cells, f"{ratio:.2f}", f"{off(found):.1g}", f"{off(start):.2f}")
        floors.require(
            (off(found) < 1e-6) == (ratio > 1), f"{rows} rows with {ratio:.2f} sums a number: {off(found):.1g}"
        )
    console.print(shown)


def sums_of_features(points: np.ndarray, features: int, functions: int):
    """A function from rows to the sums over them of random features, alone and times functions in the span of landmarks, and to their slopes."""
    kernel = make_kernel("rbf", gamma=1 / points.shape[1])
    marks, omega = points[: max(functions, 1)], kernel.frequencies(points.shape[1], features // 2, 1)
    root = Landmarks.of(marks, kernel).root[:, :functions]

    def sums(P):
        angle, k = P @ omega.T, kernel.gram(P, marks)
        f = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
        df = np.concatenate([-np.sin(angle)[:, :, None] * omega, np.cos(angle)[:, :, None] * omega], axis=1)
        g = np.concatenate([np.ones((len(P), 1)), k @ root], axis=1)
        dk = -2 * kernel.gamma * k[:, :, None] * (P[:, None] - marks)
        dg = np.concatenate([np.zeros((len(P), 1, P.shape[1])), np.einsum("nlm,lj->njm", dk, root)], axis=1)
        slopes = df[:, :, None] * g[:, None, :, None] + f[:, :, None, None] * dg[:, None]
        return (f.T @ g).ravel(), slopes.reshape(len(P), -1, P.shape[1]).swapaxes(0, 1).reshape(
            f.shape[1] * g.shape[1], -1
        )

    return sums


def least_epsilon(absent: np.ndarray, there: np.ndarray, deviation: float) -> float:
    """A lower bound at 99.9 %: the best of eight thresholds (Clopper and Pearson), which are set before, in units of the scores' deviation."""
    best, runs = 0.0, len(absent)
    for threshold in deviation * np.array([0.0, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.3]):
        false, true = int((absent > threshold).sum()), int((there > threshold).sum())
        high, low = beta.ppf(1 - LEVEL, false + 1, runs - false), beta.ppf(LEVEL, max(true, 1), runs - true + 1)
        best = max(best, math.log(max(low - AUDITED_DELTA, 1e-12) / high))
    return best


if __name__ == "__main__":
    main()
