"""What a Python function opens while its rows are stored makes them good for that call alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pathspec.util import iter_tree_files
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark


def looks_at(folder: str) -> Callable[[int], int]:
    """A function that counts the files of a folder through a package that no list holds."""
    return lambda number: number + len(list(iter_tree_files(folder)))


def looks_at_series(folder: str) -> Any:
    """The same, for rows of pandas."""
    return lambda frames: (frame + len(list(iter_tree_files(folder))) for frame in frames)


CALLS: dict[str, Callable[[Any, DataFrame, str], DataFrame]] = {
    "udf": lambda s, df, folder: s.checkpoint(
        df.select(F.udf(looks_at(folder), "long")("id").alias("id"))
    ),
    "mapInPandas": lambda s, df, folder: s.repartition(
        df.mapInPandas(looks_at_series(folder), "id long"), 2, "id"
    ),
    "below Spark's exchange": lambda s, df, folder: s.checkpoint(
        df.select(F.udf(looks_at(folder), "long")("id").alias("id")).repartition(2, "id")
    ),
    "query": lambda s, df, folder: s.query(
        df.select(F.udf(looks_at(folder), "long")("id").alias("id"))
        .groupBy("id")
        .agg(F.count("*").alias("n"))
    ),
    "broadcast": lambda s, df, folder: s.checkpoint(
        df.join(F.broadcast(df.select(F.udf(looks_at(folder), "long")("id").alias("id"))), "id")
    ),
    "reducer": lambda s, df, folder: s.checkpoint(
        s.stage(
            df,
            keys="id",
            num_partitions=2,
            reduce=lambda batches: (
                pa.record_batch(
                    [pa.array([looks_at(folder)(i) for i in b.column(0).to_pylist()])], ["id"]
                )
                for b in batches
            ),
        )
    ),
}


def stages(shuffle: Any) -> list[tuple[str, str]]:
    return [(stage.action, stage.why) for stage in shuffle.report().stages]


def test_a_map_function_that_looks_into_a_folder(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """A package that no list holds looks into a folder: the rows of each run are those of that
    time, and `explain` and the report name the folder."""
    looked = tmp_path / "looked"
    looked.mkdir()
    folder = str(looked)

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = len(list(iter_tree_files(folder)))
            ids = [one + found for one in batch.column("id").to_pylist()]
            yield pa.record_batch([pa.array(ids)], names=["id"])

    def run(*, explain: bool = False) -> Any:
        shuffle = DurableShuffle(spark, root, job="tests")
        df = spark.range(3)
        if explain:
            return str(shuffle.explain.stage(df, keys="id", num_partitions=2, map=add))
        made = shuffle.stage(df, keys="id", num_partitions=2, map=add)
        return sorted(row[0] for row in made.collect()), stages(shuffle)[0]

    (looked / "a").touch()
    rows, (decision, why) = run()
    assert rows == [1, 2, 3]
    assert decision == "computed"
    assert folder in why
    (looked / "b").touch()
    assert folder in run(explain=True)
    rows, (decision, why) = run()
    assert (rows, decision) == ([2, 3, 4], "computed")
    assert folder in why


@pytest.mark.sampled(2)
@pytest.mark.parametrize("call", CALLS)
def test_functions_in_sparks_own_workers(
    spark: SparkSession, root: str, tmp_path: Path, call: str
) -> None:
    """What a UDF, a pandas function or a reducer opens in Spark's workers is told to the driver."""
    looked = tmp_path / "looked"
    looked.mkdir()

    def run() -> tuple[list[int], list[tuple[str, str]]]:
        shuffle = DurableShuffle(spark, root, job="tests")
        made = CALLS[call](shuffle, spark.range(6), str(looked))
        return sorted(row[0] for row in made.collect()), stages(shuffle)

    for count, name in enumerate(("a", "b"), 1):
        (looked / name).touch()
        rows, told = run()
        last = 6 if call == "broadcast" else 6 + count
        assert set(rows) == set(range(count, last))
        assert [why for decision, why in told if decision == "computed" and str(looked) in why], (
            told
        )


@pytest.mark.parametrize("call", ["udf", "map"])
def test_a_version_vouches_for_what_functions_open(
    spark: SparkSession, root: str, tmp_path: Path, call: str
) -> None:
    """With `version=` the second run reads the stored rows, whatever lies in the folder now."""
    looked = tmp_path / "looked"
    looked.mkdir()

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = looks_at(str(looked))(0)
            yield pa.record_batch([pa.array([found] * batch.num_rows)], names=["id"])

    for decision in ("computed", "reused"):
        (looked / decision).touch()
        shuffle = DurableShuffle(spark, root, job="tests", version="1")
        df = spark.range(3)
        if call == "map":
            made = shuffle.stage(df, keys="id", num_partitions=2, map=add)
        else:
            made = CALLS[call](shuffle, df, str(looked))
        assert min(row[0] for row in made.collect()) == 1
        assert stages(shuffle)[0][0] == decision
