"""Helpers of the tests of plan identity."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.identity.plan.identity import PlanIdentity, identify_plan
from durable_shuffle.jobs.identity.plan.leaves import KnownRdds

ASPECTS = {"plan", "files", "rows", "settings", "functions", "stages_below", "schema"}


def identify(df: DataFrame) -> PlanIdentity:
    """Identity where no RDD is a stage of ours."""
    return identify_plan(df, KnownRdds())


def resolved(df: DataFrame) -> dict[str, str]:
    """The components of a plan that has to be recognisable."""
    identity = identify(df)
    assert identity.unresolved == ()
    assert set(identity.components) == ASPECTS
    return identity.components


def differing(one: DataFrame, two: DataFrame) -> set[str]:
    """The aspects in which two recognisable plans differ."""
    first, second = resolved(one), resolved(two)
    return {aspect for aspect in ASPECTS if first[aspect] != second[aspect]}


@contextmanager
def setting(spark: SparkSession, **values: str) -> Iterator[None]:
    """SQL settings (with __ for the dots) for the time of a block."""
    names = {key: "spark.sql." + key.replace("__", ".") for key in values}
    before = {name: spark.conf.get(name) for name in names.values() if _is_set(spark, name)}
    try:
        for key, value in values.items():
            spark.conf.set(names[key], value)
        yield
    finally:
        for name in names.values():
            if name in before:
                spark.conf.set(name, str(before[name]))
            else:
                spark.conf.unset(name)


def _is_set(spark: SparkSession, name: str) -> bool:
    return bool(spark._jsparkSession.conf().contains(name))  # type: ignore[attr-defined]


def write_table(path: Path, files: int = 2, start: int = 0) -> str:
    """A Parquet folder with columns k, j, id; file i holds ten rows from start + 10 i."""
    path.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        ids = list(range(start + 10 * i, start + 10 * i + 10))
        columns = {"k": [n % 3 for n in ids], "j": [n % 5 for n in ids], "id": ids}
        pq.write_table(pa.table(columns), path / f"part-{i}.parquet")
    return str(path)
