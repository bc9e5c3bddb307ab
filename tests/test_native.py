"""The compiled steps: what they are made of, and that they compute what NumPy computes without them."""

import shutil
import weakref
from copy import deepcopy
from threading import Event, get_ident

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dekpca import DecentralizedKernelPCA, Network, answer
from dekpca.backends import compiled
from dekpca.columns import Features
from dekpca.core import chunks, landmarks, native, spectrum
from dekpca.core.landmarks import Landmarks, RowKernel
from dekpca.engines.peer.storage.codec import flatten
from dekpca.experiments import scale
from dekpca.kernels import Kernel
from dekpca.options import settle
from dekpca.parameters import Parameters
from dekpca.plan import Plan

pytestmark = [
    pytest.mark.skipif(
        native.steps is None and shutil.which("cc") is None,
        reason="there is no C compiler here to build the compiled steps with",
    ),
    pytest.mark.filterwarnings("ignore:the components are estimated to be less accurate"),
]


def test_they_were_built():
    assert native.steps is not None, "there is a C compiler, but dekpca.core._steps was not built"
    assert list(native.LEVELS)[native.steps.instructions()] in native.available, native.problem


@pytest.mark.slow  # `make test` compiles for this machine's processor alone
def test_they_were_built_for_all_processors():
    assert len(native.available) == 1 + native.steps.instructions(), native.problem


@pytest.fixture(params=native.LEVELS)
def instructions(request, monkeypatch):
    if request.param not in native.available:
        pytest.skip("this machine has no such instructions, or they were not compiled for: make .venv/all")
    monkeypatch.setattr(native, "steps", native.available[request.param])
    assert native.level() == request.param


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 27, 33])
@pytest.mark.usefixtures("instructions")
def test_products_of_any_shape(dtype, turned, columns):
    random = np.random.default_rng(columns)
    for rows, inner in ((1, 1), (7, 3), (8, 100), (100, 13), (13, 300), (300, 250)):  # the last is for BLAS
        a = random.standard_normal((inner, rows) if turned else (rows, inner)).astype(dtype)
        b = random.standard_normal((inner, columns)).astype(dtype)
        expected = (a.T if turned else a).astype(np.float64) @ b
        found = native.steps.multiply(a, b, turned)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, atol=4 * inner * np.finfo(dtype).eps)


def parts_of(sizes, dtype, seed=0):
    random = np.random.default_rng(seed)
    centers = random.standard_normal((3, 6)) * 2
    return [
        (centers[j % 3] + random.standard_normal((size, 6)) @ np.diag([2, 1.5, 1, 0.7, 0.4, 0.2])).astype(dtype)
        for j, size in enumerate(sizes)
    ]


CASES = {
    "as it comes": ({}, [30] * 8, Network.ring(8, 4)),
    "ragged": ({}, [12, 40, 25, 31, 9, 33], Network.ring(6)),
    "a star": ({"n_components": 3}, [20, 35, 18, 27, 22], Network.star(5)),
    "two nodes, one component": ({"n_components": 1}, [25, 30], Network.path(2)),
    "no landmarks": ({"landmarks": 0, "init": "local", "centering": "local"}, [30] * 6, Network.ring(6, 4)),
    "many columns": ({"n_components": 5, "n_oversamples": 6}, [40] * 6, Network.ring(6)),
    "penalties on a schedule": ({"rho": [(0, 60.0, 40.0), (6, 90.0, 60.0)]}, [30] * 6, Network.ring(6)),
    "more columns than tiles have": ({"n_components": 9, "n_oversamples": 26}, [60] * 4, Network.ring(4)),
    "nodes of one sample": ({"n_components": 2}, [1, 30, 1, 25, 30], Network.ring(5)),
    "local means": ({"centering": "local"}, [30] * 6, Network.ring(6)),
    "more than the cache is to hold": ({}, [150] * 4, Network.ring(4)),
    "many neighbors": ({}, [9] * 17, Network.star(17)),  # more than are thought of while products are computed
    "nodes of few samples": ({}, [6] * 20, Network.ring(20, 4)),
    "a linear kernel": ({"kernel": "linear"}, [30] * 6, Network.ring(6)),  # landmarks leave nothing of it
}


