"""Writes that delete the files which their own query reads.

Spark refuses some of these writes, and runs others: what is left then depends on what was read
before the files went, from all rows to none. Here the rows are stored whole before the write begins
(`transparent`), and the write reads only what is stored.

A driver that dies inside such a write leaves a folder with some of its rows. The committer's own
working folder is then still there, so the next run refuses to take the rest for the whole.
"""

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.identity.jvm.calls import (
    JVM_ERRORS,
    class_name,
    every_with_subqueries,
    items,
    query_execution,
    simple_name,
)
from durable_shuffle.jobs.identity.plan.files import FILE_RELATION
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.serialization.errors import ConflictError

_OF_COMMITTERS = ("_temporary", "__magic", ".spark-staging-")
"""How the working folders of Spark's and Hadoop's committers begin."""
_V2_FILES = "execution.datasources.v2."
"""The package of Spark's own formats, where they are read through the newer interface."""


def overwrites_own_files(frames: Iterable[DataFrame], folders: Iterable[str]) -> bool:
    """Return whether one of the frames may read files of a folder that is about to be deleted.

    Raises:
        ConflictError: it may, and an earlier write into the folder was cut off.
    """
    frames = list(frames)
    own = {folder for folder in folders if any(_may_read_below(df, folder) for df in frames)}
    for folder in sorted(own):
        _check_finished(frames[0].sparkSession, folder)
    return bool(own)


def folder_of_table(spark: SparkSession, table: str) -> str | None:
    """Return the folder of a table in Spark's own catalog, which goes when it is replaced.

    None if there is no such table. Spark refuses to replace a table that it reads as a table; it
    does not see that files are those of the table.
    """
    state: Any = spark._jsparkSession.sessionState()  # noqa: SLF001
    try:
        name = state.sqlParser().parseTableIdentifier(table)
        return str(state.catalog().getTableMetadata(name).location())
    except JVM_ERRORS:
        return None


def _may_read_below(df: DataFrame, folder: str) -> bool:
    try:
        target = _below(_place(df.sparkSession, folder)[1])
        leaves = every_with_subqueries(query_execution(df).optimizedPlan())
        return any(target in place for leaf in leaves for place in _places(df.sparkSession, leaf))
    except JVM_ERRORS:  # Spark itself then says what is wrong with the folder or the query
        return True


def _places(spark: SparkSession, node: Any) -> Iterator[str]:
    """Yield the paths of the folders and files that a node of an optimized plan reads."""
    jvm: Any = classes_of(spark)
    name, index = simple_name(class_name(node)), None
    if name == "InMemoryRelation":  # it may not be filled yet
        for leaf in every_with_subqueries(node.cacheBuilder().logicalPlan()):
            yield from _places(spark, leaf)
    elif name == "HiveTableRelation":
        yield _below(jvm.org.apache.hadoop.fs.Path(node.tableMeta().location()))
    elif name == "LogicalRelation" and class_name(node.relation()) == FILE_RELATION:
        index = node.relation().location()
    elif name == "DataSourceV2ScanRelation" and _V2_FILES in class_name(node.scan()):
        index = node.scan().fileIndex()
    if index is not None:
        yield from map(_below, items(index.rootPaths()))
        yield unquote(str(jvm.scala.runtime.ScalaRunTime.stringOf(index.inputFiles())))


def _below(place: Any) -> str:
    """Return how paths below a folder begin."""
    return str(place.toUri().getPath()).rstrip("/") + "/"


def _check_finished(spark: SparkSession, folder: str) -> None:
    try:
        files, place = _place(spark, folder)
        names = [str(status.getPath().getName()) for status in files.listStatus(place)]
    except JVM_ERRORS:  # as above; a folder that does not exist is Spark's to say
        return
    left = next((name for name in names if name.startswith(_OF_COMMITTERS)), None)
    if left is not None:
        raise ConflictError(
            f"{folder} holds {left}: another write into it is running, or was cut off when it had "
            "deleted files. This query would read what is left and write that over it. If the "
            "write was cut off inside transparent(), its rows are stored: `durable-shuffle ls` "
            "shows the stage, `durable-shuffle cat` its rows. If the folder is whole, "
            f"remove {left}"
        )


def _place(spark: SparkSession, folder: str) -> tuple[Any, Any]:
    """Return Hadoop's file system and qualified path of a folder."""
    jvm: Any = classes_of(spark)
    path = jvm.org.apache.hadoop.fs.Path(folder)
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    return files, files.makeQualified(path)
