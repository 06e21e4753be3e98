"""A nightly job over a table that gets a day each night runs that day and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark

ROWS = 300


def append_day(session: SparkSession, folder: str, day: int) -> None:
    """Write the rows of a day, in three files."""
    rows = session.range(ROWS).select((F.col("id") % 7).alias("k"), (F.col("id") * day).alias("v"))
    day_of = F.lit(day).alias("day")
    rows.repartition(3).select("*", day_of).write.partitionBy("day").mode("append").parquet(folder)


def night(session: SparkSession, folder: str, root: str, days: range) -> tuple[Any, dict[str, int]]:
    """Run the job of a night: totals per key of each day so far. Return them and the counts."""
    with DurableShuffle(session, root, job="nightly") as shuffle:
        found = []
        for day in days:
            table = session.read.parquet(folder).where(F.col("day") == day)
            by_key = shuffle.repartition(table, 2, "k", name="by_key")
            per_key = by_key.groupBy("k").agg(F.sum("v").alias("v"), F.count("*").alias("n"))
            found.append(sorted(shuffle.query(per_key).collect()))
        return found, shuffle.report().total()


@pytest.mark.parametrize(
    "nights", [5, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_a_night_runs_only_its_own_day(
    session: SparkSession, tmp_path: Path, root: str, nights: int
) -> None:
    """Rows are Spark's, each night runs the producers of one day, and reuses all others."""
    folder = str(tmp_path / "table")
    first: dict[str, int] = {}
    for number in range(1, nights + 1):
        append_day(session, folder, number)
        days = range(1, number + 1)
        found, total = night(session, folder, root, days)
        table = session.read.parquet(folder)
        for day, rows in zip(days, found, strict=True):
            per_key = table.where(F.col("day") == day).groupBy("k")
            assert rows == sorted(per_key.agg(F.sum("v"), F.count("*")).collect())
        first = first or total
        assert total["map_tasks_run"] == first["map_tasks_run"] > 0
        assert total["stages_computed"] == first["stages_computed"]
        assert total["map_tasks_reused"] == (number - 1) * first["map_tasks_run"]
