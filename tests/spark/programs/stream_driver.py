"""Two streaming queries over one stage, run once: `stream_driver.py FOLDER LIFE ROWS`.

Adds the numbers [LIFE * ROWS, (LIFE + 1) * ROWS) to the input, writes new input to the stage, then
reads the new rows of the stage to files. At the end, prints one JSON line.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from durable_shuffle.streaming import register


def main(folder: Path, life: int, rows: int) -> None:
    """Run to the end, or to the gate."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    register(spark)
    numbers = spark.range(life * rows, (life + 1) * rows, 1, 1).selectExpr("id", "id % 5 AS k")
    numbers.write.parquet(str(folder / "in" / str(life)))
    place = {"url": str(folder / "root"), "job": "tests", "stage": "hop"}
    (
        spark.readStream.schema("id long, k long")
        .parquet(str(folder / "in" / "*"))
        .writeStream.format("durable_shuffle")
        .options(**place, keys="k", partitions=3)
        .option("checkpointLocation", str(folder / "write"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    (
        spark.readStream.format("durable_shuffle")
        .options(**place, maxRecordsPerTrigger=rows // 3, consumer="c", consumers="c")
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "read"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    print(json.dumps({"life": life}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
