"""SQL statements that write: their queries are stored, each statement runs once, as in Spark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, ArithmeticException
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.identity.jvm.calls import query_execution
from durable_shuffle.jobs.transparent import statements

pytestmark = pytest.mark.spark

SUM = "SELECT k, sum(id) AS s FROM own.t GROUP BY k"
NEW = "CREATE TABLE own.{name} (k BIGINT, s BIGINT) USING parquet"
PARTS = NEW + " PARTITIONED BY (s)"
STATEMENTS: dict[str, tuple[list[str], str, str]] = {
    "insert": ([NEW], f"INSERT INTO own.{{name}} {SUM}", "own.{name}"),
    "insert by name": (
        [NEW],
        "INSERT INTO own.{name} BY NAME SELECT sum(id) AS s, k FROM own.t GROUP BY k",
        "own.{name}",
    ),
    "insert columns": (
        [NEW],
        "INSERT INTO own.{name} (s, k) SELECT sum(id), k FROM own.t GROUP BY k",
        "own.{name}",
    ),
    "overwrite": (
        [NEW, "INSERT INTO own.{name} VALUES (1, 1)"],
        f"INSERT OVERWRITE own.{{name}} {SUM}",
        "own.{name}",
    ),
    "static partition": (
        [PARTS, "INSERT INTO own.{name} VALUES (9, 9)"],
        "INSERT OVERWRITE own.{name} PARTITION (s = 1) SELECT max(k) FROM own.t GROUP BY k",
        "own.{name}",
    ),
    "dynamic partitions": (
        [PARTS, "INSERT INTO own.{name} VALUES (9, 9)"],
        f"INSERT OVERWRITE own.{{name}} PARTITION (s) {SUM}",
        "own.{name}",
    ),
    "directory": (
        [],
        f"INSERT OVERWRITE DIRECTORY '{{folder}}/{{name}}' USING parquet {SUM}",
        "parquet.`{folder}/{name}`",
    ),
    "with": (
        [NEW],
        f"WITH x AS ({SUM}) INSERT INTO own.{{name}} SELECT * FROM x WHERE k > 2",
        "own.{name}",
    ),
    "two inserts": (
        [NEW],
        f"FROM ({SUM}) INSERT INTO own.{{name}} SELECT k, s INSERT INTO own.{{name}} SELECT s, k",
        "own.{name}",
    ),
    "create": ([], f"CREATE TABLE own.{{name}} USING parquet AS {SUM}", "own.{name}"),
    "create with": (
        [],
        f"CREATE TABLE own.{{name}} USING orc PARTITIONED BY (k) AS WITH x AS ({SUM}) "
        "SELECT s, k FROM x",
        "own.{name}",
    ),
    "cache": ([], f"CACHE TABLE {{name}} AS {SUM}", "{name}"),
    "cache of a view": (
        ["CREATE OR REPLACE TEMPORARY VIEW seen AS SELECT id, k FROM own.t WHERE id > 5"],
        f"CACHE TABLE {{name}} AS {SUM.replace('own.t', 'seen')}",
        "{name}",
    ),
    "cached when read": ([], f"CACHE LAZY TABLE {{name}} AS {SUM}", "{name}"),
    "sorted": (
        [NEW],
        f"INSERT INTO own.{{name}} {SUM} ORDER BY s LIMIT 3",
        "own.{name}",
    ),
}


@pytest.fixture
def tables(session: SparkSession, tmp_path: Path) -> Iterator[None]:
    """A database with a table of 100 rows."""
    session.sql(f"CREATE DATABASE own LOCATION '{tmp_path / 'own'}'")
    session.range(0, 100, 1, 2).selectExpr("id", "id % 7 AS k").write.saveAsTable("own.t")
    yield
    session.sql("DROP DATABASE own CASCADE")
    session.catalog.clearCache()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", STATEMENTS)
def test_rows_are_those_of_spark(
    session: SparkSession, root: str, tmp_path: Path, tables: None, case: str
) -> None:
    """The first run stores the query's exchanges, the second run finds them."""
    before, statement, where = STATEMENTS[case]
    found = []
    for name in ("plain", "first", "second"):
        for text in before:
            session.sql(text.format(name=name))
        durable = DurableShuffle(session, root, job="tests")
        filled = statement.format(name=name, folder=tmp_path)
        if name == "plain":
            session.sql(filled)
        else:
            with durable.transparent():
                assert session.sql(filled).collect() == []
            ran = [stage.map_tasks_run for stage in durable.report().stages]
            assert ran
            assert (sum(ran) > 0) == (name == "first")
            assert not any(text.startswith("sql()") for text in durable.report().native)
        rows = session.sql(f"SELECT * FROM {where.format(name=name, folder=tmp_path)}")
        found.append(sorted(map(tuple, rows.collect())))
        session.catalog.clearCache()  # or the next run reads what this one cached
    assert found[0]
    assert found == [found[0]] * 3


