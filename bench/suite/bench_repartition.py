"""What does durability cost? Rows stored and read back, against Spark's own ways.

All cases end in a noop sink and take turns within one run. Bars are medians of the ratios within a
round. The storage is a local folder.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.bench.tpch.data import generate

PARTITIONS = 32
FIVE = ("l_orderkey", "l_partkey", "l_quantity", "l_extendedprice", "l_shipdate")
BARS = {
    16: {"spark repartition": 1.10, "spark + checkpoint": 1.2, "spark + parquet": 0.95},
    5: {"spark repartition": 1.20, "spark + checkpoint": 1.1, "spark + parquet": 0.95},
}
KEPT_BARS = {"checkpoint": 0.6, "parquet": 0.5}
"""Of `durable(df)`, which keeps the partitions."""


def noop(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


@pytest.fixture(scope="module")
def lineitem(bench_spark: SparkSession, measuring: bool, cache: Path) -> DataFrame:
    files = generate(cache, 1.0 if measuring else 0.01)
    return bench_spark.read.parquet(files.lineitem)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(0)
@pytest.mark.parametrize("columns", [pytest.param(16, marks=pytest.mark.long_bench), 5])
def test_repartition_against_spark(
    benchmark: Any,
    bench_spark: SparkSession,
    lineitem: DataFrame,
    columns: int,
    rounds: int,
    measuring: bool,
    tmp_path: Path,
) -> None:
    """Rows are equal; under --benchmark-enable the ratios are within the bars."""
    source = lineitem if columns == 16 else lineitem.select(*FIVE)
    shuffle = DurableShuffle(bench_spark, str(tmp_path / "durable"), job="bench", reuse="never")

    def durable() -> None:
        noop(shuffle.repartition(source, PARTITIONS, "l_orderkey"))
        shuffle.release()

    def native() -> None:
        noop(source.repartition(PARTITIONS, "l_orderkey"))

    def checkpointed() -> None:
        noop(source.repartition(PARTITIONS, "l_orderkey").checkpoint())

    def parquet() -> None:
        path = str(tmp_path / "parquet")
        source.repartition(PARTITIONS, "l_orderkey").write.mode("overwrite").parquet(path)
        noop(bench_spark.read.parquet(path))
        shutil.rmtree(path)

    in_python = DurableShuffle(
        bench_spark, str(tmp_path / "python"), job="bench", reuse="never", rows_in="python"
    )

    def through_python() -> None:
        noop(in_python.repartition(source, PARTITIONS, "l_orderkey"))
        in_python.release()

    stored = shuffle.repartition(source, PARTITIONS, "l_orderkey")
    assert stored.exceptAll(source).isEmpty()
    assert stored.count() == source.count()
    shuffle.release()

    cases: dict[str, Callable[[], None]] = {
        "spark repartition": native,
        "durable": durable,
        "spark + checkpoint": checkpointed,
        "spark + parquet": parquet,
        "durable, rows in Python": through_python,
    }
    timings = benchmark.pedantic(
        interleave, (cases,), {"rounds": rounds, "warmups": int(measuring)}, rounds=1
    )
    ratios = {base: timings.ratio("durable", base) for base in BARS[columns]}
    benchmark.extra_info.update(
        ratios=ratios, seconds=dict(timings.seconds), table=timings.table("spark repartition")
    )
    print(f"\n{columns} columns\n{timings.table('spark repartition')}")
    for base, bar in BARS[columns].items():
        print(f"durable / {base}: {ratios[base]:.2f}, bar {bar}")
        assert not measuring or ratios[base] <= bar


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(0)
@pytest.mark.long_bench
def test_durable_against_checkpoint(
    benchmark: Any,
    bench_spark: SparkSession,
    lineitem: DataFrame,
    rounds: int,
    measuring: bool,
    tmp_path: Path,
) -> None:
    """Rows are equal; under --benchmark-enable the ratios are within the bars."""
    shuffle = DurableShuffle(bench_spark, str(tmp_path / "durable"), job="bench", reuse="never")

    def durable() -> None:
        noop(shuffle.durable(lineitem))
        shuffle.release()

    def parquet() -> None:
        path = str(tmp_path / "parquet")
        lineitem.write.mode("overwrite").parquet(path)
        noop(bench_spark.read.parquet(path))
        shutil.rmtree(path)

    assert shuffle.durable(lineitem).exceptAll(lineitem).isEmpty()
    shuffle.release()
    cases: dict[str, Callable[[], None]] = {
        "checkpoint": lambda: noop(lineitem.checkpoint()),
        "durable": durable,
        "parquet": parquet,
    }
    timings = benchmark.pedantic(
        interleave, (cases,), {"rounds": rounds, "warmups": int(measuring)}, rounds=1
    )
    ratios = {base: timings.ratio("durable", base) for base in KEPT_BARS}
    benchmark.extra_info.update(ratios=ratios, seconds=dict(timings.seconds))
    print(f"\n{timings.table('checkpoint')}")
    for base, bar in KEPT_BARS.items():
        print(f"durable / {base}: {ratios[base]:.2f}, bar {bar}")
        assert not measuring or ratios[base] <= bar
