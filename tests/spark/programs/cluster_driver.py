"""A driver on a cluster of two executor processes: `cluster_driver.py ROOT FOLDER`.

Producer 2 writes the process id of its worker to FOLDER/worker, then waits for FOLDER/open, only on
its first try. Every run of a producer adds a line to FOLDER/runs/<producer>. Prints one JSON line.
"""

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle


def main(root: str, folder: str) -> None:
    """Store one stage and print it."""

    def gated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time
        from pathlib import Path

        from pyspark import TaskContext

        producer, gate = TaskContext.get().partitionId(), Path(folder)
        with (gate / "runs" / str(producer)).open("a") as file:
            file.write("run\n")
        if producer == 2 and not (gate / "worker").exists():
            (gate / "worker.new").write_text(str(os.getpid()))
            (gate / "worker.new").rename(gate / "worker")
            deadline = time.monotonic() + 300
            while not (gate / "open").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        yield from batches

    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.local.dir", f"{folder}/spark-local")
        .getOrCreate()
    )
    df = spark.range(0, 40, 1, 6).selectExpr("id % 7 as k", "id as v")
    df = df.mapInArrow(gated, "k long, v long")
    shuffle = DurableShuffle(spark, root, job="tests", version="1")
    out = shuffle.repartition(df, 3, "k")
    rows = sorted(tuple(row) for row in out.collect())
    print(json.dumps({**shuffle.report().to_dict(), "rows": rows}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
