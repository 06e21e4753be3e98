"""A driver whose executors die while the JVM makes frames and reads them.

`jvm_rows_driver.py ROOT FOLDER`: a producer that has stored segments, and later a task that reads a
stored partition, write their process id to FOLDER/write and FOLDER/read and wait, on their first
attempt, for FOLDER/write-go-on and FOLDER/read-go-on. Prints one JSON line.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle, Settings
from durable_shuffle.jobs.engine import classic

VICTIM = 2


def main(root: str, folder: str) -> None:
    """Store one stage, read it, and compare it with Spark's own."""

    def wait(step: str) -> None:
        import os
        import time
        from pathlib import Path

        mine = Path(folder, step)
        Path(f"{mine}.new").write_text(str(os.getpid()))
        Path(f"{mine}.new").rename(mine)
        deadline = time.monotonic() + 300
        while not Path(f"{mine}-go-on").exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def gated(step: str, where: str) -> Any:
        def pass_on(sent: Iterator[bytes]) -> Iterator[bytes]:
            from pathlib import Path

            from pyspark import TaskContext

            task = TaskContext.get()
            first = task.attemptNumber() == 0 and task.partitionId() == VICTIM
            if task.partitionId() == VICTIM and not first:
                Path(folder, f"{step}-again").touch()
            for each in sent:
                yield each
                if first and not Path(folder, step).exists() and any(Path(root).glob(where)):
                    wait(step)

        return pass_on

    whole = classic.frames_function

    def frames_function(tasks: Any) -> Any:
        write = whole(tasks)
        gate = gated("write", f"tests/*/segments/*/p{VICTIM:06d}-*.seg")
        return lambda pieces: write(gate(pieces))

    classic.frames_function = frames_function
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.local.dir", f"{folder}/spark-local")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .getOrCreate()
    )
    df = spark.range(0, 60_000, 1, 3).selectExpr("id", "repeat(CAST(id AS string), 9) AS text")
    settings = Settings(writer_memory_bytes=1 << 16, frame_bytes=1 << 12)
    shuffle = DurableShuffle(spark, root, job="tests", rows_in="jvm", settings=settings)
    stored = shuffle.repartition(df, 4, "id")
    stored = stored.mapInArrow(gated("read", "tests/*"), stored.schema)
    equal = contents(stored) == contents(df.repartition(4, "id"))
    answer = {
        **shuffle.report().to_dict(),
        "equal": equal,
        "second_attempt": all(Path(folder, f"{step}-again").exists() for step in ("write", "read")),
    }
    print(json.dumps(answer), flush=True)
    spark.stop()


def contents(df: Any) -> list[list[tuple[Any, ...]]]:
    """The rows of each partition, sorted."""
    return [sorted(map(tuple, part)) for part in df.rdd.glom().collect()]


if __name__ == "__main__":
    main(*sys.argv[1:])
