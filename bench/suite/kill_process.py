"""A driver that loses executors while it has nothing to repeat: `kill_process.py WORK KIND`.

It runs one job of map tasks twice, calm and with kills, on a cluster as the chaos run has it. KIND
is "jvm", or "python" if each task hands rows to a Python worker. No task needs the rows of another
one. So what a kill costs is the task under way, a new executor, and code that is compiled again.
Prints one JSON line: the seconds of both runs, and the executors killed.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from durable_shuffle.bench.chaos.chaos import EVERY_SECONDS
from durable_shuffle.bench.cluster.faults import kill_one_executor
from durable_shuffle.bench.cluster.local_cluster import (
    EXECUTORS,
    await_executors,
    start_cluster,
)
from durable_shuffle.jobs.engine.catalyst import executor_count
from durable_shuffle.shuffle.base.clock import SystemClock

TASKS, ROWS_PER_TASK = 160, 1_000_000
_POLL_SECONDS = 0.02


def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches unchanged."""
    yield from batches


def run_tasks(spark: SparkSession, kind: str, tasks: int) -> None:
    """Hash rows, keep few of them, and drop these."""
    hashed = spark.range(0, ROWS_PER_TASK * tasks, 1, tasks).selectExpr(
        "xxhash64(id, id * 3, id * 7, concat(id, 'a')) AS h"
    )
    few = hashed.filter("h % 10000 = 0")
    if kind == "python":
        few = few.mapInArrow(passed_on, "h long")
    few.write.format("noop").mode("overwrite").save()


class Killer:
    """Kills an executor after every 6 s in which all of them are there, in a thread of its own."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._clock = spark, SystemClock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.kills = 0

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        whole, last = 0.0, self._clock.monotonic()
        while not self._over.wait(_POLL_SECONDS):
            now = self._clock.monotonic()
            whole, last = whole + (now - last) * (executor_count(self._spark) == EXECUTORS), now
            if whole >= EVERY_SECONDS:
                kill_one_executor(os.getsid(0), self._clock)
                self.kills, whole = self.kills + 1, 0.0


def main(work: Path, kind: str) -> None:
    """Run the job calm, then with kills."""
    clock = SystemClock()
    logs = work / "event-logs"
    logs.mkdir()
    spark = start_cluster(work, 1, logs, {"spark.task.maxFailures": "100"})
    await_executors(spark, clock)
    run_tasks(spark, kind, TASKS // 10)  # not the first one: that compiles
    start = clock.monotonic()
    run_tasks(spark, kind, TASKS)
    calm = clock.monotonic() - start
    with Killer(spark) as killer:
        start = clock.monotonic()
        run_tasks(spark, kind, TASKS)
        killed = clock.monotonic() - start
    print(json.dumps({"calm": calm, "killed": killed, "kills": killer.kills}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
