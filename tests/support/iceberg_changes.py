"""More histories of Iceberg tables: what leaves names, types and files as they were.

A stage over such a table would look the same. These are changes of the schema that bring back the
old names, tables that are made again at the same
place, versions under other names, settings that choose a branch, and changes that change no row.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from table_cases import (
    NEW,
    OLD,
    History,
    Place,
    Read,
    Step,
    again,
    append,
    columns,
    days,
    query,
    sql,
    swapped,
)


def remember(place: Place, name: str) -> None:
    """Note the newest snapshot of the table, of whichever branch."""
    newest = "select snapshot_id from ice.db.s.snapshots order by committed_at desc limit 1"
    place.notes[name] = int(place.sql(newest).collect()[0][0])


def iceberg_columns(place: Place) -> None:
    place.sql(
        "create table ice.db.s (id bigint, a int, b int, v string) using iceberg tblproperties "
        "('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
    )
    columns(place, "ice.db.s", 0)
    remember(place, "i1")


def staged(place: Place) -> None:
    """Commit rows that no branch shows yet."""
    place.sql("alter table ice.db.s set tblproperties ('write.wap.enabled' = 'true')")
    place.spark.conf.set("spark.wap.id", "audit")
    columns(place, "ice.db.s", 10)
    place.spark.conf.unset("spark.wap.id")
    remember(place, "staged")


def on_branch(place: Place) -> None:
    """Append to a branch that a setting names, and keep the setting."""
    place.sql("alter table ice.db.s create branch w")
    place.spark.conf.set("spark.wap.branch", "w")
    columns(place, "ice.db.s", 20)


def imported(place: Place) -> None:
    """Add Parquet files that Iceberg did not write."""
    path = f"{place.folder}/foreign"
    place.spark.range(2).selectExpr("id", "1 a", "2 b", "'f' v").coalesce(1).write.parquet(path)
    call = "call ice.system.add_files(table => 'db.s', source_table => '`parquet`.`{}`')"
    place.sql(call.format(path)).collect()


def at(name: str, table: str) -> Read:
    def read(place: Place) -> DataFrame:
        return place.spark.read.option("versionAsOf", str(place.notes[name])).table(table)

    return read


ICEBERG_SCHEMA = History(
    "Iceberg-schema",
    {
        "whole": query("select * from ice.db.s"),
        "first": query("select * from ice.db.s version as of {i1}"),
        "path": lambda p: p.spark.read.format("iceberg").load(f"{p.folder}/ice/db/s").select("*"),
        "tag": query("select * from ice.db.s version as of 'g'"),
        "branch": lambda p: p.spark.read.option("branch", "b").table("ice.db.s").select("*"),
        "since": lambda p: (
            p.spark.read.format("iceberg")
            .option("start-snapshot-id", str(p.notes["i1"]))
            .table("ice.db.s")
        ),
        "files": query("select file_path from ice.db.s.files"),
        "files, first": at("i1", "ice.db.s.files"),
        "files, staged": at("staged", "ice.db.s.files"),
        "history": query("select snapshot_id from ice.db.s.history"),
        "refs": query("select name, snapshot_id from ice.db.s.refs"),
        "places": query("select *, _file, _pos from ice.db.s"),
    },
    (
        Step(
            "create",
            iceberg_columns,
            {"whole": NEW, "first": OLD, "path": OLD, "history": NEW, "files": NEW, "places": NEW},
        ),
        Step(
            "nothing deleted, nothing appended",
            sql(
                "delete from ice.db.s where id = 1000",
                "insert into ice.db.s select * from ice.db.s where id = 1000",
            ),
            {"whole": OLD, "places": OLD},
        ),
        Step(
            "staged",
            staged,
            {"whole": OLD, "files, first": NEW, "files, staged": NEW, "refs": NEW},
        ),
        Step(
            "cherry-picked",
            sql("call ice.system.cherrypick_snapshot('db.s', {staged})"),
            {"whole": NEW, "first": OLD, "since": NEW, "path": OLD},
        ),
        Step(
            "branch and tag of the first",
            sql(
                "alter table ice.db.s create branch b as of version {i1}",
                "alter table ice.db.s create tag g as of version {i1}",
            ),
            {"branch": OLD, "tag": OLD, "whole": OLD, "refs": NEW},
        ),
        Step(
            "branch and tag replaced",
            sql(
                "alter table ice.db.s create or replace branch b as of version {staged}",
                "alter table ice.db.s create or replace tag g as of version {staged}",
            ),
            {"branch": OLD, "tag": OLD, "whole": OLD, "refs": NEW},
        ),
        Step(
            "a setting names a branch",
            on_branch,
            {"whole": NEW},
        ),
        Step(
            "the setting is gone",
            lambda p: p.spark.conf.unset("spark.wap.branch"),
            {"whole": OLD},
        ),
        Step(
            "current snapshot set",
            sql("call ice.system.set_current_snapshot('db.s', {i1})"),
            {"whole": OLD, "branch": OLD},
        ),
        Step(
            "branch published",
            sql("call ice.system.set_current_snapshot(table => 'db.s', ref => 'w')"),
            {"whole": OLD},
        ),
        Step("columns exchanged", sql(*swapped("ice.db.s")), {"whole": NEW, "first": OLD}),
        Step("exchanged again", sql(*swapped("ice.db.s")), {"whole": OLD, "first": OLD}),
        Step(
            "column dropped and added",
            sql(*again("ice.db.s", "v", "string")),
            {"whole": NEW, "first": OLD},
        ),
        Step(
            "column described, type widened",
            sql(
                "alter table ice.db.s alter column v comment 'text'",
                "alter table ice.db.s alter column a type bigint",
            ),
            {"whole": NEW, "first": OLD},
        ),
        Step("files and names in files added", imported, {"whole": NEW, "first": NEW}),
        Step(
            "partitioned, sorted, described",
            sql(
                "alter table ice.db.s add partition field bucket(4, id)",
                "alter table ice.db.s write ordered by id",
                "alter table ice.db.s set tblproperties ('comment' = 'table')",
                "call ice.system.rewrite_manifests('db.s')",
            ),
            {"whole": OLD, "first": OLD},
        ),
        Step(
            "delete of one row",
            sql("delete from ice.db.s where id = 10"),
            {"whole": NEW},
        ),
        Step(
            "second delete in the same file",
            sql("delete from ice.db.s where id = 11"),
            {"whole": NEW},
        ),
        Step(
            "deletes rewritten",
            sql(
                "call ice.system.rewrite_position_delete_files(table => 'db.s', "
                "options => map('rewrite-all', 'true'))"
            ),
            {"whole": NEW, "first": OLD},
        ),
        Step("all deleted", sql("delete from ice.db.s"), {"whole": NEW, "first": OLD}),
        Step(
            "dropped and created again",
            lambda p: (p.sql("drop table ice.db.s purge"), iceberg_columns(p)),
            {"whole": NEW, "history": NEW, "files": NEW, "path": OLD},
        ),
    ),
)


def rows_numbered(place: Place) -> None:
    place.sql(
        "create table ice.db.v (id bigint, day int, v string) using iceberg partitioned by (day) "
        "tblproperties ('format-version' = '3', 'write.delete.mode' = 'merge-on-read', "
        "'write.wap.enabled' = 'true')"
    )
    days(place, 1, 2).writeTo("ice.db.v").append()


def picked(place: Place) -> None:
    """Append to a staged snapshot, to main, and then publish the first."""
    place.spark.conf.set("spark.wap.id", "audit")
    days(place, 4, start=40).writeTo("ice.db.v").append()
    place.spark.conf.unset("spark.wap.id")
    newest = "select snapshot_id from ice.db.v.snapshots order by committed_at desc limit 1"
    place.notes["v4"] = int(place.sql(newest).collect()[0][0])


ICEBERG_V3 = History(
    "Iceberg-3",
    {
        "whole": query("select * from ice.db.v"),
        "day 1": lambda p: p.spark.table("ice.db.v").where("day = 1"),
        "staged": query("select * from ice.db.v version as of {v4}"),
        "numbers": query("select *, _row_id, _last_updated_sequence_number from ice.db.v"),
        "numbers, staged": query(
            "select *, _row_id, _last_updated_sequence_number from ice.db.v version as of {v4}"
        ),
    },
    (
        Step("create", rows_numbered, {"whole": NEW, "day 1": NEW, "numbers": NEW}),
        Step(
            "delete with a deletion vector, elsewhere",
            sql("delete from ice.db.v where id = 5"),
            {"whole": NEW, "day 1": OLD},
        ),
        Step(
            "delete with a deletion vector",
            sql("delete from ice.db.v where id = 1"),
            {"day 1": NEW},
        ),
        Step(
            "second delete in the same file",
            sql("delete from ice.db.v where id = 2"),
            {"day 1": NEW, "numbers": NEW},
        ),
        Step("staged", picked, {"whole": NEW, "staged": NEW, "numbers, staged": NEW}),
        Step(
            "append to main",
            append("ice.db.v", 5, start=60),
            {"day 1": OLD, "numbers": NEW},
        ),
        Step(
            "partition deleted",
            sql("delete from ice.db.v where day = 5"),
            {"day 1": OLD, "whole": OLD},
        ),
        Step(
            "cherry-picked",
            sql("call ice.system.cherrypick_snapshot('db.v', {v4})"),
            {"whole": OLD, "staged": OLD, "numbers": NEW, "numbers, staged": OLD},
        ),
    ),
)
