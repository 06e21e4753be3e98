"""Queries are planned again when the sizes of their stages are known, as adaptive Spark does."""

import threading
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.query.cut_identity import CutIdentities
from durable_shuffle.jobs.query.cuts import Cut
from durable_shuffle.jobs.query.piece_walk import Scans
from durable_shuffle.jobs.query.tree import Node
from durable_shuffle.jobs.stages.identity import StageIdentity
from durable_shuffle.jobs.stages.store import StageStore
from durable_shuffle.jobs.stages.stored_stage import StoredStage
from durable_shuffle.jobs.stages.work import Writing

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled_plans")]


@pytest.fixture
def tables(big_and_dim: SparkSession) -> SparkSession:
    """By its estimate `dim` is too large to be broadcast."""
    big_and_dim.conf.set("spark.sql.autoBroadcastJoinThreshold", "2000")
    return big_and_dim


def shuffle_of(session: SparkSession, root: str, **options: object) -> DurableShuffle:
    return DurableShuffle(session, root, job="tests", **options)  # type: ignore[arg-type]


def rows_of(df: DataFrame) -> list[Row]:
    return sorted(df.collect(), key=str)


def stages(durable: DurableShuffle) -> list[tuple[str, str]]:
    """Return (partitioner, decision) of each stage that was needed."""
    return [(stage.partitioner, stage.action) for stage in durable.report().stages]


SMALL_SIDE = "SELECT g, count(*) n, sum(v) s FROM big JOIN dim USING (k) WHERE c = 3 GROUP BY g"


def test_a_small_side_is_broadcast(tables: SparkSession, root: str) -> None:
    """The filter leaves 40 rows of `dim`. So they are broadcast, and `big` gets no exchange for
    the join, only one for the groups. A second run finds both stages and runs nothing."""
    df = tables.sql(SMALL_SIDE)
    first = shuffle_of(tables, root)
    before = first.explain.query(df)
    assert [one.may_change for one in before.stages] == [True, False, True]
    assert "may change" in str(before)
    assert rows_of(first.query(df)) == rows_of(df)
    assert stages(first) == [("hash", "computed"), ("hash", "computed")]
    (adapted,) = first.report().adapted
    assert "exchange 1 has 40 rows" in adapted
    assert "exchange 0 is not needed (hash(8) [v, k, g])" in adapted
    assert sum(stage.rows for stage in first.report().stages) < 20_000
    again = shuffle_of(tables, root)
    assert again.explain.query(df).stored
    assert rows_of(again.query(df)) == rows_of(df)
    assert stages(again) == [("hash", "reused"), ("hash", "reused")]


def test_a_stage_of_a_subquery_below_one_that_started(tables: SparkSession, root: str) -> None:
    """A new plan has the stage that reads it, but not the exchange in the subquery (TPC-DS q44)."""
    df = tables.sql("""
        WITH means AS (
            SELECT k, avg(v) AS m FROM big GROUP BY k
            HAVING avg(v) > 0.5 * (SELECT avg(v) FROM big WHERE g = 1 GROUP BY g)
        )
        SELECT x.n, x.k, y.k AS other
        FROM (SELECT k, rank() OVER (ORDER BY m, k) AS n FROM means) x
        JOIN (SELECT k, rank() OVER (ORDER BY m DESC, k) AS n FROM means) y ON x.n = y.n
        WHERE x.n < 11
    """)
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df)) == rows_of(df)
    assert len(durable.report().stages) >= 4
    again = shuffle_of(tables, root, reuse="require")
    assert rows_of(again.query(df)) == rows_of(df)


def test_without_adaptive_execution_nothing_changes(tables: SparkSession, root: str) -> None:
    """Spark's own switch turns it off: both sides of the join are stored."""
    tables.conf.set("spark.sql.adaptive.enabled", "false")
    df = tables.sql(SMALL_SIDE)
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df)) == rows_of(df)
    assert [stage.rows for stage in durable.report().stages][:2] == [20_000, 40]


