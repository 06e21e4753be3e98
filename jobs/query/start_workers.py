"""Python workers are started while a query's first plan is made.

Planning keeps one core of the driver busy, for seconds in a JVM that is new; the executors wait. A
job of one row per core meanwhile starts their Python workers, imports what tasks need, and loads
what the JVM needs for a first job.
"""

import threading
from contextlib import suppress

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from durable_shuffle.jobs.tasks import first_task

DESCRIPTION = "durable-shuffle: start Python workers"
_MOST_TASKS = 32


def start_workers(spark: SparkSession) -> None:
    """Begin to start Python workers and return at once; nothing depends on the outcome."""
    context = spark.sparkContext
    tasks = min(context.defaultParallelism, _MOST_TASKS)

    def run() -> None:
        with suppress(Exception):  # a session that ends meanwhile; a query says what is wrong
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
            context.setJobDescription(DESCRIPTION)
            rows = spark.range(0, tasks, 1, tasks).mapInArrow(first_task, "id long")
            rows._jdf.queryExecution().toRdd().count()  # noqa: SLF001

    name = "durable-start-workers"
    threading.Thread(target=inheritable_thread_target(spark)(run), daemon=True, name=name).start()
