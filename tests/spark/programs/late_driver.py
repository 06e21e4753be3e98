"""Stores an exchange and a query on an object store: `late_driver.py URL OPTIONS DATA`.

Prints the rows and the stages of the report, or the error.
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import FencedError


def main(url: str, options: str, data: str) -> None:
    """Run both calls."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.files.openCostInBytes", "134217728")  # one file is one map task
        .getOrCreate()
    )
    rows = spark.read.schema("id LONG, k LONG").parquet(data)
    try:
        with DurableShuffle(spark, url, job="late", storage_options=json.loads(options)) as durable:
            by_key = durable.repartition(rows, 3, "k")
            sums = by_key.groupBy("k").agg(F.sum("id").alias("s"), F.count("*").alias("n"))
            found = durable.query(sums.groupBy("n").agg(F.sum("s").alias("s"))).collect()
            counted = by_key.count()
            stages = [
                [s.name, s.fingerprint, s.map_tasks_run, s.map_tasks]
                for s in durable.report().stages
            ]
        answer = {"rows": sorted(map(list, found)), "count": counted, "stages": stages}
    except FencedError as error:
        answer = {"error": f"FencedError: {error}"}
    print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
