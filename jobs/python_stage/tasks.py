"""What a Python stage runs in workers: its map side, its reduce side, their memory."""

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.jobs.engine.row_numbers import CountedRows
from durable_shuffle.jobs.engine.tasks import (
    ArrowFunction,
    MapTasks,
    check_code,
    checked_to_the_end,
    result_batch,
)
from durable_shuffle.jobs.engine.transfer import limited
from durable_shuffle.jobs.python_stage.contracts import checked_batches
from durable_shuffle.recovery.resumable import ResumableRun, is_resumable
from durable_shuffle.serialization.arrow_schemas import (
    logical_batch,
    logical_schema,
    storable_batch,
    storable_schema,
    under_schema,
)
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.sealed_reader import join_small, read_subpartition
from durable_shuffle.shuffle.rows.external_sort import Scratch, sorted_batches
from durable_shuffle.shuffle.rows.partitioner import hash_partition_ids, narrow_ids
from durable_shuffle.shuffle.rows.reducers import Grouped, run_grouped
from durable_shuffle.shuffle.rows.row_order import SortKey, row_order
from durable_shuffle.shuffle.seal.suspect import noting
from durable_shuffle.shuffle.write.producer import ProducerResult, run_producer
from durable_shuffle.shuffle.write.segments import IdBatch

Batches: TypeAlias = Iterator[pa.RecordBatch]
BatchFunction: TypeAlias = Callable[[Batches], Iterable[pa.RecordBatch]]
KeyFunction: TypeAlias = Callable[[pa.RecordBatch], Any]
Feed: TypeAlias = Callable[[Batches], Batches]

_WHOLE = 1 << 24
"""Most rows per batch for a grouped reducer. Batches are slices, so large ones copy nothing."""
_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FromSpark:
    """Gives a map function the rows of its Spark partition, under the user's column names."""

    names: tuple[str, ...]
    transport: pa.Schema
    """Schema of the rows that come from the JVM, columns named c0, c1, …"""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stored = storable_schema(self.transport)
        schema = pa.schema(
            [f.with_name(n) for f, n in zip(logical_schema(stored), self.names, strict=True)]
        )
        for batch in batches:
            plain = logical_batch(storable_batch(batch, stored), stored)
            yield under_schema(plain, schema)


@dataclass(frozen=True, slots=True)
class MapSide:
    """Everything that a map task of a Python stage needs besides `MapTasks`."""

    feed: Feed
    """Turns the batches that Spark hands over into the input of the map function: `FromSpark`, or
    the reduce side of another Python stage."""
    map: BatchFunction | None
    schema: pa.Schema
    """Schema of the shuffled rows, in storable types, with the user's names."""
    keys: tuple[str, ...] | KeyFunction
    combine: BatchFunction | None

    def id_batches(
        self, stage: StageHandle, batches: Iterator[pa.RecordBatch], combine_bytes: int
    ) -> Iterator[IdBatch]:
        """Yield the rows to shuffle, in the stored schema, with their partition ids.

        Args:
            combine_bytes: bytes of rows to gather before they are combined.
        """
        rows = self.feed(batches)
        if self.map is not None:
            rows = checked_batches(self.map(rows), self.schema, "the map function")
        rows = _owned(rows)
        if self.combine is not None:
            rows = combined(rows, self.combine, self.schema, combine_bytes)
        for batch in rows:
            yield under_schema(batch, stage.schema), self._ids(batch, stage.describe.partitions)

    def _ids(self, batch: pa.RecordBatch, partitions: int) -> npt.NDArray[np.unsignedinteger]:
        if not callable(self.keys):
            return hash_partition_ids([batch.column(key) for key in self.keys], partitions)
        given = self.keys(batch)
        ids = given.to_numpy(zero_copy_only=False) if isinstance(given, pa.Array) else given
        ids = np.asarray(ids)
        if ids.shape != (batch.num_rows,) or ids.dtype.kind not in "iu":
            raise InvalidInputError(
                f"the key function must return one integer per row: rows={batch.num_rows} found "
                f"shape={ids.shape} type={ids.dtype}"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= partitions:
            raise InvalidInputError(
                f"the key function must return ids from 0 to {partitions - 1}, found {low} "
                f"to {high}"
            )
        return narrow_ids(ids, partitions)


def combined(
    batches: Iterator[pa.RecordBatch], combine: BatchFunction, schema: pa.Schema, memory_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield what `combine` makes of the rows, applied to as many rows as fit into `memory_bytes`.

    As long as the output takes at most half of `memory_bytes`, it is kept and combined again with
    the rows that follow.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= memory_bytes:
            made = checked_batches(combine(iter(held)), schema, "the combine function")
            held = list(_owned(made))
            held_bytes = sum(b.nbytes for b in held)
            if held_bytes > memory_bytes // 2:
                yield from held
                held, held_bytes = [], 0
    if held:
        yield from _owned(checked_batches(combine(iter(held)), schema, "the combine function"))


def _owned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield copies of the batches that have rows.

    A user function may reuse its buffers for its next batch, but these batches are held longer. The
    copy costs little: 16 GB/s measured.
    """
    for batch in batches:
        if batch.num_rows:
            yield pa.concat_batches([batch, batch.slice(0, 0)])


def python_map_function(side: MapSide, tasks: MapTasks) -> ArrowFunction:
    """Return the `mapInArrow` function that maps its partition and writes it as one producer."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        use_frugal_memory()

        def produce(stage: StageHandle, producer: int, attempt: str) -> ProducerResult:
            given = limited(batches, tasks.max_batch_bytes)
            counted = None
            if isinstance(side.feed, FromSpark):
                counted = CountedRows(given, producer, ends=tasks.ends)
            same_rows = side.map is None and side.combine is None

            def check(written: int) -> None:
                if counted is not None:
                    counted.check(written if same_rows else None)

            rows = given if counted is None else iter(counted)
            made = side.id_batches(stage, rows, tasks.settings.writer_memory_bytes)
            return run_producer(
                stage,
                producer,
                checked_to_the_end(made, tasks.code),
                attempt=attempt,
                producers=tasks.producers,
                settings=tasks.settings,
                check=check,
                watch=tasks.watch,
            )

        yield result_batch(tasks.run(produce))

    return write


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
            yield from noting(self.stage, self._resumable(subpartition).rows(), RandomIds())
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
        stored = read_subpartition(self.stage, self.seal, subpartition, self.settings)
        stored = noting(self.stage, stored, RandomIds(), self.seal)
        for batch in join_small(stored, self.settings.read_batch_rows):
            yield self._named(batch)

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        plain = logical_batch(batch, self.stage.schema)
        return under_schema(plain, self.shuffled)


def use_frugal_memory() -> None:
    """Make Arrow use the C library's allocator, which returns large freed blocks to the system.

    Arrow's own allocator keeps them. A map task with `writer_memory_bytes` of 16 MiB took 131 MiB
    with it and 100 MiB without; with 64 MiB, 323 and 253 MiB; at the same speed.

    By default glibc stops returning blocks too: each freed block raises its threshold for separate
    mappings, up to 32 MiB, and smaller blocks stay in a heap that small objects fragment. A sort
    that held 36 MiB in Arrow had 100 MiB resident. So the threshold is fixed at 1 MiB here.

    Both settings last for the process, so later tasks of the worker have them too. They change no
    result.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has no mallopt and needs none
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
