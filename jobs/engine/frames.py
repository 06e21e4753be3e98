"""DataFrames at both ends of a stage, made only with Spark's public API."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from durable_shuffle.jobs.engine.engine import ReadBack
from durable_shuffle.jobs.engine.row_numbers import ROW_COLUMN, in_a_column
from durable_shuffle.jobs.engine.tasks import ID_COLUMN, ArrowFunction


def with_partition_ids(
    df: DataFrame, cols: Sequence[str | Column], n: int | None, number: Column
) -> DataFrame:
    """Return `df` with the columns that `tasks.map_function` takes.

    These are c0, c1, …; with `cols` Spark's partition id modulo `n`; and `number` as ROW_COLUMN.

    Args:
        number: the row numbers, or zeros for `catalyst.counted_to_the_end`.
    """
    names = [f"c{i}" for i in range(len(df.columns))]
    if not cols:
        return df.select("*", number).toDF(*names, ROW_COLUMN)
    ids = F.pmod(F.hash(*cols), F.lit(n))
    return df.select("*", ids, number).toDF(*names, ID_COLUMN, ROW_COLUMN)


def read_frame(session: SparkSession, schema: StructType, back: ReadBack) -> DataFrame:
    """Return the stored rows as a DataFrame of `schema`, with the partitions of the stage."""
    return rows_of_tasks(session, back.function, back.partitions, schema)


def rows_of_tasks(
    session: SparkSession, function: ArrowFunction, tasks: int, schema: StructType
) -> DataFrame:
    """Return a DataFrame over the rows that `function` yields, one partition per task.

    The function gets the number of its task, from 0, in a column.
    """
    numbers = session.range(0, tasks, 1, tasks)
    if schema.fields:
        return numbers.mapInArrow(function, schema)

    def in_column(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return in_a_column(function(batches))

    return numbers.mapInArrow(in_column, f"{ROW_COLUMN} byte").select()
