"""What histories of tables are made of: operations, and which reads find their stage after each.

Each pair of an operation and a read is one row of the matrix. A read that is expected to find its
stage was stored earlier in the history. Rows are compared with Spark's own every time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle

Read = Callable[["Place"], DataFrame]
NEW, OLD = "computed", "reused"


@dataclass
class Place:
    """Where a history happens."""

    spark: SparkSession
    folder: str
    notes: dict[str, object] = field(default_factory=dict)
    """Versions that operations remember for reads."""

    def sql(self, text: str) -> DataFrame:
        return self.spark.sql(text)


@dataclass(frozen=True)
class Step:
    """One operation, and what the reads find after it."""

    what: str
    run: Callable[[Place], object]
    found: dict[str, str]
    """Read -> decision. Reads that are not named are not made."""


@dataclass(frozen=True)
class History:
    """A table from its creation on."""

    name: str
    reads: dict[str, Read]
    steps: tuple[Step, ...]

    def begun(self, steps: int | None) -> History:
        """Return this history up to a number of steps."""
        return History(self.name, self.reads, self.steps[:steps])

    def rows(self) -> list[str]:
        """Return the names of its rows of the matrix."""
        return [f"{step.what}: {read}" for step in self.steps for read in step.found]


def days(place: Place, *numbers: int, start: int = 0) -> DataFrame:
    """Four rows per day: id, day, v."""
    rows = place.spark.range(0, 4 * len(numbers), 1, 1)
    day = F.element_at(F.array(*map(F.lit, numbers)), (F.col("id") / 4).cast("int") + 1)
    return rows.select((F.col("id") + start).alias("id"), day.alias("day"), F.lit("a").alias("v"))


def dimension(place: Place) -> DataFrame:
    return place.spark.range(0, 400, 1, 1).select(F.col("id"), (F.col("id") * 10).alias("ten"))


def sql(*texts: str) -> Callable[[Place], object]:
    def run(place: Place) -> None:
        for text in texts:
            place.sql(text.format(**place.notes)).collect()

    return run


def query(text: str) -> Read:
    return lambda place: place.sql(text.format(**place.notes))


def of_table(table: str) -> dict[str, Read]:
    """The reads that every kind of table has."""
    return {
        "whole": query(f"select * from {table}"),
        "day 1": lambda p: p.spark.table(table).where("day = 1"),
        "joined": lambda p: p.spark.table(table).join(dimension(p), "id").where("day = 1"),
        "two days": query(
            f"select * from {table} where day = 1 union all select * from {table} where day = 3"
        ),
        "subquery": query(
            f"select * from {table} where day = 1 "
            f"and id > (select min(id) from {table} where day = 1)"
        ),
        "counted": lambda p: p.spark.table(table).where("day = 1").groupBy("day").count(),
    }


def append(table: str, *numbers: int, start: int) -> Callable[[Place], object]:
    return lambda p: days(p, *numbers, start=start).writeTo(table).append()


def columns(place: Place, table: str, first: int) -> None:
    """Append two rows to a table of the columns id, a, b, v."""
    rows = place.spark.range(first, first + 2, 1, 1)
    rows.selectExpr("id", "cast(id as int) + 10 a", "cast(id as int) + 20 b", "'x' v").writeTo(
        table
    ).append()


def swapped(table: str) -> tuple[str, ...]:
    """Exchange the names of the columns a and b, and bring back the order of names."""
    rename = f"alter table {table} rename column "
    names = (("a", "t"), ("b", "a"), ("t", "b"))
    return (
        *(f"{rename} {old} to {new}" for old, new in names),
        f"alter table {table} alter column a after id",
    )


def again(table: str, column: str, kind: str) -> tuple[str, str]:
    """Drop the last column and add one of the same name."""
    alter = f"alter table {table}"
    return f"{alter} drop column {column}", f"{alter} add column {column} {kind}"


def rows(df: DataFrame) -> list[str]:
    return sorted(map(str, df.collect()))


def judge(place: Place, history: History, root: str) -> dict[str, list[str]]:
    """Return what is wrong with each row of a history: "operation: read" -> sentences."""
    wrong: dict[str, list[str]] = {}
    shuffle = DurableShuffle(place.spark, root, job=history.name)
    for step in history.steps:
        print(f"{time.monotonic():.1f}", history.name, step.what, file=sys.stderr)
        step.run(place)
        for read, expected in step.found.items():
            found = wrong[f"{step.what}: {read}"] = []
            df = history.reads[read](place)
            spark = rows(df)
            if read in ("counted",):
                stored = shuffle.query(df, name="query")
            else:
                # reads of equal plans share a stage
                stored = shuffle.durable(df)
            seen = rows(stored)
            stage = shuffle.report().stages[-1]
            if stage.action != expected:
                found.append(f"{stage.action}, expected {expected}: {stage.why}")
            if seen != spark:
                found.append(f"rows {seen}, Spark's {spark}")
    return wrong
