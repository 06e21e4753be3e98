"""Reads Delta and Iceberg tables: `tables_driver.py FOLDER JARS HISTORY...`; prints JSON.

`HISTORY:3` runs the first three steps of a history.

It runs on a PySpark that both formats exist for, which may be another one than that of the tests.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

SUPPORT = Path(__file__).parents[2] / "support"


def settings(folder: Path, jars: str) -> dict[str, str]:
    """Return the settings of a session with both formats."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.jars": jars,
        "spark.sql.extensions": ",".join(
            (
                "io.delta.sql.DeltaSparkSessionExtension",
                "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            )
        ),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(folder / "ice"),
    }


def session(builder: Any, folder: Path, jars: str) -> SparkSession:
    """Return a session with both formats."""
    for name, value in settings(folder, jars).items():
        builder = builder.config(name, value)
    found: SparkSession = builder.getOrCreate()
    return found


def main() -> None:
    """Judge every history."""
    sys.path.insert(0, str(SUPPORT))
    from table_cases import Place, judge
    from table_histories import HISTORIES

    folder = Path(sys.argv[1])
    spark = session(SparkSession.builder.master("local[2]"), folder, sys.argv[2])
    answer: dict[str, Any] = {"spark": spark.version}
    known = {history.name: history for history in HISTORIES}
    for wanted in sys.argv[3:]:
        name, _, steps = wanted.partition(":")
        history = known[name].begun(int(steps) if steps else None)
        answer[name] = judge(Place(spark, str(folder)), history, str(folder / "root"))
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main()
