"""The compiled steps: what they are made of, and that they compute what NumPy computes without them."""

import shutil

import numpy as np
import pytest

from dekpca import DecentralizedKernelPCA, Network
from dekpca.core import native, spectrum
from dekpca.options import settle

pytestmark = pytest.mark.skipif(
    native.steps is None and shutil.which("cc") is None,
    reason="there is no C compiler here to build the compiled steps with",
)


def test_they_were_built():
    assert native.steps is not None, "there is a C compiler, but dekpca.core._steps was not built"
    assert len(native.available) == 1 + native.steps.instructions(), native.problem


@pytest.fixture(params=native.LEVELS)
def instructions(request, monkeypatch):
    if request.param not in native.available:
        pytest.skip("this machine has no such instructions")
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
    "no landmarks": ({"n_landmarks": 0, "init": "local", "centering": "local"}, [30] * 6, Network.ring(6, 4)),
    "many columns": ({"n_components": 5, "n_oversamples": 6}, [40] * 6, Network.ring(6)),
    "penalties on a schedule": ({"rho": [(0, 60.0, 40.0), (6, 90.0, 60.0)]}, [30] * 6, Network.ring(6)),
    "more columns than tiles have": ({"n_components": 9, "n_oversamples": 26}, [60] * 4, Network.ring(4)),
    "nodes of one sample": ({"n_components": 2}, [1, 30, 1, 25, 30], Network.ring(5)),
    "local means": ({"centering": "local"}, [30] * 6, Network.ring(6)),
    "a linear kernel": ({"kernel": "linear"}, [30] * 6, Network.ring(6)),  # rest matrices are singular
}


@pytest.mark.usefixtures("instructions")
@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_numpy(case, dtype, monkeypatch):
    options, sizes, network = CASES[case]
    parts = parts_of(sizes, dtype)

    def fit():
        model = DecentralizedKernelPCA(**{"n_components": 4, "random_state": 0, "max_iter": 20, "tol": 0, **options})
        return model.set_params(network=network).fit_parts(parts)

    compiled = fit()
    monkeypatch.setattr(native, "steps", None)
    plain = fit()
    tolerance = 1e-8 if dtype == "float64" else 2e-3
    scale = plain.eigenvalues_[0]
    np.testing.assert_allclose(compiled.eigenvalues_, plain.eigenvalues_, atol=tolerance * scale)
    for name in ("residual", "change", "since_check", "objective"):
        np.testing.assert_allclose(
            compiled.history_[name], plain.history_[name], rtol=100 * tolerance, atol=10 * tolerance, err_msg=name
        )


@pytest.mark.filterwarnings("ignore:not converged")
def test_the_steps_are_used(monkeypatch):
    """Else the comparison above would compare nothing."""
    from dekpca.core.fused import Steps

    called = []
    step = Steps.w_step
    monkeypatch.setattr(Steps, "w_step", lambda *a: called.append(1) or step(*a))
    DecentralizedKernelPCA(2, network=Network.ring(4), max_iter=5, tol=0).fit_parts(parts_of([20] * 4, "float64"))
    assert len(called) == 5


@pytest.mark.usefixtures("instructions")
@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n_components", [1, 3, 4])
def test_a_resumed_run_has_the_same_bits(dtype, n_components):
    """Also in what is measured of it: the verdict of a check follows from that."""
    from dekpca.engines import local

    network, parts = Network.ring(4), parts_of([50] * 4, dtype)
    model = DecentralizedKernelPCA(n_components, network=network, max_iter=20, tol=0, random_state=0)
    options = settle(model._options(6, 0), network, np.full(4, 50), "auto", "auto")
    kept = []

    def keep(blocks, checkpoints):
        if checkpoints[0].state.iteration == 13:
            kept.extend((c.known, c.state) for c in checkpoints)

    (whole,) = local.run(parts, network, options, keep).answers
    (resumed,) = local.run(parts, network, options, resume=kept).answers
    assert np.array_equal(whole.w, resumed.w)
    for name, numbers in whole.history.items():
        assert np.array_equal(numbers, resumed.history[name]), name


def test_a_module_of_another_version_is_not_used(monkeypatch):
    """Its code would write where the arrays of this one end."""
    monkeypatch.setattr(native, "LAYOUT", native.LAYOUT + 1)
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
