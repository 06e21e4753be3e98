"""An ordinary PySpark program that knows nothing of durable-shuffle: `plain_driver.py IN OUT`.

It fails behind its query as long as IN/broken exists. Prints what it was called as.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(source: str, target: str) -> None:
    """Count words per length, as rows and as a file."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    words = spark.read.parquet(f"{source}/words")
    counted = words.groupBy("length").agg(F.count("*").alias("words"))
    rows = sorted(tuple(row) for row in counted.collect())
    if Path(source, "broken").exists():
        Path(source, "broken").unlink()
        raise OSError("broken on purpose")
    counted.write.parquet(target)
    print(rows, __name__, sys.argv[1:] == [source, target])
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
