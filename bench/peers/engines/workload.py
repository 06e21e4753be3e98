"""A workload as any engine runs it: the same map and reduce functions, with a task's lines around.

Strategy: engines have other functions for groups of rows than Spark's `repartition`. What all have
is a group-by with a Python function per group. So a map also numbers each row's partition, in the
column `part`, and the engine groups by it: one group is one reduce task. The column is not counted.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from durable_shuffle.bench.workloads.step import Step
from durable_shuffle.bench.workloads.task_log import TaskLog, counted_in
from durable_shuffle.bench.workloads.workloads import (
    WORKLOADS,
    Workload,
    batches_of,
    reduced,
    slowed,
)

WORKERS = 2
"""Processes or threads that do tasks, as many as Spark has executors."""

PART = "part"


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a workload. Plain values: workers get it with their tasks."""

    workload: str
    folder: str
    """Of the tasks' lines."""
    seed: int
    scale: float
    name: str
    """Equal in both runs where the driver dies in between."""

    @classmethod
    def of(cls, step: Step, work: Path) -> "Job":
        """Return what a step asks for."""
        return cls(step.workload, str(step.folder(work)), step.seed, step.scale, step.job)

    @property
    def plan(self) -> Workload:
        return WORKLOADS[self.workload]

    def produce(self, partition: int) -> Iterator[pa.RecordBatch]:
        """Yield a producer's rows."""
        log = TaskLog.begin(self.folder, "map", partition, host=os.getpid())
        rows = self.plan.rows_of(self.scale, partition)
        made = batches_of(self.workload, self.seed, partition, rows)
        for batch in slowed(made, self.plan.map_batch_seconds):
            log.gave(batch)
            yield batch
        log.end()

    def produce_numbered(self, partition: int) -> Iterator[pa.RecordBatch]:
        """Yield a producer's rows with the column `part`."""
        for batch in self.produce(partition):
            yield self._numbered(batch)

    def reduce(self, partition: int, rows: pa.Table) -> pa.Table:
        """Return the answer of one partition; `part` may be among the columns."""
        log = TaskLog.begin(self.folder, "reduce", partition, host=os.getpid())
        schema = self.rows_schema  # engines may have made their own kinds of strings of it
        batches = iter(rows.select(schema.names).cast(schema).to_batches(max_chunksize=10_000))
        counted = slowed(counted_in(batches, log), self.plan.reduce_batch_seconds)
        found = list(reduced(self.workload, counted))
        log.end()
        return pa.Table.from_batches(found, self.answer_schema)

    def reduce_group(self, rows: pa.Table) -> pa.Table:
        """Return the answer of a partition whose number stands in the rows; without any, no row."""
        if not rows.num_rows:
            return self.answer_schema.empty_table()
        return self.reduce(rows.column(PART)[0].as_py(), rows)

    @property
    def rows_schema(self) -> pa.Schema:
        """Of what a map gives."""
        return _schemas(self.workload)[0]

    @property
    def numbered_schema(self) -> pa.Schema:
        """Of what a map gives, with the column `part`."""
        return self.rows_schema.append(pa.field(PART, pa.int64()))

    @property
    def answer_schema(self) -> pa.Schema:
        """Of what a reduce gives."""
        return _schemas(self.workload)[1]

    def _numbered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = batch.column(self.plan.key).to_numpy()
        part = pa.array(np.mod(keys, self.plan.reduces), pa.int64())
        return batch.append_column(PART, part)


Run = Callable[[Job], pa.Table]
"""Runs a workload and returns the rows of its answer."""

Started = Callable[[Path], AbstractContextManager[Run]]
"""Starts an engine, whose files belong below a folder; it is stopped at the end of the block."""


@cache
def _schemas(workload: str) -> tuple[pa.Schema, pa.Schema]:
    """Return the schemas of a map's rows and of the answer, by a row that serves as a sample."""
    sample = next(batches_of(workload, 0, 0, 1))
    return sample.schema, next(reduced(workload, iter([sample]))).schema
