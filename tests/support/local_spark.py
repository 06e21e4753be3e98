"""The local Spark session that all tests of one process share, whichever asks first."""

import os
import sys
import tempfile

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession


def local_spark() -> SparkSession:
    """Return it, started if need be: two cores, quiet, in UTC, and without compiled plans.

    To compile the plan of a few rows takes longer than to run it. Files whose subject is the plan
    itself, and all driver programs, have Spark's default. Spark keeps little of what has run, the
    JVM no broadcast that nobody needs, and a table of a few rows takes no page of 64 MB: what
    thousands of tests leave behind fills the heap.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.master("local[2]")
        .appName("durable-shuffle tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.driver.extraJavaOptions", "-XX:SoftRefLRUPolicyMSPerMB=0")
        .config("spark.sql.parquet.columnarReaderBatchSize", "512")
        .config("spark.buffer.pageSize", "1m")
        .config("spark.ui.retainedStages", "100")
        .config("spark.ui.retainedTasks", "2000")
        .config("spark.sql.ui.retainedExecutions", "50")
        .config("spark.sql.warehouse.dir", tempfile.mkdtemp(prefix="warehouse-"))
        .getOrCreate()
    )


def arrow_table(df: DataFrame) -> pa.Table:
    """Return the rows as `toArrow` does, which PySpark 3.5 lacks."""
    if hasattr(df, "toArrow"):
        return df.toArrow()
    batches = df._collect_as_arrow()  # type: ignore[operator]
    return (
        pa.Table.from_batches(batches) if batches else pa.table([[]] * len(df.columns), df.columns)
    )
