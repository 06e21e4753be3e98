"""Whole queries by kind: subqueries, pruning, types, sources, and what runs at the same time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.query import probe
from durable_shuffle.serialization.errors import IncompatibleError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled_plans")]


def shuffle_of(session: SparkSession, root: str, **options: object) -> DurableShuffle:
    return DurableShuffle(session, root, job="tests", **options)  # type: ignore[arg-type]


@pytest.fixture
def facts(session: SparkSession, tmp_path: Path) -> DataFrame:
    """Columns k from 0 to 8 and v from 0 to 99, in two files."""
    folder = str(tmp_path / "facts")
    session.range(0, 100, 1, 2).selectExpr("id % 9 as k", "id as v").write.parquet(folder)
    return session.read.parquet(folder)


def test_subqueries_and_broadcasts_are_named(
    session: SparkSession, root: str, facts: DataFrame
) -> None:
    """A scalar and an IN subquery give Spark's rows. Their exchanges are stages; the report names
    the subqueries themselves and the broadcasts."""
    facts.createOrReplaceTempView("facts")
    df = session.sql("""
        SELECT k, sum(v) AS s FROM facts
        WHERE v > (SELECT avg(v) FROM facts)
          AND k IN (SELECT k FROM facts GROUP BY k HAVING count(*) > 11)
        GROUP BY k ORDER BY k
    """)
    durable = shuffle_of(session, root)
    assert durable.query(df).collect() == df.collect()
    kinds = {stage.partitioner for stage in durable.report().stages}
    assert {"single", "hash"} <= kinds  # the average, and the count per k
    named = " ".join(durable.report().native)
    assert "subquery: its rows" in named
    assert "broadcast:" in named
    assert "subquery: its rows" in str(durable.explain.query(df))


def test_pruning_is_named(session: SparkSession, root: str, tmp_path: Path) -> None:
    """A broadcast chooses the partitions of a scan."""
    session.range(80).selectExpr("id", "id % 8 as p").write.partitionBy("p").parquet(
        str(tmp_path / "parted")
    )
    session.range(8).selectExpr("id as p", "id * 10 as w").write.parquet(str(tmp_path / "dim"))
    dim = session.read.parquet(str(tmp_path / "dim")).where("w = 30")
    df = session.read.parquet(str(tmp_path / "parted")).join(dim, "p").groupBy("p").count()
    durable = shuffle_of(session, root)
    assert durable.query(df).collect() == df.collect() == [(3, 10)]
    assert any(text.startswith("dynamic partition pruning") for text in durable.report().native)


def meets(folder: Path, mine: str, other: str) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """A map function whose first task waits until the other function's first task has begun."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        from pyspark import TaskContext

        first = TaskContext.get().partitionId() == 0
        if first:
            (folder / mine).touch()
        deadline = time.monotonic() + 120
        while first and not (folder / other).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{other} never began")
            time.sleep(0.02)
        yield from batches

    return wait


def test_independent_map_sides_run_at_the_same_time(
    session: SparkSession, root: str, tmp_path: Path
) -> None:
    """Each side of a join waits until the other begins, so neither would end one by one."""
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    gates = tmp_path / "gates"
    gates.mkdir()

    def side(mine: str, other: str, rows: int) -> DataFrame:
        df = session.range(0, rows, 1, 2).selectExpr("id % 5 as k")
        return df.mapInArrow(meets(gates, mine, other), "k long").groupBy("k").count()

    df = side("left", "right", 20).join(
        side("right", "left", 30).withColumnRenamed("count", "n"), "k"
    )
    durable = shuffle_of(session, root)
    assert sorted(durable.query(df).collect()) == [(k, 4, 6) for k in range(5)]


def test_small_partitions_are_read_together_alike(
    session: SparkSession, root: str, facts: DataFrame
) -> None:
    """Both sides of a join have eight small partitions each. They are read in only as many tasks as
    there are cores, and rows with equal keys meet."""
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    counts = facts.groupBy("k").count()
    df = facts.where("v % 2 = 0").join(counts, "k")
    durable = shuffle_of(session, root)
    out = durable.query(df)
    assert {s.partitioner for s in durable.report().stages} == {"hash"}
    assert out.rdd.getNumPartitions() <= session.sparkContext.defaultParallelism
    assert sorted(out.collect()) == sorted(df.collect())


def test_range_bounds_are_drawn_once(session: SparkSession, root: str, facts: DataFrame) -> None:
    """A range exchange that lost a producer resumes with the bounds of its first run."""
    session.conf.set("spark.sql.files.openCostInBytes", "134217728")  # one file is one map task
    df = facts.repartitionByRange(4, "v").sortWithinPartitions("v")
    first = shuffle_of(session, root)
    parts = [row.asDict() for row in _placed(first.query(df))]
    assert {row["p"] for row in parts} == {0, 1, 2, 3}
    (stage,) = Path(root).glob("tests/query-*")
    (stage / "log" / f"{1:010d}").unlink()  # the seal
    (stage / "producers" / "p000001" / f"{0:010d}").unlink()
    for segment in stage.glob("segments/*/p000001-*"):
        segment.unlink()
    again = shuffle_of(session, root)
    assert [row.asDict() for row in _placed(again.query(df))] == parts
    (report,) = again.report().stages
    assert (report.action, report.map_tasks_run, report.map_tasks_rerun) == ("resumed", 1, 0)


