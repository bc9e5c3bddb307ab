"""The rounds of sums: what a node adds where others see it, what it is told by a root that lies, and what follows from what was told alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conftest import clusters, make_options, replayed
from dekpca import Network
from dekpca.engines import local
from dekpca.engines.tree import over_tree
from dekpca.kernels import make_kernel
from dekpca.landmarks import Landmarks
from dekpca.peers.app import session
from dekpca.peers.app.delivery import PeerDelivery
from dekpca.peers.net.authority import init_ca
from dekpca.plan import Plan
from dekpca.program import program
from dekpca.rounds import BadConclusion, Magnitudes, Round, Transcript
from dekpca.site import apart
from dekpca.solvers import sums
from dekpca.solvers.sums import clusters as rounds_of_clusters
from dekpca.solvers.sums.clusters import MOST_CUTS, Centres, NewLandmarks, Weigh
from dekpca.solvers.sums.columns import Variances
from dekpca.solvers.sums.moments import Moments, Seen
from dekpca.solvers.sums.shared_rows import Counts
from peer_nodes import Nodes, join

NETWORK = Network.path(4)
SETTINGS = {"tol": 1e-3}


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    init_ca(folder)
    return folder


# ---------------------------------------------------------------------- in clear between owners
@pytest.mark.parametrize(
    ("changes", "grouped"),
    [({}, True), ({"owners_apart": False}, False), ({"share_rows": True}, False)], ids=str,
)  # fmt: skip
def test_where_others_see_terms_and_rows_may_not_leave_k_means_has_means_of_groups(changes, grouped, monkeypatch):
    parts, found, sums_by_label = clusters([40, 25, 33, 18]), [], rounds_of_clusters.sums_by_label
    options = make_options(parts, NETWORK, **SETTINGS, **{"share_rows": False, "owners_apart": True} | changes)
    monkeypatch.setattr(
        rounds_of_clusters, "sums_by_label", lambda *given: found.append(given) or sums_by_label(*given)
    )
    sites = apart(parts, NETWORK)
    local.drive(sites, options, local.Delivery(sites), script=over_tree(program))
    assert len(found) > 9
    assert all((stand_for is not None and stand_for.min(initial=5) >= 5) == grouped for *_, stand_for in found)


# ---------------------------------------------------------------------- the transcript
CASES = {
    "auto": {},
    "no rows": {"share_rows": False},
    "prepared": {"standardize": True, "gamma_by_variance": True},
    "a number": {"n_landmarks": 20},
    "by rows": {"kernel": make_kernel("sigmoid", gamma=1e-4, coef0=0.0)},
}


@pytest.mark.parametrize("case", CASES)
def test_a_replayed_transcript_gives_every_node_the_same_bits(case, monkeypatch):
    parts = clusters([40, 25, 33, 18])
    plan = Plan.of(parts, NETWORK, make_options(parts, NETWORK, **SETTINGS | CASES[case]))
    answer = local.run(plan).answers[0]
    transcript = answer.transcript
    assert isinstance(transcript, Transcript)

    def nothing(self):
        raise AssertionError("a term was computed")

    for kind in _kinds(Round):
        monkeypatch.setattr(kind, "term", nothing)
    given = plan.options.solver_options
    for site in apart(parts, NETWORK):
        found = replayed(sums.solve(site, given), transcript.told)
        assert found.terms.shared.tobytes() == answer.terms.shared.tobytes()
        assert found.eigenvalues.tobytes() == answer.eigenvalues.tobytes()
        assert found.marks.points.tobytes() == answer.marks.points.tobytes()
        assert found.accuracy == answer.accuracy
    solver = sums.solve(site, given)
    with pytest.raises(ValueError, match="the transcript ends before the solver does"):
        replayed(solver, transcript.told[:-1])


def _kinds(kind):
    for below in kind.__subclasses__():
        yield below
        yield from _kinds(below)


def test_nodes_that_were_told_the_same_have_one_digest():
    parts = clusters([40, 25, 33, 18])
    sites = apart(parts, NETWORK)
    options = make_options(parts, NETWORK, **SETTINGS)
    answers = local.drive(sites, options, local.Delivery(sites), script=over_tree(program)).answers
    assert len({answer.transcript.digest for answer in answers}) == 1
    told = [dict(some) for some in answers[0].transcript.told]
    name = next(iter(told[-1]))
    told[-1][name] = told[-1][name] + 1e-15
    assert Transcript(told).digest != answers[0].transcript.digest


# ---------------------------------------------------------------------- a root that lies
def rows():
    parts = clusters([40, 25, 33, 18])
    options = make_options(parts, NETWORK, **SETTINGS)
    return sums.rows_of(apart(parts, NETWORK)[0], options.solver_options)


def told_by(round_):
    """What an honest root tells, if there is no other process."""
    return round_.conclude(round_.term())


def rounds():
    own, kernel = rows(), make_kernel("rbf", gamma=0.05)
    none, ones = Landmarks.none(own.X), lambda: np.ones(len(own))
    label = lambda: np.zeros(len(own), dtype=np.int64)  # noqa: E731
    marks = none.plus(own.X[::20], "points", kernel)
    return {
        "weigh": Weigh(own, label, ones, 6, 10, 1.0, 0),
        "centres": Centres(own, label, ones, 6, 10, heaviest=1.0, seed=0, coordinates=own.X, even=True),
        "landmarks": NewLandmarks(
            own, label, ones, 6, 10, heaviest=1.0, even=True, mean=own.X[0], marks=none, kernel=kernel
        ),
        "sizes": Magnitudes({"entries": own.X}, 4),
        "variances": Variances(own, own.X.mean(axis=0)),
        "counts": Counts(own, lambda: own.at(np.arange(5)), 10),
        "moments": Moments(Seen(own, marks, kernel), True, 2, 1.0),
    }


LIES = {
    "NaN as a centre": ("centres", "centre", np.nan),
    "infinity as a landmark": ("landmarks", "points", np.inf),
    "NaN in directions": ("moments", "directions", np.nan),
    "NaN cuts": ("weigh", "cuts", np.nan),
    "half a cut": ("weigh", "cuts", 0.5),
    "negative cuts": ("weigh", "cuts", -1.0),
    "too deep a cut": ("weigh", "cuts", MOST_CUTS + 1.0),
    "too many pieces": ("weigh", "cuts", 5.0),  # 6 clusters into 32 pieces each, where 10 are wanted
    "too many pieces of the next": ("centres", "cuts", 5.0),
    "more landmarks than clusters": ("landmarks", "count", 7.0),
    "fewer than none": ("landmarks", "count", -1.0),
    "half a landmark": ("landmarks", "count", 2.5),
    "NaN landmarks": ("landmarks", "count", np.nan),
    "more rows than asked for": ("counts", "count", 11.0),
    "NaN rows": ("counts", "count", np.nan),
    "a size that numbers of this node exceed": ("sizes", "entries", 0.25),
    "variances so small that gamma or scales single out rows": ("variances", "variance", 1e-9),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_cannot_be_is_refused(lie):
    which, name, value = LIES[lie]
    round_ = rounds()[which]
    honest = told_by(round_)
    round_.check(honest)
    with pytest.raises(BadConclusion):
        round_.check(honest | {name: np.full_like(honest[name], value)})


def test_what_a_root_concludes_is_accepted():
    """The limits are not so low that the truth is refused: cuts of clusters of very unequal weight, and as many landmarks as there may be."""
    rng = np.random.default_rng(0)
    for wanted in (1, 2, 7, 40, 300):
        for _ in range(50):
            count = np.rint(np.exp(rng.uniform(0, 9, size=30)))
            weight = count * np.exp(rng.normal(scale=4, size=30))
            cuts = rounds_of_clusters.cuts_of(count, weight, wanted, int(rng.integers(1000)))
            rounds_of_clusters.check_cuts(cuts, wanted)
    rounds_of_clusters.check_count(np.array([6.0]), 6)


@pytest.mark.parametrize("secure", [False, True])
def test_a_root_that_lies_stops_the_run_at_all_honest_nodes(secure, certs, tmp_path, monkeypatch):
    """It tells NaN in the place of the moments; nobody makes a model of it."""
    root = NETWORK.names[NETWORK.root]

    class Lying(PeerDelivery):
        def exchange(self, requests):
            (request,) = requests
            if self.endpoint.name == root and request.kind == "moments" and request.dtype != np.uint64:
                lies = {edge: np.full_like(message, np.nan) for edge, message in request.messages.items()}
                requests = [replace(request, messages=lies)]
            return super().exchange(requests)

    monkeypatch.setattr(session, "PeerDelivery", Lying)
    parts = clusters([40, 25, 33, 18])
    nodes = Nodes(
        tmp_path,
        NETWORK,
        parts,
        make_options(parts, NETWORK, n_landmarks=20, **SETTINGS, secure_sums=secure),
        certs=certs,
    )
    join([nodes.start(name) for name in NETWORK.names])
    assert not nodes.answers.keys() - {root}
    near = {NETWORK.names[j] for j in NETWORK.children[NETWORK.root]}
    assert any("the root told NaN or infinity as" in str(nodes.errors[name]) for name in near), nodes.errors
    assert nodes.errors.keys() >= set(NETWORK.names) - {root}
