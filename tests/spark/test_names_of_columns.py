"""Names of columns: where a function sees them they count as they are, whoever made them."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from excluded_cases import every
from identity_plans import differing, identify
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.identity.jvm.calls import query_execution
from durable_shuffle.jobs.identity.plan.blind import BLIND

pytestmark = pytest.mark.spark

NAMES = [
    ("Item #1", "Item #2"),
    ("_gen_alias_1", "_gen_alias_2"),
    ("_common_expr_1", "_common_expr_2"),
    ("_pyspark_" + "0" * 32, "_pyspark_" + "1" * 32),
    ("s", "S"),
]


def names_of_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame({"n": list(frame.columns)})


def names_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"n": batch.schema.names})


def names_of_group(group: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"n": list(group.columns)})


def names_of_two(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"n": [*one.columns, *other.columns]})


def names_of_table(group: pa.Table) -> pa.Table:
    return pa.table({"n": group.schema.names})


SEEN: dict[str, Callable[[DataFrame], DataFrame]] = {
    "mapInPandas": lambda df: df.mapInPandas(names_of_frames, "n string"),
    "mapInArrow": lambda df: df.mapInArrow(names_of_batches, "n string"),
    "applyInPandas": lambda df: df.groupBy("k").applyInPandas(names_of_group, "n string"),
    "applyInArrow": lambda df: df.groupBy("k").applyInArrow(names_of_table, "n string"),
    "cogroup": lambda df: (
        df.groupBy("k").cogroup(df.groupBy("k")).applyInPandas(names_of_two, "n string")
    ),
    "to_json": lambda df: df.selectExpr("to_json(struct(*)) AS n"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", SEEN)
def test_names_that_are_seen_count(table: DataFrame, how: str) -> None:
    """Two names that look like Spark's, or differ in case, are two for what sees names."""
    for names in NAMES:
        seen = [SEEN[how](table.selectExpr("k", f"j AS `{name}`")) for name in names]
        assert differing(*seen) == {"plan"}, names


@pytest.mark.parametrize("how", SEEN)
def test_case_of_a_reference_counts(table: DataFrame, how: str) -> None:
    """A function sees a column as the last selection spells it, whatever was read before."""
    below = table.selectExpr("k", "j AS s")
    seen = [SEEN[how](below.select("k", name).where("s > 0")) for name in ("s", "S")]
    assert differing(*seen) == {"plan"}


def sql(text: str) -> Callable[[SparkSession, str], DataFrame]:
    """Return what runs a query over t in which # stands for a quoted name."""
    return lambda spark, name: spark.sql(text.replace("#", f"`{name}`"))


CASES: dict[str, Callable[[SparkSession, str], DataFrame]] = {
    "Aggregate": sql("SELECT k, # + 1 AS v FROM (SELECT k, sum(j) AS # FROM t GROUP BY k)"),
    "CTERelationDef": sql("WITH q AS (SELECT k, j AS # FROM t) SELECT a.# AS v FROM q a, q b"),
    "CTERelationRef": sql("WITH q AS (SELECT k, j AS # FROM t) SELECT a.# AS v FROM q a, q b"),
    "Deduplicate": lambda spark, name: (
        spark.table("t").selectExpr(f"k AS `{name}`").dropDuplicates().toDF("v")
    ),
    "Distinct": sql("SELECT # AS v FROM (SELECT DISTINCT k AS # FROM t)"),
    "Except": sql("SELECT # AS v FROM (SELECT j AS # FROM t EXCEPT SELECT k AS # FROM t)"),
    "Filter": sql("SELECT # AS v FROM (SELECT j AS # FROM t) WHERE # > 1"),
    "Generate": sql("SELECT v FROM (SELECT j AS # FROM t) LATERAL VIEW explode(array(#, 1)) AS v"),
    "GlobalLimit": sql("SELECT # AS v FROM (SELECT j AS # FROM t ORDER BY id LIMIT 3)"),
    "Intersect": sql("SELECT # AS v FROM (SELECT j AS # FROM t INTERSECT SELECT k AS # FROM t)"),
    "Join": sql(
        "SELECT a.# AS v FROM (SELECT j AS # FROM t) a JOIN (SELECT k AS # FROM t) b USING (#)"
    ),
    "LocalLimit": sql("SELECT # + 1 AS v FROM (SELECT j AS # FROM t ORDER BY id LIMIT 3)"),
    "Offset": sql("SELECT # AS v FROM (SELECT j AS # FROM t ORDER BY id OFFSET 3)"),
    "Project": sql("SELECT # + 1 AS v FROM (SELECT j * 2 AS # FROM t)"),
    "Repartition": lambda spark, name: (
        spark.table("t").selectExpr(f"k AS `{name}`").coalesce(1).toDF("v")
    ),
    "RepartitionByExpression": sql(
        "SELECT # AS v FROM (SELECT /*+ repartition(3, #) */ # FROM (SELECT j AS # FROM t))"
    ),
    "ResolvedHint": sql(
        "SELECT /*+ broadcast(b) */ a.# AS v FROM (SELECT j AS # FROM t) a "
        "JOIN (SELECT k AS # FROM t) b ON a.# = b.#"
    ),
    "Sample": lambda spark, name: (
        spark.table("t").selectExpr(f"k AS `{name}`").sample(False, 0.5, 3).toDF("v")
    ),
    "Sort": sql("SELECT # AS v FROM (SELECT j AS # FROM t) ORDER BY #"),
    "SubqueryAlias": sql("SELECT q.# AS v FROM (SELECT j AS # FROM t) q"),
    "Union": sql("SELECT # AS v FROM (SELECT j AS # FROM t UNION ALL SELECT k FROM t)"),
    "View": sql("SELECT # AS v FROM (SELECT j AS # FROM t)"),
    "Window": sql(
        "SELECT sum(#) OVER (PARTITION BY k ORDER BY id) AS v FROM (SELECT *, j AS # FROM t)"
    ),
    "WithCTE": sql("WITH q AS (SELECT k, j AS # FROM t) SELECT max(a.#) AS v FROM q a, q b"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "case"), every(BLIND, CASES))
def test_names_that_no_row_depends_on(
    session: SparkSession,
    table: DataFrame,
    name: str,
    case: Callable[[SparkSession, str], DataFrame],
) -> None:
    """Names that look like Spark's leave fingerprint and rows as they are at these operators."""
    session.read.parquet(*table.inputFiles()).createOrReplaceTempView("t")
    found: list[Any] = []
    for column in NAMES[0]:
        df = case(session, column)
        assert f'.{name}"' in str(query_execution(df).analyzed().toJSON()), "not in the plan"
        found.append((identify(df).components, sorted(map(str, df.collect()))))
    assert found[0] == found[1]
