"""Histories of Delta and Iceberg tables: operations, and which reads find their stage after each.

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
NEW, OLD = "fresh", "reuse"


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


def delta_created(place: Place) -> None:
    place.sql(
        "create table delta_t (id bigint, day int, v string) using delta partitioned by (day) "
        "tblproperties ('delta.enableDeletionVectors' = 'true', "
        "'delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true')"
    )
    days(place, 1, 2).write.format("delta").mode("append").saveAsTable("delta_t")
    path = place.sql("describe detail delta_t").collect()[0]["location"]
    place.notes["path"] = str(path)


def append(table: str, *numbers: int, start: int) -> Callable[[Place], object]:
    return lambda p: days(p, *numbers, start=start).writeTo(table).append()


DELTA = History(
    "Delta",
    {
        **of_table("delta_t"),
        "path": lambda p: p.spark.read.format("delta").load(str(p.notes["path"])).where("day = 1"),
        "version 1": query("select * from delta_t version as of 1"),
        "id": query("select * from delta_t where id < 2"),
        "changes": lambda p: (
            p.spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", 1)
            .option("endingVersion", 1)
            .table("delta_t")
        ),
    },
    (
        Step(
            "create",
            delta_created,
            {
                "whole": NEW,
                "day 1": NEW,
                "joined": NEW,
                "counted": NEW,
                "path": OLD,
                "version 1": OLD,
                "id": NEW,
                "changes": NEW,
            },
        ),
        Step("nothing", lambda p: None, {"day 1": OLD, "changes": NEW}),
        Step(
            "append elsewhere",
            append("delta_t", 3, start=100),
            {
                "whole": NEW,
                "day 1": OLD,
                "joined": OLD,
                "counted": OLD,
                "version 1": OLD,
                "id": OLD,
            },
        ),
        Step(
            "delete with a deletion vector, elsewhere",
            sql("delete from delta_t where id = 100"),
            {"whole": NEW, "day 1": OLD},
        ),
        Step(
            "merge elsewhere",
            sql(
                "merge into delta_t t using (select 102L as id, 3 as day, 'c' as v) s "
                "on t.id = s.id and t.day = s.day "
                "when matched then update set * when not matched then insert *"
            ),
            {"whole": NEW, "day 1": OLD},
        ),
        Step(
            "optimize elsewhere",
            sql("optimize delta_t where day = 3"),
            {"whole": NEW, "day 1": OLD},
        ),
        Step("vacuum", sql("vacuum delta_t"), {"whole": OLD, "day 1": OLD}),
        Step(
            "delete with a deletion vector",
            sql("delete from delta_t where id = 1"),
            {"whole": NEW, "day 1": NEW, "joined": NEW},
        ),
        Step(
            "update",
            sql("update delta_t set v = 'z' where id = 2"),
            {"day 1": NEW, "version 1": OLD},
        ),
        Step(
            "rollback",
            sql("restore table delta_t to version as of 1"),
            {"whole": OLD, "day 1": OLD, "joined": OLD, "counted": OLD, "id": OLD},
        ),
        Step(
            "overwrite of another partition",
            lambda p: (
                days(p, 2, start=300)
                .write.format("delta")
                .mode("overwrite")
                .option("replaceWhere", "day = 2")
                .saveAsTable("delta_t")
            ),
            {"whole": NEW, "day 1": OLD},
        ),
        Step(
            "overwrite",
            lambda p: days(p, 1).write.format("delta").mode("overwrite").saveAsTable("delta_t"),
            {"whole": NEW, "day 1": NEW, "version 1": OLD},
        ),
        Step(
            "column added",
            sql("alter table delta_t add column w int"),
            {"day 1": NEW, "version 1": OLD},
        ),
        Step(
            "column renamed",
            sql("alter table delta_t rename column v to vv"),
            {"day 1": NEW, "version 1": OLD},
        ),
        Step(
            "dropped and created again",
            lambda p: (p.sql("drop table delta_t"), delta_created(p)),
            {"whole": NEW, "version 1": OLD},
        ),
    ),
)


def iceberg_created(place: Place) -> None:
    place.sql(
        "create table ice.db.t (id bigint, day int, v string) using iceberg partitioned by (day) "
        "tblproperties ('format-version' = '2', 'write.delete.mode' = 'merge-on-read', "
        "'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read')"
    )
    days(place, 1, 2).writeTo("ice.db.t").append()
    remember(place, "first")


def remember(place: Place, name: str) -> None:
    """Note the table's current snapshot."""
    rows = place.sql("select snapshot_id from ice.db.t.refs where name = 'main'").collect()
    place.notes[name] = int(rows[0][0])


