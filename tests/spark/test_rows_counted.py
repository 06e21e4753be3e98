"""Rows count as Spark counts them: with columns and without, and if some are lost on the way.

Spark itself is the oracle: its plan without this library, and the numbers that its JVM gave rows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from durable_shuffle import DurableShuffle, named_stage, open_view, register

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
    "stage": lambda s, df: s.stage(df, keys=_to_first, partitions=2),
    "stage with functions": lambda s, df: s.stage(
        df, map=lambda rows: rows, keys=_to_first, partitions=2, reduce=lambda rows: rows
    ),
    "stage over a stage": lambda s, df: s.stage(
        s.stage(df, keys=_to_first, partitions=2), keys=_to_first, partitions=2
    ),
    "query": lambda s, df: s.query(df.repartition(3)),
    "consume": lambda s, df: (
        s.consume(s.durable(df), consumer="c", process=lambda rows: rows, schema=StructType()) or df
    ),
}


@pytest.mark.parametrize("way", STORED)
def test_rows_without_columns_are_rows(
    session: SparkSession, shuffle: DurableShuffle, way: str
) -> None:
    """Stored and read back, and again by the next call, their number stays what Spark says."""
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


def test_exchanges_that_need_no_column_keep_their_rows(
    session: SparkSession, shuffle: DurableShuffle
) -> None:
    """Spark prunes such exchanges to no columns at all; through `query` and `transparent`."""
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
    """A view and a consumer get them all; a data source, to which Spark gives none, refuses."""
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
