"""Rows are counted as in Spark: with and without columns, and if some are lost on the way.

The reference is Spark: its plan without this library, and the row numbers from its JVM.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.engine import engine
from durable_shuffle.jobs.python_stage import work
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.streaming import register
from durable_shuffle.views import named_stage, open_view

pytestmark = pytest.mark.spark

ROWS = 100


@pytest.fixture
def shuffle(session: SparkSession, root: str) -> DurableShuffle:
    return DurableShuffle(session, root, job="tests")


def no_columns(session: SparkSession) -> DataFrame:
    return session.range(0, ROWS, 1, 4).select()


def _to_first(batch: pa.RecordBatch) -> Any:
    return np.zeros(batch.num_rows, dtype=np.int64)


STORED: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "durable": lambda s, df: s.durable(df),
    "repartition": lambda s, df: s.repartition(df, 3),
    "repartition by a constant": lambda s, df: s.repartition(df, 3, F.lit(1)),
    "stage": lambda s, df: s.stage(df, keys=_to_first, num_partitions=2),
    "stage with functions": lambda s, df: s.stage(
        df, map=lambda rows: rows, keys=_to_first, num_partitions=2, reduce=lambda rows: rows
    ),
    "stage over a stage": lambda s, df: s.stage(
        s.stage(df, keys=_to_first, num_partitions=2), keys=_to_first, num_partitions=2
    ),
    "query": lambda s, df: s.query(df.repartition(3)),
    "consume": lambda s, df: (
        s.consume(s.durable(df), consumer="c", process=lambda rows: rows, schema=StructType()) or df
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", STORED)
def test_rows_without_columns_are_rows(
    session: SparkSession, shuffle: DurableShuffle, way: str
) -> None:
    """Stored, read back, and read by the next call, their number is the one that Spark gives."""
    df = no_columns(session)
    for _ in range(2):
        stored = STORED[way](shuffle, df)
        assert stored.columns == []
        assert stored.count() == df.count() == ROWS
        assert stored.limit(1).count() == 1
        assert not stored.isEmpty()
        assert stored.crossJoin(session.range(3)).count() == 3 * ROWS
        assert stored.union(df).count() == 2 * ROWS
        assert [row[0] for row in stored.select(F.lit(7)).collect()] == [7] * ROWS
    assert all(stage.rows == ROWS for stage in shuffle.report().stages)


QUERIES = {
    "count": "SELECT count(*) FROM (SELECT /*+ REPARTITION(3) */ * FROM t)",
    "constant": "SELECT 1 FROM (SELECT /*+ REPARTITION(3) */ * FROM t)",
    "limit": "SELECT 1 FROM (SELECT /*+ REPARTITION(3) */ * FROM t) LIMIT 1",
    "cross join": "SELECT count(*) FROM (SELECT /*+ REPARTITION(3) */ * FROM t) "
    "CROSS JOIN (SELECT /*+ REPARTITION(2) */ * FROM u)",
    "union": "SELECT count(*) FROM (SELECT /*+ REPARTITION(3) */ * FROM t UNION ALL "
    "SELECT /*+ REPARTITION(2) */ * FROM u)",
    "exists": "SELECT count(*) FROM t WHERE exists(SELECT /*+ REPARTITION(3) */ 1 FROM u)",
    "rebalance": "SELECT 2 FROM (SELECT /*+ REBALANCE(3) */ * FROM t)",
    "distribute": "SELECT 1 FROM t DISTRIBUTE BY id",
    "range": "SELECT count(*) FROM (SELECT /*+ REPARTITION_BY_RANGE(3, id) */ * FROM t)",
    "empty": "SELECT count(*) FROM (SELECT /*+ REPARTITION(3) */ * FROM t WHERE id < 0)",
}


@pytest.mark.soak
def test_exchanges_that_need_no_column_keep_their_rows(
    session: SparkSession, shuffle: DurableShuffle
) -> None:
    """Spark prunes such exchanges to zero columns; through `query` and `transparent`."""
    session.range(0, ROWS, 1, 4).createOrReplaceTempView("t")
    session.range(0, 10, 1, 2).createOrReplaceTempView("u")
    for name, text in QUERIES.items():
        expected = sorted(map(tuple, session.sql(text).collect()))
        assert sorted(map(tuple, shuffle.query(session.sql(text)).collect())) == expected, name
        with shuffle.transparent():
            assert sorted(map(tuple, session.sql(text).collect())) == expected, name
    with shuffle.transparent():
        assert session.range(ROWS).repartition(4).count() == ROWS
        assert session.range(ROWS).repartition(4).select(F.lit(1)).count() == ROWS


def test_other_readers_see_rows_without_columns(
    session: SparkSession, shuffle: DurableShuffle, root: str
) -> None:
    """A view and a consumer get all rows; a data source, which gets none from Spark, refuses."""
    df = no_columns(session)
    stored = shuffle.durable(df, name="none")
    counts = shuffle.consume(
        stored,
        consumer="counts",
        process=lambda rows: pa.record_batch({"n": [rows.num_rows]}),
        schema="n long",
    )
    assert counts is not None
    assert counts.agg(F.sum("n")).first()[0] == ROWS  # type: ignore[index]
    stage = named_stage(root, job="tests", name="none")
    with open_view(stage, 0, consumer="view") as view:
        assert sum(batch.num_rows for batch in view) == ROWS // 4
    register(session)
    place = {"url": root, "job": "streams", "stage": "none"}
    with pytest.raises(Exception, match="a DataFrame without columns cannot be written"):
        df.write.format("durable_shuffle").options(**place).mode("append").save()
    with pytest.raises(Exception, match="have no columns"):
        session.read.format("durable_shuffle").options(url=root, job="tests", stage="none").load()


def test_rows_of_the_drivers_memory_are_counted_per_partition(
    session: SparkSession, root: str
) -> None:
    """Spark's optimizer evaluates expressions over such rows before they have partitions."""
    shuffle = DurableShuffle(session, root, job="tests")
    frames = [
        session.createDataFrame(pa.table({"k": [1, 2, 3, 4]})),
        session.createDataFrame([(1,), (2,), (3,)], "k int"),
        session.sql("SELECT * FROM VALUES (1), (2), (NULL), (1) AS t(k)"),
        session.sql("SELECT * FROM VALUES (1), (2), (NULL), (1) AS t(k)").where("k > 0").select(),
    ]
    for df in frames:
        expected = sorted(map(str, df.collect()))
        assert sorted(map(str, shuffle.durable(df).collect())) == expected
        assert sorted(map(str, shuffle.repartition(df, 3).collect())) == expected
        assert sorted(map(str, shuffle.query(df.repartition(3)).collect())) == expected
        staged = shuffle.stage(df, keys=_to_first, num_partitions=2)
        assert sorted(map(str, staged.collect())) == expected