ICEBERG = History(
    "Iceberg",
    {
        **of_table("ice.db.t"),
        "first": query("select * from ice.db.t version as of {first}"),
        "option": lambda p: p.spark.read.option("snapshot-id", p.notes["first"]).table("ice.db.t"),
        "branch": query("select * from ice.db.t.branch_b"),
        "tag": query("select * from ice.db.t version as of 'g'"),
        "files": query("select file_path from ice.db.t.files"),
        "snapshots": query("select snapshot_id from ice.db.t.snapshots"),
        "id": query("select * from ice.db.t where id < 2"),
    },
    (
        Step(
            "create",
            iceberg_created,
            {
                "whole": NEW,
                "day 1": NEW,
                "joined": NEW,
                "two days": NEW,
                "subquery": NEW,
                "counted": NEW,
                "first": OLD,
                "files": NEW,
                "snapshots": NEW,
                "id": NEW,
            },
        ),
        Step(
            "nothing",
            lambda p: None,
            {"whole": OLD, "day 1": OLD, "files": OLD, "snapshots": OLD},
        ),
        Step(
            "append elsewhere",
            append("ice.db.t", 3, start=100),
            {
                "whole": NEW,
                "day 1": OLD,
                "joined": OLD,
                "two days": NEW,
                "subquery": OLD,
                "counted": OLD,
                "first": OLD,
                "files": NEW,
                "snapshots": NEW,
                "id": OLD,
            },
        ),
        Step(
            "delete of a row, elsewhere",
            sql("delete from ice.db.t where id = 100"),
            {"whole": NEW, "day 1": OLD, "two days": NEW, "id": OLD},
        ),
        Step(
            "update elsewhere",
            sql("update ice.db.t set v = 'b' where id = 101"),
            {"whole": NEW, "day 1": OLD, "joined": OLD},
        ),
        Step(
            "merge elsewhere",
            sql(
                "merge into ice.db.t t using (select 102L as id, 3 as day, 'c' as v) s "
                "on t.id = s.id and t.day = s.day when matched then update set * "
                "when not matched then insert *"
            ),
            {"whole": NEW, "day 1": OLD, "subquery": OLD},
        ),
        Step(
            "files rewritten elsewhere",
            sql(
                "call ice.system.rewrite_data_files(table => 'db.t', where => 'day = 3', "
                "options => map('rewrite-all', 'true'))"
            ),
            {"whole": NEW, "day 1": OLD},
        ),
        Step(
            "branch and tag",
            sql("alter table ice.db.t create branch b", "alter table ice.db.t create tag g"),
            {"whole": OLD, "branch": OLD, "tag": OLD, "first": OLD},
        ),
        Step(
            "append to the branch",
            append("ice.db.t.branch_b", 1, start=200),
            {"whole": OLD, "day 1": OLD, "branch": NEW, "tag": OLD},
        ),
        Step(
            "delete of a row",
            sql("delete from ice.db.t where id = 1"),
            {"whole": NEW, "day 1": NEW, "joined": NEW, "counted": NEW, "tag": OLD, "id": NEW},
        ),
        Step(
            "rollback",
            sql("call ice.system.rollback_to_snapshot('db.t', {first})"),
            {"whole": OLD, "day 1": OLD, "joined": OLD, "counted": OLD, "tag": OLD},
        ),
        Step(
            "fast forward",
            sql("call ice.system.fast_forward('db.t', 'main', 'b')"),
            {"whole": OLD, "branch": OLD},
        ),
        Step(
            "expired snapshots",
            sql("call ice.system.expire_snapshots(table => 'db.t', older_than => now())"),
            {"whole": OLD, "branch": OLD, "snapshots": NEW},
        ),
        Step(
            "overwrite of another partition",
            lambda p: days(p, 2, start=300).writeTo("ice.db.t").overwritePartitions(),
            {"whole": NEW, "tag": OLD},
        ),
        Step(
            "column added",
            sql("alter table ice.db.t add column w int"),
            {"whole": NEW, "day 1": NEW},
        ),
        Step(
            "column renamed",
            sql("alter table ice.db.t rename column v to vv"),
            {"whole": NEW, "day 1": NEW, "tag": OLD},
        ),
        Step(
            "dropped and created again",
            lambda p: (p.sql("drop table ice.db.t purge"), iceberg_created(p)),
            {"whole": NEW, "day 1": NEW},
        ),
    ),
)
HISTORIES = (DELTA, ICEBERG)


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
            if stage.decision != expected:
                found.append(f"{stage.decision}, expected {expected}: {stage.why}")
            if seen != spark:
                found.append(f"rows {seen}, Spark's {spark}")
    return wrong
