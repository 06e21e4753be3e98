"""Overwrites a folder by what it holds, in many small files: `own_folder_driver.py FOLDER WAY`.

A first run makes the folder. Prints `{"writing": true}` when Spark has begun to write; at the end
the number of rows, or the error.
"""

import json
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import ConflictError


def main() -> None:
    """Run one way to write."""
    folder, way = Path(sys.argv[1]), sys.argv[2]
    data, root = folder / "data", folder / "root"
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    if not data.exists():
        spark.range(0, 3000, 1, 100).selectExpr("id", "id % 7 AS k").write.parquet(str(data))
    threading.Thread(target=tell, args=(data,), daemon=True).start()
    spark.read.schema("id LONG, k LONG").parquet(str(data)).createOrReplaceTempView("own")
    query = "SELECT id, k + 1 AS k FROM own"
    with DurableShuffle(spark, root, job="own") as durable, durable.transparent():
        try:
            if way == "save":
                spark.sql(query).write.mode("overwrite").parquet(str(data))
            else:
                spark.sql(f"INSERT OVERWRITE DIRECTORY '{data}' USING parquet {query}")
        except ConflictError as error:
            say({"error": str(error)})
            return
    say({"rows": spark.read.parquet(str(data)).count()})


def say(answer: dict[str, object]) -> None:
    """Print one answer."""
    print(json.dumps(answer), flush=True)


def tell(data: Path) -> None:
    """Wait until the committer's folder is there, and tell the test."""
    while not (data / "_temporary").exists():
        pass
    say({"writing": True})


if __name__ == "__main__":
    main()
