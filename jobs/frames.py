"""DataFrames at both ends of a stage, made with the public API alone."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from durable_shuffle.jobs.engine import ReadBack
from durable_shuffle.jobs.tasks import ID_COLUMN


def with_partition_ids(df: DataFrame, cols: Sequence[str | Column], n: int | None) -> DataFrame:
    """Return `df` with columns c0, c1, …; with key columns, Spark's partition id comes last."""
    names = [f"c{i}" for i in range(len(df.columns))]
    if not cols:
        return df.toDF(*names)
    ids = F.pmod(F.hash(*cols), F.lit(n)).alias(ID_COLUMN)
    return df.select("*", ids).toDF(*names, ID_COLUMN)


def read_frame(session: SparkSession, schema: StructType, back: ReadBack) -> DataFrame:
    """Return the stored rows as a DataFrame of `schema`, one partition per k."""
    numbers = session.range(0, back.partitions, 1, back.partitions)
    return numbers.mapInArrow(back.function, schema)
