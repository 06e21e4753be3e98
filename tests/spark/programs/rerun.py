"""A job of several stages with different inputs: `rerun.py ROOT INPUTS VALUE`.

INPUTS holds `table.parquet` and the module `helper`, and is on the path. VALUE changes the rows
that the driver creates. One JSON line: per stage the explanation, the decision and the rows.
"""

import json
import sys
from collections.abc import Iterator

import helper
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle


def double(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Double the first column with code of this file."""
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"v": [2 * v for v in batch.column(0).to_pylist()]})


def through_module(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Change the first column with a function of the helper module."""
    for batch in batches:
        yield pa.RecordBatch.from_pydict(
            {"v": [helper.change(v) for v in batch.column(0).to_pylist()]}
        )


def main(root: str, inputs: str, value: int) -> None:
    """Run all stages and print what they did."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .getOrCreate()
    )
    numbers = spark.range(0, 4, 1, 2)
    values = [1, 2, value]
    frames: dict[str, DataFrame] = {
        "steady": numbers.mapInArrow(double, "v long").where("v >= 0"),
        "module": numbers.mapInArrow(through_module, "v long"),
        "file": spark.read.parquet(f"{inputs}/table.parquet"),
        "pandas": spark.createDataFrame(pd.DataFrame({"v": values})),
        "arrow": spark.createDataFrame(pa.table({"v": values})),
        "rdd": spark.createDataFrame([(v,) for v in values], "v long").localCheckpoint(),
    }
    answer = {}
    shuffle = DurableShuffle(spark, root, job="tests")
    for name, df in frames.items():
        explained = shuffle.explain.repartition(df, 2, "v", name=name)
        rows = shuffle.repartition(df, 2, "v", name=name).collect()
        done = shuffle.report().stages[-1]
        answer[name] = {
            "stored": explained.stored,
            "why": explained.why,
            "action": done.action,
            "map_tasks_run": done.map_tasks_run,
            "map_tasks_reused": done.map_tasks_reused,
            "map_tasks_rerun": done.map_tasks_rerun,
            "rows": sorted(row.v for row in rows),
        }
    print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
