"""A driver that answers one TPC-H query durably: `query_process.py ROOT DATA QUERY [AT_RISK]`.

Prints one JSON line: the seconds of the query, Spark's start left out, what it stored, its rows. It
makes the file ROOT.began when the query begins, and stores in ROOT unless BENCH_STORE names another
URL and its options. With "plan" for AT_RISK, Spark plans the query and
nothing runs: the seconds are what any driver needs before its first task.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES, TPCH_TABLES
from durable_shuffle.shuffle.base.clock import SystemClock


def main(root: str, data: str, query: str, at_risk: str = "nothing") -> None:
    """Start Spark as a user on two cores would have it, and answer the query."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(Path(root).with_name("spark-local")))
        .getOrCreate()
    )
    for table in (table for table in TPCH_TABLES if table in TPCH_QUERIES[query]):
        spark.read.parquet(str(Path(data) / table)).createOrReplaceTempView(table)
    clock = SystemClock()
    url, options = json.loads(os.environ.get("BENCH_STORE", json.dumps([root, None])))
    durable = DurableShuffle(spark, url, job="bench", storage_options=options)
    Path(f"{root}.began").touch()
    start = clock.monotonic()
    rows = []
    if at_risk == "plan":
        execution = spark.sql(TPCH_QUERIES[query])._jdf.queryExecution()
        execution.executedPlan()
    else:
        rows = durable.query(spark.sql(TPCH_QUERIES[query]), at_risk=at_risk).collect()
    seconds = clock.monotonic() - start
    answer = {"seconds": seconds, "total": durable.report().total()}
    print(json.dumps({**answer, "rows": [list(map(str, row)) for row in rows]}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
