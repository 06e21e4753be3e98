"""What a Spark cluster offers to tasks that never end. Everything here asks the JVM."""

from typing import Any

from py4j.clientserver import ClientServer
from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS
from durable_shuffle.serialization.errors import InvalidInputError, UnavailableError
from durable_shuffle.shuffle.base.clock import Clock

_FIRST_SLOT_SECONDS = 60.0
_MORE_SLOTS_SECONDS = 3.0
"""How long to wait for the next executor after one has come."""
_LOOK_SECONDS = 0.1
_TRIES = 100


def check_session(spark: SparkSession) -> None:
    """Refuse a session whose tasks cannot be started and ended one by one.

    Raises:
        InvalidInputError: a Spark Connect session, a stopped one, no pinned threads, or
            speculation by time, which would double every task that lives long.
    """
    if is_connect(spark):
        raise InvalidInputError(
            "a pipeline's tasks run on classic Spark only: a Spark Connect session has no job "
            "groups to end them with; use a session with a SparkContext, or local processes"
        )
    check_not_stopped(spark)
    if not isinstance(spark.sparkContext._gateway, ClientServer):  # noqa: SLF001
        raise InvalidInputError(
            "PYSPARK_PIN_THREAD=false: jobs of several threads cannot be told apart; leave it out"
        )
    by_time = spark.sparkContext.getConf().get("spark.speculation.task.duration.threshold")
    if by_time and _is_true(spark, "spark.speculation"):
        raise InvalidInputError(
            "spark.speculation.task.duration.threshold makes Spark double tasks that live long, as "
            "those of a pipeline do; set spark.speculation=false"
        )


def check_not_stopped(spark: SparkSession) -> None:
    """Raise InvalidInputError if the SparkContext was stopped, or its JVM is gone."""
    try:
        stopped = spark.sparkContext._jsc is None or _context(spark).isStopped()  # noqa: SLF001
    except (*JVM_ERRORS, OSError):
        stopped = True
    if stopped:
        raise InvalidInputError("the SparkContext is stopped: start a new session")


def executor_slots(spark: SparkSession) -> dict[str, int]:
    """Return how many tasks each present executor runs at once, by its id.

    The driver is listed too: with 0 slots, except in a local session, where it runs the tasks.
    """
    active_only = True
    executors = _context(spark).statusStore().executorList(active_only)
    listed = [executors.apply(i) for i in range(executors.size())]
    return {str(executor.id()): int(executor.maxTasks()) for executor in listed}


def on_demand(spark: SparkSession) -> bool:
    """Return whether Spark starts executors when tasks wait."""
    return _is_true(spark, "spark.dynamicAllocation.enabled")


def await_slots(spark: SparkSession, wanted: int, clock: Clock) -> None:
    """Wait for executors that are about to start, as at the start of an application.

    Raises:
        UnavailableError: no executor has started.
    """
    before, since = 0, clock.monotonic()
    while (slots := sum(executor_slots(spark).values())) < wanted:
        now = clock.monotonic()
        if slots != before:
            before, since = slots, now
        if now - since >= (_MORE_SLOTS_SECONDS if slots else _FIRST_SLOT_SECONDS):
            break
        clock.sleep(_LOOK_SECONDS)
    if not slots:
        raise UnavailableError(
            f"the Spark application has no executor after {_FIRST_SLOT_SECONDS:g} s: 0 task slots; "
            "look at its cluster"
        )


def cancel_group(spark: SparkSession, group: str) -> None:
    """Cancel the jobs of a group, including those that it would start later."""
    _context(spark).cancelJobGroupAndFutureJobs(group)


def failures(spark: SparkSession, group: str) -> list[str]:
    """Return Spark's messages about failed tries of a group's tasks. They can come late."""
    tracker, store = spark.sparkContext.statusTracker(), _context(spark).statusStore()
    texts = []
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            known = tracker.getStageInfo(stage)
            if known is None or not known.numFailedTasks:
                continue
            tasks = store.taskList(stage, 0, _TRIES)
            messages = [tasks.apply(i).errorMessage() for i in range(tasks.size())]
            texts += [str(message.get()) for message in messages if message.isDefined()]
    return texts


def _context(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc()  # noqa: SLF001


def _is_true(spark: SparkSession, key: str) -> bool:
    return (spark.sparkContext.getConf().get(key) or "").lower() == "true"
