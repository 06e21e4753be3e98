"""`transparent()` never breaks a program: writers, SQL statements, frames that cannot be stored."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, Observation, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.identity.jvm.calls import Jvm
from durable_shuffle.jobs.query.planned_query import PlannedQuery
from durable_shuffle.jobs.transparent import labels
from durable_shuffle.serialization.errors import InvalidInputError

pytestmark = pytest.mark.spark

Write = Callable[[DataFrame, str], None]

OVERWRITES: dict[str, Write] = {
    "insertInto": lambda df, table: df.write.insertInto(table, overwrite=True),
    "insertInto by mode": lambda df, table: df.write.mode("overwrite").insertInto(table),
    "saveAsTable": lambda df, table: df.write.mode("overwrite").saveAsTable(table),
    "saveAsTable by argument": lambda df, table: df.write.saveAsTable(table, mode="overwrite"),
}
READS: dict[str, str] = {
    "filter": "SELECT id, k FROM {table} WHERE id > 10",
    "sort": "SELECT id, k FROM {table} WHERE id > 10 ORDER BY id",
    "aggregate": "SELECT max(id) AS id, k FROM {table} GROUP BY k",
    "join": "SELECT a.id, b.k FROM {table} a JOIN {table} b USING (id)",
    "view": "SELECT id, k FROM seen",
}


def _made(session: SparkSession, folder: Path, *, by: str | None = None) -> str:
    """Make a database with a table of 100 rows; return the table's name."""
    session.sql(f"CREATE DATABASE IF NOT EXISTS own LOCATION '{folder / 'own'}'")
    writer = session.range(0, 100, 1, 2).selectExpr("id", "id % 7 AS k").write.mode("overwrite")
    (writer.partitionBy(by) if by else writer).saveAsTable("own.t")
    session.table("own.t").createOrReplaceTempView("seen")
    return "own.t"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", ["query", "transparent"])
@pytest.mark.parametrize("by", [None, "k"])
def test_no_table_that_is_read_is_overwritten(
    session: SparkSession, root: str, tmp_path: Path, how: str, by: str | None
) -> None:
    """Spark's own refusal comes first, for each way to overwrite and each way to read."""
    durable = DurableShuffle(session, root, job="tests")
    table = _made(session, tmp_path, by=by)
    try:
        for read in READS.values():
            for name, write in OVERWRITES.items():
                df = session.sql(read.format(table=table))
                stored = durable.query(df) if how == "query" else df
                inside = nullcontext() if how == "query" else durable.transparent()
                with inside, pytest.raises(AnalysisException) as refused:
                    write(stored, table)
                assert refused.value.getCondition() == "UNSUPPORTED_OVERWRITE.TABLE", name
                assert session.table(table).count() == 100
        other = session.sql(READS["join"].format(table=table))
        with durable.transparent():  # what Spark allows still goes through storage
            other.write.mode("overwrite").saveAsTable("own.other")
        assert session.table("own.other").count() == 100
        assert durable.report().stages
    finally:
        session.sql("DROP DATABASE own CASCADE")


def test_a_result_does_what_other_frames_do(session: SparkSession, root: str) -> None:
    """The plan that a result carries along changes neither rows nor plans that use it."""
    durable = DurableShuffle(session, root, job="tests")
    df = (
        session.range(20)
        .selectExpr("id % 5 AS k", "id AS v")
        .groupBy("k")
        .agg(F.sum("v").alias("v"))
    )
    result = durable.query(df)
    wanted = sorted(df.collect())
    assert sorted(result.collect()) == wanted
    assert result.count() == 5
    assert result.select(df["k"]).distinct().count() == 5
    assert sorted(result.union(result).distinct().collect()) == wanted
    assert sorted(result.join(result, "k").select("k").collect()) == [(k,) for k in range(5)]
    assert result.alias("a").join(df.alias("b"), F.col("a.k") == F.col("b.k")).count() == 5
    assert sorted(durable.query(result.where("k > 1")).collect()) == wanted[2:]
    result.createOrReplaceTempView("result")
    assert (
        session.sql("SELECT count(*) FROM result WHERE k IN (SELECT k FROM result)").first()[0] == 5
    )
    optimized = result._jdf.queryExecution().optimizedPlan().toString()
    assert "Aggregate" not in optimized
    assert "CTE" not in optimized


def test_writers_are_those_of_pyspark(session: SparkSession, root: str, tmp_path: Path) -> None:
    """`df.write` is a DataFrameWriter, keeps what was set, may be used twice, and writes through
    storage each time. A wrong setting fails where Spark fails."""
    durable = DurableShuffle(session, root, job="tests")
    df = session.range(0, 100, 1, 2).groupBy((F.col("id") % 7).alias("k")).count()
    wanted = sorted(df.collect())
    with durable.transparent():
        writer = df.write.mode("overwrite").option("compression", "none")
        assert isinstance(writer, DataFrameWriter)
        assert isinstance(df.writeTo("t"), DataFrameWriterV2)
        writer.parquet(str(tmp_path / "a"))
        written = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
        writer.json(str(tmp_path / "b"))
        writer.save(str(tmp_path / "c"), format="orc", mode="ignore")
        writer.save(str(tmp_path / "c"))  # as in Spark, the writer keeps format and mode
        with pytest.raises(Exception, match="nonsense"):
            df.write.mode("nonsense")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()} == written
    back = session.read.parquet(str(tmp_path / "a")), session.read.json(str(tmp_path / "b"))
    for frame in (*back, session.read.orc(str(tmp_path / "c"))):
        assert sorted(map(tuple, frame.select("k", "count").collect())) == wanted
    assert [stage.action for stage in durable.report().stages] == ["computed", *["reused"] * 3]


