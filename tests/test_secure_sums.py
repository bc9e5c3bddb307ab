"""Secure sums: fixed point, masks, key records, and what a recorder at almost every node learns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from conftest import clusters, make_options
from dekpca import DecentralizedKernelPCA, Network
from dekpca.engines import local
from dekpca.engines.tree import over_tree
from dekpca.kernels import make_kernel
from dekpca.plan import Plan
from dekpca.privacy.fixed_point import TOTAL_BITS, FixedPoint, OutOfBounds
from dekpca.privacy.masks import BadMasks, Sealer, derived, pair_key, pair_keys, public_of, sealers
from dekpca.privacy.records import BadRecord, KeyRecord, check_record, check_records, sign_record
from dekpca.program import program
from dekpca.rounds import Round, Transcript, run_rounds
from dekpca.settings import LandmarkSource
from dekpca.site import apart
from dekpca.testing import by_node, problems
from uniformity import LEVEL, check_totals, least_effect, mask_words, record, same_p, stripped, two_apart, uniform_p

RUN = b"run 1"
SETTINGS = b"a hash of settings and members"
CONFIRMING = b"a key that verifies confirmations"[:32]


def run(parts, network, options):
    return local.run(Plan.of(parts, network, options))


# ---------------------------------------------------------------------- fixed point
@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_fixed_point_sums_do_not_depend_on_the_order(values, random):
    code = FixedPoint(50.0 * len(values))
    encoded = [code.encode(np.array([v])) for v in values]
    total = sum(encoded, np.zeros(1, dtype=np.uint64))
    random.shuffle(encoded)
    assert sum(encoded, np.zeros(1, dtype=np.uint64)) == total
    assert abs(code.decode(total)[0] - np.sum(values)) <= len(values) * code.bound * 2.0**-TOTAL_BITS + 1e-12


def test_a_value_beyond_its_bound_is_an_error():
    code = FixedPoint(np.array([1.0, 10.0]))
    code.encode(np.array([1.0, -10.0]))
    for bad in ([1.0001, 0.0], [0.0, np.nan], [0.0, -np.inf]):
        with pytest.raises(OutOfBounds, match="nothing was sent"):
            code.encode(np.array(bad))
    for bound in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="public bound"):
            FixedPoint(bound)


def test_a_total_at_its_bound_fits():
    for bound in (1e-3, 1.0, 3.0, 2.0**40, 1e9):
        code = FixedPoint(bound)
        assert code.decode(code.encode(np.array([bound, -bound]))) == pytest.approx([bound, -bound], rel=1e-15)


# ---------------------------------------------------------------------- masks
def test_masks_cancel_in_the_total_and_nowhere_else():
    names = ["a", "b", "c", "d"]
    made = sealers(names, RUN)
    values = {name: np.arange(5.0) + i for i, name in enumerate(names)}
    plain = sum(FixedPoint(1e6).encode(v) for v in values.values())
    for _ in range(3):
        sealed = {name: made[name].seal("sum", values[name], 1e6) for name in names}
        total = sum(sealed.values())
        assert (
            np.abs((total[:-1] - plain).view(np.int64)) <= len(names) / 2
        ).all()  # each rounds by half a unit at most
        assert made["a"].open("sum", total, 1e6) == pytest.approx(4 * np.arange(5.0) + 6)
        some = sealed["a"] + sealed["b"] + sealed["c"]
        assert (np.abs(some.view(np.int64)) > 2**40).all()
        with pytest.raises(BadMasks, match="do not cancel"):
            made["a"].open("sum", some, 1e6)


def test_zeros_add_up_to_zero():
    """A column of zeros has no variance, and a cluster without rows no weight, whatever rounding does."""
    made = sealers("abcde", RUN).values()
    total = sum(sealer.seal("columns", np.zeros(4096), 100.0) for sealer in made)
    assert total[:-1].any()
    for sealer in made:
        assert not sealer.open("columns", total, 100.0).any()


def test_masks_of_nodes_that_were_told_different_things_do_not_cancel():
    """Whoever told them learns nothing of a node that two others of its network are honest with; and says what was seen."""
    names = ["a", "b", "c"]
    made = sealers(names, RUN)
    for name in names:
        made[name].hear(np.array([1.0, 2.0 if name == "a" else 3.0]))
    sealed = {name: made[name].seal("moments", np.zeros(4096), 100.0) for name in names}
    with pytest.raises(BadMasks, match="members were told different things"):
        made["c"].open("moments", sum(sealed.values()), 100.0)
    known = {name: mask_words(made["c"].keys[name], 0, made[name].history, 4097) for name in ("a", "b")}
    # c takes off what it knows: its own masks with both
    assert uniform_p(sealed["a"] - known["a"]) > LEVEL
    assert uniform_p(sealed["a"] - known["a"] + sealed["b"] - known["b"]) > LEVEL


def test_a_node_that_is_told_something_else_after_a_restart_has_other_masks():
    before, after = (Sealer("a", {"b": bytes(32), "c": bytes(31) + b"1"}) for _ in range(2))
    before.hear(np.array([1.0]))
    after.hear(np.array([1.0 + 1e-16]))
    values = np.random.default_rng(0).normal(size=4096) / 8
    same = before.seal("moments", values, 1.0)
    assert (after.seal("moments", values, 1.0) == same).all()  # it was told the same bits
    after = Sealer("a", before.keys)
    after.hear(np.array([1.0 + 3e-16]))
    assert uniform_p(after.seal("moments", values, 1.0) - same) > LEVEL


run_key = X25519PrivateKey.generate


def public_key():
    return public_of(run_key())


def test_both_ends_have_one_key_and_every_run_another():
    a, b = run_key(), run_key()
    key = pair_key(a, "a", "b", public_of(b), RUN)
    assert key == pair_key(b, "b", "a", public_of(a), RUN)
    assert len(key) == 32
    others = [pair_key(a, "a", "b", public_of(b), b"run 2"), pair_key(a, "a", "c", public_of(b), RUN)]
    assert len({key, *others}) == 3
    here, there = bytes(32), bytes(31) + b"1"
    assert (mask_words(key, 0, here, 8) != mask_words(key, 1, here, 8)).all()
    assert (mask_words(key, 0, here, 8) != mask_words(key, 0, there, 8)).all()
    assert (mask_words(key, 3, here, 20)[:8] == mask_words(key, 3, here, 8)).all()


def test_a_key_that_is_none_is_refused():
    for bad in (bytes(32), b"short"):  # the first is a point of low order, whose secret everybody knows
        with pytest.raises(BadMasks, match="no X25519 key"):
            pair_keys("a", run_key(), {"a": public_key(), "b": bad}, RUN)


def test_integers_go_as_they_are():
    made = sealers(["a", "b"], RUN)
    sealed = [made[n].seal("sum", np.array([2**60, -7], dtype=np.int64), 2.0**61) for n in ("a", "b")]
    assert made["a"].open("sum", sealed[0] + sealed[1], 2.0**61, integers=True).tolist() == [2**61, -14]
    with pytest.raises(ValueError, match="nothing was sent"):
        made["a"].seal("sum", np.array([9], dtype=np.int64), 8.0)
    with pytest.raises(ValueError, match="no public bound"):
        made["a"].seal("check", np.array([1.0]), None)


# ---------------------------------------------------------------------- key records
@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    from dekpca.peers.net import authority
    from dekpca.peers.net.identity import read_certificates, read_key

    folder = tmp_path_factory.mktemp("certs")
    authority.init_ca(folder)
    found = {}
    for name in ("oslo", "rome"):
        certificate, key = authority.issue(folder, name)
        found[name] = read_key(key), read_certificates(certificate)
    other = tmp_path_factory.mktemp("strangers")
    authority.init_ca(other)
    certificate, key = authority.issue(other, "rome")
    found["stranger"] = read_key(key), read_certificates(certificate)
    return read_certificates(folder / "ca.crt"), found


def test_bad_records_are_refused_before_anything_is_sent(authority):
    roots, nodes = authority
    oslo, rome = (sign_record(RUN, name, public_key(), CONFIRMING, SETTINGS, *nodes[name]) for name in ("oslo", "rome"))
    check_records({"oslo": oslo, "rome": rome}, RUN, SETTINGS, roots)
    swapped = [replace(oslo, public=rome.public), replace(rome, public=oslo.public)]
    forged = sign_record(RUN, "rome", public_key(), CONFIRMING, SETTINGS, *nodes["stranger"])
    posing = sign_record(RUN, "rome", public_key(), CONFIRMING, SETTINGS, *nodes["oslo"])
    replayed = sign_record(b"run 0", "rome", public_key(), CONFIRMING, SETTINGS, *nodes["rome"])
    mixed = sign_record(RUN, "rome", public_key(), CONFIRMING, SETTINGS, nodes["oslo"][0], nodes["rome"][1])
    other = sign_record(RUN, "rome", public_key(), CONFIRMING, b"epsilon 4", *nodes["rome"])
    same = sign_record(RUN, "rome", oslo.public, CONFIRMING, SETTINGS, *nodes["rome"])
    for records, seen in (
        (swapped, "signature does not fit"),
        ([oslo, forged], "does not lead to the CA"),
        ([oslo, posing], r"its certificate is for \['oslo'\]"),
        ([oslo, replayed], "of another run"),
        ([oslo, mixed], "signature does not fit"),
        ([oslo, replace(rome, confirming=bytes(32))], "signature does not fit"),
        ([oslo, same], "the same key"),
        (
            [oslo, other],
            "key record of node rome: it is signed for other settings, other members, or other numbers of rows",
        ),
        ([oslo, replace(other, settings=SETTINGS)], "signature does not fit"),
        ([oslo, replace(rome, name="bonn")], r"its certificate is for \['rome'\]"),
        ([oslo, replace(rome, chain=(b"x",))], "cannot be read"),
    ):
        with pytest.raises(BadRecord, match=seen) as error:
            check_records({record.name: record for record in records}, RUN, SETTINGS, roots)
        assert "Nothing was sent" in str(error.value)
    with pytest.raises(BadRecord, match="not valid now"):
        check_record(rome, RUN, roots, datetime.now(UTC) + timedelta(days=4000))


def test_a_packed_record_comes_back_as_it_was(authority):
    _, nodes = authority
    rome = sign_record(RUN, "rome", public_key(), CONFIRMING, SETTINGS, *nodes["rome"])
    assert KeyRecord.unpack("rome", rome.pack() + bytes(12)) == rome
    with pytest.raises(BadRecord, match="cannot be read"):
        KeyRecord.unpack("rome", rome.pack()[:-3])


# ---------------------------------------------------------------------- runs
def sealed_problems():
    for name, plan in problems():
        if plan.options.projection is None and plan.options.kernel.name != "sigmoid":  # which has no bound
            yield pytest.param(plan.parts, plan.network, replace(plan.options, secure_sums=True), id=name)


@pytest.mark.parametrize(("parts", "network", "options"), list(sealed_problems()))
def test_the_answer_is_that_without_masks(parts, network, options):
    # where rows may not leave, k-means is of means of groups, which every node makes of its own rows: also in clear if owners are apart
    clear = replace(options, secure_sums=False, owners_apart=not options.share_rows)
    plain, secure = (by_node(run(parts, network, o)) for o in (clear, options))
    for node, (answer, functions) in secure.items():
        truth, wanted = plain[node]
        w, w_truth = functions["landmarks"].shared, wanted["landmarks"].shared
        np.testing.assert_allclose(w, w_truth, rtol=0, atol=1e-9 * np.abs(w_truth).max())
        np.testing.assert_allclose(answer.eigenvalues, truth.eigenvalues, rtol=1e-9)


def test_public_bounds_cost_no_digits():
    """1,800 rows and few landmarks, so that the estimate raises eigenvalues. A bound that is too loose by the number of rows costs 1e-11 of them."""
    X = load_digits().data
    parts, network = np.array_split(X, 6), Network.ring(6, 2)
    options = make_options(
        parts,
        network,
        landmarks=LandmarkSource("points", X[::18]),
        kernel=make_kernel("rbf", gamma=1e-3),
        n_components=4,
        secure_sums=True,
    )
    # in clear, but node by node: sketches are float32, and their sums depend on which rows are multiplied together
    sites, clear = apart(parts, network), replace(options, secure_sums=False)
    plain = local.drive(sites, clear, local.Delivery(sites), script=over_tree(program)).answers[0]
    secure = run(parts, network, options).answers[0]
    np.testing.assert_allclose(secure.eigenvalues, plain.eigenvalues, rtol=1e-12)


NETWORKS = {
    "path": Network.path(6), "star": Network.star(6), "ring": Network.ring(6, 4), "grid": Network.grid(2, 3), "complete": Network.complete(6),
    "random": Network.random(6, 0.5, seed=1),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_sums_are_exact_to_half_a_unit_of_each_node(name):
    network = NETWORKS[name]
    rng = np.random.default_rng(3)
    values = rng.normal(size=(6, 50))
    sites = apart([rng.normal(size=(4, 2)) for _ in range(6)], network)
    local.simulate_sealers(sites)

    class Total(Round):
        def __init__(self, site):
            self.value = values[int(site.nodes[0])]

        def term(self):
            return {"value": self.value}

        def bounds(self):
            return {"value": 40.0}

        def told(self):
            return {"value": (50,)}

        def conclude(self, total):
            return total

    def solver(site):
        return (yield Total(site))["value"]

    def script(site, options):
        return (yield from run_rounds(site, solver(site), Transcript()))

    answers = local.drive(sites, None, local.Delivery(sites), script=over_tree(script)).answers
    check_totals(answers, values, 40.0)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    "settings", [{"gamma_by_variance": True}, {"standardize": True}, {"kernel": make_kernel("linear")}], ids=str
)
def test_entries_of_any_size_need_no_bound(scale, settings):
    """A secure sum finds the largest power of two; the answer is the one in clear, whatever it is."""
    parts, network = [scale * part for part in clusters([40, 25, 33, 18])], Network.path(4)
    options = make_options(parts, network, secure_sums=True, **settings)
    clear = run(parts, network, replace(options, secure_sums=False)).answers[0]
    secure = run(parts, network, options).answers[0]
    np.testing.assert_allclose(secure.eigenvalues, clear.eigenvalues, rtol=1e-9)
    w, w_clear = secure.terms.shared, clear.terms.shared
    np.testing.assert_allclose(w, w_clear, rtol=0, atol=1e-9 * np.abs(w_clear).max())


@pytest.mark.parametrize("nodes", [[1], range(8)], ids=["one", "all"])
def test_entries_beyond_the_largest_power_of_two_stop_the_run(nodes):
    """If all nodes have them, each has sums below the bound of the total, and together they are above it: modulo 2^64 nobody would notice."""
    parts, network = clusters([20] * 8), Network.ring(8, 2)
    for j in nodes:
        parts[j][:, 2] = 2.31875e39  # above 2^127
    options = make_options(parts, network, n_landmarks=10, secure_sums=True, gamma_by_variance=True)
    with pytest.raises(OutOfBounds, match=r"a number is beyond 2\^127; nothing was sent") as error:
        run(parts, network, options)
    assert "2.31875e+39" in str(error.value)
    assert "2.31" not in error.value.told


SUMS_OF_ROWS = {
    "standardize": {"standardize": True}, "gamma": {"gamma_by_variance": True}, "landmarks": {}, "means": {"impute": True},
    "linear": {"kernel": make_kernel("linear")}, "no rows": {"share_rows": False},
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", [*SUMS_OF_ROWS, "far points", "standardized outlier", "poly", "many rows", "judged by rows"]
)
def test_every_bound_is_one_of_the_total(kind, monkeypatch):
    """Of all sums of a run: what the nodes give, in absolute value and added up, is below the public bound, with entries of every node at theirs."""
    changes = SUMS_OF_ROWS | {
        "far points": {"kernel": make_kernel("linear"), "landmarks": LandmarkSource("points", 1e4 * np.eye(6))},
        "standardized outlier": {"standardize": True, "gamma_by_variance": True},
        "poly": {"kernel": make_kernel("poly", gamma=0.5, degree=3)}, "many rows": {"share_rows": False},
        "judged by rows": {"kernel": make_kernel(lambda A, B: np.exp(0.05 * A @ B.T), normalize=True)},
    }  # fmt: skip
    given, seal = {}, Sealer.seal

    def noted(self, what, values, bound):
        size, most = given.get((self._sealed, what), (0.0, bound))
        given[self._sealed, what] = size + np.abs(values), most
        return seal(self, what, values, bound)

    monkeypatch.setattr(Sealer, "seal", noted)
    # of more than 8,192 rows some judge, with weights
    parts, network = clusters([2000 if kind == "many rows" else 40] * 5), Network.ring(5, 2)
    if kind == "standardized outlier":
        parts[2][:] *= 1e-3
        parts[2][0] = 8.0
    largest = np.nextafter(8.0 if "standardized" in kind else 4.0, 0.0)
    parts = [np.clip(part, -largest, largest) for part in parts]
    for part in parts[:: 1 if "standardized" not in kind else 5]:
        part[:4] = largest
    if kind == "means":
        parts[1][3, 2] = np.nan
    options = make_options(parts, network, **{"n_landmarks": 40, "secure_sums": True} | changes[kind])
    run(parts, network, options)
    assert len(given) >= 3
    for (_, what), (size, bound) in given.items():
        assert (size <= bound).all(), (what, float(np.max(size / bound)))


def test_kernels_without_a_bound_are_scaled_by_the_sizes_of_terms():
    parts, network = clusters([20, 20, 20]), Network.path(3)
    kernel = make_kernel(lambda A, B: 1e5 * A @ B.T)
    sealed, clear = (
        run(parts, network, make_options(parts, network, n_landmarks=10, secure_sums=secure, kernel=kernel))
        for secure in (True, False)
    )
    np.testing.assert_allclose(sealed.answers[0].eigenvalues, clear.answers[0].eigenvalues, rtol=1e-9)


@pytest.mark.parametrize(
    "kernel", [make_kernel("poly", gamma=0.1, degree=3), make_kernel("linear")], ids=lambda kernel: kernel.name
)
def test_secure_sums_of_unbounded_kernels_lose_no_digits(kernel):
    """What rows could reach is 1e12 times what they do: sums scaled by that would round what the landmarks miss to zero."""
    rng = np.random.default_rng(0)
    parts, network = [rng.normal(size=(600, 6)) * [3, 2, 1, 1, 1, 1] for _ in range(3)], Network.path(3)
    settings = {"kernel": kernel, "standardize": True}
    sealed, clear = (
        run(parts, network, make_options(parts, network, secure_sums=secure, **settings)).answers[0]
        for secure in (True, False)
    )
    np.testing.assert_allclose(sealed.eigenvalues, clear.eigenvalues, rtol=1e-9)
    np.testing.assert_allclose(sealed.accuracy.errors, clear.accuracy.errors, rtol=1e-3, atol=1e-9)


# ---------------------------------------------------------------------- a recorder at all nodes but two
def recorded(seed, network, broken=None, scale=1.0):
    parts = [scale * part for part in clusters([30] * len(network), seed)]
    options = make_options(parts, network, n_landmarks=60, secure_sums=True)
    return record(parts, network, options, broken)


def test_only_the_entries_of_rows_have_their_sizes_told():
    """Before, those of what leaves the span were told in each judgement: a root that told functions saw between which powers of two each owner's own
    sum of their squares was, and bisected it to 3e-14 in the 49 judgements of one fit."""
    assert recorded(0, NETWORKS["path"])[0].kinds.count("sizes") == 1


@pytest.mark.parametrize(("n", "gamma"), [(1800, 0.01), (9000, 0.02)])
def test_a_bound_on_what_leaves_the_span_costs_no_digits_of_errors(n, gamma):
    X = np.random.default_rng(0).normal(size=(n, 8)) * [4, 3, 2, 1.5, 1, 1, 0.5, 0.5]
    parts, network, points = np.array_split(X, 4), Network.path(4), LandmarkSource("points", X[:200])
    asked = {"landmarks": points, "kernel": make_kernel("rbf", gamma=gamma), "n_components": 4, "share_rows": False}
    options = make_options(parts, network, secure_sums=True, **asked)
    clear = replace(options, secure_sums=False, owners_apart=True)
    sealed, plain = (run(parts, network, o).answers[0].accuracy for o in (options, clear))
    assert max(plain.errors) < 1e-4
    np.testing.assert_allclose(sealed.errors, plain.errors, rtol=1e-3, atol=1e-12)


def test_a_leak_below_the_unit_of_its_sum_is_no_accuracy():
    """Of eigenvalues of 1e-9 of the largest: the leak came out as 0, and so did the error."""
    X = np.random.default_rng(0).normal(size=(9000, 2))
    settings = {"privacy": "secure-sums", "share_rows": False, "network": 4, "max_landmarks": 40, "random_state": 0}
    model = DecentralizedKernelPCA(20, gamma=0.01, **settings)
    with pytest.warns(ConvergenceWarning, match="less accurate than tol"):
        model.fit(X)
    assert model.span_accuracy_bound_ < 0.5


@pytest.mark.parametrize("name", ["path", "star", "ring", "grid"])
def test_a_recorder_at_all_nodes_but_two_sees_uniform_numbers(name):
    network = NETWORKS[name]
    a, b = two_apart(network)
    recorder, sites, _ = recorded(0, network)
    assert {"sizes", "columns", "axes", "clusters", "landmarks", "moments", "judge"} == set(recorder.kinds)
    mine, theirs = stripped(recorder, sites, a, b), stripped(recorder, sites, b, a)
    words = np.concatenate(mine)
    assert len(words) > 20_000
    assert least_effect(len(words)) < 0.1  # far below that of any broken mask
    assert uniform_p(words) > LEVEL
    # sums under one nonce would show in differences
    first = max(mine, key=len)
    for other in mine:
        if other is not first and len(other) > 1000:
            assert uniform_p(first[: len(other)] - other) > LEVEL
    # the recorder is as strong as it can be: the two honest nodes' total is what it sees in clear
    total = np.concatenate([x + y for x, y in zip(mine, theirs, strict=True)])
    assert uniform_p(total) < LEVEL


def test_recordings_of_very_different_data_have_one_distribution():
    network = NETWORKS["grid"]
    a, b = two_apart(network)
    words = []
    for seed, scale in ((1, 1.0), (2, 1e-3)):
        recorder, sites, _ = recorded(seed, network, scale=scale)
        words.append(np.concatenate(stripped(recorder, sites, a, b)))
    assert min(map(len, words)) > 10_000
    assert same_p(*words) > LEVEL


def test_a_reused_nonce_fails_the_tests():
    class Stuck(Sealer):
        def seal(self, kind, values, bound):
            self._sealed, self.history = 0, bytes(32)
            return super().seal(kind, values, bound)

    def broken(made):
        for one in made.values():
            one.__class__ = Stuck

    recorder, _, _ = recorded(0, NETWORKS["grid"], broken)
    a, _ = two_apart(NETWORKS["grid"])
    # the recorder knows nothing of the numbers either: all masks are those of sum 0
    sums = [sent[a] - sum(sent[int(c)] for c in NETWORKS["grid"].children[a]) for sent in recorder.sums]
    long = sorted(sums, key=len)[-2:]
    assert uniform_p(long[1][: len(long[0])] - long[0]) < LEVEL


def test_a_missing_pair_fails_the_tests_and_stops_the_run():
    network = NETWORKS["grid"]
    a, b = two_apart(network)

    def broken(made):
        x, y = network.names[a], network.names[b]
        made[x].keys = {other: key for other, key in made[x].keys.items() if other != y}

    recorder, sites, outcome = recorded(0, network, broken)
    assert isinstance(outcome, BadMasks)
    assert "do not cancel" in str(outcome)
    assert len(recorder.sums) == 1  # the root made nothing of the first total, and nothing went down
    assert stripped(recorder, sites, a, b)[0][-1] == 1  # in clear: the count


@pytest.mark.parametrize(("runs", "size"), [(20_000, 3), pytest.param(300_000, 4, marks=pytest.mark.slow)])
def test_masks_of_many_runs_do_not_repeat(runs, size):
    """A birthday test: of so many masks from keys of `size` bytes ten pairs or more would be equal on average; of ours none is."""
    assert runs**2 / 2 ** (8 * size + 1) > 10
    ends = [(b"a", public_key()), (b"b", public_key())]
    keys = [derived(b"one secret", i.to_bytes(4, "big"), ends) for i in range(runs)]
    assert len({int(mask_words(key, 0, bytes(32), 1)[0]) for key in keys}) == runs
    assert len({key[:size] for key in keys}) < runs  # equal keys have equal masks
