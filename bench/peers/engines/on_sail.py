"""Sail, one process: a Spark Connect server in Rust, with PySpark as its client.

Its local mode, in the driver's process: workers of its `local-cluster` mode are threads of one
process, too, and pods are not at hand. Map and reduce are `mapInArrow` on both sides of
`repartition`, as on Spark.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
from pysail.spark import SparkConnectServer
from pyspark.sql.connect.functions import spark_partition_id
from pyspark.sql.connect.session import SparkSession

from durable_shuffle.bench.peers.engines.workload import PART, Job, Run

Batches = Iterator[pa.RecordBatch]


@contextmanager
def engine(work: Path) -> Iterator[Run]:
    """Start a server, and connect. The client ends first: later it would wait for the server."""
    del work
    with ExitStack() as ends:
        server = SparkConnectServer("127.0.0.1", 0)
        server.start(background=True)
        ends.callback(server.stop)
        _, port = server.listening_address
        spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        ends.callback(spark.stop)
        yield lambda job: _run(spark, job)


def _run(spark: SparkSession, job: Job) -> pa.Table:
    def produce(batches: Batches) -> Batches:
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                yield from job.produce(partition)

    def reduce(batches: Batches) -> Batches:
        found = [batch for batch in batches if batch.num_rows]
        if found:
            yield from job.reduce_group(pa.Table.from_batches(found)).to_batches()

    plan = job.plan
    mapped = spark.range(0, plan.maps, 1, plan.maps).mapInArrow(produce, plan.mapped)
    parts = mapped.repartition(plan.reduces, plan.key).withColumn(PART, spark_partition_id())
    return parts.mapInArrow(reduce, plan.reduced).toArrow()