def _drop(kind: str, held: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the batches of a task without some of their rows."""
    first, last = held[0], held[-1]
    return {
        "first batch": held[1:],
        "last batch": held[:-1],
        "a batch": [first, *held[2:]],
        "first row": [first.slice(1), *held[1:]],
        "last row": [*held[:-1], last.slice(0, last.num_rows - 1)],
        "rows of a batch": [first.slice(0, 0), *held[1:]],
        "all": [],
        "a batch twice": [first, *held],
    }[kind]


KINDS = [
    "first batch",
    "last batch",
    "a batch",
    "first row",
    "last row",
    "rows of a batch",
    "all",
    "a batch twice",
]


def _losing_before(kind: str) -> Callable[[Any], Any]:
    """Lose rows between Spark's worker and the task's function."""

    def wrap(function: Any) -> Any:
        return lambda batches: function(iter(_drop(kind, list(batches))))

    return wrap


def _losing_behind(function: Any) -> Any:
    """Make the producer lose its first batch after the rows were counted."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from durable_shuffle.shuffle.write import producer

        whole = producer.checked_batches
        producer.checked_batches = lambda stage, rows: list(whole(stage, rows))[1:]  # type: ignore[assignment]
        try:
            yield from function(batches)
        finally:
            producer.checked_batches = whole

    return run


def _with_writers(patch: pytest.MonkeyPatch, wrap: Callable[[Any], Any]) -> None:
    for module, name in ((engine, "map_function"), (work, "python_map_function")):
        make = getattr(module, name)
        patch.setattr(module, name, lambda *a, make=make, **k: wrap(make(*a, **k)))


WAYS: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "durable": lambda s, df: s.durable(df),
    "repartition": lambda s, df: s.repartition(df, 3, "k"),
    "stage": lambda s, df: s.stage(df, keys="k", num_partitions=3),
    "query": lambda s, df: s.query(df.repartition(3, "k")),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_rows_lost_on_the_way_are_never_committed(
    session: SparkSession,
    root: str,
    monkeypatch: pytest.MonkeyPatch,
    committed_producers: Callable[..., set[int]],
    way: str,
) -> None:
    """Rows vanish in the worker, before and after the check. The task reports it, and no producer
    that lost a row has a COMMIT. Without the loss, the same call stores all rows."""
    df = session.range(0, 20_000, 1, 2).selectExpr("id", "id % 7 as k", "concat('s', id) as s")
    losses = {kind: _losing_before(kind) for kind in KINDS} | {"behind": _losing_behind}
    for number, (kind, wrap) in enumerate(losses.items()):
        with monkeypatch.context() as patch:
            _with_writers(patch, wrap)
            shuffle = DurableShuffle(session, root, job=f"lost{number}", rows_in="python")
            with pytest.raises(CorruptDataError, match="rows did not arrive from Spark as it"):
                WAYS[way](shuffle, df)
        assert committed_producers(root, f"lost{number}") == set(), kind
        assert not any(stage.status == "stored" for stage in shuffle.stages()), kind
    kept = WAYS[way](DurableShuffle(session, root, job="kept"), df)
    assert sorted(map(tuple, kept.collect())) == sorted(map(tuple, df.collect()))
