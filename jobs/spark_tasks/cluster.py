"""What a Spark cluster offers to tasks that never end; everything here asks the JVM."""

from pyspark.sql import SparkSession

from durable_shuffle.jobs.ship import is_connect
from durable_shuffle.serialization.errors import InvalidInputError


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
    from py4j.clientserver import ClientServer

    if not isinstance(spark.sparkContext._gateway, ClientServer):  # noqa: SLF001
        raise InvalidInputError(
            "PYSPARK_PIN_THREAD=false: jobs of several threads cannot be told apart; leave it out"
        )
    conf = spark.sparkContext.getConf()
    speculates = (conf.get("spark.speculation", "false") or "").lower() == "true"
    if speculates and conf.get("spark.speculation.task.duration.threshold"):
        raise InvalidInputError(
            "spark.speculation.task.duration.threshold makes Spark double tasks that live long, as "
            "those of a pipeline do; set spark.speculation=false"
        )


def check_not_stopped(spark: SparkSession) -> None:
    """Raise InvalidInputError if the SparkContext was stopped."""
    if spark.sparkContext._jsc is None or spark.sparkContext._jsc.sc().isStopped():  # noqa: SLF001
        raise InvalidInputError("the SparkContext is stopped: start a new session")


def task_slots(spark: SparkSession) -> int | None:
    """Return how many tasks can run at once on the executors of this moment.

    None if executors come on demand: Spark then starts as many as there are tasks.
    """
    conf = spark.sparkContext.getConf()
    if (conf.get("spark.dynamicAllocation.enabled", "false") or "").lower() == "true":
        return None
    active_only = True
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(active_only)  # noqa: SLF001
    found = [executors.apply(i) for i in range(executors.size())]
    # the driver is listed, too; it has none but in a local session
    return sum(int(e.maxTasks()) for e in found)


def cancel_group(spark: SparkSession, group: str) -> None:
    """End the jobs of a group, those that come later included."""
    spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)  # noqa: SLF001


def why_again(spark: SparkSession, group: str) -> str:
    """Return what Spark says of the first failed task of a group's job, "" if it knows nothing."""
    context = spark.sparkContext
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()  # noqa: SLF001
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            tasks = store.taskList(stage, 0, 100)
            for i in range(tasks.size()):
                message = tasks.apply(i).errorMessage()
                if message.isDefined():
                    return str(message.get())
    return ""
