"""What does durability cost? `repartition` stored and read back, against Spark's own ways.

All cases end in a noop sink and take turns within one run. Bars (median of the ratios within a
round): with all 16 columns at most 1.8 of Spark's repartition, 1.2 of repartition + checkpoint,
0.95 of repartition + Parquet + read; with 5 columns 1.6, 1.1 and 0.95.
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
    16: {"spark repartition": 1.8, "spark + checkpoint": 1.2, "spark + parquet": 0.95},
    5: {"spark repartition": 1.6, "spark + checkpoint": 1.1, "spark + parquet": 0.95},
}


def noop(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


@pytest.fixture(scope="module")
def lineitem(bench_spark: SparkSession, measuring: bool, cache: Path) -> DataFrame:
    files = generate(cache, 1.0 if measuring else 0.01)
    return bench_spark.read.parquet(files.lineitem)


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

    def drop(batches: Any) -> Any:  # in here, so that workers need not import this file
        for _ in batches:
            pass
        return iter(())

    def dropped() -> None:
        noop(source.mapInArrow(drop, "x int"))

    stored = shuffle.repartition(source, PARTITIONS, "l_orderkey")
    assert stored.exceptAll(source).isEmpty()
    assert stored.count() == source.count()
    shuffle.release()

    cases: dict[str, Callable[[], None]] = {
        "spark repartition": native,
        "durable": durable,
        "spark + checkpoint": checkpointed,
        "spark + parquet": parquet,
        "rows to Python, dropped": dropped,
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
