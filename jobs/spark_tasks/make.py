"""`spark_tasks`: a pipeline's launcher from a Spark session, once everything was looked at."""

from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.preflight import preflight
from durable_shuffle.jobs.deploy.ship import ship
from durable_shuffle.jobs.engine.arguments import check_function
from durable_shuffle.jobs.spark_tasks.cluster import (
    await_slots,
    check_not_stopped,
    check_session,
    on_demand,
)
from durable_shuffle.jobs.spark_tasks.launcher import SparkTasks
from durable_shuffle.jobs.spark_tasks.paths import with_absolute_paths
from durable_shuffle.recovery.pipeline.coordinator.supervisor import MakeLauncher
from durable_shuffle.recovery.pipeline.lines.launcher import Launcher
from durable_shuffle.recovery.pipeline.lines.report_log import LineSettings
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.task.run_task import RunTask
from durable_shuffle.shuffle.base.clock import Clock, IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.storage.open import open_storage


def spark_tasks(
    spark: SparkSession,
    *,
    line: LineSettings | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> MakeLauncher:
    """Return what runs each task of a pipeline as a Spark task of its own.

        pipeline.start(launcher=spark_tasks(spark))

    Relative paths of the pipeline, of its file sinks and folder sources are those of this process.

    Args:
        line: the traffic between tasks and this process; the settings of the pipeline that say the
            same for local processes do not count.

    Raises:
        InvalidInputError: see `check_session`. The pipeline ends with one as its cause if
            executors do not share its storage, or a step cannot be sent to them.
    """
    check_session(spark)
    settings, clock, ids = line or LineSettings(), clock or SystemClock(), ids or RandomIds()

    def make(run_task: RunTask, _: PipelineSettings) -> Launcher:
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
        return SparkTasks(spark, run_task, storage, line=settings, clock=clock, ids=ids)

    return make


def _file_sinks(plan: PipelinePlan) -> list[FileSink]:
    return [c.sink for c in plan.consumers.values() if isinstance(c.sink, FileSink)]
