"""Identifies RDDs from the chain of RDDs below them, and names the micro-batch of a thread."""

from typing import Any

from pyspark import SparkContext

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.jvm.calls import Jvm, items, simple_name
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk

MICRO_BATCH_ELSEWHERE = "a micro-batch, used outside of the thread that foreachBatch calls"
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's local properties in the thread of a micro-batch."""
_INPUT_FOLDERS = "mapreduce.input.fileinputformat.inputdir"


def micro_batch(context: SparkContext) -> dict[str, str]:
    """Return the component of the current micro-batch (query and batch), {} in any other thread.

    It is part of every unresolved plan in the thread of a micro-batch, because one `version` must
    not vouch for the rows of two batches.
    """
    query, batch = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
    return {"micro_batch": hex_digest([query or "", batch])} if batch is not None else {}


def is_checkpoint(jvm: Jvm, rdd: Any) -> bool:
    """Return whether an RDD is what `checkpoint()` or `localCheckpoint()` made."""
    return bool(jvm.field(rdd, "checkpointData").isDefined())


class RddChain:
    """Appends RDDs to the tokens of a walk; the walk must have a handler for Python functions.

    - Rows from the driver (`parallelize`, `createDataFrame` of a list): a digest of their bytes.
    - Python functions: as everywhere (`functions/identity.py`).
    - Spark's own JVM functions: their names and captured values.
    - Anything else is opaque: its class is part of the identity; its id distinguishes it until the
      application ends.
    """

    def __init__(self, walk: CatalystWalk) -> None:
        self._walk, self._jvm = walk, walk.jvm
        self._numbers: dict[int, int] = {}
        self.rows: list[str] = []

    def visit(self, rdd: Any, what: str) -> None:
        """Append what is known of an RDD.

        Args:
            what: names the scan in messages, if the chain ends in something opaque.
        """
        number = int(rdd.id())
        if number in self._numbers:
            self._walk.tokens.append(f"rdd {self._numbers[number]}")
            return
        self._numbers[number] = len(self._numbers)
        name = self._jvm.class_name(rdd)
        self._walk.origin(rdd)
        self._walk.tokens.append(f"{name} {rdd.getNumPartitions()} {rdd.name()}")
        kind = simple_name(name)
        if kind == "ParallelCollectionRDD":
            data = self._jvm.field(rdd, "data")
            self._walk.tokens.append(f"rows, list {len(self.rows)}")
            self.rows.append(f"{data.size()} {self._jvm.bytes_digest(data.toIndexedSeq())}")
        elif kind == "PythonRDD":
            self._walk.visit(self._jvm.field(rdd, "func"))
            self._walk.visit(self._jvm.field(rdd, "isFromBarrier"))
        elif kind == "MapPartitionsRDD":
            self._walk.visit(self._jvm.field(rdd, "f"))
        elif self._jvm.is_a(rdd, "org.apache.spark.rdd.NewHadoopRDD"):
            self._folders(rdd.getConf(), what)
        elif kind == "HadoopRDD":
            self._folders(rdd.getJobConf(), what)
        elif kind != "UnionRDD":
            self._walk.give_up(what, f"RDD {number}")
        dependencies = items(rdd.dependencies())
        self._walk.tokens.append(f"below {len(dependencies)}")
        for dependency in dependencies:
            self._walk.tokens.append(self._jvm.class_name(dependency))
            self.visit(dependency.rdd(), what)

    def _folders(self, conf: Any, what: str) -> None:
        """Append the folders that Hadoop reads. Files are not listed, so they are unresolved."""
        self._walk.tokens.append(f"folders {conf.get(_INPUT_FOLDERS)}")
        self._walk.give_up(what)
