"""Runs each attempt of a pipeline's task as a Spark job of one task. Implements `Launcher`.

Strategy: a thread per attempt submits its job in a job group of its own, so that each can be ended
alone. Attempts report over the storage; one thread reads the reports of all. When a job has ended,
its attempt reports nothing more. Its reports are then read to their end, and an attempt without a
last report is lost, for whatever reason. Only storage connects tasks to this process.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.preflight import preflight
from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.deploy.ship import ship
from durable_shuffle.jobs.engine.checks import check_function
from durable_shuffle.jobs.spark_tasks.attempt import SparkAttempt, with_absolute_paths
from durable_shuffle.jobs.spark_tasks.cluster import (
    await_slots,
    cancel_group,
    check_not_stopped,
    check_session,
    executor_slots,
    failures,
    on_demand,
)
from durable_shuffle.recovery.job.phases import Failure, TaskPhase, TaskReport
from durable_shuffle.recovery.job.restarts import AttemptKey
from durable_shuffle.recovery.pipeline.lines.launcher import Hear, Launcher, MakeLauncher
from durable_shuffle.recovery.pipeline.lines.storage_line import LineSettings, ReportReader
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.recovery.pipeline.task.run_task import RunTask
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    IncompatibleError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage

_log = logging.getLogger(__name__)
_CLUSTER_SECONDS = 1.0
"""How often the executors are looked at."""
_SUSPICION_SECONDS = 10.0
"""How long after an executor has gone all tasks are looked at one by one."""
_LINGER_SECONDS = 10.0
"""A job is cancelled this long after the last report of its task."""
_LAST_WORD_SECONDS = 2.0
"""How long `close` waits for jobs to end by themselves."""
_CLOSE_SECONDS = 30.0
"""How long `close` waits for cancelled jobs to end."""
_REASON_CHARS = 500


@dataclass(slots=True, eq=False)
class _Running:
    key: AttemptKey
    group: str
    reader: ReportReader
    look_at: float
    """When to look for reports next."""
    starting: bool = True
    job_error: str | None = None
    job_over: bool = False
    silent: bool = False
    """True after its last report was handed on, or after it was killed: report nothing more."""
    cancel_at: float | None = None
    thread: threading.Thread = field(init=False)


class SparkTasks:
    """A launcher on one Spark session.

    Args:
        hear: gets the reports.
        storage: where reports come from; executors open it by the plan's URL.
    """

    def __init__(
        self,
        spark: SparkSession,
        run_task: RunTask,
        hear: Hear,
        storage: Storage,
        *,
        line: LineSettings,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self.silence_seconds = line.silence_seconds
        self._spark, self._storage = spark, storage
        self.use(run_task)
        self._job, self._line, self._clock, self._ids = run_task.plan.name, line, clock, ids
        self._code = running_code()
        self._hand_on = hear
        self._lock = threading.Lock()
        self._running: list[_Running] = []
        self._wake = threading.Event()
        self._closed = False
        self._executors = executor_slots(spark)
        self._on_demand = on_demand(spark)
        self._cluster_at = self._suspect_until = clock.monotonic()
        self._reader = threading.Thread(
            target=self._read_all, name="durable-shuffle-reports", daemon=True
        )
        self._reader.start()

    @property
    def slots(self) -> int | None:
        """How many tasks the present executors run at once."""
        return None if self._on_demand else sum(self._executors.values())

    def check(self, run_task: Callable[[TaskLink], None]) -> None:
        check_function("the pipeline", run_task)

    def use(self, run_task: Callable[[TaskLink], None]) -> None:
        assert isinstance(run_task, RunTask)
        self.check(run_task)
        self._run_task = replace(run_task, plan=with_absolute_paths(run_task.plan))

    def start(self, task: str, epoch: int, slot: int) -> None:
        check_not_stopped(self._spark)
        line = self._ids.new_id()
        work = SparkAttempt(self._run_task, task, epoch, slot, line, self._line, self._code)
        running = _Running(
            (task, epoch),
            f"durable-shuffle-{line}",
            ReportReader(self._storage, self._job, line, task, epoch),
            self._clock.monotonic(),
        )
        running.thread = InheritableThread(
            target=self._run_job, args=(running, work), name=f"durable-shuffle-{task}", daemon=True
        )
        with self._lock:
            self._running.append(running)
        running.thread.start()
        self._wake.set()

    def push(self, slot: int, record: bytes) -> None:
        """Nothing: tasks read the command log themselves."""

    def kill(self, task: str, epoch: int) -> None:
        running = self._find(task, epoch)
        if running is not None:
            running.silent = True
            self._cancel(running)

    def close(self) -> None:
        with self._lock:
            left = list(self._running)
        begun = self._clock.monotonic()
        for running in left:
            if not running.silent:
                running.silent = True
                self._cancel(running)
        for seconds in (_LAST_WORD_SECONDS, _CLOSE_SECONDS):
            for running in left:
                running.thread.join(max(0.0, begun + seconds - self._clock.monotonic()))
            for running in left:
                if running.thread.is_alive():
                    self._cancel(running)
        self._closed = True
        self._wake.set()
        self._reader.join(_CLOSE_SECONDS)

    def _find(self, task: str, epoch: int) -> _Running | None:
        with self._lock:
            matching = [r for r in self._running if r.key == (task, epoch) and not r.silent]
        return matching[0] if matching else None

    def _cancel(self, running: _Running) -> None:
        try:
            cancel_group(self._spark, running.group)
        except Exception:  # noqa: BLE001 - a context that is gone has no jobs
            _log.warning("could not cancel job group %s", running.group, exc_info=True)

    # -- in the thread of an attempt

    def _run_job(self, running: _Running, work: Callable[..., object]) -> None:
        task, epoch = running.key
        try:
            context = self._spark.sparkContext
            text = f"durable-shuffle {self._job}: {task}, epoch {epoch}"
            context.setJobGroup(running.group, text, interruptOnCancel=True)
            context.parallelize([0], 1).mapPartitions(work).collect()  # type: ignore[arg-type]
            if not running.silent:
                running.job_error = _reason(*failures(self._spark, running.group)[:1])
        except Exception as error:  # noqa: BLE001 - it becomes the reason of the end
            running.job_error = _reason(str(error) or type(error).__name__)
        finally:
            running.job_over = True
            self._wake.set()

    # -- in the thread that reads

    def _read_all(self) -> None:
        while not self._closed:
            with self._lock:
                running = list(self._running)
            self._look_at_cluster()
            for task in running:
                try:
                    self._look(task)
                except Exception:  # noqa: BLE001 - go on with the other tasks
                    _log.warning("could not look after task %s", task.key, exc_info=True)
            due = [task.look_at for task in running if not task.silent]
            due.append(self._cluster_at + _CLUSTER_SECONDS)
            self._wake.wait(max(0.0, min(due) - self._clock.monotonic()))
            self._wake.clear()

    def _look_at_cluster(self) -> None:
        now = self._clock.monotonic()
        if now < self._cluster_at + _CLUSTER_SECONDS:
            return
        self._cluster_at = now
        try:
            executors = executor_slots(self._spark)
        except Exception:  # noqa: BLE001 - if Spark is gone, its jobs end too
            _log.debug("no answer from Spark", exc_info=True)
            return
        if self._executors.keys() - executors.keys():
            self._suspect_until = now + _SUSPICION_SECONDS
        self._executors = executors

    def _look(self, running: _Running) -> None:
        now = self._clock.monotonic()
        over = running.job_over  # read first: if true, all its reports are on storage
        if running.cancel_at is not None and now >= running.cancel_at and not over:
            running.cancel_at = None
            self._cancel(running)
        if not running.silent and now < self._suspect_until and not over:
            # Spark's next try may wait long for a slot; an attempt of ours need not
            running.job_error = _reason(*failures(self._spark, running.group)[:1])
        lost = over or running.job_error is not None
        if not running.silent and (lost or now >= running.look_at):
            self._hear(running, now, over=lost)
        if over:
            self._forget(running)

    def _hear(self, running: _Running, now: float, *, over: bool) -> None:
        seconds = self._line.start_seconds if running.starting else self._line.heartbeat_seconds
        running.look_at = now + seconds
        try:
            while reports := running.reader.read(to_end=over or running.starting):
                for report in reports:
                    self._tell(running, report)
                if not over:
                    break
            running.reader.forget()
        except (CorruptDataError, IncompatibleError) as error:
            self._tell_lost(running, Failure("corrupt_data", str(error)))
            self._cancel(running)
        except DurableShuffleError as error:
            _log.warning("could not read what task %s says: %s", running.key[0], error)
        if over and not running.silent:
            why = running.job_error or "Spark does not say why"
            text = f"the Spark task of {running.key[0]} ended without a word: {why}"
            self._tell_lost(running, Failure("lost", text))
            self._cancel(running)

    def _tell(self, running: _Running, report: TaskReport) -> None:
        if running.silent:
            return
        if report.phase is TaskPhase.STARTED:
            running.starting = False
        if report.is_last:
            running.silent = True
            running.cancel_at = self._clock.monotonic() + _LINGER_SECONDS
        self._hand_on(report)

    def _tell_lost(self, running: _Running, failure: Failure) -> None:
        self._tell(running, TaskReport(*running.key, TaskPhase.FAILED, failure))

    def _forget(self, running: _Running) -> None:
        with self._lock:
            self._running.remove(running)
        try:
            running.reader.forget(all_of_it=True)
        except DurableShuffleError as error:  # gc finds it
            _log.warning("could not delete what task %s said: %s", running.key[0], error)


def _reason(text: str | None = None) -> str | None:
    """Return the lines of a Spark error that say what happened, as one."""
    lines = [line.strip() for line in (text or "").splitlines()]
    told = [line for line in lines if line and not line.startswith(("at ", "File ", "..."))]
    return " | ".join(told)[:_REASON_CHARS] or None


def spark_tasks(
    spark: SparkSession,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> MakeLauncher:
    """Return a launcher that runs each task of a pipeline as a Spark task of its own.

        pipeline.start(launcher=spark_tasks(spark))

    Relative paths of the pipeline, its file sinks and folder sources start in the current folder of
    this process.

    The pipeline's settings that begin with `spark_` say how tasks and this process talk.

    Raises:
        InvalidInputError: see `check_session`. If executors do not share the pipeline's storage, or
            a step cannot be sent to them, the pipeline ends with this error as its cause.
    """
    check_session(spark)
    clock, ids = clock or SystemClock(), ids or RandomIds()

    def make(run_task: RunTask, settings: PipelineSettings, hear: Hear) -> Launcher:
        line = LineSettings(
            settings.spark_heartbeat_seconds,
            settings.spark_silence_seconds,
            settings.spark_command_seconds,
        )
        check_not_stopped(spark)
        check_function("the pipeline", run_task)
        plan = with_absolute_paths(run_task.plan)
        if not on_demand(spark):
            await_slots(spark, len(plan.tasks), clock)
        ship(spark)
        patience = plan.settings.shuffle.storage_call_seconds
        storage = open_storage(plan.url, plan.storage_options, call_seconds=patience)
        preflight(spark, storage, plan.name, ids)
        for sink in {s.url: s for s in _file_sinks(plan)}.values():
            preflight(spark, open_storage(sink.url, sink.storage_options), "_parked", ids)
        return SparkTasks(spark, run_task, hear, storage, line=line, clock=clock, ids=ids)

    return make


def _file_sinks(plan: PipelinePlan) -> list[FileSink]:
    return [c.sink for c in plan.consumers.values() if isinstance(c.sink, FileSink)]
