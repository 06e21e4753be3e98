"""Writes an archive of Spark's loaded classes, which lets the JVMs of the tests start faster.

    python scripts/class_archive.py .venv/spark-classes.jsa

A JVM spends half of a short Spark program on finding, reading and verifying some 20,000 classes.
Here one program uses what the tests use; its JVM writes down what it loaded when it exits (a
dynamic archive, JEP 350). JVMs with other jars, or of another release, ignore the file.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

MORE = (
    # what an executor loads and a driver does not
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.api.python.PythonRunner",
    "org.apache.spark.deploy.worker.Worker",
    "org.apache.spark.deploy.master.Master",
    "org.apache.spark.sql.connect.service.SparkConnectService",
    "org.apache.spark.sql.connect.planner.SparkConnectPlanner",
)
EXIT_SECONDS = 300


def use(spark: SparkSession, folder: Path) -> None:
    """Read, write, join, aggregate, sort and call Python, as the tests do."""
    rows = spark.range(1000).selectExpr(
        "id", "id % 7 AS k", "cast(id AS string) AS s", "cast(id AS decimal(12, 2)) AS d"
    )
    rows.write.parquet(str(folder / "rows"))
    read = spark.read.parquet(str(folder / "rows"))
    read.createOrReplaceTempView("rows")
    spark.createDataFrame([(1, "x")], "k long, name string").createOrReplaceTempView("names")
    spark.sql(
        "SELECT r.k, count(DISTINCT s), sum(d), max(name), rank() OVER (ORDER BY r.k)"
        " FROM rows r LEFT JOIN names n ON r.k = n.k WHERE s LIKE '%1%'"
        " GROUP BY r.k ORDER BY 2 DESC LIMIT 5"
    ).collect()
    read.repartition(4, "k").mapInArrow(lambda batches: batches, read.schema).toArrow()
    read.hint("merge").join(read.select("k"), "k").write.json(str(folder / "joined"))
    for name in MORE:
        spark._jvm.java.lang.Class.forName(name)  # noqa: SLF001 - there is no other way


def main(target: Path) -> None:
    """Run the program and wait for the archive."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    unfinished = target.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={unfinished}"
    with tempfile.TemporaryDirectory() as folder:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.extraJavaOptions", f"{options} -Xlog:disable")
            .getOrCreate()
        )
        use(spark, Path(folder))
        gateway = spark.sparkContext._gateway  # noqa: SLF001
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # it exits by that, and writes
        gateway.proc.wait(EXIT_SECONDS)
    unfinished.replace(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