@pytest.mark.usefixtures("instructions")
@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_numpy(case, dtype, monkeypatch):
    options, sizes, network = CASES[case]
    parts = parts_of(sizes, dtype)

    def iterate_of(block, options, known, found, psi, values, turn):
        """Not the landmarks' answer, where that is estimated to be better: in float32 that may be a matter of rounding."""
        yield from ()
        return found

    monkeypatch.setattr(answer, "better_of", iterate_of)

    def fit():
        settings = {"n_components": 4, "solver": "projection", "random_state": 0, "max_iter": 20, "tol": 0, **options}
        model = DecentralizedKernelPCA(**settings)
        return model.set_params(network=network).fit_parts(parts)

    by_compiled = fit()
    monkeypatch.setattr(native, "steps", None)
    plain = fit()
    tolerance = 1e-8 if dtype == "float64" else 2e-3
    largest = plain.eigenvalues_[0]
    np.testing.assert_allclose(by_compiled.eigenvalues_, plain.eigenvalues_, atol=tolerance * largest)
    for name in ("residual", "change", "since_check", "objective"):
        np.testing.assert_allclose(
            by_compiled.history_[name], plain.history_[name], rtol=100 * tolerance, atol=10 * tolerance, err_msg=name
        )


@pytest.mark.filterwarnings("ignore:not converged")
def test_the_steps_are_used(monkeypatch):
    """Else the comparison above would compare nothing."""
    called = []
    step = compiled.Compiled.w_step
    monkeypatch.setattr(compiled.Compiled, "w_step", lambda *a: called.append(1) or step(*a))
    model = DecentralizedKernelPCA(2, solver="projection", network=Network.ring(4), max_iter=5, tol=0)
    model.fit_parts(parts_of([20] * 4, "float64"))
    assert len(called) == 5


def shares_of_two_nodes():
    """A `Nodes` of 2 nodes with 3 slots, 4 samples, 5 shared coordinates and 2 columns, and the arrays of its first step."""
    sizes = {"B": 2, "d": 3, "n": 4, "p": 4, "m": 5, "k": 2, "c": 1}
    matrices = {name: np.zeros((2, 4, 4)) for name in ("rest", "inverse")}
    blocks = {"block_at": np.zeros((2, 6), dtype=np.intp), "block_shape": np.zeros((2, 6, 4), dtype=np.intc)}
    nodes = native.steps.Nodes(sizes, psi=np.zeros((2, 4, 5)), **matrices, **blocks)
    arrays = {name: np.full((2, 3, 4, 2), 2.0) for name in ("dual", "seen", "out_shares")}
    arrays |= {"factors": np.ones((2, 3)), "w": np.full((2, 9, 2), 5.0)}
    return nodes, arrays | {name: np.ones((2, 5, 2)) for name in ("dual_w", "out_shared")}


@pytest.mark.usefixtures("instructions")
def test_arrays_of_a_step_are_checked():
    nodes, arrays = shares_of_two_nodes()
    nodes.prepare("shares", arrays, 10.0, 1.0)
    nodes.run(0, 2)
    assert (arrays["out_shares"][:, 0] == 2 + 11 * (5 - 2)).all()  # the own z has a weight of 10 + 1
    assert (arrays["out_shares"][:, 1:] == 2 + 10 * (5 - 2)).all()
    assert (arrays["out_shared"] == 1 + 10 * 5).all()
    with pytest.raises(RuntimeError, match="nodes 1 to 3 of 2"):
        nodes.run(1, 3)
    fixed = np.zeros((2, 3, 4, 2))
    fixed.flags.writeable = False
    wrong = [
        ("dual", np.zeros((2, 3, 5, 2)), ValueError, r"dual: shape \(2, 3, 5, 2\)"),
        ("dual", np.zeros((2, 3, 4, 2), dtype=np.float32), ValueError, "dual: .* of float32"),
        ("dual", np.zeros((2, 3, 2, 4)).swapaxes(2, 3), ValueError, "not C-contiguous"),
        ("w", np.zeros((2, 18)), ValueError, "w: shape"),
        ("out_shares", fixed, ValueError, "read-only"),
        ("dule", np.zeros((2, 3, 4, 2)), TypeError, "shares takes .* not .*dule"),
    ]
    for name, array, error, says in wrong:
        with pytest.raises(error, match=says):
            nodes.prepare("shares", arrays | {name: array}, 1.0, 0.0)
        with pytest.raises(RuntimeError, match="step None"):  # nothing is left of it
            nodes.run(0, 2)
    with pytest.raises(TypeError, match="shares takes"):
        nodes.prepare("shares", {name: arrays[name] for name in arrays if name != "seen"}, 1.0, 0.0)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("place", [-1, 7])
