"""What stands in a document says what it says when each object is asked alone."""

import sys
import threading
from ast import literal_eval
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.tpch.data import generate_all
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES, TPCH_TABLES
from durable_shuffle.jobs.identity.jvm.calls import (
    JVM_ERRORS,
    Jvm,
    column_names,
    elements,
    every,
    items,
    query_execution,
)
from durable_shuffle.jobs.identity.jvm.document import PHYSICAL, Seen
from durable_shuffle.jobs.identity.plan import files
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.plan.files import first_changed, listed_files
from durable_shuffle.jobs.query.piece_walk import Scans
from durable_shuffle.jobs.spark_versions import argument_names

pytestmark = pytest.mark.spark

FORMS = {
    "case": "SELECT k, sum(CASE WHEN v > 3 THEN 1 WHEN v > 1 THEN 2 END) FROM t GROUP BY k",
    "case else": "SELECT k, sum(CASE WHEN v > 3 THEN 1 ELSE v END) FROM t GROUP BY k",
    "or": "SELECT k, sum(v) FROM t WHERE k = 1 OR v = 2 GROUP BY k",
    "in": "SELECT k, sum(v) FROM t WHERE k IN (1, 2, NULL) AND s IN ('a', 'b') GROUP BY k",
    "decimals": "SELECT k, avg(d * d + 1), sum(d / 3) FROM t GROUP BY k",
    "filter": "SELECT k, count(v) FILTER (WHERE v > 1), count(DISTINCT s) FROM t GROUP BY k",
    "window": "SELECT k, v, sum(v) OVER (PARTITION BY k ORDER BY v, s DESC NULLS LAST) FROM t",
    "coalesce": "SELECT coalesce(v, k, 1) AS c, greatest(k, v, 2), count(*) FROM t GROUP BY 1, 2",
    "lambda": "SELECT transform(array(k, v), x -> x + 1) AS a, count(*) FROM t GROUP BY 1",
    "dates": "SELECT date_add(to_date(s), 1) AS a, max(CAST(v AS STRING)) FROM t GROUP BY 1",
    "join": "SELECT a.k, b.v FROM t a JOIN t b ON a.k = b.k AND (a.v < b.v OR a.s = b.s)",
    "null": "SELECT k, CAST(NULL AS INT) AS n, '' AS e, sum(v) FROM t GROUP BY k",
}
LITERALS = {
    "long": ("k IN (1, 2, {})", "3", "4"),
    "integer": ("v IN (1, 2, {})", "3", "4"),
    "decimal": ("d IN (1.50, 2.25, {})", "3.75", "3.76"),
    "double": ("CAST(v AS DOUBLE) IN (1.5D, 2.5D, {})", "1e300D", "2e300D"),
    "text": ("s IN ('a', '', {})", "'\u00e9'", "'e\u0301'"),
    "text of another case": ("s IN ('a', {})", "'B'", "'b'"),
    "line feed": ("s IN ('a', {})", r"'\n\u0002\n'", r"'\n\u0002'"),
    "not UTF-8": ("s IN ('a', {})", "CAST(X'ff' AS STRING)", "CAST(X'fe' AS STRING)"),
    "bytes": ("CAST(s AS BINARY) IN (X'01', {})", "X'02'", "X'03'"),
    "boolean": ("(k > 3) IN ({}, NULL)", "true", "false"),
    "date": ("to_date(s) IN (DATE'2020-01-01', {})", "DATE'2020-01-02'", "DATE'2020-01-03'"),
    "collation": (
        "k = 1 OR s COLLATE {} = 'b'",
        "UTF8_LCASE",
        "UNICODE_CI",
    ),
    "null or text": ("k = 1 OR coalesce(s, {}) = 'a'", "'null'", "nullif('a', 'a')"),
    "interval": (
        "to_timestamp(s) + {} > TIMESTAMP'2020-01-01 00:00:00' OR k = 2",
        "INTERVAL '1' DAY",
        "INTERVAL '1' HOUR",
    ),
}
"""Kind -> a condition, and two literals in it that mean something else."""


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The tables of TPC-H, and t with a long, an integer, a text and a decimal."""
    session = spark.newSession()
    files = generate_all(tmp_path_factory.mktemp("data"), 0.001)
    for table in TPCH_TABLES:
        session.read.parquet(str(files.folder / table)).createOrReplaceTempView(table)
    folder = str(tmp_path_factory.mktemp("t") / "t")
    columns = ("id AS k", "int(id % 5) AS v", "string(id) AS s", "CAST(id AS DECIMAL(7, 2)) AS d")
    session.range(40).selectExpr(*columns).write.parquet(folder)
    session.read.parquet(folder).createOrReplaceTempView("t")
    return session


def fingerprints(shuffle: DurableShuffle, df: DataFrame) -> list[str]:
    answers = (shuffle.explain.query(df), shuffle.explain.checkpoint(df))
    return [stage.fingerprint for answer in answers for stage in answer.stages]


@pytest.fixture
def asked_alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes every object be asked call by call, as in a JVM without a compiler."""
    return lambda: monkeypatch.setattr(Jvm, "seen", lambda _, obj, *__: obj)