def test_a_cached_table_is_made_of_the_stored_rows(
    session: SparkSession, root: str, tables: None
) -> None:
    """The query does not run a second time in Spark; the view that exists already is refused."""
    durable = DurableShuffle(session, root, job="tests")
    with durable.transparent():
        session.sql(f"CACHE TABLE made AS {SUM}")
        cached: Any = query_execution(session.table("made")).withCachedData()
        assert "FileScan" not in str(cached.collectLeaves().head().cacheBuilder().cachedPlan())
        with pytest.raises(AnalysisException) as refused:
            session.sql(f"CACHE TABLE made AS {SUM}")
    assert refused.value.getCondition() == "TEMP_TABLE_OR_VIEW_ALREADY_EXISTS"
    assert session.conf.get("spark.sql.legacy.storeAnalyzedPlanForView") == "false"
    session.catalog.clearCache()


@pytest.mark.parametrize("read", [SUM, "SELECT a.id, b.k FROM own.t a JOIN own.t b USING (id)"])
def test_no_table_that_is_read_is_overwritten(
    session: SparkSession, root: str, tables: None, read: str
) -> None:
    """Spark's own refusal comes before anything is deleted."""
    durable = DurableShuffle(session, root, job="tests")
    with durable.transparent(), pytest.raises(AnalysisException) as refused:
        session.sql(f"INSERT OVERWRITE own.t {read}")
    assert refused.value.getCondition() == "UNSUPPORTED_OVERWRITE.TABLE"
    assert session.table("own.t").count() == 100


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("INSERT INTO own.nowhere SELECT 1", "TABLE_OR_VIEW_NOT_FOUND"),
        ("INSERT INTO own.t SELECT nothing FROM own.t GROUP BY k", "UNRESOLVED_COLUMN"),
        (f"INSERT INTO own.t (id) {SUM}", "INSERT_COLUMN_ARITY_MISMATCH"),
        (f"CREATE TABLE own.t USING parquet AS {SUM}", "TABLE_OR_VIEW_ALREADY_EXISTS"),
        (f"INSERT INTO own.t PARTITION (nothing) {SUM}", "PARTITIONS_NOT_FOUND"),
    ],
)
def test_errors_are_those_of_spark(
    session: SparkSession, root: str, tables: None, text: str, condition: str
) -> None:
    """With the same condition, inside and outside of the block, before anything is stored."""
    conditions = []
    durable = DurableShuffle(session, root, job="tests")
    for inside in (False, True):
        try:
            if inside:
                with durable.transparent():
                    session.sql(text)
            else:
                session.sql(text)
        except AnalysisException as error:
            conditions.append(error.getCondition())
    assert conditions[0].startswith(condition)
    assert conditions == [conditions[0]] * 2
    assert durable.report().stages == ()


def test_a_table_that_exists_is_left_alone(session: SparkSession, root: str, tables: None) -> None:
    """`IF NOT EXISTS` computes nothing for it, as in Spark."""
    durable = DurableShuffle(session, root, job="tests")
    with durable.transparent():
        session.sql(f"CREATE TABLE IF NOT EXISTS own.t USING parquet AS {SUM}")
    assert session.table("own.t").count() == 100
    assert durable.report().stages == ()


