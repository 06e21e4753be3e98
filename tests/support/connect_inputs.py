"""What a plan on Spark Connect reads, step by step: each step changes something, or nothing.

A step makes its frame anew. Its decision and its rows are compared with what must be found and with
Spark's own rows of that moment.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.engine.connect import ConnectEngine

NS = 1_000_000_000


@dataclass
class Place:
    """Where the steps work."""

    spark: SparkSession
    shuffle: DurableShuffle
    folder: Path
    found: dict[str, str] = field(default_factory=dict)
    """Step -> what is wrong with it; "" if nothing is."""

    def step(
        self,
        what: str,
        make: Callable[[], DataFrame],
        expected: str,
        name: str,
        same_rows: Callable[[], DataFrame] | None = None,
    ) -> None:
        """Store a frame and judge the decision and the rows.

        Args:
            expected: the decision.
            same_rows: makes a frame with the rows of Spark, if `make` does not.
        """
        rows = _rows(self.shuffle.durable(make(), name=name))
        stage = self.shuffle.report().stages[-1]
        spark = _rows((same_rows or make)())
        wrong = []
        if stage.action != expected or "cannot be recognised" in stage.why:
            wrong.append(f"{stage.action}, expected {expected}: {stage.why}")
        if rows != spark:
            wrong.append(f"rows {rows}, Spark's {spark}")
        self.note(f"{name}: {what}", *wrong)

    def unknown(self, what: str, make: Callable[[], DataFrame], reason: str) -> None:
        """Judge why a frame cannot be recognised; nothing is stored."""
        why = self.shuffle.explain.checkpoint(make(), name="unknown").why
        known = "cannot be recognised" in why and reason in why
        self.note(f"unknown: {what}", *([] if known else [f"the reason is {why}"]))

    def note(self, step: str, *wrong: str) -> None:
        """Note what is wrong with a step."""
        assert step not in self.found, f"{step} twice"
        self.found[step] = "; ".join(wrong)

    def file(self, name: str, text: str, seconds: int = 1) -> Path:
        """Write a file with a time."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, ns=((1_600_000_000 + seconds) * NS,) * 2)
        return path


def _rows(df: DataFrame) -> list[str]:
    return sorted(map(str, df.collect()))


def all_steps(spark: SparkSession, folder: Path) -> dict[str, str]:
    """Return what is wrong with each step."""
    folder.mkdir()
    shuffle = DurableShuffle(spark, f"{folder}/root", job="inputs")
    place = Place(spark, shuffle, folder)
    for part in (files, subqueries, tables, views, functions, hidden, moving, while_stored):
        part(place)
    return place.found


def files(p: Place) -> None:
    """A folder that grows, shrinks and changes in place; names that Spark writes in a URL."""

    def read() -> DataFrame:
        return p.spark.read.schema("a string").csv(f"{p.folder}/in put%41")

    p.file("in put%41/day=1/a b.csv", "1\n")
    p.step("first", read, "computed", "files")
    p.step("nothing changed", read, "reused", "files")
    p.file("in put%41/day=2/b.csv", "2\n")
    p.step("a file more", read, "computed", "files")
    p.step("nothing changed again", read, "reused", "files")
    p.file("in put%41/day=2/b.csv", "3\n", seconds=2)
    p.step("another time", read, "computed", "files")
    p.file("in put%41/day=2/b.csv", "33\n", seconds=2)
    p.step("another length", read, "computed", "files")
    shutil.rmtree(p.folder / "in put%41/day=2")
    p.step("as at first", read, "reused", "files")
    (p.folder / "in put%41/day=1").rename(p.folder / "in put%41/day=3")
    p.step("another folder", read, "computed", "files")
    kept = read()
    p.step("a frame that is kept", lambda: kept, "reused", "files")
    p.file("in put%41/day=4/c.csv", "4\n")
    p.step("a kept frame sees a new file", lambda: kept, "computed", "files", read)
    p.file("x[1]/a.csv", "1\n")
    pattern = p.spark.read.schema("a string")
    p.unknown("a pattern", lambda: pattern.csv(f"{p.folder}/x\\[1\\]"), "of a pattern")