def test_what_cannot_be_stored_runs_in_spark(session: SparkSession, root: str) -> None:
    """An observed frame gets its value, and the report says why nothing was stored."""
    durable = DurableShuffle(session, root, job="tests")
    seen = Observation("seen")
    observed = session.range(10).observe(seen, F.count(F.lit(1)).alias("n")).groupBy("id").count()
    with durable.transparent():
        assert len(observed.collect()) == 10
        assert observed.count() == 10
    assert seen.get == {"n": 10}
    assert durable.stages() == []
    (collected, counted) = durable.report().native
    assert collected.startswith("collect(): df.observe() would never get its value")
    assert counted.startswith("count(): df.observe()")


def test_a_plan_that_cannot_be_read_runs_in_spark(
    session: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error of a call into the JVM, before anything ran, ends no program."""
    java: Any = session._jvm

    def unknown(*_: object) -> None:
        java.java.util.ArrayDeque().removeFirst()

    durable = DurableShuffle(session, root, job="tests")
    monkeypatch.setattr(PlannedQuery, "identity", unknown)
    df = session.range(10).groupBy(F.col("id") % 7).count()
    with durable.transparent():
        assert len(df.collect()) == 7
    (left,) = durable.report().native
    assert left.startswith("collect(): query: durable-shuffle cannot read what Spark says")
    assert "NoSuchElementException" in left
    with pytest.raises(InvalidInputError, match="cannot read what Spark says"):
        durable.query(df)


def test_a_leaf_that_cannot_be_read_is_not_recognised(
    session: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are Spark's; the next run computes them again."""
    java: Any = session._jvm

    def unknown(*_: object) -> None:
        java.java.util.ArrayDeque().removeFirst()

    monkeypatch.setattr(Jvm, "bytes_digest", unknown)
    df = session.createDataFrame([(n % 3, n) for n in range(9)], "k INT, v INT")
    for _ in range(2):
        durable = DurableShuffle(session, root, job="tests")
        with durable.transparent():
            rows = df.groupBy("k").agg(F.sum("v").alias("s")).collect()
        assert sorted(map(tuple, rows)) == [(0, 9), (1, 12), (2, 15)]
        assert [stage.action for stage in durable.report().stages] == ["computed"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT concat_ws(' ', b, l) FROM {t} WHERE l = 'nothing'",
        "SELECT max(concat_ws(' ', b, l)), b FROM {t} GROUP BY b",
        "SELECT DISTINCT b, concat_ws(' ', b, l) FROM {t}",
        "SELECT x, y.b FROM (SELECT concat_ws(' ', b, l) x, b FROM {t}) JOIN {t} y USING (b)",
    ],
)
def test_types_without_a_name_are_read(session: SparkSession, root: str, query: str) -> None:
    """A collation that Spark cannot determine: PySpark gives the rows, but not the schema."""
    table = "(SELECT 'a' COLLATE utf8_binary AS b, 'b' COLLATE utf8_lcase AS l)"
    text = query.format(t=table)
    wanted = session.sql(text).collect()
    with DurableShuffle(session, root, job="tests") as durable, durable.transparent():
        assert session.sql(text).collect() == wanted


def test_a_bad_argument_is_refused_before_the_block(session: SparkSession, root: str) -> None:
    """Only DataFrames are left to Spark; a block that can never work is an error."""
    durable = DurableShuffle(session, root, job="tests")
    with pytest.raises(InvalidInputError, match="at_risk"):
        durable.transparent(at_risk="soon")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("INSERT INTO own.t SELECT 100, 1", None),
        ("WITH x AS (SELECT 100L AS a) INSERT INTO own.t SELECT a, a FROM x", None),
        (
            "FROM (SELECT 100L a) INSERT INTO own.t SELECT a, a INSERT INTO own.u SELECT a",
            None,
        ),
        ("CREATE TABLE own.v USING parquet AS SELECT 1 AS a", None),
        ("CACHE TABLE kept AS SELECT 1 AS a", None),
        ("CACHE TABLE own.t", "CacheTable"),
        ("EXECUTE IMMEDIATE 'INSERT INTO own.t SELECT 100, 1'", "ExecuteImmediate"),
    ],
)
def test_eager_statements_run_once(
    session: SparkSession, root: str, tmp_path: Path, statement: str, named: str | None
) -> None:
    """SQL that runs a query at once has one effect, also below WITH and FROM."""
    durable = DurableShuffle(session, root, job="tests")
    _made(session, tmp_path)
    session.sql("CREATE TABLE own.u (a BIGINT) USING parquet")
    try:
        with durable.transparent():
            session.sql(statement).collect()
        if "INSERT INTO own.t" in statement:
            assert session.table("own.t").count() == 101
        assert any((named or "sql()") in text for text in durable.report().native) == bool(named)
    finally:
        session.sql("DROP DATABASE own CASCADE")
        session.catalog.clearCache()


@pytest.mark.parametrize("label", [labels.DELTA, labels.ICEBERG])
def test_a_label_that_a_command_sets_itself_stays(
    session: SparkSession, root: str, label: str
) -> None:
    """That of the block is gone behind each command, also behind one that fails."""
    with DurableShuffle(session, root, job="labels") as shuffle, shuffle.transparent():
        session.sql("EXECUTE IMMEDIATE 'SELECT 1'")
        with pytest.raises(AnalysisException):
            session.sql("EXECUTE IMMEDIATE 'SELECT nothing'")
        assert session.conf.get(label, None) is None
        session.sql(f"EXECUTE IMMEDIATE 'SET `{label}` = mine'")
        assert session.conf.get(label, None) == "mine"
    session.conf.unset(label)
