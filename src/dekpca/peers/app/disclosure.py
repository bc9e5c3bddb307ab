"""What will leave this machine, and to whom, said before anybody is called.

docs/explanation/privacy.md explains each line, and tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...network import listing
from ...privacy.ledger import cost
from ...settings import RANDOM_FEATURES, Settings
from ...solvers.private import expected
from ...solvers.sums.clusters import LEAST_CLUSTER
from ...solvers.sums.judging_rows import MOST_FEATURES
from .config import Config
from .keys import LEAST_MEMBERS

EVERYBODY = "to every node"
SUMS = "in sums along a tree of nodes, in which a neighbor may see yours alone"
SECURE = "in sums under masks: only their totals over all nodes are ever in clear"
NOISY = "in sums under masks, with noise: only their noisy totals over all nodes are ever in clear"
EXAMPLES = (10_000, 100_000, 1_000_000)  # rows of all nodes, where nobody has said how many there are
MOST_POINTS = 600  # public points that the expectation is computed from


def disclosure(
    settings: Settings,
    rows: int,
    columns: int,
    neighbors: Sequence[str],
    named: str = "",
    added: tuple[str, int] | None = None,
) -> Iterator[tuple[str, str]]:
    """(what, to whom) for each kind of thing that the settings let leave; the first lines are the ones that matter most.

    `named`: what is said of the columns, "names", "fingerprint" or nothing. `added`: the run to which rows are added, and how many.
    """
    near = f"to your neighbors: {listing(neighbors)}"
    kind, private = settings.landmarks.kind, settings.privacy is not None
    sums = NOISY if private else SECURE if settings.sealed else SUMS
    asked = settings.projection
    n_landmarks = settings.n_landmarks if asked is None else asked.n_landmarks
    if asked is not None:
        noise = ", with noise drawn here" if asked.noisy else ""
        yield f"all {rows} rows of {columns} columns{noise}", near
        yield f"the component values of each of the {rows} rows, without noise", near
    if n_landmarks != 0 and kind == "auto":
        if settings.share_rows:
            count = "some, or all," if n_landmarks == "auto" else f"up to {n_landmarks}"
            yield f"{count} of the rows, as landmarks where clusters of rows are too small", EVERYBODY
        yield f"means of clusters of at least {LEAST_CLUSTER} rows of all nodes together, as landmarks", EVERYBODY
        seen = f" (each row as the mean of a group of at least {LEAST_CLUSTER} of them)"
        seen = "" if settings.share_rows else seen
        yield f"for each of these clusters, the number and the sum of the rows of this node{seen}", sums
    if n_landmarks != 0 and kind in ("auto", "synthetic"):
        products = "and of their products" if private else "and of their products with directions that all nodes know"
        yield f"the sum of the rows, {products}", sums
    if asked is None and settings.share_rows and not settings.kernel.has_sketch:
        yield "some of the rows, by which the error is estimated", EVERYBODY
    if settings.secure_sums and not private:
        yield "the size of the largest number of a sum, as a power of two", sums
    if settings.resume is not None:
        yield f"the landmarks of run {settings.resume}, if this node has its model", EVERYBODY
    if kind == "points":
        yield "a hash of the landmarks that all have", EVERYBODY
    if added is not None:
        yield f"a hash of all that was told in run {added[0]}", near
    if settings.impute:
        yield "sums of each column, and how many values it has", sums
    if settings.standardize and not private:  # else by public ranges
        yield "sums of each column and of its squares", sums
    if settings.gamma_by_variance:
        yield "the sum of all entries and of their squares", sums
    if n_landmarks != 0:
        what = "random features" if kind == RANDOM_FEATURES else "similarities to the landmarks and random features"
        what = "coordinates" if private else what
        count_too = ", and how many rows there are" if private else ""
        yield f"sums of the rows' {what}, and of products of these{count_too}", sums
        if settings.sealed and not private:
            few = f"each row, if all nodes but the largest have fewer than {rows_for_sums(columns):,} rows in all"
            yield f"by these sums, perhaps {few}", "in sums, to the node that opens their totals"
    if added is not None and added[1]:
        run, new = added
        whoever = "whoever knows the totals of both runs" if settings.sealed else "a neighbor that knows both runs"
        alone = " of all nodes" if settings.sealed else f", {new} of this node,"
        yield f"by the difference to run {run}: the same sums over the new rows{alone} alone", f"to {whoever}"
    if settings.contamination is not None:
        yield "a histogram of the reconstruction errors of the rows", sums
    if asked is not None:
        yield "in each iteration, estimates of the components at your rows and at theirs", near
    if named:
        yield f"the names of the {columns} columns" if named == "names" else "a fingerprint of the columns' names", near
    if settings.sealed:
        yield "this node's certificate, and a public key for this run", EVERYBODY
    about = " and its neighbors" if private else f", its neighbors and its number of rows, {rows}"
    yield f"this node's name{about}", EVERYBODY


def rows_for_sums(columns: int) -> int:
    """So many rows have more numbers than a judgement has sums of features: each of fewer may follow from these sums."""
    return -(-MOST_FEATURES // (columns + 1))


def too_few(sealed: bool, config: Config) -> str:
    """Why secure sums of the nodes that this one knows of cannot be. Where no members are named there may be more."""
    known = len(config.members or {config.name, *config.neighbors, *config.fallback})
    if not sealed or config.allow_two or known >= LEAST_MEMBERS:
        return ""
    what = f"secure sums of {known} nodes" if config.members else f"secure sums, if only {known} nodes take part"
    remedy = "a third member, or allow_two = true in node.toml of both if each may learn the other's sums"
    return f"{what}: {LEAST_MEMBERS} nodes are needed; the remedy is {remedy}"


def after_a_loss(sealed: bool, config: Config) -> str:
    """With on_loss = "continue" and secure sums: why too few owners would be left to go on without one, and what a loss tells of the lost node. Where
    no members are named, there may be more owners than this node knows of."""
    if config.on_loss != "continue" or not sealed:
        return ""
    known, told = len(config.members or {config.name, *config.neighbors, *config.fallback}), []
    few = known <= LEAST_MEMBERS and not config.allow_two
    if few:
        stops = f"with {known if config.members else 'three'} owners a loss stops the run for all"
        remedy = "a fourth owner, or allow_two = true at all nodes if each of two may learn the other's sums"
        told.append(f"{stops}, since secure sums need {LEAST_MEMBERS}; to go on takes {remedy}")
    private = isinstance(config.model.get("privacy"), Mapping)  # noisy totals differ by noise
    if not private and not (few and config.members):
        whose = "the sums of a lost node alone are the difference of totals from before and after its loss"
        told.append(f"{whose}, and who alone connects it can bring that about; give it a fallback")
    return f'on_loss = "continue": {". ".join(told)}' if told else ""


def guarantee(settings: Settings, columns: int, n_nodes: int, begun: bool = False, goes_on: bool = False) -> list[str]:
    """With differential privacy: what is promised, what it costs, and what to expect of the answer. `n_nodes`: those that this node knows of;
    `begun`: it goes on with a run, which its ledger may have already; `goes_on`: a lost node does not stop the run.

    Nothing here depends on anybody's rows. Raises BudgetSpent if the ledger has no room for a new run.
    """
    privacy = settings.privacy
    if privacy is None:
        return []
    nodes = max(n_nodes, 2, (privacy.colluding or 0) + 1)
    releases = settings.private_options().releases(columns, nodes)
    entries = [release.entry() for release in releases]
    promise = f"Differential privacy: epsilon {privacy.epsilon:g}, delta {privacy.delta:g}, for adding or removing one row of any node"
    lines = [f"{promise}; it holds against everybody, and against {entries[-1].colluding} colluding nodes."]
    for e in entries:
        noise = f"  noise of {e.multiplier:.3g} times what one row changes"
        lines.append(f"{noise}, on {e.numbers} numbers: {e.covers}")
    if privacy.ledger_file is not None and not begun:
        before, after = privacy.ledger_file.would_be(entries)
        spent = f"epsilon {before:.4g} spent before, {after:.4g} with this run, of {privacy.ledger_file.epsilon:g}"
        lines.append(f"  {privacy.ledger}: {spent}")
    if goes_on:
        once, twice = (cost(entries * count, privacy.delta) for count in (2, 3))
        price = f"costs as much again: epsilon {once:.4g} after one, {twice:.4g} after two"
        stops = "without a ledger the run stops there"
        stops = stops if privacy.ledger is None else "the run stops where the ledger has no room"
        lines.append(f'  on_loss = "continue": each loss after the release {price}; {stops}')
    points = settings.landmarks.points
    if points is None:
        lines.append("  expected agreement: not known without public points (dekpca privacy plans with some)")
        return lines
    points = points[:: max(1, -(-len(points) // MOST_POINTS))]
    for rows in EXAMPLES if privacy.rows is None else (privacy.rows,):
        plan = expected(points, settings.kernel, rows, privacy, nodes, int(settings.n_components))
        each = " ".join(f"{a:.4f}" for a in plan.components)
        case = f"if all nodes have {rows:,} rows that resemble the public points"
        what = "  expected agreement with kernel PCA without noise"
        lines.append(f"{what}, {case}: {each}, of the span {plan.span:.4f}")
    return lines
