"""An exchange that is left to Spark: it runs as Spark's map stage, and is read like a stored one.

Its rows lie on Spark's executors. Spark computes lost ones again, as always, and all are gone when
the application ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from durable_shuffle.jobs.identity.jvm.calls import Jvm
from durable_shuffle.jobs.stages.stored_stage import SealedRows
from durable_shuffle.recovery.skew import Read
from durable_shuffle.shuffle.base.clock import Clock, RandomIds
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.read.sealed_reader import subpartition_bytes
from durable_shuffle.shuffle.seal.suspect import noted

_EXECUTION = "org.apache.spark.sql.execution."


@dataclass(frozen=True, slots=True)
class NativeStage:
    """A map stage of Spark that has run."""

    exchange: Any
    """The ShuffleExchangeExec."""
    partition_bytes: tuple[int, ...]
    """As Spark's map output tracker knows them, which is to about 10%."""
    memory_bytes: int
    """Of the rows as Spark holds them."""
    rows: int
    seconds: float

    @property
    def data_bytes(self) -> int:
        """Bytes of the map output."""
        return sum(self.partition_bytes)


Source = SealedRows | NativeStage
"""What a piece of a query reads."""


def sizes_of(source: Source) -> Seal | NativeStage:
    """Return what holds the source's true `data_bytes`, `memory_bytes` and `rows`."""
    return source if isinstance(source, NativeStage) else source.seal


def partitions_of(source: Source) -> int:
    """Return the number of partitions of a source."""
    if isinstance(source, NativeStage):
        return len(source.partition_bytes)
    return source.handle.describe.partitions


def partition_bytes(source: Source) -> list[int]:
    """Return the bytes of each partition of a source."""
    if isinstance(source, NativeStage):
        return list(source.partition_bytes)
    with noted(source.handle, RandomIds(), source.seal):
        return [int(size) for size in subpartition_bytes(source.handle, source.seal)]


def run_natively(jvm: Jvm, exchange: Any, clock: Clock) -> NativeStage:
    """Run the map side of an exchange as Spark does; return when all its tasks have ended.

    Args:
        exchange: a ShuffleExchangeExec.

    Raises:
        Py4JJavaError: the Spark job failed or was cancelled.
    """
    start = clock.monotonic()
    forever = jvm.module("scala.concurrent.duration.Duration").Inf()
    threads = getattr(jvm.root, "org.apache.spark.util.ThreadUtils")
    outputs = threads.awaitResult(exchange.submitShuffleJob(), forever)
    partitions = int(exchange.outputPartitioning().numPartitions())
    sizes = [0] * partitions if outputs is None else [int(n) for n in outputs.bytesByPartitionId()]
    measured = exchange.runtimeStatistics()
    return NativeStage(
        exchange,
        tuple(sizes),
        memory_bytes=int(measured.sizeInBytes()),
        rows=int(measured.rowCount().get()),
        seconds=clock.monotonic() - start,
    )


def rdd_of(jvm: Jvm, native: NativeStage, reads: Sequence[Read]) -> Any:
    """Return Spark's RDD of the internal rows; task k reads the whole partitions of `reads[k]`."""
    specs = jvm.array(_EXECUTION + "ShufflePartitionSpec", len(reads))
    coalesced = getattr(jvm.root, _EXECUTION + "CoalescedPartitionSpec")
    unknown = getattr(jvm.root, "scala.Option").empty()
    for k, (first, end, *_) in enumerate(reads):
        specs[k] = coalesced(first, end, unknown)
    return native.exchange.getShuffleRDD(specs)
