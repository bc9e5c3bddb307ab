# %% [markdown]
# # Kernel PCA of a Spark DataFrame
#
# The partitions are the nodes, and their rows stay on the executors. The driver runs the program of a site without
# rows. For the total of each sum it runs one Spark job: `mapInArrow` computes the term of each partition from its rows
# and the transcript (what all nodes were told so far), and `treeReduce` adds the terms. A lost executor is no special
# case: Spark computes the term again elsewhere. Needs `pip install pyspark` and Java 17.

# %%
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from dekpca import DecentralizedKernelPCA, NodeModel
from dekpca.data.columns import Features, Samples
from dekpca.data.owners import make_network
from dekpca.engines import local
from dekpca.engines.workers import ClientDelivery, Program
from dekpca.parameters import check, seed_of, settings_of
from dekpca.plan import Outcome, Plan
from dekpca.results import run_plan
from dekpca.settings import settle

Batches = Iterator[pa.RecordBatch]
PARTITION, ROWS = "partition", "rows"
# %% [markdown]
# ## At the executors
#
# Functions of the batches of one partition. `Program` replays the transcript without computing an earlier term.


# %%
def matrix(batches: Batches, features: Features) -> np.ndarray:
    """The rows of a partition, with columns in dekpca's order."""
    table = pa.Table.from_batches(list(batches))
    columns = [np.asarray(column, dtype=np.float64) for column in table.columns]
    return features.arrange(
        Samples(np.stack(columns, axis=1), tuple(table.column_names)), "a partition", "the DataFrame"
    )


def count(batches: Batches) -> Batches:
    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch({PARTITION: [TaskContext.get().partitionId()], ROWS: [rows]})


def term(batches: Batches, about: Any, node_of: dict[int, int], features: Features, told: Sequence[Any]) -> Batches:
    """The term of the sum that follows after all this was told, as bytes."""
    node = node_of.get(TaskContext.get().partitionId())
    if node is not None:  # else there are no rows
        value = Program([matrix(batches, features)], about.value, np.array([node])).term([t.value for t in told])
        yield pa.record_batch({"term": [value.tobytes()]})


def add(a: bytes, b: bytes) -> bytes:
    return (np.frombuffer(a) + np.frombuffer(b)).tobytes()


# %% [markdown]
# ## At the driver


# %%
class SparkDelivery(ClientDelivery):
    """Asks the executors for the total of every sum. What was told is broadcast once."""

    def __init__(self, plan: Plan, frame: DataFrame, node_of: dict[int, int]):
        super().__init__(plan)
        self.frame, self.node_of, self.features = frame, node_of, plan.features
        self.about = self.keep((plan.network, plan.sizes, plan.options))

    def keep(self, told: Any) -> Any:
        return self.frame.sparkSession.sparkContext.broadcast(told)

    def workers_total(self, kind: str, transcript: Sequence[Any]) -> np.ndarray:
        about, node_of, features, told = self.about, self.node_of, self.features, list(transcript)
        terms = self.frame.mapInArrow(lambda batches: term(batches, about, node_of, features, told), "term binary")
        return np.frombuffer(terms.rdd.map(lambda row: bytes(row["term"])).treeReduce(add))


def fit(frame: DataFrame, parameters: DecentralizedKernelPCA) -> DecentralizedKernelPCA:
    """Kernel PCA of all rows of a DataFrame with columns of numbers; the partitions that have rows are the nodes."""
    check(parameters)
    frame = frame.cache()
    sizes = frame.mapInArrow(count, f"{PARTITION} long, {ROWS} long").collect()
    there = sorted((row[PARTITION], row[ROWS]) for row in sizes if row[ROWS])
    features, seed = Features(len(frame.columns), tuple(frame.columns)), seed_of(parameters)
    network, rows = make_network(parameters.network, len(there), seed), np.array([n for _, n in there])
    options = settle(settings_of(parameters, features, seed), network, rows)
    if options.projection is not None or options.sealed:
        raise ValueError("Projection and privacy: executors of one cluster only add terms; leave them out")
    parts = [np.zeros((0, features.count))] * len(there)
    plan = Plan(network, rows, parts, options, np.arange(len(network)), features)
    node_of = {number: j for j, (number, _) in enumerate(there)}

    def run(plan: Plan, watch: Any = None) -> Outcome:
        if options.exact:  # one partition of few rows
            return local.run(replace(plan, parts=[matrix(iter(frame.toArrow().to_batches()), features)]), watch)
        delivery = SparkDelivery(plan, frame, node_of)
        return local.drive([delivery.site], options, delivery, watch)

    return DecentralizedKernelPCA.from_result(run_plan(plan, run, parameters))


def transform(frame: DataFrame, node: NodeModel) -> DataFrame:
    """A lazy DataFrame: component values and the reconstruction error of each row."""
    names = [f"component{i}" for i in range(node.n_components)] + ["error"]

    def some(batches: Batches) -> Batches:
        for batch in batches:
            values, error, _ = node.scores(batch.to_pandas())
            yield pa.record_batch(dict(zip(names, [*values.T, error], strict=True)))

    return frame.mapInArrow(some, ", ".join(f"{name} double" for name in names))


def main(rows: int = 20_000, partitions: int = 4) -> float:
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "PYSPARK_PYTHON": sys.executable,
    }  # of the executors; this machine has all of them
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 6)) * np.geomspace(3, 0.3, 6)
    spark = SparkSession.builder.master(f"local[{min(partitions, 2)}]").config("spark.ui.enabled", False).getOrCreate()
    try:
        spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", True)
        frame = spark.createDataFrame(pa.table({f"x{i}": column for i, column in enumerate(X.T)})).repartition(
            partitions
        )
        model = fit(frame, DecentralizedKernelPCA(3, random_state=0, contamination=0.01))
        print(
            f"{model.n_landmarks_} landmarks, eigenvalues {model.eigenvalues_.round(2)}, error at most {1 - model.span_accuracy_bound_**2:.1e}"
        )
        beyond = transform(frame, model.node_models_[0]).where(f"error > {-model.offset_!r}").count() / rows
        print(f"{beyond:.2%} of the rows are beyond the threshold")
        return beyond
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
