"""DataFrames of commands: Spark has run the command once; no call of this library runs it again."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark

CALLS: dict[str, Callable[[DurableShuffle, DataFrame], object]] = {
    "checkpoint": lambda s, df: s.checkpoint(df).collect(),
    "repartition": lambda s, df: s.repartition(df, 2).collect(),
    "stage": lambda s, df: s.stage(df, keys=lambda b: [0] * b.num_rows, num_partitions=2),
    "query": lambda s, df: s.query(df).collect(),
    "query of more": lambda s, df: s.query(df.distinct()).collect(),
    "consume": lambda s, df: s.consume(df, consumer="c", process=lambda rows: None),
    "explain checkpoint": lambda s, df: str(s.explain.checkpoint(df)),
    "explain repartition": lambda s, df: str(s.explain.repartition(df, 2)),
    "explain query": lambda s, df: str(s.explain.query(df)),
}
ACTIONS: dict[str, Callable[[DataFrame], object]] = {
    "collect": DataFrame.collect,
    "count": DataFrame.count,
    "toPandas": DataFrame.toPandas,
    "toArrow": DataFrame.toArrow,
}
COMMANDS = {
    "insert": "INSERT INTO made.t SELECT tick(1)",
    "with": "WITH c AS (SELECT tick(1) AS x) INSERT INTO made.t SELECT x FROM c",
    "overwrite": "INSERT OVERWRITE made.t SELECT tick(1)",
    "several": "FROM (SELECT tick(1) AS x) INSERT INTO made.t SELECT x INSERT INTO made.u SELECT x",
    "directory": "INSERT OVERWRITE DIRECTORY '{folder}' USING parquet SELECT tick(1) AS x",
    "ctas": "CREATE TABLE made.v USING parquet AS SELECT tick(1) AS x",
    "immediate": "EXECUTE IMMEDIATE 'INSERT INTO made.t SELECT tick(1)'",
    "script": "BEGIN INSERT INTO made.t SELECT tick(1); SELECT x FROM made.t; END",
    "create": "CREATE TABLE made.w (x INT) USING parquet",
    "alter": "ALTER TABLE made.t ADD COLUMN y INT",
    "drop": "DROP TABLE made.u",
    "show": "SHOW TABLES IN made",
    "describe": "DESCRIBE made.t",
    "set": "SET spark.sql.ansi.enabled",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_call_runs_a_command_again(
    session: SparkSession, root: str, tmp_path: Path, command: str
) -> None:
    """A function inside the command counts its runs; a command without one would fail or show."""
    ticks = tmp_path / "ticks"
    ticks.touch()

    def tick(value: int) -> int:
        with ticks.open("a") as file:
            file.write("x")
        return value

    session.udf.register("tick", tick, "int")
    session.sql(f"CREATE DATABASE made LOCATION '{tmp_path / 'made'}'")
    try:
        for name in ("t", "u"):
            session.sql(f"CREATE TABLE made.{name} (x INT) USING parquet")
        df = session.sql(COMMANDS[command].format(folder=tmp_path / "out"))
        runs = ticks.read_text()
        assert bool(runs) == ("tick" in COMMANDS[command])
        tables = _tables(session)
        wanted = sorted(map(tuple, df.collect()))
        durable = DurableShuffle(session, root, job="tests")
        for name, call in CALLS.items():
            if len(df.columns) or name not in ("stage", "consume"):
                found = call(durable, df)
                if isinstance(found, list):
                    assert sorted(map(tuple, found)) == wanted, name
            assert (ticks.read_text(), _tables(session)) == (runs, tables), name
        with durable.transparent():
            for name, action in ACTIONS.items():
                action(df)
                assert (ticks.read_text(), _tables(session)) == (runs, tables), name
            df.write.mode("overwrite").format("noop").save()
            assert (ticks.read_text(), _tables(session)) == (runs, tables)
    finally:
        session.sql("DROP DATABASE made CASCADE")


def _tables(session: SparkSession) -> dict[str, int]:
    names = [row.tableName for row in session.sql("SHOW TABLES IN made").collect()]
    return {name: session.table(f"made.{name}").count() for name in names}