def subqueries(p: Place) -> None:
    """Files that only a subquery reads."""
    p.file("small/a.csv", "1\n")
    p.file("large/a.csv", "1\n2\n")

    def read() -> DataFrame:
        small = p.spark.read.schema("a int").csv(f"{p.folder}/small")
        large = p.spark.read.schema("a int").csv(f"{p.folder}/large")
        text = "select * from {large} where a > (select max(a) from {small})"
        return p.spark.sql(text, large=large, small=small)

    p.step("first", read, "computed", "subquery")
    p.step("nothing changed", read, "reused", "subquery")
    p.file("small/a.csv", "0\n", seconds=2)
    p.step("another file", read, "computed", "subquery")


def tables(p: Place) -> None:
    """Tables of the catalog: whole, by partition, in a format that is not known."""
    spark = p.spark
    spark.sql("create table inputs_whole using parquet as select id from range(3)")
    spark.sql(
        "create table inputs_days using parquet partitioned by (day) as "
        "select id, int(id % 2) as day from range(4)"
    )

    def whole() -> DataFrame:
        return spark.table("inputs_whole").where("id < 50")

    def day() -> DataFrame:
        return spark.sql("select id from inputs_days where day = 1")

    p.step("first", whole, "computed", "table")
    p.step("nothing changed", whole, "reused", "table")
    spark.sql("insert into inputs_whole values (7)")
    p.step("appended", whole, "computed", "table")
    p.step("appended, again", whole, "reused", "table")
    p.step("first", day, "computed", "partition")
    spark.sql("insert into inputs_days values (10, 2)")
    p.step("another partition grew", day, "reused", "partition")
    spark.sql("insert into inputs_days values (11, 1)")
    p.step("the partition grew", day, "computed", "partition")
    spark.sql("create table inputs_text using csv as select id from range(3)")
    p.unknown("csv", lambda: spark.table("inputs_text"), "inputs_text of provider csv")
    path = f"{p.folder}/by_path"
    spark.range(3).write.parquet(path)
    by_path = f"select * from parquet.`{path}`"
    p.unknown("a path in SQL", lambda: spark.sql(by_path), "SQL text names by their path")


def views(p: Place) -> None:
    """Views of the catalog count by their text; temporary ones are not seen by the client."""
    spark = p.spark
    spark.sql("create view inputs_view as select id + 1 as n from inputs_whole")

    def read() -> DataFrame:
        return spark.table("inputs_view")

    p.step("first", read, "computed", "view")
    p.step("nothing changed", read, "reused", "view")
    spark.sql("create or replace view inputs_view as select id + 2 as n from inputs_whole")
    p.step("another text", read, "computed", "view")
    spark.range(3).createOrReplaceTempView("inputs_temporary")
    spark.range(3).createOrReplaceGlobalTempView("inputs_global")
    text = "select * from inputs_temporary"
    p.unknown("temporary", lambda: spark.sql(text), "the temporary view inputs_temporary")
    table = "global_temp.inputs_global"
    p.unknown("global", lambda: spark.table(table), f"the temporary view {table}")


def functions(p: Place) -> None:
    """Functions of the server, also under the name of one of Spark's own."""
    spark = p.spark
    text = "select upper(string(id)) as n from range(3)"
    p.step("Spark's own, in SQL", lambda: spark.sql(text), "computed", "function")
    p.step("Spark's own, again", lambda: spark.sql(text), "reused", "function")
    frame = spark.range(3).select(F.upper(F.col("id").cast("string")).alias("n"))
    p.step("Spark's own, called", lambda: frame, "computed", "function")
    spark.udf.register("inputs_one", lambda n: n + 1, "long")
    for what, make in {
        "in SQL": lambda: spark.sql("select inputs_one(id) as n from range(3)"),
        "in backticks": lambda: spark.sql("select `inputs_one`(id) as n from range(3)"),
        "in an expression": lambda: spark.range(3).selectExpr("inputs_one(id) as n"),
        "called": lambda: spark.range(3).select(F.call_function("inputs_one", "id").alias("n")),
    }.items():
        p.unknown(what, make, "function")
    spark.udf.register("upper", lambda text: f"{text}!", "string")
    p.unknown("a shadow, in SQL", lambda: spark.sql(text), "the function upper")
    p.unknown("a shadow, called", lambda: frame, "the function upper")
    with suppress(AnalysisException):  # PySpark 4.0 takes it for its own
        spark.sql("drop temporary function upper")


