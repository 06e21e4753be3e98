"""A driver of a standalone cluster: `standalone_driver.py MASTER ROOT FOLDER CONF`.

CONF is a JSON object of Spark settings. Each line of standard input is a command, answered by one
JSON line. "store": store one stage of six producers; producer 2 writes the process id of its worker
to FOLDER/worker, then waits for FOLDER/open, only on its first try. Every run of a producer adds a
line to FOLDER/runs/<producer>. "executors N": wait until N executors are registered. "native":
count a shuffle of Spark's own, so that its files lie on executors. "end": stop.
"""

import json
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle, DurableShuffleError
from durable_shuffle.jobs.engine.catalyst import executor_count

PRODUCERS, ROWS = 6, 40


def main(master: str, root: str, folder: str, conf: str) -> None:
    """Carry out commands."""

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

    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    for key, value in json.loads(conf).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    kept = []
    for line in sys.stdin:
        word, *more = line.split()
        answer: dict[str, object] = {}
        if word == "store":
            df = spark.range(0, ROWS, 1, PRODUCERS).selectExpr("id % 7 as k", "id as v")
            df = df.mapInArrow(gated, "k long, v long")
            try:
                shuffle = DurableShuffle(spark, root, job="tests", version="1")
                out = shuffle.repartition(df, 3, "k")
                rows = sorted(tuple(row) for row in out.collect())
                answer = {**shuffle.report().to_dict(), "rows": rows}
            except DurableShuffleError as error:
                answer = {"error": f"{error.kind}: {error}"}
        elif word == "native":
            kept.append(spark.range(0, ROWS, 1, PRODUCERS).repartition(3))
            answer = {"count": kept[-1].count()}
        elif word == "executors":
            deadline = time.monotonic() + 120
            while executor_count(spark) != int(more[0]) and time.monotonic() < deadline:
                time.sleep(0.05)
            answer = {"executors": executor_count(spark)}
        elif word == "end":
            break
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