def test_messages_that_did_not_arrive_are_not_read(place):
    nodes, arrays = shares_of_two_nodes()
    z = {
        f"{out}{name}": x
        for out in ("", "out_")
        for name, x in (("z_shared", np.zeros((2, 5, 2))), ("z_near", np.zeros((2, 3, 4, 2))))
    }
    arrived = {"shares": np.zeros((7, 4, 2)), "shared": np.zeros((7, 5, 2)), "shared_at": np.arange(6)}
    given = {"factors": arrays["factors"], "on_z": np.ones(2), "w": arrays["w"], "dual_z": np.zeros((2, 5, 2))}
    given |= z | arrived | {"out_views": np.zeros((2, 3, 4, 2))}
    nodes.prepare("z_step", given | {"shares_at": np.array([0, 1, 2, 3, 4, 6])}, 1.0, 0.0)
    with pytest.raises(IndexError, match="shares_at points beyond the 7 messages"):
        nodes.prepare("z_step", given | {"shares_at": np.array([0, 1, place, 3, 4, 5])}, 1.0, 0.0)


@pytest.mark.usefixtures("instructions")
@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("n_components", "packed", "centering"),
    [(1, 2**20, "global"), (3, 2**20, "global"), (4, 0, "global"), (3, 0, "local")],
)
def test_a_resumed_run_has_the_same_bits(dtype, n_components, packed, centering, monkeypatch):
    """Also in what is measured of it: the verdict of a check follows from that."""
    from dekpca.core.gram import blocks
    from dekpca.engines import local

    monkeypatch.setattr(blocks, "PACKED_BYTES", packed)
    network, parts = Network.ring(4), parts_of([50] * 4, dtype)
    model = DecentralizedKernelPCA(
        n_components, solver="projection", network=network, max_iter=20, tol=0, random_state=0, centering=centering
    )
    options = settle(Parameters.of(model).settings(Features(6), 0), network, np.full(4, 50))
    kept, last = [], []

    def keep(blocks, checkpoints):
        if checkpoints[0].state.iteration == 13 and not kept:
            kept.extend((c.known, c.state) for c in checkpoints)
        if checkpoints[0].state.iteration == 20:
            last.append(checkpoints[0].state.w)

    (whole,) = local.run(Plan.of(parts, network, options), keep).answers
    (resumed,) = local.run(Plan.of(parts, network, options, resume=kept), keep).answers
    assert np.array_equal(*last)
    assert np.array_equal(whole.w, resumed.w)
    assert np.array_equal(whole.eigenvalues, resumed.eigenvalues)
    assert whole.accuracy == resumed.accuracy
    for name, numbers in whole.history.items():
        assert np.array_equal(numbers, resumed.history[name]), name


@pytest.mark.filterwarnings("ignore:not converged")
def test_memory_is_used_again_but_not_that_of_a_checkpoint_that_is_kept(monkeypatch):
    from dekpca.engines import local

    network, parts = Network.ring(6), parts_of([30] * 6, "float64")
    model = DecentralizedKernelPCA(
        3,
        solver="projection",
        landmarks=0,
        centering=None,
        init="random",
        network=network,
        max_iter=20,
        tol=0,
        random_state=0,
    )
    options = settle(Parameters.of(model).settings(Features(6), 0), network, np.full(6, 30))
    (plain,) = local.run(Plan.of(parts, network, options)).answers
    monkeypatch.setattr(compiled, "LARGE", 0)
    asked, new = [], []
    like, empty = compiled.Memory.like, np.empty
    monkeypatch.setattr(compiled.Memory, "like", lambda memory, x: asked.append(1) or like(memory, x))
    monkeypatch.setattr(
        compiled.np, "empty", lambda *a, **given: new.append(given.get("dtype") == np.uint8) or empty(*a, **given)
    )
    (again,) = local.run(Plan.of(parts, network, options)).answers
    assert sum(new) < len(asked) / 5  # two or three of each, in 20 iterations
    assert np.array_equal(plain.w, again.w)

    states, copies = [], []

    def keep(blocks, checkpoints):
        states.append(checkpoints[0].state)
        copies.append(deepcopy(checkpoints[0].state))

    (watched,) = local.run(Plan.of(parts, network, options), keep).answers
    assert len(flatten(states[-1])[1]) > 12  # all arrays of a checkpoint are compared
    assert np.array_equal(plain.w, watched.w)
    for state, copy in zip(states, copies, strict=True):
        for now, then in zip(*(flatten(x)[1] for x in (state, copy)), strict=True):
            assert np.array_equal(now, then)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("count", [1, 9, 200, 300])
