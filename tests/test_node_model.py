from __future__ import annotations

import io
import json
import re
import warnings
import zipfile

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge

from conftest import clusters
from dekpca import DecentralizedKernelPCA, Network, NodeModel, Projection, chunks
from dekpca.model_file import ModelFileError
from dekpca.solvers.projection import EXPANSIONS

PARTS = clusters([30, 12, 25, 1, 20])
NEW = clusters([17], seed=9)[0]


def fitted(**params):
    """By the projection solver, unless they say otherwise: its models hold samples."""
    settings = {"solver": Projection(), "gamma": 0.05, "network": Network.ring(5), "random_state": 0, **params}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return DecentralizedKernelPCA(3, **settings).fit_parts(PARTS)


@pytest.mark.parametrize(
    "params",
    [
        *({"solver": Projection(expansion=expansion)} for expansion in EXPANSIONS),
        *({"solver": Projection(expansion=expansion), "standardize": True} for expansion in EXPANSIONS),
        *({"solver": Projection(expansion=expansion, centering="local", init="random")} for expansion in EXPANSIONS),
        *({"solver": Projection(expansion=expansion, centering=None)} for expansion in EXPANSIONS),
        {"kernel": "poly", "degree": 2, "normalize": True},
        {"solver": "auto"},
        {"solver": "auto", "share_rows": False},
        {"solver": "auto", "kernel": "poly", "degree": 2},
        {"solver": "auto", "landmarks": 20, "standardize": True},
        {"solver": "auto", "landmarks": "random-features", "max_landmarks": 20},
    ],
    ids=str,
)
def test_round_trip(tmp_path, params):
    model = fitted(**params)
    for node in (model.node_models_[0], model.node_models_[3]):
        node.save(tmp_path / "node.npz")
        again = NodeModel.load(tmp_path / "node.npz")
        assert (again.name, again.expansion, again.centering) == (node.name, node.expansion, node.centering)
        np.testing.assert_array_equal(again.eigenvalues_, node.eigenvalues_)
        assert again.accuracy == node.accuracy
        np.testing.assert_array_equal(again.accuracy_, model.accuracy_)
        for attribute in ("span_accuracy_", "span_accuracy_bound_", "mixed_components_"):
            np.testing.assert_array_equal(getattr(again, attribute), getattr(model, attribute))
        assert again.contents == node.contents
        for held in node.functions:
            np.testing.assert_allclose(again.transform(NEW, held), node.transform(NEW, held), rtol=1e-12, atol=1e-14)


def test_expansions_hold_only_what_they_need():
    sizes = {"landmarks": 8, "node": 8 + 25, "neighborhood": 8 + 25 + 12 + 1}
    for expansion, points in sizes.items():
        node = fitted(solver=Projection(expansion=expansion)).node_models_[2]
        assert sum(len(p) for p in node.functions[expansion].points) == points
        assert set(node.functions) == {e for e in sizes if sizes[e] <= points}
        if expansion == "landmarks":
            with pytest.raises(ValueError, match="is not in this model"):
                node.transform(NEW, "node")


def test_models_of_the_default_hold_landmarks_only():
    """The same at every node."""
    model = fitted(solver="auto")
    values = model.node_models_[0].transform(NEW)
    for node in model.node_models_:
        assert (set(node.functions), node.expansion) == ({"landmarks"}, "landmarks")
        assert sum(len(p) for p in node.function().points) == sum(held.rows for held in node.contents)
        assert sum(held.rows for held in node.contents) == model.n_landmarks_
        np.testing.assert_array_equal(node.transform(NEW), values)
    with pytest.raises(ValueError, match="expansion='node' is not in this model, which holds landmarks"):
        node.transform(NEW, "node")


def test_values_on_own_samples_are_those_of_the_algorithm():
    """Folding landmark coordinates and means into coefficients changes nothing: P_j u has u's values on X_j."""
    for asked in (
        {},
        {"centering": "local", "init": "random"},
        {"centering": None, "n_landmarks": 0, "init": "random"},
    ):
        model = fitted(solver=Projection(tol=1e-6, max_iter=3000, **asked))
        assert model.n_iter_ < 3000
        for node, part in zip(model.node_models_, PARTS, strict=True):
            through_node, through_neighborhood = (node.transform(part, e) for e in ("node", "neighborhood"))
            np.testing.assert_allclose(through_node, through_neighborhood, atol=1e-3 * np.sqrt(model.eigenvalues_[0]))


@pytest.mark.parametrize("params", [{}, {"solver": "auto"}], ids=str)
def test_transform_in_tiles_is_transform(monkeypatch, params):
    node = fitted(**params).node_models_[0]
    many = np.tile(NEW, (40, 1))
    whole = node.transform(many)
    monkeypatch.setattr(chunks, "CACHE_BYTES", 1)
    np.testing.assert_allclose(node.transform(many), whole, rtol=1e-12, atol=1e-14)