def _placed(df: DataFrame) -> list[Any]:
    return df.select("v", F.spark_partition_id().alias("p")).orderBy("v").collect()


def test_all_types(session: SparkSession, root: str) -> None:
    """Every type that Arrow carries passes through storage unchanged, including nulls."""
    df = session.sql("""
        SELECT cast(n AS boolean) AS c0, cast(n AS tinyint) AS c1, cast(n AS smallint) AS c2,
          cast(n AS int) AS c3, n AS c4, cast(n / 3 AS float) AS c5, double('NaN') + n AS c6,
          cast(n AS decimal(10, 2)) AS c7, cast(n AS decimal(38, 10)) AS c8, char(65 + n) AS c9,
          cast(char(65 + n) AS binary) AS c10, date_add(DATE'1969-12-30', cast(n AS int)) AS c11,
          TIMESTAMP'1960-01-01 00:00:00.000001' + make_dt_interval(0, 0, cast(n AS int)) AS c12,
          TIMESTAMP_NTZ'2200-01-01 00:00:00' + make_dt_interval(0, 0, cast(n AS int)) AS c13,
          make_dt_interval(0, cast(n AS int)) AS c14, array(n, null) AS c15,
          map(concat('k', coalesce(n, 0)), struct(n AS `a b`, array(n) AS b)) AS c16,
          named_struct('x', n, 'y', cast(n AS decimal(5, 1))) AS c17
        FROM (SELECT if(id % 4 = 0, null, id % 50) AS n FROM range(0, 60, 1, 3))
    """)
    durable = shuffle_of(session, root)
    out = durable.query(df.repartition(4))
    assert out.schema == df.schema
    assert durable.report().native == ()
    assert sorted(map(repr, out.collect())) == sorted(map(repr, df.collect()))


def test_sources_of_version_2(session: SparkSession, root: str, tmp_path: Path) -> None:
    """Rows are right; without a version the stages above run every time."""
    folder = str(tmp_path / "facts")
    session.range(100).selectExpr("id % 9 as k").write.parquet(folder)
    session.conf.set("spark.sql.sources.useV1SourceList", "")
    df = session.read.parquet(folder).groupBy("k").count()
    assert "BatchScan" in df._jdf.queryExecution().toString()
    for version, expected in ((None, "computed"), ("1", "reused")):
        shuffle_of(session, root, version=version).query(df)
        durable = shuffle_of(session, root, version=version)
        assert sorted(durable.query(df).collect()) == sorted(df.collect())
        assert {s.action for s in durable.report().stages} == {expected}


def test_transparent_write_to(
    session: SparkSession, root: str, facts: DataFrame, tmp_path: Path
) -> None:
    """writeTo goes through storage."""
    session.sql(f"CREATE DATABASE made LOCATION '{tmp_path / 'made'}'")
    try:
        durable = shuffle_of(session, root)
        df = facts.groupBy("k").agg(F.sum("v").alias("s"))
        with durable.transparent():
            df.writeTo("made.sums").using("parquet").create()
        assert durable.report().total()["map_tasks_run"] == 2
        assert sorted(session.table("made.sums").collect()) == sorted(df.collect())
    finally:
        session.sql("DROP DATABASE made CASCADE")


@pytest.mark.parametrize(
    ("table", "of", "wanted", "named"),
    [
        ("_METHODS", "execution.SparkPlan", ("execute", "gone"), "SparkPlan has no gone()"),
        ("_CONSTRUCTORS", "execution.RDDScanExec", (99,), "expected one of [99]"),
        (
            "_CONSTRUCTORS",
            "execution.GoneExec",
            (1,),
            "no class org.apache.spark.sql.execution.Gone",
        ),
        ("_FIELDS", "execution.SubqueryExec", "gone", "SubqueryExec has no field gone"),
    ],
)
def test_a_spark_that_lacks_something_is_refused(
    session: SparkSession,
    root: str,
    facts: DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
    of: str,
    wanted: Any,
    named: str,
) -> None:
    """All missing internals are named at once, and nothing is written."""
    monkeypatch.setattr(probe, "_MISSING", {})
    monkeypatch.setitem(getattr(probe, table), of, wanted)
    durable = shuffle_of(session, root)
    with pytest.raises(IncompatibleError) as refused:
        durable.query(facts.groupBy("k").count())
    assert str(refused.value).count(named) == 1
    assert "PySpark 3.5 and 4.0 to 4.3 are known" in str(refused.value)
    assert durable.stages() == []