def test_fingerprints_are_those_of_single_calls(
    tables: SparkSession, tmp_path: Path, asked_alone: Callable[[], None]
) -> None:
    """With every object asked alone, all queries have the same fingerprints."""
    shuffle = DurableShuffle(tables, str(tmp_path), job="walk")
    queries = {**TPCH_QUERIES, **FORMS}
    in_few_calls = {name: fingerprints(shuffle, tables.sql(sql)) for name, sql in queries.items()}
    asked_alone()
    for name, sql in queries.items():
        assert fingerprints(shuffle, tables.sql(sql)) == in_few_calls[name], name


def test_each_literal_counts(
    tables: SparkSession, tmp_path: Path, asked_alone: Callable[[], None]
) -> None:
    """Of each kind, and if each is asked alone, too."""
    shuffle = DurableShuffle(tables, str(tmp_path), job="literals")

    def found() -> dict[str, list[list[str]]]:
        query = "SELECT k, count(*) FROM t WHERE {} GROUP BY k"
        return {
            kind: [
                fingerprints(shuffle, tables.sql(query.format(condition.format(value))))
                for value in values
            ]
            for kind, (condition, *values) in LITERALS.items()
        }

    at_once = found()
    for kind, (one, other) in at_once.items():
        assert one[0] != other[0], kind
    asked_alone()
    assert found() == at_once


@pytest.mark.parametrize("name", ["q01", "q02", "q12", "q20", "q21"])
def test_a_query_takes_few_calls(
    tables: SparkSession, tmp_path: Path, jvm_calls: Any, name: str
) -> None:
    """Beyond Spark's own, in the first run and in the second."""
    with DurableShuffle(tables, str(tmp_path), job="warm") as shuffle:
        shuffle.query(tables.sql(TPCH_QUERIES["q12"])).collect()
    with jvm_calls() as plain:
        wanted = tables.sql(TPCH_QUERIES[name]).collect()
    found = []
    for _ in range(2):
        shuffle = DurableShuffle(tables, str(tmp_path), job=name)
        with shuffle, jvm_calls() as calls:
            assert shuffle.query(tables.sql(TPCH_QUERIES[name])).collect() == wanted
        found.append(len(calls) - len(plain))
    first, second = found
    assert 10 < first <= 60, first
    assert 5 < second <= 25, second


