"""After the iteration: its columns separated into components with eigenvalues (Rayleigh-Ritz), and how good they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

from ...accuracy import ROUNDING, Accuracy
from ...answer import Answer, Expansion
from ...arrays import flip_signs, like, on_host, to_numpy
from ...chunks import summed
from ...landmarks import Landmarks
from ...messages import Script
from ...network import Network
from ...rounds import Arrays, BadConclusion, Round, Shapes, Solver, run_round, run_rounds
from ..sums import SumsOptions
from ..sums.judge import judge, judge_functions
from ..sums.judging_rows import JudgingRows
from ..sums.moments import Principal, Seen
from .node import Node, sane
from .run import Run, by_sender, exchange

Array = Any

NEARLY_MAXIMUM = 8  # the 8th root of a sum of 8th powers is close to the maximum


def separated(run: Run, turn: np.ndarray) -> Script:
    """By one more exchange of values and one sum: the values of the columns on all rows of the site (n, q), eigenvalues (k,), the matrix (q, k) that
    turns columns into components, and the trace of the kernel. `turn` (q, q) is the rotation of the last check."""
    site, q, m, mix = run.site, len(turn), run.nodes[0].m, run.asked.update != "paper"
    at_rows = [node.at_samples(node.w) for node in run.nodes]
    told = {}
    for node, values in zip(run.nodes, at_rows, strict=True):
        told[node.number] = dict.fromkeys(node.around, np.concatenate([node.psi.T @ (values @ turn), values @ turn]))
    heard = yield from exchange(site, "values", told, by_sender(site, m, q), turn.dtype)
    if not mix:
        signs = (yield from run_round(site, Signs.of(run, heard, turn)))["signs"].astype(turn.dtype)
        at_rows = [signs[node.number] * values for node, values in zip(run.nodes, at_rows, strict=True)]
        heard = {j: {l: signs[l] * values for l, values in own.items()} for j, own in heard.items()}
        for node in run.nodes:
            node.w, node.z, node.z_shared = (signs[node.number] * x for x in (node.w, node.z, node.z_shared))
    terms = [pair_sums(node, site.network, heard[node.number]) for node in run.nodes]
    term = {name: sum((own[name] for own in terms[1:]), start=terms[0][name]) for name in terms[0]}
    counts, eps = PairCounts.of(site.sizes, site.network), float(np.finfo(turn.dtype).eps)
    found = yield from run_round(site, Spectrum(term, run.options.n_components, counts, mix, eps))
    turn = turn @ found["turn"].astype(turn.dtype)
    return np.concatenate(at_rows), found["values"], turn, float(found["trace"][0])


@dataclass(frozen=True, eq=False)
class Signs(Round):
    """The signs of the nodes' columns, which the paper's update leaves open: nodes that begin with opposite signs end with them.

    `products` (E, q): for each edge (j, l) the sum of g_l times the values of z_j on X_l, and of g_j times those of z_l on X_j, where g are values
    of the columns; below 0 if the signs differ. The root follows the edges with the largest products, whose signs are the clearest. Those nodes are
    turned that have less of the `squares` (J, q) of g. Told: (J, q), 1 or -1.
    """

    network: Network
    products: np.ndarray
    squares: np.ndarray
    kind = "spectrum"

    @classmethod
    def of(cls, run: Run, heard: dict[int, dict[int, np.ndarray]], turn: np.ndarray) -> Signs:
        network, m = run.site.network, run.nodes[0].m
        number = {pair: e for e, pair in enumerate(map(tuple, network.pairs.tolist()))}
        q = run.nodes[0].w.shape[1]
        products, squares = np.zeros((len(number), q)), np.zeros((len(network), q))
        for node in run.nodes:
            values = heard[node.number]
            squares[node.number] = on_host((values[node.number][m:] ** 2).sum(axis=0))
            seen = node.near.split(node.near.values(node.z @ turn))
            for l, at_rows in zip(node.around[1:], seen[1:], strict=True):
                found = (values[l][m:] * at_rows).sum(axis=0) + (values[l][:m] * (node.z_shared @ turn)).sum(axis=0)
                products[number[min(node.number, l), max(node.number, l)]] += on_host(found)
        return cls(network, products, squares)

    def term(self) -> Arrays:
        return {"products": self.products, "squares": self.squares}

    def told(self) -> Shapes:
        return {"signs": (len(self.network), self.products.shape[1])}

    def conclude(self, total: Arrays) -> Arrays:
        pairs, nodes = self.network.pairs, len(self.network)
        signs = np.ones((nodes, self.products.shape[1]))
        for column, products in enumerate(total["products"].T):
            size = np.abs(products)
            # a maximum spanning tree: the largest products have the smallest weights; these are above 0, or an edge would be none
            weights = 2.0 - size / max(size.max(initial=0.0), np.finfo(np.float64).tiny)
            graph = coo_array((weights, pairs.T), shape=(nodes, nodes)).tocsr()
            order, before = breadth_first_order(minimum_spanning_tree(graph), self.network.root, directed=False)
            opposed = {tuple(pair) for pair in pairs[products < 0].tolist()}
            for j in order[1:].tolist():
                pair = (min(j, int(before[j])), max(j, int(before[j])))
                signs[j, column] = signs[before[j], column] * (-1.0 if pair in opposed else 1.0)
        kept = (signs * total["squares"]).sum(axis=0) >= 0
        return {"signs": np.where(kept, signs, -signs)}

    def check(self, told: Arrays) -> None:
        if not (np.abs(told["signs"]) == 1.0).all():
            raise BadConclusion("the root tells signs of components that are neither 1 nor -1; start all anew")


def pair_sums(node: Node, network: Network, heard: dict[int, np.ndarray]) -> Arrays:
    """A node's part of the sums that `Spectrum` adds, from the values of the columns at the nodes around, and their landmark part.

    G are the values of the columns on samples, P_p = psi_p'G_p their landmark part. The kernel matrix of all data has the parts psi psi' and rest.
    For both parts a node sums over its own pairs of samples, and over its share of the pairs between two nodes of its neighborhood: one over the
    number of nodes with both in their neighborhood.
    """
    m, near = node.m, [heard[l][node.m :] for l in node.around]
    marks = [heard[l][:m] for l in node.around]
    own, psi, rest = near[0], node.psi, node.rest if node.clean_rest is None else node.clean_rest
    shares = 1.0 / network.watchers[node.around][:, node.around].toarray()
    np.fill_diagonal(shares, 0.0)
    q, between, marks_between = own.shape[1], 0.0, 0.0
    for s, values in enumerate(near):
        alone = [values if l == s else np.zeros_like(other) for l, other in enumerate(near)]
        through = node.near.split(node.near.values(np.concatenate(alone)))
        for p in range(len(near)):
            between = between + shares[p, s] * (near[p].T @ through[p])
            marks_between = marks_between + shares[p, s] * (marks[p] * marks[s]).sum(axis=0)
    rest_alone = own.T @ (np.diagonal(rest)[:, None] * own)
    marks_alone = ((psi**2).sum(axis=1)[:, None] * own**2).sum(axis=0)
    found = {
        "trace": np.array([node.trace]),
        "squares": own.T @ own,
        "rest_alone": rest_alone,  # G'rest G over each sample with itself
        "rest_within": own.T @ (rest @ own) - rest_alone,  # over pairs of different samples of a node
        "rest_between": between + np.zeros((q, q)),  # over pairs of samples of two nodes
        "marks_alone": marks_alone,  # the diagonals of G'psi psi'G over the same pairs
        "marks_within": (marks[0] ** 2).sum(axis=0) - marks_alone,
        "marks_between": marks_between + np.zeros(q),
        "marks": marks[0],  # summed over all nodes it gives psi psi' over all pairs
    }
    return {name: on_host(value) for name, value in found.items()}


@dataclass(frozen=True)
class PairCounts:
    """Numbers of ordered pairs of different samples: within a node, between two nodes of some neighborhood, and others."""

    within: float
    between: float
    far: float

    @classmethod
    def of(cls, sizes: np.ndarray, network: Network) -> PairCounts:
        n = sizes.astype(np.float64)
        a, b = network.watchers.nonzero()
        within, between = float((n * (n - 1)).sum()), float((n[a] * n[b])[a != b].sum())
        return cls(within, between, float(n.sum() ** 2 - n.sum()) - within - between)


@dataclass(frozen=True, eq=False)
class Spectrum(Round):
    """Rayleigh-Ritz with the kernel matrix K of all the data.

    The eigenvalues of the pencil (G'K G, G'G) are second-order accurate in the error of the span of G and do not depend on its scale. (The Ritz
    values G'G alone are too large, the landmarks' own eigenvalues too small.) The landmark part of K is known exactly for all pairs; the rest, for
    pairs within some neighborhood. Other pairs are modelled as a mixture of pairs within a node and pairs between two nodes of a neighborhood, with
    proportions fitted to the landmark part; without landmarks, as the latter alone.

    Told: the trace, k eigenvalues, and `turn` (q, k). The columns times it are components whose squared values sum to their eigenvalue. Without `mix`
    the columns (separated by deflation) are only scaled and sorted.
    """

    sums: Arrays
    n_components: int
    pairs: PairCounts
    mix: bool
    eps: float  # of the numbers that were summed
    kind = "spectrum"

    def term(self) -> Arrays:
        return self.sums

    def told(self) -> Shapes:
        q, k = len(self.sums["squares"]), self.n_components
        return {"trace": (1,), "values": (k,), "turn": (q, k)}

    def conclude(self, total: Arrays) -> Arrays:
        pairs, shared = self.pairs, total["marks"].T @ total["marks"]
        moments = shared + total["rest_alone"] + total["rest_within"] + total["rest_between"]
        if pairs.far and pairs.between:
            mixing = self._like_within(total, shared) if pairs.within else 0.0
            moments = moments + total["rest_between"] * ((1.0 - mixing) * pairs.far / pairs.between)
            moments = moments + total["rest_within"] * (mixing * pairs.far / max(pairs.within, 1.0))
        squares = total["squares"]
        if not self.mix:
            squares, moments = (x * np.eye(len(squares)) for x in (squares, moments))
        k, white = self.n_components, whitener(0.5 * (squares + squares.T), 10 * self.eps)
        inner = white.T @ moments @ white
        sizes, basis = np.linalg.eigh(0.5 * (inner + inner.T))
        found = min(k, len(sizes))
        values, turn = np.zeros(k), np.zeros((len(squares), k))
        values[:found] = np.maximum(sizes[::-1][:found], 0.0)
        turn[:, :found] = (white @ basis[:, ::-1][:, :found]) * np.sqrt(values[:found])
        # columns differ in scale; the sign depends on their contributions
        weighed = turn * np.sqrt(np.maximum(np.diagonal(squares), 0.0))[:, None]
        turn = np.where(flip_signs(weighed) == weighed, turn, -turn)
        return {"trace": total["trace"], "values": values, "turn": turn}

    def _like_within(self, total: Arrays, shared: np.ndarray) -> float:
        """The fraction of the unknown pairs, from 0 to 1, that resemble pairs within nodes, fitted to the landmark part."""
        k, pairs = self.n_components, self.pairs
        whole = np.diagonal(shared)[:k]
        unit = np.where(whole > 0, 1.0 / np.where(whole > 0, whole, 1.0), 0.0)
        parts = {name: total[f"marks_{name}"][:k] for name in ("alone", "within", "between")}
        within = float((parts["within"] * unit).sum()) / max(pairs.within, 1.0)
        between = float((parts["between"] * unit).sum()) / pairs.between
        far = float(((whole - sum(parts.values())) * unit).sum()) / pairs.far
        return min(1.0, max(0.0, (far - between) / (within - between))) if within > between else 0.0


def whitener(squares: np.ndarray, least: float = 100 * float(np.finfo(np.float64).eps)) -> np.ndarray:
    """W (p, q) with W'squares W = 1; directions that are rounding (`least`, relative) are dropped."""
    size = np.sqrt(np.maximum(np.diagonal(squares), 0.0))
    unit = np.where(size > 0, 1.0 / np.where(size > 0, size, 1.0), 0.0)
    values, basis = np.linalg.eigh(squares * unit[:, None] * unit[None, :])
    keep = values > len(squares) * least * max(values[-1], 0.0)
    return unit[:, None] * basis[:, keep] / np.sqrt(values[keep])


