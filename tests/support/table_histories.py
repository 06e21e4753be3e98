"""Histories of a Delta and of an Iceberg table, and the list of all histories."""

from __future__ import annotations

from delta_changes import DELTA_PATH, DELTA_SCHEMA
from iceberg_changes import ICEBERG_SCHEMA, ICEBERG_V3
from table_cases import NEW, OLD, History, Place, Step, append, days, of_table, query, sql


def delta_created(place: Place) -> None:
    place.sql(
        "create table delta_t (id bigint, day int, v string) using delta partitioned by (day) "
        "tblproperties ('delta.enableDeletionVectors' = 'true', "
        "'delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true')"
    )
    days(place, 1, 2).write.format("delta").mode("append").saveAsTable("delta_t")
    path = place.sql("describe detail delta_t").collect()[0]["location"]
    place.notes["path"] = str(path)


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
            {"whole": NEW, "day 1": NEW, "files": NEW, "snapshots": NEW},
        ),
    ),
)
HISTORIES = (DELTA, DELTA_SCHEMA, DELTA_PATH, ICEBERG, ICEBERG_SCHEMA, ICEBERG_V3)
SAMPLE: dict[str, int | None] = {"Delta": 4, "Iceberg": 4}
"""What `make test` runs: history -> how many of its steps; None stands for all of them."""
