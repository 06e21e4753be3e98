"""The process that gets killed: it works off steps on a cluster of its own and says how far it is.

    python -m durable_shuffle.bench.recovery_demo.driver WORK DATA EVENTS STEPS_JSON EXECUTORS_JSON

Every line of EVENTS is a JSON object: `ready`, then per step `run`, `progress`…, `done`. The kills
are the parent's (recovery_runner). A cluster that is new, or has a new executor, is warmed up by
the same query without its hashing before the next run, so that runs can be compared.
"""

import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.bench.cluster.event_file import EventFile
from durable_shuffle.bench.cluster.local_cluster import await_executors, start_cluster
from durable_shuffle.bench.cluster.watching import watched
from durable_shuffle.bench.recovery_demo.steps import Shuffle, Step
from durable_shuffle.bench.tpch.data import PARTS, TpchFiles
from durable_shuffle.bench.tpch.job import (
    REDUCE_HASH_MIB,
    REDUCERS,
    native_repartition,
    revenue_per_order,
)
from durable_shuffle.jobs.deploy.ship import ship
from durable_shuffle.jobs.session import DurableShuffle
from durable_shuffle.shuffle.base.clock import Clock, SystemClock


def step_group(number: int) -> str:
    """Spark job group of a step's measured run; event_log counts by it."""
    return f"step-{number}"


def store_folder(work: Path) -> Path:
    """Where the durable jobs keep their stages."""
    return work / "store"


def result_file(work: Path, number: int) -> Path:
    """Where a step that finished leaves its rows."""
    return work / "results" / f"{number}.parquet"


class Driver:
    """One cluster and the event file."""

    def __init__(self, work: Path, events: Path, clock: Clock, *, executors: bool) -> None:
        self._work, self._events, self._clock = work, EventFile(events), clock
        self._executors = executors
        self._warm: set[Shuffle] = set()
        for name in ("results", "event-logs"):
            (work / name).mkdir(exist_ok=True)
        start = clock.monotonic()
        self._spark = start_cluster(work, REDUCERS, work / "event-logs", in_driver=not executors)
        ship(self._spark)
        self._events.emit("ready", seconds=clock.monotonic() - start)

    def close(self) -> None:
        self._spark.stop()

    def run(self, step: Step, data: TpchFiles) -> None:
        """Warm up, run the step, store its rows, report."""
        if self._executors:
            await_executors(self._spark, self._clock)
        if step.shuffle not in self._warm:
            warm = self._durable(f"warm-up-{step.number}") if step.shuffle == "durable" else None
            self._query(data, step.shuffle, warm, 0, 0).toArrow()
            self._warm.add(step.shuffle)
        context = self._spark.sparkContext
        context.setJobGroup(step_group(step.number), step.title)
        self._events.emit("run", step=step.number)
        start = self._clock.monotonic()
        with self._watched(step):
            durable = self._durable(step.job) if step.shuffle == "durable" else None
            mib = step.map_hash_mib
            # only executors are killed among the reducers
            reduce_mib = REDUCE_HASH_MIB if self._executors else REDUCE_HASH_MIB // 5
            frame = self._query(data, step.shuffle, durable, mib, reduce_mib)
            rows: pa.Table = frame.toArrow()
            seconds = self._clock.monotonic() - start
        context.setJobGroup("between steps", "")
        pq.write_table(rows, result_file(self._work, step.number))
        if step.fault == "executor":
            self._warm.clear()
        total = durable.report().total() if durable else None
        self._events.emit("done", step=step.number, seconds=seconds, total=total)

    def _durable(self, job: str) -> DurableShuffle:
        return DurableShuffle(self._spark, str(store_folder(self._work)), job=job)

    def _query(
        self,
        data: TpchFiles,
        shuffle: Shuffle,
        durable: DurableShuffle | None,
        map_hash_mib: int,
        reduce_hash_mib: int,
    ) -> DataFrame:
        def repartition(df: DataFrame, key: str, label: str) -> DataFrame:
            if durable is None:
                return native_repartition(df, key, label)
            return durable.repartition(df, REDUCERS, key, name=label)

        return revenue_per_order(
            self._spark,
            data,
            repartition,
            map_hash_mib=map_hash_mib,
            reduce_hash_mib=reduce_hash_mib,
        )

    def _watched(self, step: Step) -> AbstractContextManager[None]:
        def tell(done: tuple[int, int]) -> None:
            self._events.emit("progress", step=step.number, map=done[0], reduce=done[1])

        return watched(lambda: finished_tasks(self._spark, step_group(step.number)), tell)


def finished_tasks(spark: SparkSession, group: str) -> tuple[int, int]:
    """Return how many map and reduce tasks of a job group have finished.

    A stage with REDUCERS tasks is the reduce, one with PARTS tasks a map side; Spark's small jobs
    about the files' schemas have other numbers. A stage that Spark repeats may count for less.
    """
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    ids = {stage for job in jobs if job is not None for stage in job.stageIds}
    stages = [s for s in (tracker.getStageInfo(i) for i in ids) if s is not None]
    done = [sum(s.numCompletedTasks for s in stages if s.numTasks == n) for n in (PARTS, REDUCERS)]
    return done[0], done[1]


def main(arguments: list[str]) -> None:
    """Work off the steps; see the module's docstring."""
    work, data, events = (Path(a) for a in arguments[:3])
    driver = Driver(work, events, SystemClock(), executors=json.loads(arguments[4]))
    try:
        for values in json.loads(arguments[3]):
            driver.run(Step(**values), TpchFiles(data))
    finally:
        driver.close()


if __name__ == "__main__":
    main(sys.argv[1:])
