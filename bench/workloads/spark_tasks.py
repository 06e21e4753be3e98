"""The functions that Spark's tasks run: the workload's own work, with a task log around it.

They are made from plain values only, so that a durable stage is recognised by another driver.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from durable_shuffle.bench.workloads.task_log import TaskLog, counted_in
from durable_shuffle.bench.workloads.workloads import WORKLOADS, batches_of, reduced, slowed

Batches = Iterator[pa.RecordBatch]
Function = Callable[[Batches], Batches]


def map_function(name: str, folder: str, seed: int, scale: float) -> Function:
    """Return the map: one row, the producer's number, becomes its rows."""
    slow = WORKLOADS[name].map_batch_seconds

    def produce(batches: Batches) -> Batches:
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                log = TaskLog.begin(folder, "map", partition)
                rows = WORKLOADS[name].rows_of(scale, partition)
                for made in slowed(batches_of(name, seed, partition, rows), slow):
                    log.gave(made)
                    yield made
                _wait_for_twin(folder, partition)
                log.end()

    return produce


def reduce_function(name: str, folder: str) -> Function:
    """Return the reduce over one partition."""
    slow = WORKLOADS[name].reduce_batch_seconds

    def consume(batches: Batches) -> Batches:
        log = TaskLog.begin(folder, "reduce", _spark_partition())
        for made in reduced(name, slowed(counted_in(batches, log), slow)):
            log.gave(made)
            yield made
        log.end()

    return consume


def ledger_function(name: str, folder: str) -> Function:
    """Return a consumer with an effect: each record's id into a file, for good.

    The first attempt that finds the order to die does so when all it has is in the ledger and the
    task has not ended.
    """
    slow = WORKLOADS[name].reduce_batch_seconds

    def consume(batches: Batches) -> Batches:
        from durable_shuffle.bench.workloads.orders import die_if_ordered

        partition = _spark_partition()
        log = TaskLog.begin(folder, "reduce", partition)
        with (Path(folder) / f"ledger-{partition}.bin").open("ab", buffering=0) as ledger:
            for batch in slowed(counted_in(batches, log), slow):
                ledger.write(batch.column("id").to_numpy().tobytes())
        die_if_ordered(Path(folder), f"partition {partition}")
        log.end()
        yield pa.record_batch([pa.array([partition]), pa.array([log.rows_in])], names=["k", "rows"])

    return consume


def _spark_partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _wait_for_twin(folder: str, partition: int) -> None:
    from durable_shuffle.bench.workloads.orders import wait_for_twin

    wait_for_twin(Path(folder), partition)
