"""More histories of Delta tables: what leaves names, types and files as they were.

A stage over such a table would look the same. These are changes of the schema that bring back the
old names, copies, files of other writers, and changes that change no row.
"""

from __future__ import annotations

from table_cases import NEW, OLD, History, Place, Step, again, columns, days, query, sql, swapped


def version(place: Place, table: str, name: str) -> None:
    """Note the newest version of a Delta table."""
    place.notes[name] = place.sql(f"describe history {table} limit 1").collect()[0]["version"]


def delta_mapped(place: Place) -> None:
    place.sql(
        "create table delta_s (id bigint, a int, b int, v string) using delta tblproperties "
        "('delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = 'true', "
        "'delta.enableChangeDataFeed' = 'true')"
    )
    columns(place, "delta_s", 0)
    version(place, "delta_s", "s1")


DELTA_SCHEMA = History(
    "Delta-schema",
    {
        "whole": query("select * from delta_s"),
        "first": query("select * from delta_s version as of {s1}"),
        "view": query("select * from delta_view"),
        "copy": query("select * from delta_k"),
        "changes": query("select * from table_changes('delta_s', 0, 1)"),
    },
    (
        Step("create", delta_mapped, {"whole": NEW, "first": OLD, "changes": NEW}),
        Step("columns exchanged", sql(*swapped("delta_s")), {"whole": NEW, "first": OLD}),
        Step("exchanged again", sql(*swapped("delta_s")), {"whole": OLD, "first": OLD}),
        Step(
            "column dropped and added",
            sql(*again("delta_s", "v", "string")),
            {"whole": NEW, "first": OLD},
        ),
        Step(
            "schema restored",
            sql("restore table delta_s to version as of {s1}"),
            {"whole": OLD, "first": OLD},
        ),
        Step(
            "view",
            sql("create or replace temp view delta_view as select * from delta_s where a > 10"),
            {"view": NEW},
        ),
        Step(
            "view replaced",
            sql("create or replace temp view delta_view as select * from delta_s where a > 0"),
            {"view": NEW, "changes": NEW},
        ),
        Step(
            "property set, table described",
            sql(
                "alter table delta_s set tblproperties ('delta.appendOnly' = 'false')",
                "comment on table delta_s is 'table'",
            ),
            {"whole": OLD, "first": OLD},
        ),
        Step(
            "nothing deleted, nothing updated, nothing appended",
            sql(
                "delete from delta_s where id = 1000",
                "update delta_s set a = 0 where id = 1000",
                "insert into delta_s select * from delta_s where id = 1000",
            ),
            {"whole": OLD},
        ),
        Step(
            "shallow clone",
            sql("create table delta_k shallow clone delta_s"),
            {"copy": OLD, "whole": OLD},
        ),
        Step(
            "append to the clone",
            lambda p: columns(p, "delta_k", 50),
            {"copy": NEW, "whole": OLD},
        ),
        Step(
            "append to the source",
            lambda p: columns(p, "delta_s", 60),
            {"copy": OLD, "whole": NEW, "first": OLD},
        ),
        Step(
            "type widened",
            sql("alter table delta_s alter column a type bigint"),
            {"whole": NEW, "first": OLD},
        ),
        Step(
            "all deleted",
            sql("delete from delta_s"),
            {"whole": NEW, "first": OLD},
        ),
        Step(
            "replaced",
            sql(
                "create or replace table delta_s using delta as select id, 1 as a, 2 as b, 'x' v "
                "from range(2)"
            ),
            {"whole": NEW, "first": OLD},
        ),
    ),
)


def plain_days(place: Place) -> None:
    """A partitioned folder of Parquet files that becomes a Delta table."""
    path = f"{place.folder}/converted"
    days(place, 1, 2).write.partitionBy("day").parquet(path)
    place.sql(f"convert to delta parquet.`{path}` partitioned by (day int)")
    place.notes["converted"] = path


def dynamic(place: Place) -> None:
    """Overwrite the partitions that the new rows belong to."""
    days(place, 3, start=500).write.format("delta").mode("overwrite").option(
        "partitionOverwriteMode", "dynamic"
    ).save(str(place.notes["converted"]))


DELTA_PATH = History(
    "Delta-by-path",
    {
        "whole": query("select * from delta.`{converted}`"),
        "day 1": lambda p: (
            p.spark.read.format("delta").load(str(p.notes["converted"])).where("day = 1")
        ),
        "version 0": lambda p: (
            p.spark.read.format("delta")
            .option("versionAsOf", 0)
            .load(str(p.notes["converted"]))
            .select("*")
        ),
        "names": lambda p: (
            p.spark.read.format("delta")
            .load(str(p.notes["converted"]))
            .selectExpr("id", "_metadata.file_name")
        ),
    },
    (
        Step("converted", plain_days, {"whole": NEW, "day 1": NEW, "version 0": OLD, "names": NEW}),
        Step(
            "dynamic overwrite elsewhere",
            dynamic,
            {"whole": NEW, "day 1": OLD, "version 0": OLD, "names": NEW},
        ),
        Step(
            "partition deleted elsewhere",
            sql("delete from delta.`{converted}` where day = 3"),
            {"day 1": OLD, "whole": OLD, "names": OLD},
        ),
        Step(
            "sorted by another column",
            sql("optimize delta.`{converted}` zorder by (id)"),
            {"whole": NEW, "version 0": OLD},
        ),
        Step(
            "deletion vectors purged",
            sql(
                "alter table delta.`{converted}` set tblproperties "
                "('delta.enableDeletionVectors' = 'true')",
                "delete from delta.`{converted}` where id = 5",
                "reorg table delta.`{converted}` apply (purge)",
            ),
            {"whole": NEW},
        ),
        Step(
            "delete of one row",
            sql("delete from delta.`{converted}` where id = 0"),
            {"day 1": NEW},
        ),
        Step(
            "second delete in the same file",
            sql("delete from delta.`{converted}` where id = 1"),
            {"day 1": NEW, "version 0": OLD},
        ),
    ),
)
