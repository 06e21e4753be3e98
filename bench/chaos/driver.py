"""The process that the chaos run kills: it works off queries and says how far it is.

    python -m durable_shuffle.bench.chaos.driver WORK DATA EVENTS SHUFFLE JOB QUERY…

Every line of EVENTS is a JSON object: `ready`, then per query `start`, `progress`…, `done`. A query
that Spark gives up is asked again, a bounded number of times: that is what a user would do.
"""

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.bench.chaos.plan import Shuffle
from durable_shuffle.bench.cluster.event_file import EventFile
from durable_shuffle.bench.cluster.local_cluster import await_executors, start_cluster
from durable_shuffle.bench.cluster.store import store_of
from durable_shuffle.bench.cluster.watching import watched
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES, TPCH_TABLES
from durable_shuffle.jobs.engine.catalyst import executor_count
from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS
from durable_shuffle.jobs.session import DurableShuffle
from durable_shuffle.shuffle.base.clock import Clock, SystemClock
from durable_shuffle.shuffle.base.settings import Settings

PARTITIONS = 16
_PATIENT = {"spark.task.maxFailures": "100", "spark.stage.maxConsecutiveAttempts": "100"}
"""For both kinds of shuffle: the default of 4 gives a job up when executors die this often."""
_TRIES = 6


def answer_file(work: Path, job: str, query: str) -> Path:
    """Where a query that finished leaves its rows."""
    return work / "answers" / job / f"{query}.parquet"


class ChaosDriver:
    """One cluster and the event file."""

    def __init__(self, work: Path, data: Path, events: Path, clock: Clock) -> None:
        self._work, self._events, self._clock = work, EventFile(events), clock
        (work / "event-logs").mkdir(exist_ok=True)
        self._spark = start_cluster(work, PARTITIONS, work / "event-logs", _PATIENT)
        for table in TPCH_TABLES:
            self._spark.read.parquet(str(data / table)).createOrReplaceTempView(table)
        await_executors(self._spark, clock)

    def run(self, shuffle: Shuffle, job: str, queries: list[str]) -> None:
        """Answer the queries, each in a Spark job group of its own."""
        durable = None
        if shuffle == "durable":
            settings = Settings(result_least_bytes=0)  # nothing is large here, all is to be tried
            store = store_of(self._work)
            durable = DurableShuffle(
                self._spark, store.url, job=job, storage_options=store.options, settings=settings
            )
        self._events.emit("ready")
        for query in queries:
            self._spark.sparkContext.setJobGroup(f"{job}/{query}", query)
            self._events.emit("start", query=query)
            start = self._clock.monotonic()
            with self._watched(job, query):
                rows = self._answer(query, durable)
                seconds = self._clock.monotonic() - start
            target = answer_file(self._work, job, query)
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, target)
            total = durable.report().total() if durable else {}
            tasks = finished_tasks(self._spark, f"{job}/{query}")
            self._events.emit("done", query=query, seconds=seconds, total=total, tasks=tasks)

    def _answer(self, query: str, durable: DurableShuffle | None) -> Any:
        for left in reversed(range(_TRIES)):
            try:
                df: DataFrame = self._spark.sql(TPCH_QUERIES[query])
                return (df if durable is None else durable.query(df)).toArrow()
            except JVM_ERRORS as error:
                self._events.emit("failed", query=query, error=str(error)[:2000])
                if not left:
                    raise
        raise AssertionError("a try returns or raises")

    def _watched(self, job: str, query: str) -> AbstractContextManager[None]:
        def tell(seen: tuple[int, int]) -> None:
            self._events.emit("progress", query=query, tasks=seen[0], executors=seen[1])

        def seen() -> tuple[int, int]:
            return finished_tasks(self._spark, f"{job}/{query}"), executor_count(self._spark)

        return watched(seen, tell)

    def close(self) -> None:
        self._spark.stop()


def finished_tasks(spark: SparkSession, group: str) -> int:
    """Return how many tasks of a job group have finished; a repeated stage may count for less."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    ids = {stage for job in jobs if job is not None for stage in job.stageIds}
    stages = [tracker.getStageInfo(i) for i in ids]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def main(arguments: list[str]) -> None:
    """Work off the queries; see the module's docstring."""
    work, data, events = (Path(a) for a in arguments[:3])
    driver = ChaosDriver(work, data, events, SystemClock())
    try:
        driver.run("durable" if arguments[3] == "durable" else "spark", arguments[4], arguments[5:])
    finally:
        driver.close()


if __name__ == "__main__":
    main(sys.argv[1:])
