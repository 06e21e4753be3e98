"""Writes over what their own query reads, by every way of PySpark: in plain Spark and in ours.

Tests and programs that run on other versions of PySpark share them.
"""

import re
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle

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
SUBQUERY = (
    "SELECT id, id AS n, CAST(id % 2 AS INT) AS p FROM range(50) "
    "WHERE id < (SELECT max(n) FROM {rows})"
)


def saved(df: DataFrame, to: dict[str, str], below: str = "") -> None:
    """Overwrite the files of a table, or of one partition."""
    df.write.format(to["format"]).mode("overwrite").save(to["path"] + below)


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
    "save over its table": lambda df, to: saved(df, to),
    "save, cached": lambda df, to: saved(df.cache(), to),
    "save, read by a subquery": lambda df, to: saved(df.sparkSession.sql(SUBQUERY, rows=df), to),
    "save as table, of its files": lambda df, to: (
        df.sparkSession.read.format(to["format"])
        .schema("id BIGINT, n BIGINT, p INT")
        .load(to.get("read_path", to["path"]))
        .selectExpr("id", "n + 1 AS n", "p")
        .write.format(to["format"])
        .mode("overwrite")
        .partitionBy("p")
        .saveAsTable(to["table"])
    ),
    "save over a partition": lambda df, to: saved(df.filter("p = 1").drop("p"), to, "/p=1"),
}
TABLES: dict[str, Callable[[DataFrame, dict[str, str]], object]] = {
    "merge": lambda df, to: df.sparkSession.sql(
        f"MERGE INTO {to['table']} d USING ({READ.format(**to)}) s ON d.id = s.id AND d.p = s.p "
        "WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT *"
    ),
    "mergeInto": lambda df, to: (
        df.alias("s")
        .mergeInto(to["table"], F.expr("s.id = {0}.id AND s.p = {0}.p".format(to["name"])))
        .whenNotMatched()
        .insertAll()
        .merge()
    ),
    "replaceWhere": lambda df, to: (
        df.filter("p = 1")
        .write.format(to["format"])
        .mode("overwrite")
        .option("replaceWhere", "p = 1")
        .saveAsTable(to["table"])
    ),
    "replaced": lambda df, to: df.writeTo(to["table"]).using(to["format"]).replace(),
    "overwrite of a part": lambda df, to: (
        df.filter("p = 1").writeTo(to["table"]).overwrite(F.col("p") == 1)
    ),
    "delete": lambda df, to: df.sparkSession.sql(f"DELETE FROM {to['table']} WHERE p = 1"),
    "update": lambda df, to: df.sparkSession.sql(f"UPDATE {to['table']} SET n = 0 WHERE p = 1"),
}
"""What only formats with a log of their own do."""
DELETES_FIRST = ("directory", *(way for way in FRAMES if re.match(r"save\b", way)))
"""Where plain Spark may delete the files before it reads them. Ours stores the rows before."""
BY_PATH = (*DELETES_FIRST, "read of its files")
OF_FILES = (*SQL, *FRAMES)
OF_TABLES = (*(way for way in OF_FILES if way not in BY_PATH), *TABLES)
Outcome = tuple[str | None, list[Any]]


def overwritten(session: SparkSession, to: dict[str, str], way: str, read: str) -> Outcome:
    """Write over a new table; return Spark's error and what is there then."""
    condition = None
    query = READS[read].format(table=to.get("read", to["table"]))
    try:
        if way in SQL:
            session.sql(SQL[way].format(**{**to, "read": query}))
        else:
            (FRAMES | TABLES)[way](session.sql(query), to)
    except PySparkException as error:
        condition = error.getCondition() or type(error).__name__
    except Py4JError as error:  # in a task
        found = re.search(r"\[([A-Z_.]+)\]", str(error))
        condition = found[1] if found else str(error)[:200]
    if "path" in to:
        session.catalog.refreshByPath(to["path"])
        files = session.read.format(to["format"]).schema("id BIGINT, n BIGINT, p INT")
        rows = files.load(to["path"])
    else:
        rows = session.table(to["table"])
    return condition, sorted(map(tuple, rows.collect()))


def outcomes(
    session: SparkSession,
    root: str,
    to: Callable[[str], dict[str, str]],
    case: tuple[str, str, str],
) -> list[Outcome]:
    """Return what plain Spark, a first run and a second one come to.

    Args:
        to: names the table of a run, which is made here: 20 rows in two partitions. If it names a
            second one to `read`, that one is made, too; `read_path` is its folder.
        case: way, query, and mode of overwriting partitions.
    """
    way, read, mode = case
    session.conf.set("spark.sql.sources.partitionOverwriteMode", mode)
    found = []
    for run in ("plain", "first", "second"):
        names = to(run)
        rows = session.range(0, 20, 1, 2).selectExpr("id", "id * 2 AS n", "CAST(id % 2 AS INT) p")
        for table in {names["table"], names.get("read", names["table"])}:
            rows.write.format(names["format"]).partitionBy("p").saveAsTable(table)
        if run == "plain":
            found.append(overwritten(session, names, way, read))
        else:
            with DurableShuffle(session, root, job="tests") as durable, durable.transparent():
                found.append(overwritten(session, names, way, read))
    return found
