"""A driver whose producer 3 waits for a file: `gated_driver.py MASTER ROOT INPUT FOLDER`.

Each run of a producer adds a line to FOLDER/runs/<producer>. Producer 3 continues once FOLDER/open
exists. At the end, one JSON line has the report and the rows.
"""

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle

GATED = 3


def main(master: str, root: str, source: str, folder: str) -> None:
    """Store one stage and print it."""

    def gated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        producer = TaskContext.get().partitionId()
        with Path(folder, "runs", str(producer)).open("a") as file:
            file.write("run\n")
        deadline = time.monotonic() + 300
        while producer == GATED and not Path(folder, "open").exists():
            time.sleep(0.02)
            if time.monotonic() > deadline:
                raise TimeoutError("nobody opened the gate")
        yield from batches

    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    df = spark.read.parquet(source).mapInArrow(gated, "k long, v long")
    shuffle = DurableShuffle(spark, root, job="tests", version="the gate does not count")
    out = shuffle.repartition(df, 3, "k")
    rows = sorted(tuple(row) for row in out.collect())
    answer = {
        **shuffle.report().to_dict(),
        "rows": rows,
        "cores": spark.sparkContext.defaultParallelism,
    }
    print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
