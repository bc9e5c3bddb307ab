"""How good the default settings are, on every kind of network and split, stopping by themselves.

    python benchmarks/quality.py --data mnist-0358.npz
    python benchmarks/quality.py --data mnist-0358.npz --solver projection

For each case the mean similarity over the oracle's, the agreement with central kernel PCA of the worst node (as `transform` answers and, with the
projection solver, through its own samples), the eigenvalues over the central ones, landmarks, iterations and bytes. With the projection solver
then 500 iterations with tol=0: nothing may diverge.
"""

from __future__ import annotations

import warnings

import numpy as np
from rich.progress import track

from common import GAMMA, Floors, arguments, console, load, numbers, table
from dekpca import DecentralizedKernelPCA, Network, Projection, baselines, metrics
from dekpca.experiments import splits

K = 4


def cases():
    """Name, network, sizes of the nodes for a seed, floors for components 1, 2 and 3, 4, tolerance of the eigenvalues."""
    same = lambda seed, J=20: np.full(J, 100)  # noqa: E731
    drawn = lambda seed: np.random.default_rng(seed).integers(20, 301, 20)  # noqa: E731
    yield "ring-4", lambda seed: Network.ring(20, 4), same, (0.999, 0.997), 0.03
    for name, network in {
        "ring-2": lambda seed: Network.ring(20, 2),
        "path": lambda seed: Network.path(20),
        "star": lambda seed: Network.star(20),
        "grid 4 x 5": lambda seed: Network.grid(4, 5),
        "random(0.3)": lambda seed: Network.random(20, 0.3, seed=seed),
        "complete": lambda seed: Network.complete(20),
    }.items():
        yield name, network, same, (0.998, 0.99), 0.06
    yield "ring-4, 20 to 300 a node", lambda seed: Network.ring(20, 4), drawn, (0.998, 0.99), 0.03
    yield "ring-4, J = 80", lambda seed: Network.ring(80, 4), lambda seed: same(seed, 80), (0.998, 0.99), 0.03


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--solver", choices=["auto", "projection"], default="auto")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--long", type=int, default=500, help="iterations of the divergence check (0: leave it out)")
    a = parser.parse_args()
    a.long = a.long if a.solver == "projection" else 0
    X, y = load(a.data)
    floors = Floors()
    shown = table(
        f"solver={a.solver!r}, n = 100, {K} components, worst of {a.seeds} seeds (similarity: mean)",
        "network", "split", "similarity / oracle", "agreement, worst node", "same, own samples", "eigenvalues / central", "landmarks", "iterations",
        "MB a node",
    )  # fmt: skip
    longer = table(
        f"tol=0, {a.long} iterations",
        "network",
        "split",
        "agreement, worst node",
        "residual at 100",
        f"at {a.long}",
        "|z| <= 1",
    )
    wanted = [case for case in cases() if a.only in case[0]]
    todo = [(case, split) for case in wanted for split in (splits.evenly, splits.one_class_a_node)]
    for (name, network, sizes, (first, second), wide), split in track(
        todo, console=console, transient=True, disable=not console.is_terminal
    ):
        rows = []
        for seed in range(a.seeds):
            parts = [X[r] for r in split(y, sizes(seed), seed)]
            together = np.concatenate(parts)
            central = baselines.central(parts, K, gamma=GAMMA)
            solver = Projection() if a.solver == "projection" else "auto"
            model = DecentralizedKernelPCA(K, gamma=GAMMA, network=network(seed), solver=solver, random_state=seed)
            model.fit_parts(parts)
            sent = sum(model.history_["bytes"].values()).mean() / 1e6
            rows.append((
                (metrics.similarity(model, central) / metrics.oracle(model, central)).mean(axis=0),
                metrics.agreement(model, central, together).min(axis=0),
                metrics.agreement(model, central, together, "node" if a.solver == "projection" else None).min(axis=0),
                model.eigenvalues_ / central.eigenvalues_,
                model.n_iter_, sent, model.converged_, model.n_landmarks_,
            ))  # fmt: skip
        ratio, agree, own = (np.min([r[i] for r in rows], axis=0) for i in range(3))
        values = np.array([r[3] for r in rows])
        off = values[np.abs(values - 1).argmax(axis=0), np.arange(K)]
        iterations = [r[4] for r in rows]
        label = {"evenly": "i.i.d.", "one_class_a_node": "one class a node"}[split.__name__]
        case = f"{name}, {label}"
        if a.solver == "auto":  # the same everywhere, whatever the network
            second = max(second, 0.999) if name == "random(0.3)" else second
        for kind, got in (("neighborhood", agree), ("own samples", own)):
            floors.require(
                got[:2].min() >= first,
                f"{case}: agreement of components 1, 2 ({kind}) {numbers(got[:2])}, floor {first}",
            )
            floors.require(
                got[2:].min() >= second,
                f"{case}: agreement of components 3, 4 ({kind}) {numbers(got[2:])}, floor {second}",
            )
        if name == "ring-4":
            floors.require(ratio.min() >= 0.997, f"{case}: similarity over oracle {numbers(ratio)}, floor 0.997")
        floors.require(max(iterations) <= 30, f"{case}: {iterations} iterations, at most 30")
        floors.require(all(r[6] for r in rows), f"{case}: not converged")
        floors.require(np.abs(off - 1).max() <= wide, f"{case}: eigenvalues {numbers(off)} of central, within {wide}")
        sent = np.mean([r[5] for r in rows])
        shown.add_row(
            name,
            label,
            numbers(ratio),
            numbers(agree, 5),
            numbers(own),
            numbers(off),
            " ".join(str(r[7]) for r in rows),
            " ".join(map(str, iterations)),
            f"{sent:.1f}",
        )
        if a.long:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # tol=0 never converges
                model.set_params(solver=Projection(tol=0.0, max_iter=a.long)).fit_parts(parts)
            agree = metrics.agreement(model, central, together).min(axis=0)
            norms = max(np.sqrt(_squared_z(model)).max(), 0)
            residual = model.history_["residual"]
            floors.require(
                np.isfinite(agree).all() and agree.min() >= 0.9,
                f"{case}: agreement {numbers(agree)} after {a.long} iterations",
            )
            floors.require(
                residual[-1] <= max(residual[99], 1e-3),
                f"{case}: residual grows from {residual[99]:.1e} to {residual[-1]:.1e}",
            )
            longer.add_row(name, label, numbers(agree, 5), f"{residual[99]:.1e}", f"{residual[-1]:.1e}", f"{norms:.6f}")
    console.print(shown)
    if a.long:
        console.print(longer)
    floors.finish()


def _squared_z(model) -> np.ndarray:
    """|z_j|^2 before the components were scaled: at most 1 wherever the constraint is kept."""
    scaled = []
    ritz = model.history_["objective"][-1]
    for node in list(model.node_models_)[:3]:
        f = node.function("neighborhood")
        points, c = np.concatenate(f.points), np.concatenate(f.coefficients)
        scaled.append(
            (c * (node.kernel.gram(points, points) @ c)).sum(axis=0).sum() * ritz / model.eigenvalues_.sum() / K
        )
    return np.array(scaled)


if __name__ == "__main__":
    main()
