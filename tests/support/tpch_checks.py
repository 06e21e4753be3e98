"""Checks of one TPC-H query: rows, what was stored, and what a second run has left to do."""

from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.tpch.answers import Answers
from durable_shuffle.bench.tpch.data import TpchFiles
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES, TPCH_TABLES
from durable_shuffle.shuffle.base.settings import Settings

STORES_RESULTS = Settings(result_least_bytes=0)
"""Otherwise so few rows would not be stored."""


def with_tables(session: SparkSession, files: TpchFiles) -> SparkSession:
    """Give a session the eight tables and sort-merge joins, so that there are many cuts."""
    for table in TPCH_TABLES:
        session.read.parquet(str(files.folder / table)).createOrReplaceTempView(table)
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    session.conf.set("spark.sql.shuffle.partitions", "3")  # scale 0.01 is too little for more
    return session


def check_query(
    tpch: SparkSession,
    root: str,
    answers: Answers,
    query: str,
    settings: Settings = STORES_RESULTS,
) -> DurableShuffle:
    """Return what ran the query first.

    Its rows are DuckDB's, in Spark's own order, and the same query again runs no producer.
    """
    first = DurableShuffle(tpch, root, job="tests", settings=settings)
    rows = first.query(tpch.sql(TPCH_QUERIES[query])).collect()
    assert answers.of(query)
    assert answers.differing(query, rows) == 0
    assert [tuple(r) for r in rows] == [tuple(r) for r in tpch.sql(TPCH_QUERIES[query]).collect()]
    ran = first.report().total()
    assert ran["map_tasks_run"] > 0
    assert ran["native_exchanges"] == 0
    again = DurableShuffle(tpch, root, job="tests", settings=settings)
    assert again.query(tpch.sql(TPCH_QUERIES[query])).collect() == rows
    assert again.report().total()["map_tasks_run"] == 0
    return first
