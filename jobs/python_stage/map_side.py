"""The map side of a Python stage: runs the map function and assigns partition ids. In workers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.jobs.engine.row_numbers import CountedRows
from durable_shuffle.jobs.engine.tasks import (
    ArrowFunction,
    checked_to_the_end,
    limited,
    run_map_task,
)
from durable_shuffle.jobs.python_stage.contracts import checked_batches
from durable_shuffle.jobs.python_stage.memory import use_frugal_memory
from durable_shuffle.jobs.python_stage.spec import BatchFunction, KeyFunction
from durable_shuffle.serialization.arrow_codec import (
    storable_batch,
    storable_schema,
    under_schema,
)
from durable_shuffle.serialization.decimals import logical_batch, logical_schema
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.rows.partitioner import hash_partition_ids
from durable_shuffle.shuffle.write.producer import ProducerResult, run_producer
from durable_shuffle.shuffle.write.segment_writer import IdBatch

Feed = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


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
    """Everything that a map task needs besides the stage."""

    feed: Feed
    """Turns the batches that Spark hands over into the input of the map function."""
    map: BatchFunction | None
    schema: pa.Schema
    """Schema of the shuffled rows, in storable types, with the user's names."""
    keys: tuple[str, ...] | KeyFunction
    partitions: int
    combine: BatchFunction | None
    combine_bytes: int
    """Bytes of rows to gather before they are combined."""
    from_spark: bool
    """True if Spark hands over rows, with their numbers as the last column; False if the rows come
    from another Python stage."""
    ends: bool
    """See `CountedRows`."""

    def id_batches(
        self, stage: StageHandle, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[IdBatch]:
        """Yield the rows to shuffle, in the stored schema, with their partition ids."""
        rows = self.feed(batches)
        if self.map is not None:
            rows = checked_batches(self.map(rows), self.schema, "the map function")
        rows = _owned(rows)
        if self.combine is not None:
            rows = combined(rows, self.combine, self.schema, self.combine_bytes)
        for batch in rows:
            yield under_schema(batch, stage.schema), self._ids(batch)

    def _ids(self, batch: pa.RecordBatch) -> npt.NDArray[np.unsignedinteger]:
        if not callable(self.keys):
            return hash_partition_ids([batch.column(key) for key in self.keys], self.partitions)
        found = self.keys(batch)
        ids = found.to_numpy(zero_copy_only=False) if isinstance(found, pa.Array) else found
        ids = np.asarray(ids)
        if ids.shape != (batch.num_rows,) or ids.dtype.kind not in "iu":
            raise InvalidInputError(
                f"the key function must return one integer per row: rows={batch.num_rows} found "
                f"shape={ids.shape} type={ids.dtype}"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.partitions:
            raise InvalidInputError(
                f"the key function must return ids from 0 to {self.partitions - 1}, found {low} "
                f"to {high}"
            )
        return ids.astype(np.uint16 if self.partitions <= 1 << 16 else np.uint32)


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


def python_map_function(
    side: MapSide,
    stage: StageHandle,
    *,
    producers: int,
    settings: Settings,
    tries: int,
    code: str,
    max_batch_bytes: int | None,
) -> ArrowFunction:
    """Return the `mapInArrow` function that maps its partition and writes it as one producer.

    Args:
        max_batch_bytes: if Spark hands over a larger batch, the task reports LargeRowsError.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        use_frugal_memory()

        def produce(counted: StageHandle, producer: int, attempt: str) -> ProducerResult:
            given = limited(batches, max_batch_bytes)
            rows = CountedRows(given, producer, ends=side.ends) if side.from_spark else None
            same_rows = side.map is None and side.combine is None

            def check(written: int) -> None:
                if rows is not None:
                    rows.check(written if same_rows else None)

            return run_producer(
                counted,
                producer,
                checked_to_the_end(
                    side.id_batches(stage, given if rows is None else iter(rows)), code
                ),
                attempt=attempt,
                producers=producers,
                settings=settings,
                check=check,
            )

        yield run_map_task(stage, produce, tries, code)

    return write
