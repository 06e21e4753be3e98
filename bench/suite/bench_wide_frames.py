"""A table of features: `repartition` of frames of 5 to 5,000 columns, beside Spark's own shuffle.

All frames have as many cells. The rounds before the measured ones let the JVM compile its code.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import Place
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.bench.interleaved import interleave

pytestmark = [pytest.mark.spark, pytest.mark.timeout(0), pytest.mark.long_bench]

CELLS = 30_000_000
PARTITIONS = 4
BAR = 1.5
CASES = [(5, "long"), (300, "long"), (1500, "long"), (1500, "string"), (5000, "long")]


def wide(spark: SparkSession, columns: int, kind: str, cells: int, folder: Path) -> DataFrame:
    """Return a frame of small numbers, or of texts of 2 to 4 letters, that is read from files."""
    value = "id * {i} % 1000" if kind == "long" else "concat('v', id * {i} % 1000)"
    made = (f"{value.format(i=i)} AS c{i}" for i in range(1, columns))
    spark.range(0, max(1, cells // columns), 1, 4).selectExpr("id", *made).write.parquet(
        str(folder)
    )
    return spark.read.parquet(str(folder))


def noop(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


@pytest.mark.soak
@pytest.mark.parametrize(("columns", "kind"), CASES)
def test_wide_frames(
    benchmark: Any,
    bench_spark: SparkSession,
    tmp_path: Path,
    place: Place,
    columns: int,
    kind: str,
    rounds: int,
    measuring: bool,
) -> None:
    """Stored and read back, within the bar of Spark's own."""
    source = wide(bench_spark, columns, kind, CELLS if measuring else 5 * columns, tmp_path / "in")

    def stored() -> None:
        root = place.new()
        with root.open(bench_spark) as shuffle:
            noop(shuffle.repartition(source, PARTITIONS, "id"))
        root.clear()

    cases: dict[str, Callable[[], None]] = {
        "spark": lambda: noop(source.repartition(PARTITIONS, "id")),
        "stored": stored,
    }
    timings = benchmark.pedantic(
        interleave, (cases,), {"rounds": rounds, "warmups": 3 * int(measuring)}, rounds=1
    )
    benchmark.extra_info.update(ratio=timings.ratio("stored", "spark"), bar=BAR)
    print(f"\n{columns} columns of type {kind}\n{timings.table('spark')}")
    assert not measuring or timings.ratio("stored", "spark") <= BAR
