"""How Spark itself can hand rows from map tasks to reduce tasks: a function per peer.

Importing this needs no pyspark.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from durable_shuffle.bench.workloads.workloads import Workload


def shuffled(mapped: "DataFrame", workload: "Workload", place: Path) -> "DataFrame":
    """By a shuffle, whatever shuffle manager the session has."""
    del place
    return mapped.repartition(workload.reduces, workload.key)


def checkpointed(mapped: "DataFrame", workload: "Workload", place: Path) -> "DataFrame":
    """By a shuffle, then a reliable `checkpoint()`."""
    mapped.sparkSession.sparkContext.setCheckpointDir(str(place))
    return shuffled(mapped, workload, place).checkpoint()


def as_parquet(mapped: "DataFrame", workload: "Workload", place: Path) -> "DataFrame":
    """By a shuffle, then a table; one that is complete is read as it is."""
    if not (place / "_SUCCESS").exists():
        shuffled(mapped, workload, place).write.mode("overwrite").parquet(str(place))
    return mapped.sparkSession.read.parquet(str(place))
