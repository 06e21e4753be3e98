"""A driver that answers TPC-H queries durably: `query_driver.py ROOT DATA FOLDER GATED QUERY…`.

Each map task over LINEITEM adds a line to FOLDER/runs/<partition>. Partition GATED (-1: none) waits
until FOLDER/open exists. After every query, one JSON line has the rows and the report so far.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES, TPCH_TABLES


def main(root: str, data: str, folder: str, gated: str, *queries: str) -> None:
    """Answer the queries one after the other."""
    partition = int(gated)

    def gate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        producer = TaskContext.get().partitionId()
        with Path(folder, "runs", str(producer)).open("a") as file:
            file.write("run\n")
        deadline = time.monotonic() + 300
        while producer == partition and not Path(folder, "open").exists():
            time.sleep(0.02)
            if time.monotonic() > deadline:
                raise TimeoutError("nobody opened the gate")
        yield from batches

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "6")
        .config("spark.sql.autoBroadcastJoinThreshold", "-1")
        .config("spark.sql.files.openCostInBytes", "134217728")  # one file is one map task
        .getOrCreate()
    )
    for table in TPCH_TABLES:
        rows = spark.read.parquet(str(Path(data) / table))
        if table == "lineitem":
            rows = rows.mapInArrow(gate, rows.schema)
        rows.createOrReplaceTempView(table)
    shuffle = DurableShuffle(spark, root, job="tests", version="the gate does not count")
    for query in queries:
        found = shuffle.query(spark.sql(TPCH_QUERIES[query])).collect()
        answer = {**shuffle.report().to_dict(), "rows": [list(map(str, row)) for row in found]}
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