def test_an_empty_side_removes_the_join(tables: SparkSession, root: str) -> None:
    """No row of `dim` passes the filter. So neither `big` nor the groups are stored."""
    df = tables.sql(SMALL_SIDE.replace("c = 3", "c * k = -1"))
    durable = shuffle_of(tables, root)
    assert durable.query(df).collect() == []
    assert [stage.rows for stage in durable.report().stages] == [0]


def test_an_excluded_rule_keeps_the_join(tables: SparkSession, root: str) -> None:
    """Spark's list of excluded rules holds for the rule that drops what needs an empty side."""
    rule = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    tables.conf.set("spark.sql.adaptive.optimizer.excludedRules", rule)
    durable = shuffle_of(tables, root)
    assert durable.query(tables.sql(SMALL_SIDE.replace("c = 3", "c * k = -1"))).collect() == []
    assert len(durable.report().stages) > 1


def test_partitions_are_read_one_by_one_if_spark_may_not_coalesce(
    tables: SparkSession, root: str
) -> None:
    tables.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    df = tables.sql("SELECT k, count(*) AS n FROM big GROUP BY k")
    assert shuffle_of(tables, root).query(df).rdd.getNumPartitions() == 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind", ["LEFT OUTER", "RIGHT OUTER", "FULL OUTER", "LEFT SEMI", "LEFT ANTI"]
)
@pytest.mark.parametrize("condition", ["c = 3", "c * k = -1"])
def test_outer_joins(tables: SparkSession, root: str, kind: str, condition: str) -> None:
    """Every kind of join gives Spark's rows, with a small side and with an empty one."""
    dim = f"(SELECT * FROM dim WHERE {condition})"
    left, right = ("big", dim) if "SEMI" in kind or "ANTI" in kind else (dim, "big")
    df = tables.sql(f"SELECT * FROM {left} a {kind} JOIN {right} b ON a.k = b.k")
    df = df.toDF(*(f"x{i}" for i in range(len(df.columns))))
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df)) == rows_of(df)
    assert rows_of(shuffle_of(tables, root, reuse="require").query(df)) == rows_of(df)


def test_a_small_aggregate_is_broadcast(tables: SparkSession, root: str) -> None:
    """The rows of a GROUP BY are few; they are broadcast although their exchange holds partial
    aggregates only."""
    df = tables.sql("""
        SELECT g, count(*) n FROM big JOIN (
            SELECT k % 40 AS k, max(d) AS m FROM dim GROUP BY k % 40
        ) USING (k) GROUP BY g
    """)
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df)) == rows_of(df)
    assert all(stage.rows < 20_000 for stage in durable.report().stages)


def test_common_expressions_are_planned_once(tables: SparkSession, root: str) -> None:
    """A subquery that occurs twice is one stage under two plans. A later run finds all stages,
    although it knows both sizes from its start."""
    df = tables.sql("""
        WITH q AS (SELECT k, count(*) AS n FROM dim WHERE c * k = -1 GROUP BY k)
        SELECT x.k, y.n FROM q x FULL JOIN q y ON x.n = y.n - 1
    """)
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df)) == rows_of(df)
    again = shuffle_of(tables, root, reuse="require")
    assert rows_of(again.query(df)) == rows_of(df)
    assert all(stage.map_tasks_run == 0 for stage in again.report().stages)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("late", ["first", "last"])
