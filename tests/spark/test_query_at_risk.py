"""A budget of work that may be lost leaves exchanges of a query to Spark."""

import threading
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.query import planned_query

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled_plans")]

TWO_LEVELS = """
    SELECT n, count(*) AS keys, sum(s) AS s
    FROM (SELECT k, count(*) AS n, sum(v) AS s FROM big GROUP BY k) GROUP BY n
"""
JOIN = "SELECT d, count(*) AS n, sum(v) AS s FROM big JOIN dim USING (k) GROUP BY d"


@pytest.fixture
def tables(big_and_dim: SparkSession) -> SparkSession:
    """Without broadcasts."""
    big_and_dim.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    return big_and_dim


def shuffle_of(session: SparkSession, root: str, **options: object) -> DurableShuffle:
    return DurableShuffle(session, root, job="tests", **options)  # type: ignore[arg-type]


def rows_of(df: DataFrame) -> list[Row]:
    return sorted(df.collect(), key=str)


def left(durable: DurableShuffle) -> list[str]:
    return [text for text in durable.report().native if "left to Spark" in text]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("text", [TWO_LEVELS, JOIN])
def test_a_large_budget_stores_nothing(tables: SparkSession, root: str, text: str) -> None:
    df = tables.sql(text)
    durable = shuffle_of(tables, root)
    said = durable.explain.query(df, at_risk="1 h")
    assert {stage.action for stage in said.stages} == {"left to Spark"}
    assert "of at most 3600 s at risk" in str(said)
    assert rows_of(durable.query(df, at_risk="1 h")) == rows_of(df)
    assert durable.report().stages == ()
    assert len(left(durable)) == len(said.stages)
    assert "at_risk allows 3600 s" in left(durable)[0]


def test_the_setting_counts_if_the_call_says_nothing(tables: SparkSession, root: str) -> None:
    df = tables.sql(TWO_LEVELS)
    tables.conf.set("spark.durableShuffle.atRisk", "1 h")
    durable = shuffle_of(tables, root)
    durable.query(df).collect()
    assert durable.report().stages == ()
    durable.query(df, at_risk="nothing").collect()
    assert len(durable.report().stages) == 2


def test_when_the_budget_is_spent_the_next_exchange_is_stored(
    tables: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first exchange fits into the budget and takes most of it; so the second is stored. After
    that nothing is at risk any more. A later run finds the second and needs no first."""
    native = planned_query.run_natively

    def slow(jvm: Any, exchange: Any, clock: Any) -> Any:
        from dataclasses import replace

        return replace(native(jvm, exchange, clock), seconds=59.9)

    monkeypatch.setattr(planned_query, "run_natively", slow)
    df = tables.sql(TWO_LEVELS)
    first = shuffle_of(tables, root)
    assert rows_of(first.query(df, at_risk="60 s")) == rows_of(df)
    assert len(left(first)) == 1
    (stage,) = first.report().stages
    assert stage.native_exchanges == 1
    again = shuffle_of(tables, root, reuse="require")
    assert rows_of(again.query(df, at_risk="60 s")) == rows_of(df)
    assert [one.action for one in again.report().stages] == ["reused"]
    assert left(again) == []


def test_an_exchange_that_takes_too_long_is_stopped_and_stored(
    tables: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's job is cancelled when the budget is spent, and the exchange is stored instead."""
    cancelled = threading.Event()

    def never_ends(jvm: Any, exchange: Any, clock: Any) -> Any:
        del exchange, clock
        context = tables.sparkContext
        try:
            context.parallelize([0], 1).map(_sleep_long).collect()
        finally:
            cancelled.set()

    monkeypatch.setattr(planned_query, "run_natively", never_ends)
    df = tables.sql("SELECT k, count(*) AS n FROM big GROUP BY k")
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df, at_risk="4 s")) == rows_of(df)
    assert cancelled.is_set()
    assert left(durable) == []
    assert [stage.action for stage in durable.report().stages] == ["computed"]


def _sleep_long(value: int) -> int:
    threading.Event().wait(300)
    return value


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT v, r FROM (SELECT v, rand() AS r FROM big) DISTRIBUTE BY v", "differ"),
        ("SELECT * FROM big ORDER BY v", "differ"),
        ("SELECT /*+ REPARTITION(3, v) */ v FROM (SELECT v FROM big LIMIT 500)", "differ"),
        ("SELECT f, count(*) FROM (SELECT first(v) AS f FROM big GROUP BY k) GROUP BY f", "differ"),
    ],
)
def test_rows_that_may_differ_are_stored(
    tables: SparkSession, root: str, text: str, why: str
) -> None:
    """Stages that read such an exchange might be computed from different rows in different runs."""
    durable = shuffle_of(tables, root)
    df = tables.sql(text)
    said = durable.explain.query(df, version="1", at_risk="1 h")
    assert why in " ".join(stage.why for stage in said.stages if stage.action == "computed")
    result = durable.query(df, version="1", at_risk="1 h")
    assert rows_of(result) == rows_of(result)
    assert durable.report().stages


def test_what_is_partly_stored_stays_stored(tables: SparkSession, root: str) -> None:
    """A budget in a later run does not throw away producers that have committed."""
    df = tables.sql(TWO_LEVELS)
    shuffle_of(tables, root).query(df)
    again = shuffle_of(tables, root)
    assert rows_of(again.query(df, at_risk="1 h")) == rows_of(df)
    assert [stage.action for stage in again.report().stages] == ["reused"]
    assert left(again) == []


def test_sizes_of_what_spark_ran_change_the_plan(tables: SparkSession, root: str) -> None:
    """Spark measures what it runs, too: a small side is broadcast."""
    tables.conf.set("spark.sql.autoBroadcastJoinThreshold", "2000")
    df = tables.sql("SELECT g, sum(v) AS s FROM big JOIN dim USING (k) WHERE c = 3 GROUP BY g")
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df, at_risk="1 h")) == rows_of(df)
    (adapted,) = durable.report().adapted
    assert "exchange 0 is not needed" in adapted
    assert len(left(durable)) == 2