def test_files_are_asked_again_by_folders(
    tables: SparkSession, tmp_path: Path, jvm_calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call lists a folder on another machine, however many files it has."""
    monkeypatch.setattr(files, "_stat", lambda _: None)
    folder = tmp_path / "many"
    tables.range(0, 40, 1, 40).write.parquet(str(folder))
    jvm = Jvm(tables.sparkContext)
    plan = jvm.seen(query_execution(tables.read.parquet(str(folder))).analyzed())
    listed = listed_files(jvm, plan.relation().location())
    assert len(listed.entries) == 40
    with jvm_calls() as calls:
        assert first_changed([listed]) == ""
    assert 0 < len(calls) <= 5
    changed = sorted(folder.glob("*.parquet"))[3]
    changed.write_bytes(changed.read_bytes() + b"x")
    assert first_changed([listed]).endswith(changed.name)


def test_folders_of_several_tables_are_asked_side_by_side(
    tables: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On object storage each takes a round trip. A changed file is named, of whichever table."""
    monkeypatch.setattr(files, "_stat", lambda _: None)
    jvm, found = Jvm(tables.sparkContext), []
    for name in ("one", "two", "three"):
        tables.range(0, 12, 1, 4).write.parquet(str(tmp_path / name))
        frame = tables.read.parquet(str(tmp_path / name))
        plan = jvm.seen(query_execution(frame).analyzed())
        found.append(listed_files(jvm, plan.relation().location()))
    all_asked, asked = threading.Barrier(3), list[str]()
    facts_of = files._facts_of

    def late(printed: str) -> dict[str, tuple[int, int]]:
        asked.append(printed)
        all_asked.wait(60)
        return facts_of(printed)

    monkeypatch.setattr(files, "_facts_of", late)
    assert first_changed(found) == ""
    assert len(asked) == 3
    changed = min((tmp_path / "two").glob("*.parquet"))
    changed.write_bytes(changed.read_bytes() + b"x")
    assert first_changed(found) == changed.as_uri().replace("file://", "file:")
    assert first_changed([]) == ""


def test_only_indexes_of_known_kinds_are_listed_ahead(tables: SparkSession, tmp_path: Path) -> None:
    """What another one lists is not used, and may take long."""
    tables.range(0, 12, 1, 4).write.parquet(str(tmp_path / "one"))
    jvm = Jvm(tables.sparkContext)
    frame = tables.read.parquet(str(tmp_path / "one"))
    scan = jvm.seen(query_execution(frame).sparkPlan())
    node = SimpleNamespace(name="FileSourceScanExec", id=int(scan.id()), plan=scan)
    (text,) = Scans(jvm, [cast("Any", node)]).printed.values()
    assert text is not None
    assert text.count(".parquet") == 4
    jvm.class_name = lambda _: "com.example.OtherIndex"  # type: ignore[method-assign]
    assert Scans(jvm, [cast("Any", node)]).printed == {}


def test_a_file_of_this_machine_is_asked_of_this_machine(
    tables: SparkSession, tmp_path: Path, jvm_calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop is asked where it is not as it was listed, and has the last word."""
    tables.range(0, 12, 1, 4).write.parquet(str(tmp_path / "one"))
    jvm = Jvm(tables.sparkContext)
    plan = jvm.seen(query_execution(tables.read.parquet(str(tmp_path / "one"))).analyzed())
    listed = listed_files(jvm, plan.relation().location())
    asked, again = list[int](), files._asked_again

    def counted(listings: Any, wanted: Any) -> Any:
        asked.append(len(wanted))
        return again(listings, wanted)

    monkeypatch.setattr(files, "_asked_again", counted)
    assert first_changed([listed]) == ""
    longer = [literal_eval(entry) for entry in listed.entries]
    entries = tuple(repr((values, path, n + 1, *more)) for values, path, n, *more in longer)
    with monkeypatch.context() as patch:  # an index that kept an old listing
        patch.setattr(files, "file_entries", lambda *_, **__: list(entries))
        assert first_changed([replace(listed, entries=entries)]) == longer[0][1]
    assert asked == [0, 4]


@pytest.mark.parametrize("more", ["", " AND s < 'x'", " AND s < 'x' AND d > 1"])
def test_operands_count_however_few_filters_there_are(
    tables: SparkSession, tmp_path: Path, more: str
) -> None:
    """A scan has one filter, or several: what stands inside an OR counts, its order does not."""
    shuffle = DurableShuffle(tables, str(tmp_path), job="or")
    query = "SELECT k, count(*) FROM t WHERE ({}){} GROUP BY k"
    conditions = ("k = 1 OR v = 2", "k = 1 OR v = 3", "k = 1 OR v = 2 OR s = 'b'", "v = 2 OR k = 1")
    found = [fingerprints(shuffle, tables.sql(query.format(one, more)))[0] for one in conditions]
    assert found[3] == found[0]
    assert len(set(found)) == 3


def test_a_document_says_what_the_jvm_has(tables: SparkSession) -> None:
    """Of each operator and expression: class, jar, arguments, children, names and objects."""
    jvm = Jvm(tables.sparkContext)
    compared = 0

    def same(seen: Any, live: Any) -> None:
        nonlocal compared
        if not isinstance(seen, Seen):
            assert seen == live
            return
        compared += 1
        name = jvm.class_name(live)
        assert jvm.class_name(seen) == name
        assert jvm.identity_hash(seen) == jvm.identity_hash(live)
        assert seen.seen_object.equals(live)
        if seen.seen_class.fields is not None:
            assert seen.seen_class.fields == tuple(argument_names(jvm.root, live))
            arguments = [live.productElement(i) for i in range(live.productArity())]
            for one, other in zip(seen.seen_elements() or [], arguments, strict=True):
                same(one, other)

    for sql in FORMS.values():
        execution = query_execution(tables.sql(sql))
        for plan in (execution.optimizedPlan(), execution.sparkPlan()):
            pairs = zip(every(jvm.seen(plan)), every(plan), strict=True)
            for seen, live in pairs:
                same(seen, live)
                assert jvm.is_a(seen, PHYSICAL) is jvm.is_a(live, PHYSICAL)
                assert column_names(seen) == column_names(live)
    assert compared > 1000


def test_lists_of_everything(tables: SparkSession) -> None:
    """Elements may be null, texts, numbers, bytes or decimals, and texts may hold any character."""
    jvm = Jvm(tables.sparkContext)
    odd = ["", '"\\\n\x02\x7f', "\u00e9\u20ac", "\U0001f600", "x" * 30_000]
    numbers = [1, -(2**40), 2.5, 1e300, float("inf"), Decimal("1.50"), True, None, b"\x00\xff"]
    for values in ([], [None], odd, numbers, [*odd, *numbers]):
        seq = jvm.to_seq(values)
        seen = jvm.seen(seq)
        assert isinstance(seen, Seen)
        assert items(seen) == elements(seen) == values == items(seq)
        assert [type(one) for one in items(seen)] == [type(one) for one in values]
        walk = CatalystWalk(jvm)
        walk.visit(seen)
        tokens = [f"{type(value).__name__} {value!r}" for value in values]
        name = jvm.class_name(seen)
        assert walk.tokens == ([name] if name.endswith("$") else [f"seq {len(values)}", *tokens])


def test_what_a_document_does_not_have_is_asked(tables: SparkSession) -> None:
    """A method that nobody named, a list of rows, and an error of a method."""
    jvm = Jvm(tables.sparkContext)
    plan = jvm.seen(query_execution(tables.createDataFrame([(1,)], "k long")).analyzed())
    assert str(plan.nodeName()) in ("LogicalRDD", "LocalRelation")
    rows = query_execution(tables.sql("VALUES (1), (2)")).analyzed()
    local = next(
        node for node in every(jvm.seen(rows)) if jvm.class_name(node).endswith("Relation")
    )
    assert local.data().seen_elements() is None
    assert len(items(local.data())) == 2
    unresolved = jvm.module("org.apache.spark.sql.catalyst.parser.CatalystSqlParser")
    column = jvm.seen(unresolved.parseExpression("a + 1")).left()
    with pytest.raises(JVM_ERRORS):
        column.exprId()


def test_deep_and_wide_plans_are_read(tables: SparkSession) -> None:
    """2,000 columns, and an expression of 400 levels, in a few calls."""
    jvm = Jvm(tables.sparkContext)
    wide = tables.range(1).selectExpr(*(f"id + {i} AS c{i}" for i in range(2000)))
    plan = jvm.seen(query_execution(wide).analyzed())
    assert column_names(plan) == [f"c{i}" for i in range(2000)]
    deep = tables.range(1).selectExpr(" + ".join(["id"] * 401))
    (top,) = items(jvm.seen(query_execution(deep).analyzed()).projectList())
    expression, depth = top.child(), 0
    while jvm.class_name(expression).endswith(".Add"):
        expression, depth = expression.left(), depth + 1
    assert depth == 400


@pytest.mark.soak
def test_loops_of_columns_are_recognised(tables: SparkSession, tmp_path: Path) -> None:
    """300 `withColumn` calls in a loop, which Spark itself runs; each of them counts."""
    shuffle = DurableShuffle(tables, str(tmp_path), job="loop")

    def looped(first: int) -> DataFrame:
        df = tables.range(10)
        for i in range(first, first + 300):
            df = df.withColumn("id", col("id") + i)
        return df

    found = {i: shuffle.explain.checkpoint(looped(i)).stages[0].fingerprint for i in (0, 1)}
    assert found[0] != found[1]
    assert shuffle.explain.checkpoint(looped(0)).stages[0].fingerprint == found[0]
    assert sys.getrecursionlimit() < 100_000
