"""A subquery may decide where rows go, or in which order they stand."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle

pytestmark = pytest.mark.spark

QUERIES = {
    "join": "SELECT a.k, b.w FROM a JOIN b ON a.k + (SELECT max(v) FROM a) = b.k + 98",
    "distribute": "SELECT * FROM a DISTRIBUTE BY k + (SELECT count(*) FROM b)",
    "group": "SELECT k % (SELECT 7) AS k, count(*) AS n FROM a GROUP BY 1",
    "order": "SELECT * FROM a ORDER BY k % (SELECT max(v) FROM a), v DESC",
    "window": "SELECT k, row_number() OVER (PARTITION BY k % (SELECT 5) ORDER BY v) AS n FROM a",
    "random": "SELECT * FROM a DISTRIBUTE BY rand(3)",
}
CALLS: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "query": lambda s, df: s.query(df),
    "checkpoint": lambda s, df: s.checkpoint(df),
    "repartition": lambda s, df: s.repartition(df, 3, "k"),
    "computed": lambda s, df: s.repartition(df, 3, F.col("k") % 2),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", QUERIES)
def test_rows_are_those_of_spark(session: SparkSession, root: str, name: str, call: str) -> None:
    """Twice; in the order that was asked for, where the call keeps one."""
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    session.range(50).selectExpr("id AS k", "id * 2 AS v").createOrReplaceTempView("a")
    session.range(60).selectExpr("id AS k", "id * 3 AS w").createOrReplaceTempView("b")
    df = session.sql(QUERIES[name])
    wanted = [tuple(row) for row in df.collect()]
    for _ in range(2):
        shuffle = DurableShuffle(session, root, job="tests")
        found = [tuple(row) for row in CALLS[call](shuffle, df).collect()]
        assert sorted(found) == sorted(wanted)
        if name == "order" and call in ("query", "checkpoint"):
            assert found == wanted
