"""A real multi-process Spark cluster from the pip package alone, on loopback.

Strategy: `local-cluster[2,1,…]` runs master and workers in the driver's JVM and each executor as a
JVM of its own, so an executor can be killed for real. Spark writes its executors' work folders
below SPARK_HOME, so that is a folder of links to the installed pyspark: nothing lands in
site-packages.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from durable_shuffle.jobs.engine.catalyst import executor_count
from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base.clock import Clock

EXECUTORS = 2
QUICK_JVMS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
"""JVMs that live for a minute spend a quarter of two cores on the optimising compiler otherwise.
The small code cache that comes with the quick compiler fills within minutes: then a third of the
CPU of a long test run goes into sweeping it."""

_EXECUTOR_MEMORY_MIB = 1024
_ONE_FILE_PER_SPLIT = "134217728"
"""As the cost of opening a file it fills a split of the same size: no two files share one."""
_POLL_SECONDS = 0.05


def linked_spark_home(home: Path) -> Path:
    """Make a folder of links that serves as SPARK_HOME, and return it; harmless to repeat.

    PySpark's own copy of itself for Python workers is left out: a zip file without bytecode, which
    each daemon compiles when it starts (0.6 s), and whose directory each worker reads 14 times. The
    installed package, of which it is a copy, is found instead.
    """
    home.mkdir(exist_ok=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        link = home / entry.name
        if entry.name not in ("work", "python") and not link.is_symlink():
            link.symlink_to(entry)
    return home


def cluster_environment(
    work: Path, inherited: Mapping[str, str], java_options: str = ""
) -> dict[str, str]:
    """Return the environment in which the driver process is to be started.

    Args:
        work: an existing folder for this run; `spark-home` is made in it.
        inherited: the caller's own environment.
        java_options: for the JVMs of driver and executors alike.
    """
    home = linked_spark_home(work / "spark-home")
    return {
        **inherited,
        "JAVA_TOOL_OPTIONS": f"{inherited.get('JAVA_TOOL_OPTIONS', '')} {java_options}".strip(),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def start_cluster(
    work: Path,
    partitions: int,
    event_logs: Path,
    more: Mapping[str, str] | None = None,
    *,
    cores: int = 1,
    in_driver: bool = False,
) -> SparkSession:
    """Start a cluster of two executors; the process has `cluster_environment`.

    Adaptive execution and all else that is not named here are Spark's defaults, as users have them.

    Args:
        partitions: `spark.sql.shuffle.partitions`.
        event_logs: existing folder for Spark's event log, one plain file per application.
        more: further settings.
        cores: of each executor.
        in_driver: tasks run in the driver's JVM, with as many cores in all: it starts sooner, and
            there is no executor to kill.
    """
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": f"{_EXECUTOR_MEMORY_MIB}m",
        "spark.local.dir": str(work / "spark-local"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": event_logs.resolve().as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.sql.files.maxPartitionBytes": _ONE_FILE_PER_SPLIT,
        "spark.sql.files.openCostInBytes": _ONE_FILE_PER_SPLIT,
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(work / "spark-warehouse"),
    }
    master = f"local-cluster[{EXECUTORS},{cores},{_EXECUTOR_MEMORY_MIB}]"
    if in_driver:
        master = f"local[{EXECUTORS * cores}]"
    builder = SparkSession.builder.master(master).appName("durable-shuffle demo")
    for key, value in {**settings, **(more or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def await_executors(spark: SparkSession, clock: Clock, bound_seconds: float = 150.0) -> None:
    """Wait until all executors have registered, the one in place of a killed one too.

    Raises:
        UnavailableError: they have not within `bound_seconds`.
    """
    deadline = clock.monotonic() + bound_seconds
    while (found := executor_count(spark)) < EXECUTORS:
        if clock.monotonic() > deadline:
            raise UnavailableError(
                f"executors are missing after {bound_seconds:.0f} s: expected={EXECUTORS} "
                f"found={found}; their logs are below {os.environ.get('SPARK_HOME')}/work"
            )
        clock.sleep(_POLL_SECONDS)
