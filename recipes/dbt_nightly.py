"""A dbt project whose models go on where they stopped: `dbt_nightly.py INPUT`.

Needs dbt-core, dbt-spark and PySpark in one environment. dbt runs in this process, in a block in
which the queries of its statements are durable: those of table and incremental models, and of its
tests. Whoever starts it again runs only the map tasks that are missing. The statements themselves
run once in each run, as in Spark.
"""

import json
import sys
from pathlib import Path

from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle

PROJECT = str(Path(__file__).parent / "dbt")


def dbt(command: str, source: str) -> None:
    """Run a command of dbt in this process and its Spark session."""
    folders = ["--project-dir", PROJECT, "--profiles-dir", PROJECT]
    done = dbtRunner().invoke([command, *folders, "--vars", json.dumps({"orders": source})])
    if not done.success:
        raise RuntimeError(f"dbt {command} failed") from done.exception


def main(source: str) -> None:
    """Build the models, test them."""
    spark = SparkSession.builder.appName("nightly").enableHiveSupport().getOrCreate()
    with DurableShuffle(spark) as shuffle:
        with shuffle.transparent():
            dbt("run", source)
            dbt("test", source)
        print(shuffle.report())  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
