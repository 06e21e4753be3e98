"""A write over what its query reads ends as in plain Spark, and never with an empty table.

Either Spark refuses it before anything is deleted, or the rows are there.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark

READ = "SELECT max(id) + 1 AS id, count(*) AS n, p FROM {table} GROUP BY p, id % 3"
JOIN = (
    "SELECT a.id, b.n, a.p FROM {table} a "
    "JOIN (SELECT p, count(*) AS n FROM {table} GROUP BY p) b USING (p)"
)
NARROW = "SELECT id, n + 1 AS n, p FROM {table} WHERE id > 3"
READS = {"grouped": READ, "joined": JOIN, "narrow": NARROW}
SQL = {
    "all": "INSERT OVERWRITE {table} {read}",
    "partitions": "INSERT OVERWRITE {table} PARTITION (p) {read}",
    "one partition": "INSERT OVERWRITE {table} PARTITION (p = 1) SELECT id, n FROM ({read})",
    "with": "WITH x AS ({read}) INSERT OVERWRITE {table} SELECT * FROM x",
    "directory": "INSERT OVERWRITE DIRECTORY '{path}' USING {format} {read}",
    "replace": "CREATE OR REPLACE TABLE {table} USING {format} AS {read}",
    "appended": "INSERT INTO {table} {read}",
}
FRAMES: dict[str, Callable[[DataFrame, dict[str, str]], object]] = {
    "insertInto": lambda df, to: df.write.insertInto(to["table"], overwrite=True),
    "insertInto, mode": lambda df, to: df.write.mode("overwrite").insertInto(to["table"]),
    "saveAsTable": lambda df, to: (
        df.write.format(to["format"]).mode("overwrite").partitionBy("p").saveAsTable(to["table"])
    ),
    "save": lambda df, to: (
        df.write.format(to["format"]).mode("overwrite").partitionBy("p").save(to["path"])
    ),
    "save, mode dynamic": lambda df, to: (
        df.write.format(to["format"])
        .option("partitionOverwriteMode", "dynamic")
        .mode("overwrite")
        .partitionBy("p")
        .save(to["path"])
    ),
    "overwritePartitions": lambda df, to: df.writeTo(to["table"]).overwritePartitions(),
    "overwrite": lambda df, to: df.writeTo(to["table"]).overwrite(F.lit(True)),
    "createOrReplace": lambda df, to: df.writeTo(to["table"]).using(to["format"]).createOrReplace(),
    "read of its files": lambda df, to: (
        df.sparkSession.read.format(to["format"])
        .load(to["path"])
        .groupBy("p")
        .agg(F.max("id").alias("id"), F.count("*").alias("n"))
        .select("id", "n", "p")
        .write.insertInto(to["table"], overwrite=True)
    ),
    "save over its table": lambda df, to: (
        df.write.format(to["format"]).mode("overwrite").save(to["path"])
    ),
}
WAYS = [*SQL, *FRAMES]
DYNAMIC = ("all", "with", "insertInto", "saveAsTable", "save")
FORMATS = ("parquet", "orc", "json", "csv")
Outcome = tuple[str | None, list[Any]]


@pytest.fixture
def database(session: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A database for the tables."""
    folder = tmp_path / "own"
    session.sql(f"CREATE DATABASE own LOCATION '{folder}'")
    yield folder
    session.sql("DROP DATABASE own CASCADE")


def overwritten(session: SparkSession, to: dict[str, str], way: str, read: str) -> Outcome:
    """Write over a new table; return Spark's error and what is there then."""
    condition = None
    try:
        if way in SQL:
            session.sql(SQL[way].format(read=read.format(**to), **to))
        else:
            FRAMES[way](session.sql(read.format(**to)), to)
    except PySparkException as error:
        condition = error.getCondition() or type(error).__name__
    session.catalog.refreshByPath(to["path"])
    rows = session.read.format(to["format"]).schema("id BIGINT, n BIGINT, p INT").load(to["path"])
    return condition, sorted(map(tuple, rows.collect()))


def make(session: SparkSession, folder: Path, name: str, format_: str) -> dict[str, str]:
    """Make a table of 20 rows in two partitions."""
    rows = session.range(0, 20, 1, 2).selectExpr("id", "id * 2 AS n", "CAST(id % 2 AS INT) AS p")
    rows.write.format(format_).partitionBy("p").saveAsTable(f"own.{name}")
    return {"table": f"own.{name}", "path": str(folder / name), "format": format_}


def check(session: SparkSession, root: str, folder: Path, case: tuple[str, str, str, str]) -> None:
    """Compare plain Spark, a first run and a second one."""
    format_, way, read, mode = case
    session.conf.set("spark.sql.sources.partitionOverwriteMode", mode)
    found: list[Outcome] = []
    for name in ("plain", "first", "second"):
        to = make(session, folder, name, format_)
        if name == "plain":
            found.append(overwritten(session, to, way, READS[read]))
        else:
            with DurableShuffle(session, root, job="tests") as durable, durable.transparent():
                found.append(overwritten(session, to, way, READS[read]))
    assert found[0][1], "the case proves nothing"
    assert found == [found[0]] * 3


@pytest.mark.parametrize(
    ("way", "mode"), [(way, "static") for way in WAYS] + [(way, "dynamic") for way in DYNAMIC]
)
def test_parquet(session: SparkSession, root: str, database: Path, way: str, mode: str) -> None:
    """Every way to write, over rows that are grouped."""
    check(session, root, database, ("parquet", way, "grouped", mode))


@pytest.mark.soak
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("way", WAYS)
def test_all(
    session: SparkSession, root: str, database: Path, format_: str, mode: str, read: str, way: str
) -> None:
    """Every way, format and kind of query."""
    check(session, root, database, (format_, way, read, mode))
