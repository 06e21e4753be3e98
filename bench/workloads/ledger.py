"""The durable consumer of W5: its ledger is what it publishes with each acknowledgement."""

import numpy as np
import pyarrow as pa

from durable_shuffle.bench.workloads.task_log import TaskLog
from durable_shuffle.shuffle.base.clock import SystemClock


class LedgerStep:
    """A consumer that yields each record's id once. Its state is nothing but its position."""

    def __init__(self, folder: str, batch_seconds: float) -> None:
        self._folder, self._batch_seconds = folder, batch_seconds
        self._log: TaskLog | None = None

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take records, as slowly as the others' consumer."""
        if self._log is None:
            self._log = self._begin()
        self._log.took(batch)
        SystemClock().sleep(self._batch_seconds * batch.num_rows / 10_000)
        ids = batch.column("id").to_numpy()
        return pa.record_batch({"k": ids, "rows": np.ones(len(ids), np.int64)})

    def snapshot(self) -> bytes:
        """There is no state."""
        return b""

    def restore(self, state: bytes) -> None:
        """Nothing to take up."""

    def finish(self) -> None:
        """Say so."""
        if self._log is None:
            self._log = self._begin()
        self._log.end()

    def _begin(self) -> TaskLog:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        return TaskLog.begin(self._folder, "reduce", partition)
