"""The paper's algorithm, and a variant of it that converges. Read `solve`, then `iterate`.

Every node j looks for w_j, the projection of the components on the span of its own samples. Every node q also keeps z_q, an estimate of the
components themselves in the span of its neighborhood's samples. ADMM maximizes the sum of |values of w_j on X_j|^2 under the constraints
w_j = P_j z_q, for the node itself and each neighbor q, where P_j projects on the span of j; dual_jq is the multiplier of that constraint.

    the paper's Alg. 1                                        here (node.py has the formulas)
    exchange data with the neighbors, initialize alpha_j      `meet`, `start`
    repeat:                                                   `iterate`
      send to each neighbor what its z needs                  `Node.share`, an Exchange "share"
      update z_j, and clip its norm at 1                      `Node.z_step`
      send to each neighbor the values of z_j on its samples  an Exchange "view"
      update alpha_j and the multipliers eta_j                `Node.w_step`

    the paper's symbol                                        here
    alpha_j, and w_j = phi(X_j) alpha_j                       `node.w`
    Omega_j: the node and its neighbors, j first              `node.around`
    K_j, K_j^-1                                               `node.gram`, `node.inverse` (of `node.rest`: K_j without landmarks and noise)
    K_j^-1 phi(X_j)'eta_j, column q                           `node.dual[q]`
    phi(X_l)'z_j                                              what node j sends to node l as "view"
    P_j z_q = phi(X_j) K_j^-1 phi(X_j)'z_q                    `node.projected[q]`
    rho of node j on z_q, in iteration t                      `run.on_w(j, t)[q]`, which is `run.on_z(q, t)[j]`

With `dekpca.PAPER` this is Alg. 1 except for the following. What `update="proximal"` and landmarks change besides, and why, is in
docs/explanation/algorithm.md.

- The paper sends alpha and the multiplier; a node sends rho alpha + multiplier, all that its neighbor uses of them. Multipliers are not scaled by
  rho, which a schedule changes, and are kept as coefficients over the samples, see `node.dual`: no node inverts a neighbor's matrix.
- K_j^-1 is a pseudo-inverse: eigenvalues below CUTOFF of the largest, or within rounding, count as zero.
- Signs of local starts matter (benchmarks/paper_mode.py): here the largest entry is positive. A view that points against the node's own z is turned.
  (The authors' scripts compare the values of both.) Nodes that began with opposite signs end with them, and are turned at the end (`Signs`).
- The paper iterates a given number of times. Here all nodes stop together when all have converged or somebody asks (`check`); after an overflow they
  return to the iterate of the last check.
- Gamma and scales of columns, if asked for, are found by network sums before anything else.
- Alg. 1 finds one component. Others follow by deflation (`next_component`): a node removes its component from its samples, and so do its neighbors
  where they use them; t starts at 0 again. (The authors' scripts remove it from the node's own objective alone.) At the end all components are
  scaled and sorted by their eigenvalues (`Spectrum`), for which neighbors exchange values once more.
- Where the sum of the penalties is not above 2 lambda_1(K_j), the step of alpha_j has no maximum; this is refused (`check_penalties`).
- The paper's answer is w_j, which `expansion="node"` gives. By default a model answers by z_j, over the samples of the neighborhood.
- z is not clipped where its squares overflow; the next check ends such a run.

The authors' published scripts (test.m of hefansjtu/DeKPCA-ADMM, Experiment1/dkpca_exp1.py of Yruikk/DeKPCA-ADMM_py) differ from Alg. 1 by more:

- They measure alpha_j - K_j^-1 phi(X_j)'z_q as coefficients, without K_j: the step of alpha_j has sum(rho) I - 2 K_j^2 in the place of
  sum(rho) - 2 K_j, so that their penalties have the scale of lambda_1(K_j)^2. Those of `dekpca.PAPER` are fixed numbers; theirs are multiplied by the
  number of rows of the node at the other end, in other scripts of the second repository by the largest eigenvalue of K_j^2.
- Penalties on neighbors rise by stages (1, 50, 100), each when all nodes together have settled, not at t = 5 and 10.
- eta_j is updated only in iterations where the changes of z and of alpha, each summed over all nodes, are small. Here it is in all, as in Alg. 1.
- 0.01 lambda_1(K_j) / n_j is added to each entry of K_j, which local centring has left singular.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...answer import Answer, Expansion
from ...arrays import double_centered, flip_signs, on_host, to_numpy
from ...chunks import each
from ...draws import node_random
from ...landmarks import Landmarks
from ...messages import Iteration, Script
from ...rounds import Arrays, Round, Shapes, Solver, Transcript, run_round, run_rounds
from ...site import Site
from ..sums import choose_landmarks, rows_of
from ..sums.columns import prepare_rows
from ..sums.moments import Moments, Seen
from ..sums.rows import SiteRows
from . import ProjectionOptions, noise_level
from .node import Link, Neighborhood, Node, Progress, sane
from .penalties import BY_SPECTRUM, of_spectrum
from .run import Run, by_sender, exchange
from .separation import better_of, separated

CHECK_EVERY = 5  # iterations between two checks of the stop rule: a check goes up and down the tree
VERDICTS = ("", "converged", "interrupted", "diverged")  # of a check; a run that ends with "" reached max_iter
GO_ON, CONVERGED, INTERRUPTED, DIVERGED = range(4)


def solve(site: Site, options: ProjectionOptions, transcript: Transcript) -> Script:
    """Decentralized kernel PCA by projection consensus, at the nodes of a site; returns their `Answer`."""
    run = yield from meet(site, options, transcript)
    asked, nodes, found = run.asked, run.nodes, []
    one_by_one = options.n_components if asked.update == "paper" else 1
    rotation = np.eye(1)
    for component in range(one_by_one):
        start(run)
        rotation = yield from iterate(run, None if one_by_one == 1 else component + 1)
        found.append([(node.w, node.z_shared, node.z) for node in nodes])
        if component + 1 < one_by_one:
            yield from next_component(run)
    if one_by_one > 1:
        put_together(nodes, found)
        rotation = np.eye(one_by_one)  # each is a component already
    values, eigenvalues, turn, trace = yield from separated(run, rotation.astype(nodes[0].w.dtype))
    answer = make_answer(run, eigenvalues, turn, trace)
    if run.principal is not None and asked.init == "landmarks" and answer.kernel.has_sketch:
        answer = yield from better_of(run, run.principal, answer, values, turn)
    return answer


# ---------------------------------------------------------------------- set-up: what is sent once
def meet(site: Site, options: ProjectionOptions, transcript: Transcript) -> Script:
    """Agree on columns, landmarks and their mean, send the samples to the neighbors, and build the spaces; returns a `Run`."""
    asked = options.asked
    rows = rows_of(site, options.sums)
    rows = rows if site.order is None else rows.at(site.order)
    prepared, marks, principal = yield from run_rounds(site, agree(rows, options), transcript)
    kernel, points, local = prepared.kernel, None, asked.centering == "local"
    X = to_numpy(prepared.rows.X)
    X = X.copy() if prepared.rows.X is site.X else X  # the models hold these rows: the caller may change its own
    parts = np.split(X, np.cumsum(site.own_sizes)[:-1])
    if marks is not None:
        points = Landmarks(to_numpy(marks.points), to_numpy(marks.root))
    mean = None if principal is None or asked.centering != "global" else principal.mean.astype(parts[0].dtype)
    around = {j: [j, *site.network.neighbors(j).tolist()] for j in site.nodes.tolist()}
    sent = [noisy(X, name, options) for X, name in zip(parts, site.names, strict=True)]
    told = {j: dict.fromkeys(around[j], X) for j, X in zip(around, sent, strict=True)}
    heard = yield from exchange(site, "data", told, by_sender(site, 0, parts[0].shape[1]), parts[0].dtype)

    def make(b: int) -> Node:
        j = int(site.nodes[b])
        near = Neighborhood(around[j], list(heard[j].values()), kernel, points, local, options.store_grams)
        return make_node(j, site.names[b], parts[b], near, points, mean)

    nodes = each(make, range(len(parts)), parts[0])
    heard_rho: dict[int, Link] = {}
    if asked.rho in BY_SPECTRUM:
        told = {node.number: dict.fromkeys(node.around, np.array([penalty(node, asked.rho)])) for node in nodes}
        rho = yield from exchange(site, "rho", told, lambda q, j: (1,), np.float64)
        heard_rho = {j: {q: float(value[0]) for q, value in own.items()} for j, own in rho.items()}
    run = Run(site, options, nodes, heard_rho, prepared, marks, principal, transcript)
    for node in nodes:
        check_penalties(run, node)
    return run


def check_penalties(run: Run, node: Node) -> None:
    """Refuse penalties with which the step of w has no maximum."""
    least, t = min((sum(run.on_w(node, t).values()), t) for t in range(run.asked.max_iter))
    limit = 2.0 * float(node.eigenvalues[-1])
    if least <= limit:
        raise ValueError(
            f"node {node.name}: the penalties rho of its neighborhood sum to {least:.4g} in iteration {t}, but must be above {limit:.4g}, twice the "
            "largest eigenvalue of its kernel matrix; use rho='auto', larger penalties, or fewer rows a node"
        )


def agree(rows: SiteRows, options: ProjectionOptions) -> Solver:
    """The rounds of sums before the iteration: columns, landmarks, and the moments of the rows in landmark coordinates."""
    asked, few = options.asked, options.sums
    prepared = yield from prepare_rows(rows, few)
    if not few.first:
        return prepared, None, None
    marks = yield from choose_landmarks(prepared, replace(few, kernel=prepared.kernel))
    seen = Seen(prepared.rows, marks, prepared.kernel)
    moments = Moments(seen, asked.centering == "global", options.n_columns, 1.0)
    return prepared, marks, moments.found((yield moments))


def noisy(X: np.ndarray, name: str, options: ProjectionOptions) -> np.ndarray:
    """The samples as the neighbors get them."""
    if not options.asked.noisy:
        return X
    seed = options.sums.seed if options.private_seed is None else options.private_seed
    drawn = node_random(seed, name, "noise").standard_normal(X.shape)
    return X + (noise_level(options.asked.exchange_noise, X) * drawn).astype(X.dtype)


def make_node(
    number: int, name: str, X: np.ndarray, near: Neighborhood, marks: Landmarks | None, mean: np.ndarray | None
) -> Node:
    """The node with its own samples X, whose neighbors know near.samples[0] instead. `mean` (m,): of psi over the network, to centre by."""
    kernel, seen = near.kernel, near.samples[0]
    raw = X[:, :0] if marks is None else marks.coordinates(kernel, X)
    psi = raw - raw.mean(axis=0) if near.local_means else raw if mean is None else raw - mean

    def rest(other: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        block = kernel.gram(X, other) - raw @ coordinates.T
        return double_centered(block) if near.local_means else block

    reach = clean = None
    if seen is not X:
        reach, clean = rest(seen, near.psi[: len(X)]), rest(X, raw)
    node = Node(number, name, X, psi, near, float(kernel.diagonal(X).max()), reach, clean)
    node.check_kernel()
    return node


def penalty(node: Node, rho: str) -> float:
    """A node whose K_j is zero follows its neighbors: any positive penalty works, and k(x, x) has the right scale."""
    values = node.eigenvalues.astype(np.float64)
    if values[-1] <= node.rounding:
        values = np.array([node.scale if node.scale > 0 else 1.0])
    return of_spectrum(rho, values, len(node.around))


def start(run: Run) -> list[np.ndarray]:
    """Begin at every node; returns the w (m + n, k) to begin with. At a good start multipliers and z begin as at a stationary point."""
    begun = starts(run)
    for node, w in zip(run.nodes, begun, strict=True):
        node.begin(w, warm=run.asked.init == "landmarks")
    return begun


def starts(run: Run) -> list[np.ndarray]:
    asked, options = run.asked, run.options
    k = 1 if asked.update == "paper" else options.n_columns
    drawn = [node_random(options.sums.seed, node.name, "start").standard_normal((node.n, k)) for node in run.nodes]
    random = [node.random_start(noise) for node, noise in zip(run.nodes, drawn, strict=True)]
    if asked.init == "local":
        return [node.local_start(w) for node, w in zip(run.nodes, random, strict=True)]
    if asked.init == "random":
        return random
    assert run.principal is not None
    directions = run.principal.directions[:, :k]
    found = directions.shape[1]
    for node, w in zip(run.nodes, random, strict=True):  # columns without a direction begin at random
        w[:, :found] = 0
        w[: node.m, :found] = directions
    return random


# ---------------------------------------------------------------------- the iteration
def iterate(run: Run, component: int | None) -> Script:
    """Iterate until all nodes stop, for one component (the paper's update) or for all at once; returns the rotation of the last check."""
    asked, nodes, options = run.asked, run.nodes, run.options
    rotation, verdict, residual, dtype = np.eye(nodes[0].w.shape[1]), GO_ON, np.nan, nodes[0].w.dtype
    for t in range(asked.max_iter):
        stop = yield Iteration(t, asked.max_iter, residual, component)
        progress = yield from one_iteration(run, t, rotation[:, : options.n_components].astype(dtype))
        run.history.append(progress)
        residual = max(row["residual"] for row in progress)
        if (t + 1) % CHECK_EVERY == 0 or t + 1 == asked.max_iter:
            whole = (t + 1) % CHECK_EVERY == 0  # else "since_check" is the change of fewer iterations
            verdict, rotation = yield from check(run, progress, bool(stop), whole)
            for node in nodes:
                if verdict == DIVERGED:  # back to the last good iterate
                    node.w, node.z_shared, node.z = node.at_check
                node.at_check = node.w, node.z_shared, node.z
            if verdict:
                break
    run.runs.append((VERDICTS[verdict] or "max_iter", t + 1))
    return rotation


def one_iteration(run: Run, t: int, leading: np.ndarray) -> Script:
    """The steps of all nodes; returns the progress of each, for the columns times `leading`."""
    site, asked, m, (k, dtype) = run.site, run.asked, run.nodes[0].m, (run.nodes[0].w.shape[1], run.nodes[0].w.dtype)
    proximal = asked.update == "proximal"
    shares = run.each(lambda node: {q: node.share(q, rho, proximal) for q, rho in run.on_w(node, t).items()})
    shares = yield from exchange(site, "share", shares, by_sender(site, m, k), dtype)
    views = run.each(lambda node: node.z_step(shares[node.number], run.on_z(node, t), proximal))
    views = yield from exchange(site, "view", views, lambda q, j: (m + int(site.sizes[j]), k), dtype)
    progress = run.each(lambda node: node.w_step(views[node.number], run.on_w(node, t), leading, asked))
    return list(progress.values())


def check(run: Run, progress: Sequence[Progress], stop: bool, whole: bool) -> Script:
    """One network sum decides for all nodes whether to stop, and how to turn the columns into components; returns verdict and rotation. They have
    converged only if `whole`: the change is that of CHECK_EVERY iterations."""
    tol = run.asked.tol
    # Squares are compared: functions with a relative difference e have correlation 1 - e^2 / 2. NaN is not finished.
    busy = sum(not (whole and row["residual"] ** 2 <= tol and row["since_check"] ** 2 <= tol) for row in progress)
    moments = sum(node.w_values.T @ node.w_values for node in run.nodes)
    round_ = Check(float(busy), float(stop), on_host(moments), run.nodes[0].w.dtype)
    told = yield from run_round(run.site, round_)
    return int(told["verdict"][0]), told["rotation"]


@dataclass(frozen=True, eq=False)
class Check(Round):
    """How many nodes are not finished, whether somebody asked to stop, and g'g, where g are the values of w_j on X_j."""

    busy: float
    stop: float
    moments: np.ndarray
    dtype: np.dtype
    kind = "check"

    def term(self) -> Arrays:
        return {"busy": np.array([self.busy]), "stop": np.array([self.stop]), "moments": self.moments}

    def implausible(self, total: Arrays, rows: int) -> None:
        """An iteration that diverges soon has any number."""

    def told(self) -> Shapes:
        return {"verdict": (1,), "rotation": self.moments.shape}

    def conclude(self, total: Arrays) -> Arrays:
        moments = total["moments"]
        good = bool(sane(moments.astype(self.dtype)).all())
        verdict, rotation = DIVERGED, np.eye(len(moments))
        if good:
            verdict = CONVERGED if total["busy"][0] == 0 else INTERRUPTED if total["stop"][0] > 0 else GO_ON
            rotation = flip_signs(np.linalg.eigh(0.5 * (moments + moments.T))[1][:, ::-1])
        return {"verdict": np.array([float(verdict)]), "rotation": rotation}


def put_together(nodes: list[Node], found: Sequence[Sequence[tuple[np.ndarray, ...]]]) -> None:
    """Components that were found one after the other, as columns with coefficients over the original samples."""
    for b, node in enumerate(nodes):
        whole = [node.undeflated(w, z, i) for i, (w, _, z) in enumerate(at_nodes[b] for at_nodes in found)]
        node.restore()
        node.w, node.z = (np.concatenate(columns, axis=1) for columns in zip(*whole, strict=True))
        node.z_shared = np.zeros((0, len(found)), dtype=node.w.dtype)


def next_component(run: Run) -> Script:
    """Every node removes its component from its samples, and tells its neighbors."""
    told = run.each(lambda node: dict.fromkeys(node.around, node.direction()))
    arrived = yield from exchange(run.site, "deflate", told, by_sender(run.site, 0, 2), run.nodes[0].w.dtype)
    for node in run.nodes:
        node.deflate(arrived[node.number])


# ---------------------------------------------------------------------- the answer
def make_answer(run: Run, eigenvalues: np.ndarray, turn: np.ndarray, trace: float) -> Answer:
    """The functions of each node, over its own samples (w) and over those of its neighborhood (z)."""
    site, asked, back = run.site, run.asked, run.site.array
    noise = " with noise" if asked.noisy else ""
    terms: dict[int, dict[str, Expansion]] = {}
    for node in run.nodes:
        w, m = node.w @ turn, node.m
        points = tuple(back(X) for X in node.near.samples)
        near = tuple(back(c) for c in node.near.split(node.z @ turn))
        owners = tuple(f"samples of node {site.network.names[q]}{noise}" for q in node.around)
        centre = back(node.X) if asked.centering == "local" else None
        expansions = {
            "landmarks": Expansion(back(w[:m]), centre=centre),
            "node": Expansion(back(w[:m]), points[:1], (back(w[m:]),), owners[:1], centre),
            "neighborhood": Expansion(back(node.z_shared @ turn), points, near, owners, centre),
        }
        wanted = list(expansions)[0 if m else 1 : 1 + list(expansions).index(asked.expansion)]
        terms[node.number] = {name: expansions[name] for name in wanted}
    prepared, principal = run.prepared, run.principal
    mean = None if principal is None or asked.centering != "global" else back(principal.mean)
    names = run.history[0][0]
    return Answer(
        site=site, kernel=prepared.kernel, terms=terms, eigenvalues=back(eigenvalues), trace=trace, mean=mean,
        marks=run.marks, scales=prepared.scales, fill=prepared.fill,
        n_iter=len(run.history), runs=tuple(run.runs), transcript=run.transcript,
        history={name: np.array([[row[name] for row in rows] for rows in run.history]) for name in names},
    )  # fmt: skip
