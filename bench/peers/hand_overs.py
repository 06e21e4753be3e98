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


def as_buckets(mapped: "DataFrame", workload: "Workload", place: Path) -> "DataFrame":
    """By a table with one bucket per reduce task: no shuffle, every map task writes to each bucket.

    A table that is complete is read as it is. Its catalog ends with the application, so a second
    one declares the table again.
    """
    spark, name = mapped.sparkSession, _table_name(place)
    # otherwise Spark ignores buckets where it sees no join and no group-by
    spark.conf.set("spark.sql.sources.bucketing.autoBucketedScan.enabled", "false")
    if not (place / "_SUCCESS").exists():
        writer = mapped.write.bucketBy(workload.reduces, workload.key).format("parquet")
        writer.option("path", place.as_uri()).mode("overwrite").saveAsTable(name)
    elif not spark.catalog.tableExists(name):
        columns = ", ".join(" ".join(part.split()) for part in workload.mapped.split(","))
        spark.sql(
            f"CREATE TABLE {name} ({columns}) USING parquet CLUSTERED BY ({workload.key}) "
            f"INTO {workload.reduces} BUCKETS LOCATION '{place.as_uri()}'"
        )
    return spark.table(name)


def _table_name(place: Path) -> str:
    """Return a name of its own for the folder of a run."""
    return "buckets_" + "".join(c if c.isalnum() else "_" for c in place.parent.name)


def unfinished_files(place: Path) -> list[Path]:
    """Return what tasks left in a table's folder that no reader sees."""
    return [p for p in place.rglob("*") if p.is_file() and "_temporary" in p.parts]


def old_checkpoints(place: Path) -> list[Path]:
    """Return the files of all checkpoints but the newest, the only one that is read."""
    files = [p for p in place.rglob("*") if p.is_file()]
    newest = max((p.parent for p in files), key=lambda d: d.stat().st_mtime, default=None)
    return [p for p in files if p.parent != newest]