def test_the_plan_does_not_depend_on_who_ends_first(
    tables: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """Two small sides run at once. Whichever ends late, the stages are the same, and a run that
    finds them all takes the same plan."""
    df = tables.sql("""
        SELECT big.g, x.d, y.c, count(*) AS n
        FROM big JOIN (SELECT * FROM dim WHERE c = 3) x ON big.k = x.k
                 JOIN (SELECT * FROM dim WHERE c < 5) y ON big.v = y.k
        GROUP BY big.g, x.d, y.c
    """)
    ensure, order, ended = StageStore.ensure, threading.Lock(), threading.Event()
    running: list[str] = []

    def gated(
        self: StageStore, work: Writing, identity: StageIdentity, **more: bool
    ) -> StoredStage:
        with order:
            running.append(identity.fingerprint)
            position = len(running)
        if position == (1 if late == "first" else 2):
            assert ended.wait(60), "the other map side did not end"
        stored = ensure(self, work, identity, **more)
        if position <= 2:
            ended.set()
        return stored

    with monkeypatch.context() as patch:
        patch.setattr(StageStore, "ensure", gated)
        durable = shuffle_of(tables, root)
        assert rows_of(durable.query(df)) == rows_of(df)
    assert ended.is_set()
    first = [stage.fingerprint for stage in durable.report().stages]
    again = shuffle_of(tables, root, reuse="require")
    assert rows_of(again.query(df)) == rows_of(df)
    assert {stage.fingerprint for stage in again.report().stages} <= set(first)
    assert all(stage.map_tasks_run == 0 for stage in again.report().stages)


def test_a_join_of_joins(tables: SparkSession, root: str) -> None:
    """Stages above a replaced join are planned over what is stored, at each level."""
    df = tables.sql("""
        SELECT a.g, d, count(*) n FROM big a
        JOIN dim USING (k) JOIN (SELECT v, g AS h FROM big WHERE v % 5 = 0) b ON a.v = b.v
        WHERE c < 2 GROUP BY a.g, d ORDER BY 1, 2
    """)
    durable = shuffle_of(tables, root)
    assert durable.query(df).collect() == df.collect()
    again = shuffle_of(tables, root, reuse="require")
    assert again.query(df).collect() == df.collect()
    assert {decision for _, decision in stages(again)} == {"reused"}


def test_a_stage_is_reported_once(tables: SparkSession, root: str) -> None:
    """Spark plans a subquery again with its query; its exchange is the same stage all the same."""
    where = "c = 3 AND v > (SELECT avg(k) FROM dim)"
    df = tables.sql(f"SELECT g, count(*) n FROM big JOIN dim USING (k) WHERE {where} GROUP BY g")
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df)) == rows_of(df)
    assert durable.report().adapted
    found = [stage.incarnation for stage in durable.report().stages]
    assert len(found) == len(set(found))


WEEKS = """
    WITH q AS (SELECT k, g, sum(v) AS s FROM big WHERE v < 19990 GROUP BY k, g)
    SELECT a.k, a.s, b.s AS t
    FROM (SELECT q.k, q.s FROM q JOIN dim ON q.k = dim.k WHERE dim.c = 3 AND q.g = 1) a
    JOIN (SELECT q.k, q.s FROM q JOIN dim ON q.k = dim.k WHERE dim.c = 3 AND q.g = 2) b
    ON a.k % 7 = b.k % 7 ORDER BY 1, 2, 3
"""


def test_calls_into_the_jvm_are_few(
    tables: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch, jvm_calls: Any
) -> None:
    """Each costs a tenth of a millisecond, and they are most of what planning costs. Exchanges that
    a new plan has in common with the one before are not identified again."""
    tables.conf.set("spark.sql.autoBroadcastJoinThreshold", "10MB")
    df = tables.sql(WEEKS)
    first = shuffle_of(tables, root)
    assert rows_of(first.query(df)) == rows_of(df)
    again = shuffle_of(tables, root, reuse="require")
    again.query(tables.sql(WEEKS))  # classes of the JVM are looked up once
    identified = []
    identify = CutIdentities._identify

    def told(self: CutIdentities, cut: Cut, root: Node, scans: Scans) -> StageIdentity:
        identified.append(cut.number)
        return identify(self, cut, root, scans)

    with monkeypatch.context() as patch, jvm_calls() as calls:
        patch.setattr(CutIdentities, "_identify", told)
        last = shuffle_of(tables, root, reuse="require")
        rows = rows_of(last.query(tables.sql(WEEKS)))
    assert rows == rows_of(df)
    assert last.report().adapted
    assert len(identified) == 6, "five exchanges of the first plan, one of the new plan"
    assert 20 < len(calls) < 60, len(calls)
