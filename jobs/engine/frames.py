"""DataFrames at both ends of a stage, made with the public API alone."""

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
    """Return `df` as `tasks.map_function` takes it: columns c0, c1, …, with key columns Spark's
    partition id, and the rows' numbers, or what is to be turned into them."""
    names = [f"c{i}" for i in range(len(df.columns))]
    if not cols:
        return df.select("*", number).toDF(*names, ROW_COLUMN)
    ids = F.pmod(F.hash(*cols), F.lit(n))
    return df.select("*", ids, number).toDF(*names, ID_COLUMN, ROW_COLUMN)


def read_frame(session: SparkSession, schema: StructType, back: ReadBack) -> DataFrame:
    """Return the stored rows as a DataFrame of `schema`, one partition per k."""
    return rows_of_tasks(session, back.function, back.partitions, schema)


def rows_of_tasks(
    session: SparkSession, function: ArrowFunction, tasks: int, schema: StructType
) -> DataFrame:
    """Return the rows of `schema` that a function yields, given its task's number from 0."""
    numbers = session.range(0, tasks, 1, tasks)
    if schema.fields:
        return numbers.mapInArrow(function, schema)

    def in_column(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return in_a_column(function(batches))

    return numbers.mapInArrow(in_column, f"{ROW_COLUMN} byte").select()
