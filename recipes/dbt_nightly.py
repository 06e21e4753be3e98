"""A dbt project whose large models go on where they stopped: `dbt_nightly.py INPUT OUTPUT`.

Needs dbt-core, dbt-spark and PySpark in one environment. dbt creates views, which takes seconds.
The models with `meta={"durable": true}` are then computed and written by this program, and dbt's
tests run as durable queries, too. Whoever starts it again runs only what is missing. Table models
of dbt are not resumable: their CREATE TABLE AS runs inside Spark as one statement.
"""

import json
import sys
from pathlib import Path
from typing import Any

from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle

PROJECT = str(Path(__file__).parent / "dbt")


def dbt(command: str, source: str) -> Any:
    """Run a command of dbt in this process and its Spark session."""
    folders = ["--project-dir", PROJECT, "--profiles-dir", PROJECT]
    done = dbtRunner().invoke([command, *folders, "--vars", json.dumps({"orders": source})])
    if not done.success:
        raise RuntimeError(f"dbt {command} failed") from done.exception
    return done.result


def main(source: str, target: str) -> None:
    """Create views, compute the durable models, test them."""
    spark = SparkSession.builder.appName("nightly").getOrCreate()
    with DurableShuffle(spark) as shuffle:
        for model in (result.node for result in dbt("run", source).results):
            if model.config.meta.get("durable"):
                rows = shuffle.query(spark.table(model.relation_name))
                rows.write.mode("overwrite").parquet(f"{target}/{model.name}")
        with shuffle.transparent():
            dbt("test", source)
        print(shuffle.report())  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
