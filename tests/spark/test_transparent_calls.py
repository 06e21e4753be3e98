"""Unchanged programs: loops that cut their lineage, and every action that counts as one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark

ROUNDS = 4


class StoppedError(Exception):
    """Stands for what ends a driver in the middle of a loop."""


def connected(spark: SparkSession, cut: dict[str, Any], stop: int | None = None) -> dict[int, int]:
    """Label the nodes of a graph by the least node that they reach in `ROUNDS` steps.

    Args:
        cut: name of the call that cuts the lineage, with its arguments.
        stop: the round in which the driver dies.
    """
    edges = spark.range(60).selectExpr("id AS a", "id + 1 + id % 3 AS b").where("id % 10 < 8")
    both = edges.union(edges.select(F.col("b").alias("a"), F.col("a").alias("b")))
    labels = both.select("a").distinct().select("a", F.col("a").alias("label"))
    for number in range(ROUNDS):
        if number == stop:
            raise StoppedError
        near = both.join(labels, "a").groupBy(F.col("b").alias("a")).agg(F.min("label").alias("n"))
        merged = labels.join(near, "a", "left").select("a", F.least("label", "n").alias("label"))
        ((name, arguments),) = cut.items()
        labels = getattr(merged, name)(**arguments)
        assert isinstance(labels, DataFrame)
    return {row.a: row.label for row in labels.collect()}


@pytest.mark.sampled(1)
@pytest.mark.requirement("R-F135-19")
@pytest.mark.parametrize(
    "cut",
    [
        {"checkpoint": {}},
        {"localCheckpoint": {"eager": False, "storageLevel": StorageLevel.DISK_ONLY}},
    ],
    ids=["checkpoint", "lazy and local, with a level"],
)
def test_a_loop_goes_on_where_it_stopped(
    session: SparkSession, root: str, cut: dict[str, Any]
) -> None:
    """Rows are Spark's; the second run stores only the rounds that the first had not; a third none.

    No checkpoint directory is set: Spark itself would refuse `checkpoint`.
    """
    expected = connected(session, {"persist": {}})

    def run(stop: int | None = None) -> tuple[dict[int, int] | None, list[str]]:
        with DurableShuffle(session, root, job="loop") as shuffle:
            try:
                with shuffle.transparent():
                    found = connected(session, cut, stop)
            except StoppedError:
                found = None
            stages = shuffle.report().stages
            assert shuffle.report().native == [] or all(
                text.startswith("broadcast") for text in shuffle.report().native
            )
        return found, [stage.action for stage in stages if stage.name == "checkpoint"]

    assert run(stop=2) == (None, ["computed"] * 2)
    assert run() == (expected, ["reused"] * 2 + ["computed"] * 2)
    assert run() == (expected, ["reused"] * ROUNDS)


def test_what_cannot_be_stored_is_checkpointed_by_spark(session: SparkSession, root: str) -> None:
    """And is named; streams, other frames and the time after the block are Spark's as before."""
    before = dict(type(session.range(1)).__dict__)
    with DurableShuffle(session, root, job="loop") as shuffle, shuffle.transparent():
        watched = session.range(10).observe("seen", F.count(F.lit(1)).alias("n")).localCheckpoint()
        assert watched.count() == 10
        (reason,) = [text for text in shuffle.report().native if "localCheckpoint" in text]
        assert "observe" in reason
    assert dict(type(session.range(1)).__dict__) == before


ACTIONS: dict[str, Callable[[DataFrame], Any]] = {
    "collect": lambda df: df.collect(),
    "count": lambda df: df.count(),
    "first": lambda df: df.first(),
    "head": lambda df: df.head(2),
    "take": lambda df: df.take(3),
    "tail": lambda df: df.tail(3),
    "isEmpty": lambda df: df.isEmpty(),
    "toLocalIterator": lambda df: list(df.toLocalIterator()),
    "toPandas": lambda df: df.toPandas().values.tolist(),
}


def test_actions_are_durable(session: SparkSession, root: str) -> None:
    """Values are Spark's; after the first action, each finds its shuffles stored."""
    df = session.range(100).groupBy((F.col("id") % 7).alias("k")).count().orderBy("k")
    expected = {name: act(df) for name, act in ACTIONS.items()}
    with DurableShuffle(session, root, job="actions") as shuffle, shuffle.transparent():
        for name, act in ACTIONS.items():
            before = len(shuffle.report().stages)
            assert act(df) == expected[name], name
            assert len(shuffle.report().stages) > before, name


@pytest.mark.parametrize("call", ["foreach", "foreachPartition"])
def test_each_row_is_visited_once(
    session: SparkSession, root: str, tmp_path: Path, call: str
) -> None:
    """Functions with effects run on the stored rows, once, also where Spark computes the rest."""
    df = session.range(100).groupBy((F.col("id") % 7).alias("k")).count()
    seen, folder = tmp_path / "seen", str(tmp_path / "seen")
    seen.mkdir()

    def visit(rows: Any) -> None:
        import uuid
        from pathlib import Path

        for row in [rows] if call == "foreach" else rows:
            Path(folder, uuid.uuid4().hex).write_text(str(row.k))

    with DurableShuffle(session, root, job="actions") as shuffle, shuffle.transparent():
        getattr(df, call)(visit)
        assert [stage.action for stage in shuffle.report().stages] == ["computed"]
    assert sorted(path.read_text() for path in seen.iterdir()) == list("0123456")


def test_variables_and_functions_of_the_session_count(session: SparkSession, root: str) -> None:
    """Equal values find the stage again, other values do not; temporary SQL functions, too."""
    session.range(50).createOrReplaceTempView("numbers")
    decisions = []
    for value, plus in ((3, 1), (3, 1), (4, 1), (3, 2), (3, 1)):
        session.sql(f"DECLARE OR REPLACE VARIABLE shift INT DEFAULT {value}")
        session.sql(
            f"CREATE OR REPLACE TEMPORARY FUNCTION more(x BIGINT) RETURNS BIGINT RETURN x + {plus}"
        )
        df = session.sql("SELECT more(id) % 5 AS k, sum(id + shift) AS s FROM numbers GROUP BY 1")
        with DurableShuffle(session, root, job="variables") as shuffle:
            assert sorted(shuffle.query(df).collect()) == sorted(df.collect())
            decisions += [stage.action for stage in shuffle.report().stages]
    assert decisions == ["computed", "reused", "computed", "computed", "reused"]
