"""Result rows of a query that ends in an aggregation of joined exchanges: when they are stored,
when they are reused, and what remains after the driver is killed."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.identity.plan.leaves import KnownRdds
from durable_shuffle.jobs.query.planned_query import PlannedQuery
from durable_shuffle.shuffle.base.settings import Settings

pytestmark = pytest.mark.spark


@pytest.fixture
def joined(session: SparkSession, tmp_path: Path) -> Callable[..., DataFrame]:
    """A function that returns a join by `k`, aggregated by `k`; its rows come from as many Spark
    partitions as the exchanges below have."""
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    session.conf.set("spark.sql.shuffle.partitions", "4")
    for name, rows in (("left", 300), ("right", 200)):
        frame = session.range(rows).selectExpr("id % 40 as k", f"id as {name}")
        frame.write.parquet(str(tmp_path / name))

    def query(plus: str = "right", rows: int = 7, *, drawn: bool = False) -> DataFrame:
        left, right = (session.read.parquet(str(tmp_path / n)) for n in ("left", "right"))
        wide = left.repartition(4, "k").join(right.repartition(4, "k"), "k")  # read one by one
        if drawn:
            wide = wide.withColumn("right", F.rand())
        sums = wide.groupBy("k").agg(F.sum(F.col("left") + F.expr(plus)).alias("s"))
        return sums.orderBy(F.desc("s"), "k").limit(rows)

    return query


def run(session: SparkSession, root: str, df: DataFrame) -> tuple[list[Row], DurableShuffle]:
    durable = DurableShuffle(session, root, job="tests", settings=Settings(result_least_bytes=0))
    return durable.query(df).collect(), durable


def kinds(durable: DurableShuffle) -> dict[str, list[str]]:
    """Return partitioner -> decisions."""
    found: dict[str, list[str]] = {}
    for stage in durable.report().stages:
        found.setdefault(stage.partitioner, []).append(stage.action)
    return found


def test_a_query_leaves_no_physical_plan_behind(session: SparkSession, root: str) -> None:
    """Its plan holds the rows of its broadcasts: a driver of many queries would run out of memory.

    Few of them stay known, whatever the number of jobs, and those are still recognised.
    """
    small = session.range(50).selectExpr("id AS k", "id * 2 AS v")

    def query(number: int) -> DataFrame:
        large = session.range(0, 400, 1, 2).selectExpr("id % 50 AS k", f"id + {number} AS w")
        return large.join(F.broadcast(small), "k").groupBy("v").agg(F.sum("w").alias("w"))

    def planned() -> list[PlannedQuery]:
        gc.collect()
        return [one for one in gc.get_objects() if type(one) is PlannedQuery]

    before = planned()  # of other tests, whose errors hold them
    frames = []
    for number in range(4):
        with DurableShuffle(session, root, job=f"job{number}") as durable:
            frames.append(durable.query(query(number)))
            assert frames[-1].count() == 50
    assert [one for one in planned() if one not in before] == []
    with DurableShuffle(session, root, job="job3") as durable:
        durable.checkpoint(frames[3])
        assert durable.checkpoint(frames[3]).count() == 50
        assert durable.report().stages[-1].action == "reused"
    known = KnownRdds(shared := {})
    other = KnownRdds(shared)
    for number in range(200):
        known.add_query(number, lambda: None)
    other.add_query(7, lambda: None)
    assert len(shared) == 64
    assert (other, 7) in shared


def test_rows_are_stored_once(
    session: SparkSession, root: str, joined: Callable[..., DataFrame]
) -> None:
    """A second run reads the stored rows and nothing below them. A different LIMIT above shares
    them; a different expression does not."""
    rows, first = run(session, root, joined())
    assert rows == joined().collect()
    assert kinds(first) == {"hash": ["computed", "computed"], "passthrough": ["computed"]}
    for limit in (7, 9):
        rows, again = run(session, root, joined(rows=limit))
        assert rows == joined(rows=limit).collect()
        assert kinds(again) == {"passthrough": ["reused"]}
    assert [e.action for e in again.explain.query(joined()).stages] == [
        *("not needed", "not needed", "reused")
    ]
    rows, other = run(session, root, joined(plus="right * 2"))
    assert rows == joined(plus="right * 2").collect()
    assert kinds(other) == {"hash": ["reused", "reused"], "passthrough": ["computed"]}


def test_rows_of_small_inputs_are_not_stored(
    session: SparkSession, root: str, joined: Callable[..., DataFrame]
) -> None:
    """With default settings, joining so little again is cheaper; explain then knows this."""
    durable = DurableShuffle(session, root, job="tests")
    assert durable.query(joined()).collect() == joined().collect()
    assert kinds(durable) == {"hash": ["computed", "computed"]}
    assert durable.explain.query(joined()).stored
    required = DurableShuffle(
        session, root, job="tests", reuse="require", settings=Settings(result_least_bytes=0)
    )
    assert required.query(joined()).collect() == joined().collect()


def test_tasks_that_finished_are_kept(
    session: SparkSession, root: str, joined: Callable[..., DataFrame]
) -> None:
    """A driver left four producers without a seal; only the missing one runs."""
    rows, first = run(session, root, joined())
    (name,) = [
        f"{s.name}-{s.fingerprint}-{s.incarnation}"
        for s in first.report().stages
        if s.partitioner == "passthrough"
    ]
    stage = Path(root) / "tests" / name
    (stage / "log" / f"{1:010d}").unlink()  # the seal
    (stage / "producers" / "p000002" / f"{0:010d}").unlink()
    again, second = run(session, root, joined())
    assert again == rows
    assert kinds(second) == {"hash": ["reused", "reused"], "passthrough": ["resumed"]}
    (resumed,) = [s for s in second.report().stages if s.action == "resumed"]
    assert (resumed.map_tasks, resumed.map_tasks_run, resumed.map_tasks_rerun) == (4, 1, 0)


def test_what_is_drawn_anew_is_its_own(
    session: SparkSession, root: str, joined: Callable[..., DataFrame]
) -> None:
    """A query with its own random number reads its stored rows; another query does not."""
    rows, first = run(session, root, df := joined(drawn=True))
    assert first.query(df).collect() == rows
    other, second = run(session, root, joined(drawn=True))
    assert other != rows
    assert kinds(second)["passthrough"] == ["computed"]


def test_what_is_no_such_aggregation_stays(
    session: SparkSession, root: str, joined: Callable[..., DataFrame], tmp_path: Path
) -> None:
    """A join alone may give more rows than it reads; one aggregated exchange is cheap to read."""
    right = session.read.parquet(str(tmp_path / "right"))
    for df in (joined().join(right, "k"), right.groupBy("k").count()):
        rows, durable = run(session, root, df)
        assert sorted(rows) == sorted(df.collect())
        assert "passthrough" not in kinds(durable)