def span_error(a: np.ndarray, b: np.ndarray, cross: np.ndarray) -> float:
    """sin^2 of the largest angle between the spans of A and B, from A'A, B'B and A'B."""
    cosines = np.linalg.svd(whitener(a).T @ cross @ whitener(b), compute_uv=False)
    return float(1.0 - min(cosines[-1], 1.0) ** 2) if len(cosines) == len(a) else 1.0


# ---------------------------------------------------------------------- how good the answer is
@dataclass(frozen=True, eq=False)
class Products(Round):
    """Over all rows: products of functions with values G, with each other and with psi; and the sum of `own` over the nodes.

    The root whitens the functions. Told: `white` (p, p) such that G white is orthonormal (columns of zeros for directions that are rounding), `marks`
    (m, p) = psi'G white, `squares` (p, p) = G'G, `own`.
    """

    psi: np.ndarray
    values: np.ndarray
    rows: float
    centered: bool
    own: float
    kind = "judge"

    def term(self) -> Arrays:
        def products(rows: slice) -> tuple[np.ndarray, ...]:
            a, g = self.psi[rows, :], self.values[rows, :]
            return a.T @ g, g.T @ g, a.sum(axis=0), g.sum(axis=0)

        names, sums = ("marks", "squares", "mark_sum", "value_sum"), summed(products, len(self.psi), self.psi)
        return {"own": np.array([self.own])} | dict(zip(names, sums, strict=True))

    def told(self) -> Shapes:
        m, p = self.psi.shape[1], self.values.shape[1]
        return {"own": (1,), "white": (p, p), "marks": (m, p), "squares": (p, p), "mean": (p,)}

    def conclude(self, total: Arrays) -> Arrays:
        weight = 1.0 / self.rows if self.centered else 0.0
        squares = total["squares"] - weight * np.outer(total["value_sum"], total["value_sum"])
        marks = total["marks"] - weight * np.outer(total["mark_sum"], total["value_sum"])
        white = whitener(squares)
        white = np.pad(white, ((0, 0), (0, len(squares) - white.shape[1])))
        mean = weight * total["value_sum"]
        return {"own": total["own"], "white": white, "marks": marks @ white, "squares": squares, "mean": mean}