def hidden(p: Place) -> None:
    """Cached rows, checkpoints, variables, sources and text that looks like a plan."""
    spark = p.spark

    def cached() -> DataFrame:
        return spark.read.schema("a string").csv(f"{p.folder}/small").where("a < '9'")

    cached().cache().count()
    p.file("small/b.csv", "8\n")
    old = cached()
    p.unknown("cached", lambda: old, "cached on the server")
    cached().unpersist()
    checkpoint = spark.range(3).localCheckpoint()
    p.unknown("checkpointed", lambda: checkpoint, "cached_remote_relation")
    spark.sql("declare or replace variable inputs_variable = 1")
    text = "select id from range(3) where id = inputs_variable"
    p.unknown("variable", lambda: spark.sql(text), "a variable of the session")
    literal = "x\nRelation [a#1] csv\n== Optimized Logical Plan ==\n"
    spoof = spark.range(2).select(F.lit(literal).alias("n"))
    p.unknown("text like a plan", lambda: spoof, "what this server plans")


def moving(p: Place) -> None:
    """What differs between runs."""
    spark = p.spark
    today = F.to_date(F.concat(F.lit("to"), F.lit("day")))
    for what, make, reason in (
        ("date in SQL", lambda: spark.sql("select current_date as d"), "current_date"),
        ("user", lambda: spark.range(1).select(F.current_user().alias("u")), "current_user"),
        ("today in SQL", lambda: spark.sql("select date 'today' as d"), "'today'"),
        ("today in VALUES", lambda: spark.sql("select * from values (date ' Today')"), "'today'"),
        ("today in parts", lambda: spark.range(1).select(today.alias("d")), "as a date"),
    ):
        p.unknown(what, make, reason)
    date = F.to_date(F.lit("2026-11-23"))
    p.step("a date", lambda: spark.range(1).select(date.alias("d")), "computed", "date")
    p.step("a date again", lambda: spark.range(1).select(date.alias("d")), "reused", "date")


def while_stored(p: Place) -> None:
    """A file comes between the first look and the tasks, and one after the tasks."""

    def read() -> DataFrame:
        return p.spark.read.schema("a string").csv(f"{p.folder}/moving")

    run = ConnectEngine.run
    for number, before in enumerate((True, False)):
        p.file(f"moving/{number}.csv", "1\n")
        fired = []

        def changing(*args: Any, before: bool = before, fired: list[int] = fired) -> Any:
            if before and not fired:
                p.file("moving/more.csv", "2\n")
            fired.append(1)
            results = run(*args)
            if not before and len(fired) == 1:
                p.file("moving/later.csv", "3\n")
            return results

        ConnectEngine.run = changing  # type: ignore[method-assign]
        try:
            what = "before the tasks" if before else "after the tasks"
            rows = _rows(p.shuffle.durable(read(), name="changing"))
        finally:
            ConnectEngine.run = run  # type: ignore[method-assign]
        assert len(fired) == 2, "the stage was stored again"
        why = p.shuffle.report().stages[-1].why
        told = "inputs that changed while they were stored" in why and rows == _rows(read())
        p.note(f"changing: {what}", *([] if told else [f"{rows}, {why}"]))
        p.step(f"{what}, afterwards", read, "computed", "changing")
        p.step(f"{what}, again", read, "reused", "changing")
    (p.folder / "moving/later.csv").unlink()
    p.step("the later file is gone", read, "computed", "changing")