def test_callable_kernels_are_named_not_stored(tmp_path):
    def dot(A, B, c):
        return A @ B.T + c

    node = fitted(kernel=dot, kernel_params={"c": 1.0}).node_models_[0]
    node.save(tmp_path / "node.npz")
    with pytest.raises(ValueError, match="Python function dot"):
        NodeModel.load(tmp_path / "node.npz")
    again = NodeModel.load(tmp_path / "node.npz", kernel=dot, kernel_params={"c": 1.0})
    np.testing.assert_allclose(again.transform(NEW), node.transform(NEW))


def test_files_hold_no_pickle_and_damage_is_noticed(tmp_path):
    path = tmp_path / "node.npz"
    fitted().node_models_[0].save(path)
    with np.load(path, allow_pickle=False) as file:
        content = {key: file[key] for key in file.files}
    with pytest.raises(FileNotFoundError):
        NodeModel.load(tmp_path / "none.npz")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match="not a node model"):
        NodeModel.load(path)
    np.savez(path, **{k: v for k, v in content.items() if k != "header"})
    with pytest.raises(ModelFileError, match="not a node model: header is missing"):
        NodeModel.load(path)
    text = str(content["header"])
    for change, says in (
        ({"header": np.array(text.replace('"version": ', '"version": 9'))}, "version 9.*, this dekpca reads version"),
        ({"header": np.array(text.replace('"contents"', '"content"'))}, "contents in the header is None"),
        ({"header": np.array(text.replace('"rbf"', '"gauss"'))}, "unknown kernel"),
        ({"header": np.array(re.sub(r'"gamma": [0-9.e-]+', '"gamma": NaN', text))}, "NaN in the header"),
        ({"header": np.array(re.sub(r'"gamma": [0-9.e-]+', '"gamma": 1e999', text))}, "gamma=inf"),
        ({"header": np.array(text.replace('"name": "0"', '"name": "\\u001b[31m"'))}, "name in the header is no name"),
        ({"points": content["points"][:-1]}, "points (has .* bytes|is float64)"),
        ({"points": np.where(content["points"] > 1, np.nan, content["points"])}, "points has NaN or infinity"),
        ({"node_offset": np.zeros(9)}, "node_offset (has .* bytes|is float64)"),
    ):
        np.savez(path, **(content | change))
        with pytest.raises(ModelFileError, match=f"not a node model: .*{says}"):
            NodeModel.load(path)
    np.savez(path, **{k: v for k, v in content.items() if k != "node_offset"})
    with pytest.raises(ModelFileError, match="node_offset is missing"):
        NodeModel.load(path)


def test_damage_of_an_accuracy_is_noticed(tmp_path):
    path = tmp_path / "node.npz"
    fitted(solver="auto").node_models_[0].save(path)
    with np.load(path, allow_pickle=False) as file:
        content = {key: file[key] for key in file.files}
    text = str(content["header"])
    header = json.loads(text)

    def with_accuracy(**changes):
        return {"header": np.array(json.dumps({**header, "accuracy": {**header["accuracy"], **changes}}))}

    for change, says in (
        (with_accuracy(errors=[0.0]), "an accuracy of 1 components, where there are 3"),
        (with_accuracy(errors=[0.0, 0.0, 1.5]), "an accuracy that is not between 0 and 1"),
        (with_accuracy(errors=[0.0, 0.0, "x"]), "accuracy='x'"),
        (with_accuracy(mixed=[[1, 2, 9]]), "mixed components that are not among the 3"),
        (with_accuracy(mixed=[1]), "mixed components that are not among the 3"),
        (with_accuracy(error=None), "error=None"),
        (with_accuracy(bound=-1), "an accuracy that is not between 0 and 1"),
        (with_accuracy(method="\x1b[31m"), "method in the header is no"),
    ):
        np.savez(path, **(content | change))
        with pytest.raises(ModelFileError, match=f"not a node model: .*{says}"):
            NodeModel.load(path)


def test_a_pickle_in_disguise_is_refused(tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "evil.npz", "w") as archive:
        archive.writestr("header.npy", buffer.getvalue())
    with pytest.raises(ValueError, match="not a node model"):
        NodeModel.load(tmp_path / "evil.npz")


def test_repr_and_lists():
    node = fitted().node_models_[1]
    assert repr(node) == (
        "NodeModel('1', 3 components over 8 landmarks (means of at least 5 rows of the network), 12 samples of node 1, "
        "30 samples of node 0, 25 samples of node 2)"
    )
    np.testing.assert_allclose(node.transform(NEW.tolist()), node.transform(NEW))
    means, rows = "landmarks (means of at least 5 rows of the network)", "landmarks (rows of the nodes)"
    several, all_rows = fitted(solver="auto", landmarks=60), fitted(solver="auto")
    pattern = rf"NodeModel\('1', 3 components over \d+ {re.escape(means)}, \d+ {re.escape(rows)}\)"
    assert re.fullmatch(pattern, repr(several.node_models_[1]))
    assert repr(all_rows.node_models_[1]) == f"NodeModel('1', 3 components over {all_rows.node_sizes_.sum()} {rows})"