def better_of(run: Run, principal: Principal, answer: Answer, values: np.ndarray, turn: np.ndarray) -> Script:
    """The answer of the iteration or of the landmarks at its start, whichever has the smaller estimated error; and its accuracy.

    `values` (n, q) are the columns of the iteration at the rows of this site, `turn` (q, k) makes components of them.
    """
    (q, k), rows, marks = turn.shape, run.prepared.rows, answer.marks
    assert isinstance(marks, Landmarks)
    if not len(principal.values):  # all rows are equal
        return replace(answer, accuracy=Accuracy.of(np.ones(k), 1.0, 1.0))
    psi = on_host(marks.coordinates(answer.kernel, rows.X)) - principal.mean
    # Eigenvalues of the leak are far below those of the iterate's columns; both are judged with the landmarks' other components.
    together = np.concatenate([on_host(values), (psi @ principal.weights)[:, q:]], axis=1)
    apart = np.array([row["residual"] for row in run.history[-1]])  # how far each node is from its neighbors
    apart = np.where(sane(apart ** (2 * NEARLY_MAXIMUM)), apart, 1.0)  # of an iteration that has diverged
    own = float(np.sum(apart ** (2 * NEARLY_MAXIMUM)))
    rounds = judge_both(Seen(rows, marks, answer.kernel), principal, run.options.sums, psi, together, own)
    start, iterate, told = yield from run_rounds(run.site, rounds, run.transcript)

    # The error is at least the distance from the components that the judge finds in the same functions (its estimate
    # includes their noise), and at least the disagreement between neighbors.
    turns = np.pad(on_host(turn), ((0, together.shape[1] - q), (0, 0)))
    both = np.concatenate([told["white"][:, : len(iterate.basis)] @ iterate.basis, turns], axis=1)
    products, many = both.T @ told["squares"] @ both, iterate.basis.shape[1]
    theirs, ours, cross = products[:many, :many], products[many:, many:], products[:many, many:]
    sizes = np.diagonal(theirs)[:k] * np.diagonal(ours)[:many]
    overlap = np.divide(np.diagonal(cross) ** 2, sizes, out=np.zeros(min(many, k)), where=sizes > 0)
    error = max(span_error(theirs, ours, cross), float(told["own"][0]) ** (1 / NEARLY_MAXIMUM))
    about = iterate.accuracy
    errors = np.pad(np.maximum(about.errors, 1.0 - overlap), (0, k - many), constant_values=1.0)
    about = Accuracy.of(errors, max(about.error, error), max(about.bound, error), about.mixed)
    if about.error <= max(start.accuracy.error, ROUNDING) or len(start.values) < k:
        return replace(answer, accuracy=about)
    weights = run.site.array(principal.weights @ (start.basis * np.sqrt(start.values)))
    return replace(answer, terms=Expansion(weights), eigenvalues=run.site.array(start.values), accuracy=start.accuracy)


def judge_both(
    seen: Seen, principal: Principal, options: SumsOptions, psi: np.ndarray, values: np.ndarray, apart: float
) -> Solver:
    """Judge the landmarks' own components, and functions with these values on all rows; returns both verdicts, and what `Products` told."""
    start = yield from judge(seen, principal, options, "start")
    told = yield Products(psi, values, float(seen.rows.total), options.centered, apart)
    there = int((np.abs(told["white"]).sum(axis=0) > 0).sum())
    white, on_marks = told["white"][:, :there], told["marks"][:, :there]
    within = on_marks.T @ on_marks
    judges = JudgingRows(seen, principal, options, "iterate")

    def g() -> Array:
        return like(judges.rest, (values[to_numpy(judges.places)] - told["mean"]) @ white)

    def outside() -> Array:
        return like(judges.rest, psi[to_numpy(judges.places)] @ on_marks) - g() @ like(judges.rest, within)

    iterate = yield from judge_functions(judges, g, within, outside)
    return start, iterate, told
