"""The reduce side of a Python stage: reads subpartitions and runs the reducer. In workers."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from durable_shuffle.jobs.engine.tasks import check_code
from durable_shuffle.jobs.python_stage.contracts import checked_batches
from durable_shuffle.jobs.python_stage.memory import use_frugal_memory
from durable_shuffle.recovery.resumable import ResumableRun, is_resumable
from durable_shuffle.serialization.arrow_codec import under_schema
from durable_shuffle.serialization.decimals import logical_batch, logical_schema
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.sealed_reader import join_small, read_subpartition
from durable_shuffle.shuffle.rows.external_sort import sorted_batches
from durable_shuffle.shuffle.rows.reducers import Grouped, run_grouped
from durable_shuffle.shuffle.rows.row_order import SortKey, row_order
from durable_shuffle.shuffle.rows.scratch import Scratch

_WHOLE = 1 << 24
"""Most rows per batch for a grouped reducer. Batches are slices, so large ones copy nothing."""


@dataclass(frozen=True)
class ReduceSide:
    """The `mapInArrow` function over task numbers: reduces each task's subpartitions one by one.

    If Spark stops reading early (a `limit()`), only the reducer's generator is closed. The reducer
    never takes this for the end of its input.
    """

    stage: StageHandle
    seal: Seal
    names: tuple[str, ...]
    """The user's names of the shuffled columns."""
    reduce: Any
    keys: tuple[str, ...]
    """The stage's key columns; empty for a key function."""
    sort_by: tuple[SortKey, ...]
    schema: pa.Schema
    """Schema of what the reducer yields."""
    tasks: tuple[range, ...]
    """The subpartitions that each task reads."""
    settings: Settings
    code: str
    identity: str
    """Equal identities mean equal rows."""
    consumer: str = ""
    """The consumer name under which a resumable reducer acknowledges."""
    generation: int = 0
    """The driver's fencing number."""

    def durable_identity(self) -> str:
        """Return the identity for fingerprints. It covers what is read, not the handles inside."""
        return self.identity

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        use_frugal_memory()
        check_code(self.code)
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for subpartition in self.tasks[task]:
                    yield from self.reduced(subpartition)

    def reduced(self, subpartition: int) -> Iterator[pa.RecordBatch]:
        """Yield the reducer's rows of one subpartition."""
        if is_resumable(self.reduce):
            yield from self._resumable(subpartition).rows()
            return
        rows, scratch = self.rows(subpartition), Scratch(self.settings.scratch_folder)
        if isinstance(self.reduce, Grouped):
            made = run_grouped(
                self.reduce,
                rows,
                by=self.reduce.columns(self.keys),
                sort_by=self.sort_by,
                schema=self.shuffled,
                memory_bytes=self.settings.reduce_memory_bytes,
                batch_rows=_WHOLE,
                scratch=scratch,
            )
            yield from checked_batches(made, self.schema, "the reducer")
            return
        if self.sort_by:
            rows = sorted_batches(
                rows,
                lambda batch: row_order(batch, self.sort_by),
                schema=self.shuffled,
                memory_bytes=self.settings.reduce_memory_bytes,
                batch_rows=self.settings.read_batch_rows,
                scratch=scratch,
            )
        if self.reduce is None:
            yield from rows
        else:
            yield from checked_batches(self.reduce(rows), self.schema, "the reducer")

    def _resumable(self, subpartition: int) -> ResumableRun:
        return ResumableRun(
            stage=self.stage,
            subpartition=subpartition,
            reducer=self.reduce,
            consumer=self.consumer,
            generation=self.generation,
            convert=self._named,
            check=lambda made: checked_batches(made, self.schema, "the reducer"),
            schema=self.schema,
            settings=self.settings,
            clock=SystemClock(),
            ids=RandomIds(),
        )

    @cached_property
    def shuffled(self) -> pa.Schema:
        """Schema of the shuffled rows, with the user's names."""
        logical = logical_schema(self.stage.schema)
        return pa.schema([f.with_name(n) for f, n in zip(logical, self.names, strict=True)])

    def rows(self, subpartition: int) -> Iterator[pa.RecordBatch]:
        """Yield the shuffled rows of one subpartition, with the user's column names."""
        found = read_subpartition(self.stage, self.seal, subpartition, self.settings)
        for batch in join_small(found, self.settings.read_batch_rows):
            yield self._named(batch)

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        plain = logical_batch(batch, self.stage.schema)
        return under_schema(plain, self.shuffled)
