"""A driver that kills itself once: `run_driver.py ROOT FOLDER`, for `durable-shuffle run`.

Producer 3 of the first attempt kills the driver by SIGKILL as soon as all others have committed.
Each run of a producer adds a line to FOLDER/runs/<producer>; the rows go to FOLDER/rows.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle

PRODUCERS, KILLER = 6, 3


def main(root: str, folder: str) -> None:
    """Store one stage and write its rows down."""
    Path(folder, "driver").write_text(str(os.getpid()))

    def killing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import signal
        import time
        from pathlib import Path

        from pyspark import TaskContext

        producer, killed = TaskContext.get().partitionId(), Path(folder, "killed")
        with Path(folder, "runs", str(producer)).open("a") as file:
            file.write("run\n")
        if producer == KILLER and not killed.exists():
            deadline = time.monotonic() + 300
            slots = f"*/*/producers/p*/{0:010d}"
            while len(list(Path(root).glob(slots))) < PRODUCERS - 1:
                time.sleep(0.02)
                if time.monotonic() > deadline:
                    raise TimeoutError("the others do not commit")
            killed.touch()
            os.kill(int(Path(folder, "driver").read_text()), signal.SIGKILL)
            time.sleep(300)
        yield from batches

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    df = spark.range(0, 60, 1, PRODUCERS).selectExpr("id % 7 as k", "id as v")
    df = df.mapInArrow(killing, "k long, v long")
    shuffle = DurableShuffle(spark, root, job="nightly", version="the kill does not count")
    rows = sorted(tuple(row) for row in shuffle.repartition(df, 3, "k").collect())
    (total,) = shuffle.report().to_dict()["stages"]
    Path(folder, "rows").write_text(json.dumps({"rows": rows, "report": total}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
