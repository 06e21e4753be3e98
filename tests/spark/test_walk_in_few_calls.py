"""Expressions that are read many at a time say what they say when each is asked alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.tpch.data import generate_all
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES, TPCH_TABLES
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.plan.jvm import Jvm, items, query_execution
from durable_shuffle.jobs.identity.plan.mapped import ATTRIBUTE, Tree
from durable_shuffle.jobs.identity.plan.tree_walk import TreeWalk

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


def test_fingerprints_are_those_of_single_calls(
    tables: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every expression asked alone, all queries have the same fingerprints."""
    shuffle = DurableShuffle(tables, str(tmp_path), job="walk")
    queries = {**TPCH_QUERIES, **FORMS}
    in_few_calls = {name: fingerprints(shuffle, tables.sql(sql)) for name, sql in queries.items()}
    asked_alone = 0

    def alone(self: CatalystWalk, tree: Tree) -> None:
        nonlocal asked_alone
        asked_alone += 1
        CatalystWalk.node(self, tree)

    monkeypatch.setattr(TreeWalk, "elements_of", CatalystWalk.elements_of)
    monkeypatch.setattr(TreeWalk, "node", alone)
    for name, sql in queries.items():
        assert fingerprints(shuffle, tables.sql(sql)) == in_few_calls[name], name
    assert asked_alone


def test_each_literal_counts(
    tables: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each kind, and as if each were asked alone; most are read from what they print."""
    shuffle = DurableShuffle(tables, str(tmp_path), job="literals")
    read = 0
    known = TreeWalk._literal

    def counted(*arguments: Any) -> bool:
        nonlocal read
        done = known(*arguments)
        read += done
        return done

    def found() -> dict[str, list[list[str]]]:
        query = "SELECT k, count(*) FROM t WHERE {} GROUP BY k"
        return {
            kind: [
                fingerprints(shuffle, tables.sql(query.format(condition.format(value))))
                for value in values
            ]
            for kind, (condition, *values) in LITERALS.items()
        }

    monkeypatch.setattr(TreeWalk, "_literal", counted)
    at_once = found()
    for kind, (one, other) in at_once.items():
        assert one[0] != other[0], kind
    assert read > 20
    monkeypatch.setattr(TreeWalk, "_literal", lambda *_: False)
    assert found() == at_once


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


def test_trees_are_what_the_jvm_has(tables: SparkSession) -> None:
    """Names, children, objects and texts, for expressions and for plans."""
    jvm = Jvm(tables.sparkContext)
    mapped = jvm.mapped
    compared = 0

    def same(tree: Tree, node: Any) -> None:
        nonlocal compared
        compared += 1
        assert tree.name == jvm.class_name(node)
        assert jvm.identity_hash(tree.object) == jvm.identity_hash(node)
        if tree.name == ATTRIBUTE and tree.text:
            assert tree.text == node.toString()
        for child, below in zip(tree.children, items(node.children()), strict=True):
            same(child, below)

    for sql in FORMS.values():
        plan = query_execution(tables.sql(sql)).optimizedPlan()
        same(mapped.tree(plan), plan)
        assert list(tree_names(mapped.tree(plan))) == mapped.names(plan)
        numbered = mapped.tree(plan, mapped.identity)
        assert numbered.number == jvm.identity_hash(plan)
        for operator in items(plan.collectLeaves().appended(plan)):
            expressions = operator.expressions()
            for tree, node in zip(mapped.trees(expressions), items(expressions), strict=True):
                same(tree, node)
    assert compared > 100


def tree_names(tree: Tree) -> Iterator[str]:
    yield tree.name
    for child in tree.children:
        yield from tree_names(child)


def test_lists_of_everything(tables: SparkSession) -> None:
    """Elements may be null, texts or numbers; a list may be empty or hold one null."""
    jvm = Jvm(tables.sparkContext)
    for values in ([], [None], [""], [None, "a", 1, True, 2.5], ["\n\x02\n"]):
        elements = jvm.mapped.elements(jvm.to_seq(values))
        assert [None if one.name == "null" else one.object for one in elements] == values
        if not values:
            continue
        walk = TreeWalk(jvm)
        walk.visit(jvm.to_seq(values))
        tokens = [f"{type(value).__name__} {value!r}" for value in values]
        assert walk.tokens == [f"seq {len(values)}", *tokens]
