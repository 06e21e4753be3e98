"""`spark_tasks`: a pipeline's launcher from a Spark session, once everything was looked at."""

from pyspark.sql import SparkSession

from durable_shuffle.jobs.arguments import check_function
from durable_shuffle.jobs.preflight import preflight
from durable_shuffle.jobs.ship import ship
from durable_shuffle.jobs.spark_tasks.cluster import check_session
from durable_shuffle.jobs.spark_tasks.launcher import SparkTasks
from durable_shuffle.recovery.pipeline.launcher import Launcher
from durable_shuffle.recovery.pipeline.pipeline import MakeLauncher
from durable_shuffle.recovery.pipeline.report_log import LineSettings
from durable_shuffle.recovery.pipeline.run_task import RunTask
from durable_shuffle.recovery.pipeline.settings import PipelineSettings
from durable_shuffle.shuffle.clock import Clock, IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.open_storage import open_storage


def spark_tasks(
    spark: SparkSession,
    *,
    line: LineSettings | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> MakeLauncher:
    """Return what runs each task of a pipeline as a Spark task of its own.

        pipeline.start(launcher=spark_tasks(spark))

    Args:
        line: the traffic between tasks and this process.

    Raises:
        InvalidInputError: see `check_session`. The pipeline ends with one as its cause if
            executors do not share its storage, or a step cannot be sent to them.
    """
    check_session(spark)
    settings = line or LineSettings()
    ids = ids or RandomIds()

    def make(run_task: RunTask, _: PipelineSettings) -> Launcher:
        plan = run_task.plan
        check_session(spark)
        check_function("the pipeline's steps", run_task)
        ship(spark)
        storage = open_storage(plan.url, plan.storage_options)
        preflight(spark, storage, plan.name, ids)
        return SparkTasks(
            spark, run_task, storage, line=settings, clock=clock or SystemClock(), ids=ids
        )

    return make
