"""The process that the benchmark kills: it works off steps on a cluster of its own.

    python -m durable_shuffle.bench.peers.spark_driver WORK EVENTS STEPS_JSON

Every line of EVENTS is a JSON object: `ready`, then per step `run`, `progress`…, `done`; `fenced`
if a newer driver took over; `failed` if an error ends it. The kills are the parent's
(`spark_runner`), those by orders the tasks' own. A cluster that is new, or has a new executor, is
warmed up before it is measured.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from durable_shuffle.bench.cluster.event_file import EventFile, failures_told
from durable_shuffle.bench.cluster.local_cluster import await_executors, start_cluster
from durable_shuffle.bench.cluster.standalone import LOOPBACK, standalone
from durable_shuffle.bench.cluster.store import store_folder, store_of
from durable_shuffle.bench.cluster.watching import watched
from durable_shuffle.bench.peers.damage import flip_bit
from durable_shuffle.bench.peers.spark_peers import SETTINGS, Answer, run_workload
from durable_shuffle.bench.peers.systems import DURABLE, PEERS
from durable_shuffle.bench.workloads import orders
from durable_shuffle.bench.workloads.faults import FAULTS, Cluster
from durable_shuffle.bench.workloads.step import Step, result_file
from durable_shuffle.bench.workloads.task_log import prepare
from durable_shuffle.jobs.deploy.ship import ship
from durable_shuffle.serialization.errors import CorruptDataError, FencedError
from durable_shuffle.shuffle.base.clock import Clock, RandomIds, SystemClock
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.repair.stage import repair_stage

_WARM_SCALE = 0.0
"""One row per producer."""

_PROMPT = {"spark.ui.liveUpdate.period": "0"}
"""Spark's count of ended tasks, for which a fault waits, is always the newest. By default the last
ones of a burst count after the next heartbeat, up to 10 s later."""

_FAULT_SETTINGS: dict[Cluster, dict[str, str]] = {
    "": {},
    "twins": {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.efficiency.enabled": "false",
    },
    "decommission": {"spark.decommission.enabled": "true"},
}


@contextmanager
def session_settings(step: Step, work: Path) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Yield Spark's settings that are the peer's own, and all for the session of a step.

    What they name lives as long as the session.
    """
    peer, kind = PEERS[step.peer], FAULTS[step.fault].cluster
    own = peer.settings(os.environ, work)
    settings = own | _FAULT_SETTINGS[kind] | _PROMPT
    hosts = LOOPBACK if kind == "twins" else peer.hosts
    if not hosts:
        yield own, settings
        return
    service = {k: v for k, v in settings.items() if k.startswith("spark.shuffle.service.")}
    daemons = {**service, "spark.master.rest.enabled": "false"}
    options = " ".join(f"-D{name}={value}" for name, value in daemons.items())
    environment = {**os.environ, "SPARK_DAEMON_JAVA_OPTS": options}
    with standalone(work, environment, SystemClock(), hosts) as cluster:
        yield own, {**settings, "spark.master": cluster.url}


class Driver:
    """One cluster; what it does goes into the event file."""

    def __init__(
        self,
        work: Path,
        events: EventFile,
        own: Mapping[str, str],
        settings: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._work, self._events, self._clock = work, events, clock
        self._warm: set[tuple[str, str]] = set()
        (work / "event-logs").mkdir(exist_ok=True)
        start = clock.monotonic()
        self._spark = start_cluster(work, 16, work / "event-logs", settings)
        ship(self._spark)
        seconds = clock.monotonic() - start
        self._events.emit("ready", seconds=seconds, settings=dict(own))

    def close(self) -> None:
        self._spark.stop()

    def run(self, step: Step) -> None:
        """Warm up, run the step, store its rows, report."""
        await_executors(self._spark, self._clock)
        context = self._spark.sparkContext
        self._warm_up(step)
        folder = step.folder(self._work)
        prepare(folder, step.run, step.gate)
        if step.fault == "F10":
            (folder / orders.TWIN).touch()
        if step.fault == "F3" and step.peer != DURABLE:
            (folder / orders.DIE).touch()
        context.setJobGroup(f"step-{step.number}", step.title)
        detected = None
        self._events.emit("run", step=step.number, at=self._clock.wall())
        start = self._clock.monotonic()
        with self._watched(step):
            try:
                answer = self._answer(step, lambda: self._hurt(step))
            except (PySparkException, CorruptDataError) as error:
                if step.fault != "F6" or "CorruptDataError" not in repr(error) + str(error):
                    raise
                detected = str(error).partition("CorruptDataError")[2][:200]
                self._mend(step)
                answer = self._answer(step, lambda: None)
            seconds = self._clock.monotonic() - start
        context.setJobGroup("between steps", "")
        pq.write_table(answer.rows, result_file(self._work, step))
        if step.fault in ("F1", "F2", "F11"):
            self._warm.clear()
        self._events.emit(
            "done",
            step=step.number,
            at=self._clock.wall(),
            seconds=seconds,
            total=answer.total,
            detected=detected,
        )

    def _answer(self, step: Step, between: Callable[[], None]) -> Answer:
        return run_workload(self._spark, step, self._work, between=between)

    def _mend(self, step: Step) -> None:
        """As `durable-shuffle verify --repair`: mark what no copy is left of."""
        storage = store_of(self._work).open()
        state = read_job(storage, step.job)
        for path in state.order:
            repair_stage(storage, path, SETTINGS, ids=RandomIds(), generation=state.generation)

    def _hurt(self, step: Step) -> None:
        if step.fault == "F6":
            key = flip_bit(store_folder(self._work) / step.job, step.draw)
            orders.take(step.folder(self._work), key)

    def _warm_up(self, step: Step) -> None:
        kind = (step.workload, step.peer)
        if kind in self._warm:
            return
        warm = replace(step, fault="F0", round=-1 - step.number, scale=_WARM_SCALE, run=1)
        prepare(warm.folder(self._work), 1, None)
        run_workload(self._spark, warm, self._work, between=lambda: None, again=True)
        self._warm.add(kind)

    def _watched(self, step: Step) -> AbstractContextManager[None]:
        return watched(
            lambda: finished_tasks(self._spark, step),
            lambda tasks: self._events.emit("progress", step=step.number, tasks=tasks),
        )


def finished_tasks(spark: SparkSession, step: Step) -> int:
    """Return how many tasks of the step's map and reduce sides Spark has heard of.

    Sides are told by their number of tasks: Spark's small jobs about other things have others.
    """
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(f"step-{step.number}")]
    ids = {stage for job in jobs if job is not None for stage in job.stageIds}
    stages = [s for s in (tracker.getStageInfo(i) for i in ids) if s is not None]
    sides = (step.maps, step.reduces)
    return sum(s.numCompletedTasks for s in stages if s.numTasks in sides)


def main(arguments: list[str]) -> None:
    """Work off the steps; see the module's docstring."""
    work, events = Path(arguments[0]), EventFile(Path(arguments[1]))
    steps = [Step(**values) for values in json.loads(arguments[2])]
    pa.set_cpu_count(1)
    with failures_told(events), session_settings(steps[0], work) as (own, settings):
        driver = Driver(work, events, own, settings, SystemClock())
        try:
            for step in steps:
                driver.run(step)
        except FencedError as error:
            events.emit("fenced", error=str(error)[:300])
        finally:
            driver.close()


if __name__ == "__main__":
    main(sys.argv[1:])
