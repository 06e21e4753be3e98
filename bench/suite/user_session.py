"""Spark sessions as a user on two cores would have them, of the benchmarks and of their drivers."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from durable_shuffle.bench.tpch.queries import TPCH_TABLES


def user_session(local: Path, more: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark: the first session of a process, which decides the JVM's memory for good.

    Args:
        local: folder for Spark's own files.
        more: settings besides those of every benchmark.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.shuffle.partitions", "32")
        .config("spark.local.dir", str(local))
    )
    for name, value in (more or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def tpch_session(spark: SparkSession, data: Path) -> SparkSession:
    """Return a session with the tables; all else as users have it: 200 shuffle partitions, adaptive
    execution on."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "200")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for table in TPCH_TABLES:
        session.read.parquet(str(data / table)).createOrReplaceTempView(table)
    return session
