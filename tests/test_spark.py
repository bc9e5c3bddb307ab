"""examples/on_spark.py gives the local engine's answer."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

from conftest import clusters
from dekpca import DecentralizedKernelPCA
from test_examples import load

pytest.importorskip("pyspark")

X = clusters([900])[0]
NEW = pd.DataFrame(X, columns=list("abcdef"))


@pytest.mark.slow
def test_partitions_of_a_spark_frame_are_nodes(monkeypatch):
    """The DataFrame has its columns in another order than the array."""
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import spark_partition_id

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    module = load("on_spark")
    monkeypatch.setitem(sys.modules, "on_spark", module)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    try:
        spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", True)
        spark.sparkContext.addPyFile(module.__file__)
        table = pa.table({name: X[:, i] for i, name in reversed(list(enumerate("abcdef")))})
        rows = spark.createDataFrame(table)
        frame = rows.repartitionByRange(3, "a")
        cached = frame.cache().withColumn("number", spark_partition_id()).toPandas()
        parts = [part[list("abcdef")] for _, part in cached.groupby("number")]
        settings = {"gamma": 0.05, "random_state": 0, "contamination": 0.05}
        settings["landmarks"] = pd.DataFrame(X[::30], columns=list("abcdef"))  # fewer jobs
        model = module.fit(frame, DecentralizedKernelPCA(3, **settings))
        expected = DecentralizedKernelPCA(3, **settings).fit_parts(parts)
        assert model.node_sizes_.tolist() == expected.node_sizes_.tolist()
        assert len(model.node_sizes_) == 3
        np.testing.assert_allclose(model.eigenvalues_, expected.eigenvalues_, rtol=1e-9)
        assert model.offset_ == pytest.approx(expected.offset_)
        found = module.transform(rows.coalesce(1), model.node_models_[0]).toPandas().to_numpy()
        np.testing.assert_allclose(found[:, :3], expected.transform(NEW), rtol=0, atol=1e-8)
        np.testing.assert_allclose(found[:, 3], expected.reconstruction_error(NEW), rtol=0, atol=1e-8)
    finally:
        spark.stop()