def test_numpy_scalars_are_saved(tmp_path):
    node = fitted(kernel="poly", degree=np.int64(2), coef0=np.float32(1)).node_models_[0]
    node.save(tmp_path / "node.npz")
    np.testing.assert_allclose(NodeModel.load(tmp_path / "node.npz").transform(NEW), node.transform(NEW))


def test_what_is_saved_can_be_loaded(tmp_path):
    """Whatever columns and nodes are called; else the error comes when the model is saved, while it is still there."""
    import pandas as pd

    X = pd.DataFrame(NEW[:, :3], columns=["weight\u00a0kg", "line\nbreak", "tab\there"])
    model = DecentralizedKernelPCA(1, network=1).fit(X, nodes=["os\u00a0lo"] * len(X))
    model.node_models_[0].save(tmp_path / "node.npz")
    assert NodeModel.load(tmp_path / "node.npz").feature_names_in_.tolist() == X.columns.tolist()
    model = DecentralizedKernelPCA(1, network=1).fit(X, nodes=["os\nlo"] * len(X))
    with pytest.raises(ValueError, match=r"its model could not be loaded again: what in the header is no name"):
        model.node_models_[0].save(tmp_path / "other.npz")
    assert not (tmp_path / "other.npz").exists()
    with pytest.raises(ValueError, match=r"column '\\x1b\[31m': a name has at most 1000 characters, and no control"):
        DecentralizedKernelPCA(1).fit(X.set_axis(["a", "b", "\x1b[31m"], axis=1))


def test_transform_takes_frames_and_refuses_nan():
    import pandas as pd

    node = fitted().node_models_[0]
    np.testing.assert_allclose(node.transform(pd.DataFrame(NEW)), node.transform(NEW))
    with pytest.raises(
        ValueError, match=r"node 0, X: column 0 has no value \(NaN\) in row 1; .*: 1 of 17; correct or remove them$"
    ):
        node.transform(np.where(np.arange(len(NEW))[:, None] == 1, np.nan, NEW))


@pytest.mark.parametrize("alpha", [0.1, 2.0])
def test_preimages_are_kernel_ridge_regression(alpha):
    """Against scikit-learn's, from the points that the model holds."""
    for node in (
        fitted().node_models_[0],
        fitted(solver="auto").node_models_[2],
        fitted(solver="auto", landmarks=15).node_models_[1],
    ):
        points = np.concatenate(node.function().points)
        values = node.transform(points)
        ridge = KernelRidge(alpha=alpha, kernel="rbf", gamma=1 / values.var(axis=0).sum())
        ridge.fit(values, points - points.mean(axis=0))
        found = node.inverse_transform(node.transform(NEW), alpha)
        np.testing.assert_allclose(
            found, ridge.predict(node.transform(NEW)) + points.mean(axis=0), rtol=1e-8, atol=1e-8
        )


def test_preimages_by_default_have_a_ridge_of_a_thousandth_of_the_points():
    node = fitted().node_models_[0]
    Z, points = node.transform(NEW), sum(held.rows for held in node.contents)
    np.testing.assert_array_equal(node.inverse_transform(Z), node.inverse_transform(Z, 1e-3 * points))


def test_preimages_of_a_linear_kernel_are_near_the_points():
    """As many components as columns carry everything; a small ridge gives it back."""
    solver = Projection(init="random", n_landmarks=30)
    model = DecentralizedKernelPCA(
        6, kernel="linear", solver=solver, network=Network.ring(5), random_state=0
    ).fit_parts(PARTS)
    back = model.inverse_transform(model.transform(PARTS[0]), alpha=1e-6)
    assert np.linalg.norm(back - PARTS[0]) < 0.02 * np.linalg.norm(PARTS[0])


def test_preimages_refuse_what_cannot_be():
    node = fitted().node_models_[0]
    for call, says in (
        (lambda: node.inverse_transform(np.ones((2, 4))), "node 0: Z has shape .* rows of 3 columns"),
        (
            lambda: node.inverse_transform(np.full((2, 3), np.nan)),
            "node 0, Z: column 0 has no value \\(NaN\\) in row 0",
        ),
        (lambda: node.inverse_transform(np.ones((2, 3)), alpha=0), "alpha=0; a ridge"),
        (lambda: node.inverse_transform(np.ones((2, 3)), alpha="a"), "alpha='a'; a ridge"),
        (lambda: node.transform(np.ones((0, 6))), "X has no rows"),
        (
            lambda: fitted(solver="auto", landmarks="random-features").inverse_transform(np.ones((2, 3))),
            "random features hold no points",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            call()
