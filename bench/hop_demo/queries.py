"""Two streaming queries joined by a durable stage: the job of `durable-shuffle demo hop`.

The first query counts (source `rate-micro-batch`) and writes its numbers, keyed, into a stage. The
second reads the stage, gathers the numbers of each event-time window and key in a stateful
aggregation, and writes every finished window once, to Parquet files. Each runs in a driver of its
own and knows the other only by the stage:

    python -m durable_shuffle.bench.hop_demo.queries count FOLDER
    python -m durable_shuffle.bench.hop_demo.queries gather FOLDER [last]

A driver prints one line per micro-batch. It runs until it is killed, or until a line comes in on
its standard input; with `last` until it has read everything that is there.
"""

import os
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from durable_shuffle.bench.cluster.local_cluster import QUICK_JVMS
from durable_shuffle.jobs.streaming.register import register
from durable_shuffle.shuffle.base.clock import Clock, SystemClock

JOB, STAGE, CONSUMER = "hop", "numbers", "windows"
ROWS_PER_BATCH = 500
BATCHES_PER_WINDOW = 3
KEYS, SUBPARTITIONS = 5, 4
_TRIGGER = "200 milliseconds"
_POLL_SECONDS = 0.05


def place(folder: Path) -> dict[str, str]:
    """Return the options that name the stage."""
    return {"url": str(folder / "stages"), "job": JOB, "stage": STAGE}


def count_query(spark: SparkSession, folder: Path) -> "DataStreamWriter":
    """Return the query that writes batch n as the numbers [n * ROWS_PER_BATCH, ...)."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_PER_BATCH)
        .option("advanceMillisPerBatch", 1000)
        .option("startTimestamp", 0)
        .option("numPartitions", 2)
        .load()
    )
    return (
        numbers.withColumn("k", F.col("value") % KEYS)
        .writeStream.format("durable_shuffle")
        .options(**place(folder), keys="k", partitions=SUBPARTITIONS)
        .option("checkpointLocation", str(folder / "count"))
        .trigger(processingTime=_TRIGGER)
    )


def gather_query(spark: SparkSession, folder: Path, *, last: bool) -> "DataStreamWriter":
    """Return the query that gathers the numbers of each window and key."""
    numbers = (
        spark.readStream.format("durable_shuffle")
        .options(**place(folder), consumer=CONSUMER, consumers=CONSUMER)
        .option("maxRecordsPerTrigger", 4 * ROWS_PER_BATCH)
        .load()
    )
    windows = (
        numbers.withWatermark("timestamp", "0 seconds")
        .groupBy(F.window("timestamp", f"{BATCHES_PER_WINDOW} seconds"), "k")
        .agg(F.collect_list("value").alias("numbers"))
        .select(F.col("window.start").alias("start"), "k", "numbers")
    )
    sink = (
        windows.writeStream.format("parquet")
        .option("path", str(folder / "files"))
        .option("checkpointLocation", str(folder / "gather"))
    )
    return sink.trigger(availableNow=True) if last else sink.trigger(processingTime=_TRIGGER)


def main(what: str, folder: Path, *, last: bool, clock: Clock) -> None:
    """Run one of the queries and print a line per micro-batch."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[1]")
        .appName(f"durable-shuffle demo hop {what}")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", QUICK_JVMS)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    register(spark)
    made = count_query(spark, folder) if what == "count" else gather_query(spark, folder, last=last)
    query = made.start()
    print("started", flush=True)  # noqa: T201 - the demo reads it
    asked = threading.Event()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    shown = -1
    while query.isActive and not asked.is_set():
        shown = _show(query, shown)
        clock.sleep(_POLL_SECONDS)
    if asked.is_set():
        query.stop()
    query.awaitTermination()  # raises what the query failed of
    _show(query, shown)
    print("ended", flush=True)  # noqa: T201
    spark.stop()


def _show(query: StreamingQuery, shown: int) -> int:
    for progress in query.recentProgress:
        if progress.batchId > shown:
            shown = progress.batchId
            print(f"batch {shown}", flush=True)  # noqa: T201
    return shown


def _listen(asked: threading.Event) -> None:
    if sys.stdin.readline():
        asked.set()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), last=sys.argv[3:] == ["last"], clock=SystemClock())