def test_conditions_see_what_with_names(session: SparkSession, root: str, tables: None) -> None:
    """A statement with conditions beside its query is Spark's, with all common table expressions.
    Spark's own tables refuse it, inside the block as outside."""
    text = (
        "WITH x AS (SELECT k FROM own.t GROUP BY k) INSERT INTO own.t REPLACE WHERE "
        "k IN (SELECT k FROM x) SELECT count(*), k FROM x GROUP BY k"
    )
    with pytest.raises(AnalysisException) as outside:
        session.sql(text)
    durable = DurableShuffle(session, root, job="tests")
    with durable.transparent(), pytest.raises(AnalysisException) as inside:
        session.sql(text)
    conditions = [outside.value.getCondition(), inside.value.getCondition()]
    assert conditions[0] == conditions[1]
    assert durable.report().stages == ()


@pytest.mark.parametrize("ansi", ["false", "true"])
def test_a_statement_has_the_settings_of_its_own_session(
    session: SparkSession, root: str, tables: None, ansi: str
) -> None:
    """Another session is active in the thread, with other settings: they do not count."""
    session.conf.set("spark.sql.ansi.enabled", ansi)
    other = session.newSession()
    other.conf.set("spark.sql.ansi.enabled", "false" if ansi == "true" else "true")
    query = "SELECT k, sum(id) / (k - k) AS s FROM own.t GROUP BY k"
    text = f"CREATE TABLE own.n USING parquet AS {query}"
    jvm: Any = session._jvm
    sessions = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    durable = DurableShuffle(session, root, job="tests")
    sessions.setActiveSession(other._jsparkSession)
    try:
        with durable.transparent():
            if ansi == "true":
                with pytest.raises(ArithmeticException):
                    session.sql(text)
            else:
                session.sql(text)
                assert {row.s for row in session.table("own.n").collect()} == {None}
    finally:
        sessions.setActiveSession(before.get() if before.isDefined() else session._jsparkSession)
    assert durable.report().stages


class Unknown:
    """A plan of another Spark version: every question about it fails."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, *args: object) -> object:
        jvm: Any = self._spark._jvm
        return jvm.java.lang.Class.forName("no.such.Class")


@pytest.mark.parametrize("broken", ["_statement", "_analyze", "_with_children"])
def test_what_is_not_known_of_a_plan_breaks_no_program(
    session: SparkSession,
    root: str,
    tables: None,
    broken: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where reading, checking or rebuilding a plan fails, Spark runs the text, once."""
    session.sql(NEW.format(name="n"))
    monkeypatch.setattr(statements, broken, Unknown(session))
    durable = DurableShuffle(session, root, job="tests")
    with durable.transparent():
        session.sql(f"INSERT INTO own.n {SUM}")
    assert session.table("own.n").count() == 7
    assert any("InsertIntoStatement" in text for text in durable.report().native)


def test_a_query_that_is_refused_runs_as_it_was_written(
    session: SparkSession, root: str, tables: None
) -> None:
    """A query without an exchange has nothing to store."""
    session.sql(NEW.format(name="n"))
    durable = DurableShuffle(session, root, job="tests")
    with durable.transparent():
        session.sql("INSERT INTO own.n SELECT id, k FROM own.t")
    assert session.table("own.n").count() == 100


def test_defaults_are_left_to_spark(session: SparkSession, root: str, tables: None) -> None:
    """A query that cannot be analyzed alone runs in Spark, once, and is named."""
    session.sql("CREATE TABLE own.d (a BIGINT, b BIGINT DEFAULT 7) USING parquet")
    durable = DurableShuffle(session, root, job="tests")
    with durable.transparent():
        session.sql("INSERT INTO own.d VALUES (1, DEFAULT)")
        session.sql("INSERT INTO own.d SELECT :a, 2", args={"a": 5})
    assert sorted(map(tuple, session.table("own.d").collect())) == [(1, 7), (5, 2)]
    assert any("InsertIntoStatement" in text for text in durable.report().native)
