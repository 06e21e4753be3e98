"""The query of the demo: LINEITEM and ORDERS meet by order key, one line per order comes out.

Strategy: both tables are repartitioned by order key, either durably or by Spark; join and group-by
then need no further exchange. All sums are exact decimals, so any two runs give the same set of
rows. A fixed amount of hashing per task stands for the work that makes a producer expensive, and
makes a reduce task long enough to be killed in.
"""

import hashlib
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle.bench.tpch.data import PARTS, TpchFiles
from durable_shuffle.jobs.engine.tasks import ArrowFunction

REDUCERS = 12
"""Another number than PARTS: Spark's status tells map from reduce stages by the number of tasks."""

PRODUCERS = 2 * PARTS
"""Map tasks of one run over both tables."""

REDUCE_HASH_MIB = 250
"""Some tenths of a second per reduce task."""

Repartition = Callable[[DataFrame, str, str], DataFrame]
"""(rows, key column, label) -> the same rows, partitioned by the key into REDUCERS."""


def native_repartition(df: DataFrame, key: str, label: str) -> DataFrame:
    """Repartition by Spark's own shuffle."""
    del label
    return df.repartition(REDUCERS, key)


def revenue_per_order(
    spark: SparkSession,
    files: TpchFiles,
    repartition: Repartition,
    *,
    map_hash_mib: int,
    reduce_hash_mib: int = REDUCE_HASH_MIB,
) -> DataFrame:
    """Return one row per order: key, date, priority, revenue, lines, last date, a mode.

    With a durable `repartition` the producers run inside this call.

    Args:
        map_hash_mib: MiB that each producer hashes; 0 means a producer only scans.
        reduce_hash_mib: MiB that each reduce task hashes.
    """
    orders = spark.read.parquet(files.orders).select("o_orderkey", "o_orderdate", "o_orderpriority")
    lines = spark.read.parquet(files.lineitem).select(
        "l_orderkey", "l_extendedprice", "l_discount", "l_shipdate", "l_shipmode"
    )
    orders = repartition(_costly(orders, map_hash_mib), "o_orderkey", "orders")
    lines = repartition(_costly(lines, map_hash_mib), "l_orderkey", "lineitem")
    revenue = F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount")))
    per_order = (
        orders.join(lines.hint("merge"), orders.o_orderkey == lines.l_orderkey)
        .groupBy("o_orderkey", "o_orderdate", "o_orderpriority")
        .agg(
            revenue.cast("decimal(38,4)").alias("revenue"),
            F.count("*").alias("lines"),
            F.max("l_shipdate").alias("last_shipped"),
            F.min("l_shipmode").alias("first_mode"),
        )
    )
    return _costly(per_order, reduce_hash_mib)


ORACLE_SQL = """
    SELECT o_orderkey, o_orderdate, o_orderpriority,
           CAST(sum(l_extendedprice * (1 - l_discount)) AS DECIMAL(38, 4)) AS revenue,
           count(*) AS lines, max(l_shipdate) AS last_shipped, min(l_shipmode) AS first_mode
    FROM read_parquet('{orders}/*.parquet') JOIN read_parquet('{lineitem}/*.parquet')
      ON o_orderkey = l_orderkey
    GROUP BY o_orderkey, o_orderdate, o_orderpriority
"""
"""The same question for DuckDB, written independently of Spark."""


def _costly(df: DataFrame, hash_mib: int) -> DataFrame:
    return df.mapInArrow(_hash_first(hash_mib), df.schema) if hash_mib else df


def _hash_first(mib: int) -> ArrowFunction:
    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        block, digest = bytes(1 << 20), hashlib.sha256()
        for _ in range(mib):
            digest.update(block)
        yield from batches

    return pass_on