def test_the_kernel_of_landmarks_with_each_other(count):
    points = np.random.default_rng(count).standard_normal((count, 30))
    kernel = Kernel("rbf", gamma=0.02)
    found = RowKernel(kernel, points)(points)
    np.testing.assert_allclose(found, kernel.gram(points, points), atol=1e-14)
    if native.steps.BLOCKS:  # else it is what it is compared with
        assert (np.diag(found) == 1.0).all()
        np.testing.assert_allclose(found, found.T, rtol=1e-14)
    root = Landmarks.of(points, kernel).root
    np.testing.assert_allclose(root.T @ found @ root, np.eye(count), atol=1e-9)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_response_in_the_place_of_the_matrices_is_the_same(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(native, "steps", None)
    roots = np.random.default_rng(0).standard_normal((5, 30, 30))
    grams = roots @ roots.transpose(0, 2, 1)
    r = np.array([3.0, 2.5, 1.0, 2.1, 4.0]) * np.linalg.eigvalsh(grams)[:, -1]  # the third is not positive definite
    whole = spectrum.Factor(grams.copy(), np.full(5, 30.0), np.ones(5))
    found = whole.response(r)
    np.testing.assert_allclose(found @ (r[:, None, None] * np.eye(30) - 2 * grams), np.eye(30) + 0 * grams, atol=1e-10)
    assert np.array_equal(whole.matrix, grams)
    memory = whole.matrix
    assert np.array_equal(whole.response(r, in_place=True), found)
    assert np.array_equal(memory, found)
    with pytest.raises(TypeError):
        whole.response(r)  # and not something wrong


def test_nobody_keeps_memory_for_iterations_that_are_over():
    memory = compiled.Memory()
    arrays = [memory.like(np.zeros(compiled.LARGE, dtype=np.uint8)) for _ in range(3)]
    del arrays[1:]
    (spare,) = memory.free.values()
    assert len(spare) == 2
    gone = weakref.ref(spare[0])
    del spare, memory
    assert gone() is None
    assert arrays[0].shape == (compiled.LARGE,)  # while another is still in use


def test_memory_is_not_used_again_while_a_view_of_it_is_there():
    memory = compiled.Memory()
    first = memory.like(np.zeros(compiled.LARGE, dtype=np.float32))
    assert first.ctypes.data % compiled.LINE == 0
    at, part = first.ctypes.data, first[5:7]
    part[:] = 1.0
    del first
    second = memory.like(np.zeros(compiled.LARGE, dtype=np.float32))
    assert second.ctypes.data != at
    assert (part == 1.0).all()
    del part
    assert memory.like(np.zeros((2, compiled.LARGE // 2), dtype=np.float32)).ctypes.data == at


def test_a_module_of_another_version_is_not_used(monkeypatch, tmp_path):
    """Editing the source without compiling it must not run the old code."""
    (tmp_path / "_steps.pxi").write_bytes(native.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(native, "SOURCE", tmp_path / "_steps.pxi")
    monkeypatch.setattr(native, "available", {})
    monkeypatch.setattr(native, "problem", "")
    native._load("plain")
    assert not native.available
    assert "another version" in native.problem


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_inverses_of_positive_definite_matrices(dtype):
    random = np.random.default_rng(0)
    roots = random.standard_normal((5, 30, 40))
    matrices = (roots @ roots.transpose(0, 2, 1)).astype(dtype)
    found = spectrum.invert(matrices)
    np.testing.assert_allclose(
        found @ matrices, np.broadcast_to(np.eye(30), found.shape), atol=1e4 * np.finfo(dtype).eps
    )
    matrices[3] -= 30 * np.eye(30, dtype=dtype)  # indefinite: not for Cholesky, but there is an inverse
    found = spectrum.invert(matrices)
    np.testing.assert_allclose(
        found @ matrices, np.broadcast_to(np.eye(30), found.shape), atol=1e6 * np.finfo(dtype).eps
    )
    with pytest.raises(np.linalg.LinAlgError):
        spectrum.invert(np.zeros((2, 3, 3), dtype=dtype))


@pytest.mark.parametrize("scale", [1e-16, 1e-7, 1.0, 1e10, 1e18])
def test_the_largest_eigenvalue_of_any_size(scale, monkeypatch):
    roots = np.random.default_rng(2).standard_normal((3, 20, 30))
    matrices = (scale * (roots @ roots.transpose(0, 2, 1))).astype(np.float32)
    exact = np.linalg.eigvalsh(matrices.astype(np.float64))[:, -1]
    np.testing.assert_allclose(spectrum.largest(matrices), exact, rtol=1e-3)
    monkeypatch.setattr(native, "steps", None)
    np.testing.assert_allclose(spectrum.largest(matrices), exact, rtol=1e-3)


@pytest.mark.parametrize("falls", [0.0, 0.05, 1.0, 5.0])  # flat to steep
def test_the_largest_eigenvalue(falls, monkeypatch):
    random = np.random.default_rng(1)
    basis = np.linalg.qr(random.standard_normal((6, 40, 40)))[0]
    values = np.exp(-falls * np.arange(40)) * random.uniform(0.5, 2, (6, 1))
    matrices = (basis * values[:, None, :]) @ basis.transpose(0, 2, 1)
    exact = np.linalg.eigvalsh(matrices)[:, -1]
    compiled = spectrum.largest(matrices)
    monkeypatch.setattr(native, "steps", None)
    np.testing.assert_allclose(compiled, spectrum.largest(matrices), rtol=1e-9)
    np.testing.assert_allclose(compiled, exact, rtol=1e-9 if falls != 0.05 else 1e-2)
    assert spectrum.largest(np.zeros((2, 5, 5))).tolist() == [0, 0]


DTYPES = pytest.mark.parametrize("dtype", ["float64", "float32"])


def positive(random, n, condition, dtype, count=1):
    """Symmetric matrices with eigenvalues from 1 down to 1 / condition."""
    basis = np.linalg.qr(random.standard_normal((count, n, n)))[0]
    values = np.geomspace(1, 1 / condition, n) if n > 1 else np.ones(1)
    made = (basis * values) @ basis.transpose(0, 2, 1)
    return (0.5 * (made + made.transpose(0, 2, 1))).astype(dtype)


@DTYPES
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 20, 100, 248, 300])  # the last is for LAPACK
@pytest.mark.usefixtures("instructions")
def test_inverses_are_as_good_as_lapack(dtype, n):
    """Both lose as many digits as the condition has; this is where an elimination that is not stable would show."""
    random = np.random.default_rng(n)
    condition = 1e8 if dtype == "float64" else 1e4
    for matrix in positive(random, n, condition, dtype, 3):
        exact = np.linalg.inv(matrix.astype(np.float64))
        out = np.empty_like(matrix)[None]
        assert native.steps.inverses(matrix[None], 1.0, np.zeros(1, dtype=dtype), out)
        assert (out[0] == out[0].T).all()
        off = np.linalg.norm(out[0] - exact) / np.linalg.norm(exact)
        assert off < 0.5 * condition * np.finfo(dtype).eps


@DTYPES
@pytest.mark.usefixtures("instructions")
def test_inverses_of_shifted_matrices(dtype):
    random = np.random.default_rng(0)
    matrices, by = positive(random, 50, 10, dtype, 4), np.array([3, 4, 5, 6], dtype=dtype)
    out = np.empty_like(matrices)
    assert native.steps.inverses(matrices, -2.0, by, out)
    expected = np.linalg.inv(by[:, None, None] * np.eye(50) - 2.0 * matrices.astype(np.float64))
    np.testing.assert_allclose(out, expected, atol=100 * np.finfo(dtype).eps)
    assert not native.steps.inverses(matrices, -2.0, np.array([3, 4, 1.9, 6], dtype=dtype), out)  # 1.9 - 2 < 0


@DTYPES
@pytest.mark.parametrize("n", [1, 8, 13, 100, 300])
@pytest.mark.usefixtures("instructions")
def test_definite_just_above_and_below(dtype, n):
    matrices = positive(np.random.default_rng(n), n, 100, dtype, 3)
    lowest = np.linalg.eigvalsh(matrices.astype(np.float64))[:, 0]
    near = 0.99, 1.01
    above, below = (np.asarray(-lowest * factor, dtype=dtype) for factor in near)
    assert native.steps.definite(matrices, above)
    mixed = above.copy()
    mixed[1] = below[1]
    assert not native.steps.definite(matrices, mixed)
    matrices[2, n // 2, n // 2] = np.nan
    assert not native.steps.definite(matrices, above)


@pytest.mark.usefixtures("instructions")
def test_pseudo_inverses_drop_what_numpy_drops(monkeypatch):
    """Rows of zeros, tiny eigenvalues, tiny and empty matrices: each the same with and without compiled code."""
    random = np.random.default_rng(3)
    matrices = positive(random, 30, 1e3, "float64", 6)
    matrices[1, [2, 17]] = matrices[1, :, [2, 17]] = 0
    flat = random.standard_normal((30, 12))
    matrices[2] = flat @ flat.T  # rank 12
    matrices[3] = 0
    matrices[4] *= 1e-30
    matrices[4, 5] = matrices[4, :, 5] = 0
    matrices[5] += 1e9 * np.outer(flat[:, 0], flat[:, 0])  # small ones are below 1e-8 of the largest

    def inverse():
        return spectrum.Factor(matrices, np.full(6, 30.0), np.array([1, 1, 1, 1, 1e-30, 1.0])).inverse

    compiled = inverse()
    monkeypatch.setattr(native, "steps", None)
    plain = inverse()
    for one, other in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7 * max(np.abs(other).max(), 1e-300))


def kernel_left(X, Y, psi_x, psi_y, gamma):
    squares = ((X[:, None, :].astype(np.float64) - Y[None, :, :]) ** 2).sum(axis=2)
    return np.exp(-gamma * squares) - psi_x.astype(np.float64) @ psi_y.T


@DTYPES
@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize(("M", "m"), [(1, 0), (5, 3), (40, 17)])
@pytest.mark.parametrize(("a", "b"), [(1, 1), (8, 16), (13, 40), (57, 57)])
def test_blocks_of_any_shape(dtype, M, m, a, b):
    """Two pools of sites, some of them not full; among them pairs of a site with itself and sites that are packed, forgotten and packed again."""
    random = np.random.default_rng(a)
    p, q = (random.standard_normal((5, n, M)).astype(dtype) for n in (a, b))
    psi_p, psi_q = (0.1 * random.standard_normal((5, n, m)).astype(dtype) for n in (a, b))
    p_sizes, q_sizes = (np.array([n, max(1, n - 1), n, max(1, n // 2), n], dtype=np.intp) for n in (a, b))
    for other in ((p, psi_p, p_sizes), (q, psi_q, q_sizes)):
        first, second = (np.ascontiguousarray(x.ravel(), dtype=np.intp) for x in np.indices((5, 5)))
        blocks = np.full((25, a, other[0].shape[1]), np.nan, dtype=dtype)
        address = blocks.ctypes.data + np.arange(25, dtype=np.intp) * blocks.strides[0]
        native.steps.rest_blocks(0, 25, p, psi_p, p_sizes, *other, other[0] is p, first, second, address, 0, 0.3)
        for i, j, block in zip(first, second, blocks, strict=True):
            rows, columns = p_sizes[i], other[2][j]
            expected = kernel_left(p[i, :rows], other[0][j, :columns], psi_p[i, :rows], other[1][j, :columns], 0.3)
            np.testing.assert_allclose(block[:rows, :columns], expected, atol=20 * np.finfo(dtype).eps * (1 + M))
            assert not block[rows:].any()
            assert not block[:, columns:].any()
            if other[0] is p and i == j:
                assert (block == block.T).all()
                np.testing.assert_allclose(np.diag(block)[:rows], np.diag(expected), atol=4 * np.finfo(dtype).eps)


@DTYPES
@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("full", [0, 1, 11])  # columns with numbers in them, of 30
def test_columns_of_zeros_change_no_bit(dtype, full):
    """They are left out where all samples of a line have them, and some have numbers where others of the line, or the other site's, do not."""
    random = np.random.default_rng(full)
    X = np.zeros((2, 45, 30), dtype=dtype)
    where = np.sort(random.permutation(30)[:full])
    X[..., where] = random.standard_normal((2, 45, full)) * (random.random((2, 45, full)) < 0.1)  # -0 among them
    psi, sizes = 0.1 * random.standard_normal((2, 45, 3)).astype(dtype), np.array([45, 44], dtype=np.intp)
    first, second = (np.array(x, dtype=np.intp) for x in ((0, 0, 1), (0, 1, 1)))
    marks = X[0, :40]
    found = []
    for columns in (slice(None), where):
        given = np.ascontiguousarray(X[..., columns])
        blocks, rows = np.empty((3, 45, 45), dtype=dtype), np.empty((45, 40), dtype=dtype)
        address = blocks.ctypes.data + np.arange(3, dtype=np.intp) * blocks.strides[0]
        native.steps.rest_blocks(0, 3, given, psi, sizes, given, psi, sizes, True, first, second, address, 2**20, 0.3)
        squares = np.empty(45, dtype=dtype)
        packed = native.steps.packed_points(np.ascontiguousarray(marks[:, columns]))
        native.steps.kernel_rows(given[1], packed, 0.3, rows, squares)
        found.append((blocks, rows, squares))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    near = 100 * np.finfo(dtype).eps
    for i, j, block in zip(first, second, blocks, strict=True):
        a, b = sizes[i], sizes[j]
        np.testing.assert_allclose(
            block[:a, :b], kernel_left(X[i, :a], X[j, :b], psi[i, :a], psi[j, :b], 0.3), atol=near
        )
    alone = np.zeros((45, 0)), np.zeros((40, 0))
    np.testing.assert_allclose(rows, kernel_left(X[1], marks, *alone, 0.3), atol=near)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_columns_are_counted_as_they_are_multiplied(dtype):
    """Lines of eight (sixteen) samples; perturbed copies have their zeros where the rows have them."""
    line = 64 // np.dtype(dtype).itemsize
    X = np.zeros((2 * line, 5), dtype=dtype)
    X[0, :3], X[line, 3] = 1.0, 1.0
    assert scale.columns_multiplied(X) == (2.0 if native.steps.BLOCKS else 5.0)
    copies, perturbed = scale.draw(X, 200)
    assert perturbed
    assert {tuple(row) for row in copies != 0} == {tuple(row) for row in X != 0}
    assert len(np.unique(copies)) > 5


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("kept_bytes", [0, 2**14, 2**30])
def test_packed_sites_are_forgotten_in_time(kept_bytes):
    """Two, a few, or as many as there are places for, of 40 sites in any order."""
    random = np.random.default_rng(0)
    X, psi = random.standard_normal((40, 9, 4)), 0.1 * random.standard_normal((40, 9, 2))
    sizes, (first, second) = np.full(40, 9), random.integers(40, size=(2, 500))
    blocks = np.empty((500, 9, 9))
    address = blocks.ctypes.data + np.arange(500) * blocks.strides[0]
    native.steps.rest_blocks(0, 500, X, psi, sizes, X, psi, sizes, True, first, second, address, kept_bytes, 0.3)
    for i, j, block in zip(first, second, blocks, strict=True):
        np.testing.assert_allclose(block, kernel_left(X[i], X[j], psi[i], psi[j], 0.3), atol=1e-14)


@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("solver", ["auto", "projection"])
def test_borrowed_samples_in_either_order(order, solver):
    """With copy_X=False the rows of a node need not lie one behind the other."""
    X = np.concatenate(parts_of([20] * 6, "float64"))
    settings = {"solver": solver, "network": Network.ring(6), "random_state": 0, "max_iter": 5, "tol": 0}
    expected = DecentralizedKernelPCA(2, **settings).fit(X, nodes=np.repeat(np.arange(6), 20)).transform(X)
    model = DecentralizedKernelPCA(2, copy_X=False, **settings)
    found = model.fit(np.asarray(X, order=order), nodes=np.repeat(np.arange(6), 20)).transform(X)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("count", [20, 60])  # of so many in two dimensions most are not needed
def test_roots(count):
    points = np.random.default_rng(0).standard_normal((count, 2))
    kernel = Kernel("rbf", gamma=0.1 if count == 60 else 30.0)
    kept = Landmarks.none(points).offered(points, kernel).independent(landmarks.REDUNDANT, count)
    assert (len(kept) == count) == (count == 20)
    marks = Landmarks.of(points[kept], kernel)
    assert not np.tril(marks.root, -1).any()
    K = kernel.gram(points[kept], points[kept])
    np.testing.assert_allclose(K @ marks.root @ marks.root.T @ K, K, atol=1e-9)
    psi = marks.coordinates(kernel, points)
    np.testing.assert_allclose(psi @ psi.T, kernel.gram(points, points), atol=10 * landmarks.REDUNDANT)


@DTYPES
@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("m", [1, 8, 23, 50])
def test_kernel_rows_of_any_shape(dtype, m):
    random = np.random.default_rng(m)
    for rows, M in ((0, 3), (1, 1), (7, 30), (100, 12), (300, 5)):
        X, points = (random.standard_normal(s).astype(dtype) for s in ((rows + 3, M), (m, M)))
        out, squares = np.full((rows + 3, m), np.nan, dtype=dtype), np.full(rows + 3, np.nan, dtype=dtype)
        here = slice(2, 2 + rows)
        native.steps.kernel_rows(X[here], native.steps.packed_points(points), 0.2, out[here], squares[here])
        expected = kernel_left(X[here], points, np.zeros((rows, 0)), np.zeros((m, 0)), 0.2)
        np.testing.assert_allclose(out[here], expected, atol=40 * np.finfo(dtype).eps * M)
        np.testing.assert_allclose(
            squares[here], (X[here].astype(np.float64) ** 2).sum(1), rtol=20 * np.finfo(dtype).eps
        )
        assert all(np.isnan(x[rest]).all() for x in (out, squares) for rest in (slice(2), slice(2 + rows, None)))
    with pytest.raises(ValueError, match="a row for each sample"):
        native.steps.kernel_rows(X, native.steps.packed_points(points), 0.2, out[1:], squares)


@DTYPES
@pytest.mark.usefixtures("instructions")
def test_exponentials(dtype):
    """To two units in the last place; 0 where the result would leave the range; NaN stays NaN."""
    least = -708 if dtype == "float64" else -87
    x = np.concatenate([np.linspace(least, 0, 20_001), -np.geomspace(1e-30, 1, 1000)]).astype(dtype)
    # one sample at the origin, others of one column: k(0, y) = exp(-y^2)
    y = np.sqrt(-x.astype(np.float64)).astype(dtype)
    found = exponentials(y)
    exact = np.exp(-(y * y).astype(np.float64))
    np.testing.assert_allclose(found, exact, rtol=2 * np.finfo(dtype).eps)
    assert not exponentials(np.array([np.sqrt(-2.0 * least), 1e6], dtype=dtype)).any()
    assert np.isnan(exponentials(np.array([np.nan], dtype=dtype))).all()


def exponentials(y):
    out, squares = np.empty((len(y), 1), dtype=y.dtype), np.empty(len(y), dtype=y.dtype)
    native.steps.kernel_rows(y[:, None], native.steps.packed_points(np.zeros((1, 1), dtype=y.dtype)), 1.0, out, squares)
    return out[:, 0]


@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("solver", ["auto", "projection"])
def test_blocks_with_and_without_compiled_code(monkeypatch, far, solver):
    """The same matrices by BLAS; samples far from the origin are left to it, with digits to spare."""
    parts = [x + (1e4 if far else 0) for x in parts_of([12, 40, 25, 31, 9, 33], "float64")]
    settings = {"solver": solver, "gamma": 0.05, "network": Network.ring(6), "max_iter": 5, "tol": 0}
    model = DecentralizedKernelPCA(3, random_state=0, **settings)
    compiled = model.fit_parts(parts).transform(parts[0])
    monkeypatch.setattr(native, "steps", None)
    plain = model.fit_parts(parts).transform(parts[0])
    np.testing.assert_allclose(compiled, plain, atol=1e-9)


@pytest.mark.parametrize("where", ["caller", "helper"])
def test_an_error_in_a_thread_reaches_the_caller_and_stops_the_others(where):
    caller, done, failed = get_ident(), [], Event()

    def work(chunk):
        if (get_ident() == caller) == (where == "caller"):
            failed.set()
            raise RuntimeError("no")
        done.append(chunk)
        assert failed.wait(10)

    with threadpool_limits(2, user_api="blas"), chunks.threads(1000) as count:
        assert count == 2
        with pytest.raises(RuntimeError, match="no"):
            chunks.run_chunks(work, list(range(1000)), np.zeros(1))
        before = len(done)
        chunks._pool.get().submit(int).result()  # after whatever the only helper is still at
        assert len(done) == before < 1000


@pytest.mark.parametrize("count", [1, 3, 39, 80, 8000])
def test_shares_cover_everything_once(count):
    with threadpool_limits(3, user_api="blas"), chunks.threads(1000):
        shares = chunks.guided_chunks(count)
    assert [i for share in shares for i in range(share.start, share.stop)] == list(range(count))
