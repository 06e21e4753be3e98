"""Plans a query of large tables, alone and after its identity.

Arguments: FOLDER JARS FILES PARTITIONS ROUNDS.

It runs on a PySpark that Delta and Iceberg exist for, and prints JSON: by table, the seconds of
each round. The three tables are the same Parquet files: a plain folder, converted to Delta, and
added to an Iceberg table.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.jobs.identity.jvm.calls import query_execution
from durable_shuffle.jobs.identity.plan.fixed import fixed_frame
from durable_shuffle.jobs.identity.plan.identity import identify_plan
from durable_shuffle.jobs.identity.plan.leaves import KnownRdds

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "spark" / "programs"))
from tables_driver import settings  # how the tests make a session with both

OF_TESTS = ("codegen", "snapshotPartitions", "shuffle.partitions")
"""Settings of small tests; without them the session is one as a user has it."""
ROWS = 1000


def session(folder: Path, jars: str) -> SparkSession:
    """Return a session with both formats."""
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "3g")
    for name, value in settings(folder, jars).items():
        if not any(part in name for part in OF_TESTS):
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def write_files(folder: Path, files: int, partitions: int) -> None:
    """Write equally many files per partition, all with the same rows."""
    one = folder.with_name("one.parquet")
    pq.write_table(pa.table({"id": range(ROWS), "v": [f"value {i}" for i in range(ROWS)]}), one)
    content = one.read_bytes()
    for day in range(partitions):
        inside = folder / f"day={day}"
        inside.mkdir(parents=True)
        for number in range(files // partitions):
            (inside / f"part-{number:05d}.parquet").write_bytes(content)


def read_ways(spark: SparkSession, folder: Path) -> dict[str, Callable[[], DataFrame]]:
    """Make the tables of both formats; return how each table is read."""
    path = folder / "files"
    spark.sql(
        "create table ice.db.t (id bigint, v string, day int) using iceberg partitioned by (day)"
    )
    call = "call ice.system.add_files(table => 'db.t', source_table => '`parquet`.`{}`')"
    spark.sql(call.format(path)).collect()
    spark.sql(f"convert to delta parquet.`{path}` partitioned by (day int)").collect()
    return {
        "Parquet": lambda: spark.read.parquet(str(path)),
        "Delta": lambda: spark.read.format("delta").load(str(path)),
        "Iceberg": lambda: spark.table("ice.db.t"),
    }


def planned(df: DataFrame) -> int:
    """Plan a query up to its list of splits; return their number."""
    return int(query_execution(df).toRdd().getNumPartitions())


def recognized(df: DataFrame) -> int:
    """The same with its identity before."""
    fixed = fixed_frame(df)
    identity = identify_plan(fixed, KnownRdds())
    assert not identity.unresolved, identity.unresolved
    return planned(fixed)


def main() -> None:
    """Measure."""
    folder, jars = Path(sys.argv[1]), sys.argv[2]
    files, partitions, rounds = map(int, sys.argv[3:6])
    write_files(folder / "files", files, partitions)
    spark = session(folder, jars)
    answer: dict[str, object] = {"spark": spark.version}
    for name, read in read_ways(spark, folder).items():

        def of_one_day(read: Callable[[], DataFrame] = read) -> DataFrame:
            return read().where("day = 7")

        (found,) = of_one_day().selectExpr("count(*)").collect()
        assert found[0] == ROWS * files // partitions
        cases = {
            "planned": lambda one=of_one_day: planned(one()),
            "recognized": lambda one=of_one_day: recognized(one()),
        }
        answer[name] = dict(interleave(cases, rounds=rounds, warmups=2).seconds)
    print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
