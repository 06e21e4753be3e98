"""Queries with several distinct aggregates get the same plan, whatever a session planned before."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

SHIFTS = (3, 21)
"""How many columns a later session creates first: Spark numbers all columns of an application."""
QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",  # tiny rows cost less without compiling
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
QUERIES = {
    "two": "select count(distinct a), sum(distinct b) from t",
    "three": "select k, count(distinct a), sum(distinct b), max(c), avg(distinct c) from t"
    " group by k",
    "four": "select k, count(distinct a), sum(distinct b), count(distinct c), count(distinct d),"
    " count_if(a > 2) from t group by k having count(distinct a) > 1",
    "several columns": "select count(distinct a, b, c), count(distinct d, a, b, k), sum(d) from t",
    "equal": "select count(distinct a + b), sum(distinct b + a), count(distinct b) from t",
    "filters": "select count(distinct a) filter (where b > 2),"
    " count(distinct b) filter (where a > 2) from t",
    "one filter": "select k, count(distinct a, b, c, d, k + 1, a + 1) filter (where b > 2) from t"
    " group by k",
    "keys": "select k, count(distinct k), count(distinct a), count(distinct k + a) from t"
    " group by k",
    "constants": "select count(distinct 1), count(distinct a), count(distinct b) from t",
    "rollup": "select k, c, count(distinct a), sum(distinct b) from t group by rollup(k, c)",
    "twice": "select count(distinct n), sum(distinct m) from"
    " (select k, count(distinct a) n, sum(distinct b) m from t group by k)",
    "union": "select count(distinct a) n, sum(distinct b) m from t union all"
    " select sum(distinct c), count(distinct d) from t",
    "scalar": "select k, a from t where a > (select count(distinct a) - count(distinct b) from t)",
    "correlated": "select k, (select count(distinct a) + count(distinct b) from t u"
    " where u.k = t.k) n from t",
    "in": "select a from t where a in (select count(distinct u.a) + count(distinct u.b) - 8"
    " from t u group by u.k order by 1)",
    "nested": "select count(distinct a), count(distinct b) from t where a >"
    " (select count(distinct a) - sum(distinct b) from t where b >"
    " (select count(distinct b) - count(distinct c) from t))",
    "cte": "with n as (select k, count(distinct a) x, count(distinct b) y from t group by k)"
    " select * from n l join n r on l.x = r.y",
    # their hash is that of an object's address
    "lambdas": "select count(distinct transform(array(a), x -> x + 1)),"
    " count(distinct transform(array(b), x -> x * 2)), count(distinct a) from t",
    "classes": "select count(distinct to_json(struct(a))), count(distinct to_json(struct(b))),"
    " count(distinct url_encode(string(c))), sum(distinct d) from t",
    "python": "",
}


def query_of(session: SparkSession, name: str) -> DataFrame:
    t = session.range(0, 40, 1, 2).selectExpr(
        *("id % 3 as k", "id % 5 as a", "id % 7 as b", "cast(id % 4 as decimal(9, 2)) as c"),
        "id * 0.5d as d",
    )
    t.createOrReplaceTempView("t")
    if name != "python":
        return session.sql(QUERIES[name])
    odd = F.udf(lambda x: x % 2 == 1, "boolean")
    half = F.udf(lambda x: x // 2, "long")
    return t.groupBy("k").agg(F.count_distinct(half("a")), F.count_distinct(odd("b"), half("b")))


def rows_of(df: DataFrame) -> list[str]:
    return sorted(map(repr, df.collect()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", QUERIES)
def test_a_session_with_other_ids_runs_no_producer(
    spark: SparkSession, root: str, name: str
) -> None:
    """Rows are Spark's, and sessions that created columns before read what the first one stored."""
    wanted = rows_of(query_of(spark.newSession(), name))
    for shift in (0, *SHIFTS):
        session = spark.newSession()
        for setting, value in QUICK.items():
            session.conf.set(setting, value)
        session.range(1).selectExpr(*["id"] * shift)
        store = DurableShuffle(session, root, job="tests")
        assert rows_of(store.query(query_of(session, name))) == wanted
        ran = {stage.fingerprint: stage.map_tasks_run for stage in store.report().stages}
        assert ran
        assert all(ran.values()) if shift == 0 else not any(ran.values()), (shift, ran)
