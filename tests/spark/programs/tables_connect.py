"""Delta and Iceberg tables on Spark Connect: `tables_connect.py FOLDER JARS`; prints JSON."""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from tables_driver import SUPPORT, session

from durable_shuffle import DurableShuffle

NEWEST = {
    "delta": "select 0",
    "iceberg": "select snapshot_id from {t}.snapshots order by committed_at",
}
"""The first version with rows; Delta's version 0 is the empty table."""


def main() -> None:
    """Judge each step."""
    sys.path.insert(0, str(SUPPORT))
    from connect_inputs import Place

    folder = Path(sys.argv[1])
    os.environ["SPARK_TESTING"] = "1"  # a free port, as other tests run a server, too
    spark = session(SparkSession.builder.remote("local[2]"), folder, sys.argv[2])
    place = Place(spark, DurableShuffle(spark, f"{folder}/root", job="inputs"), folder)
    for table, made_by in (("delta_c", "delta"), ("ice.db.c", "iceberg")):
        spark.sql(f"create table {table} (id bigint, day int) using {made_by}")
        spark.sql(f"insert into {table} values (1, 1), (2, 2)")
        number = spark.sql(NEWEST[made_by].format(t=table)).collect()[0][0]

        def read(table: str = table) -> DataFrame:
            return spark.table(table).where("day = 1")

        def old(table: str = table, number: int = number) -> DataFrame:
            return spark.sql(f"select * from {table} version as of {number}")

        place.step("first", read, "computed", made_by)
        place.step("again", read, "reused", made_by)
        spark.sql(f"insert into {table} values (3, 1)")
        place.step("appended", read, "computed", made_by)
        place.step("an old version", old, "computed", f"{made_by}-old")
        place.step("an old version again", old, "reused", f"{made_by}-old")
    path = spark.sql("describe detail delta_c").collect()[0]["location"]

    def by_path() -> DataFrame:
        return spark.read.format("delta").load(path)

    place.step("first", by_path, "computed", "path")
    spark.sql("update delta_c set id = 9 where id = 1")
    place.step("updated", by_path, "computed", "path")
    place.step("again", by_path, "reused", "path")
    print(json.dumps({"spark": spark.version, "found": place.found}))
    spark.stop()


if __name__ == "__main__":
    main()
