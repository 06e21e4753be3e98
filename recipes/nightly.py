"""A nightly job that goes on where it stopped: `nightly.py INPUT OUTPUT`.

Counts the orders of each customer. Every shuffle of the query is stored, so whoever starts this
program again, on any host, runs only what is missing. Spark settings say where:
`spark.durableShuffle.url` and `spark.durableShuffle.job`.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle


def main(source: str, target: str) -> None:
    """Read, count, write."""
    spark = SparkSession.builder.appName("nightly").getOrCreate()
    orders = spark.read.parquet(source)
    with DurableShuffle(spark) as shuffle:
        counts = orders.groupBy("customer").agg(F.count("*").alias("orders"))
        shuffle.query(counts).write.mode("overwrite").parquet(target)
        print(shuffle.report())  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
