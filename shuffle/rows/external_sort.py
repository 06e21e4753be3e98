"""Sort more rows than fit into memory.

Strategy: gather rows up to `memory_bytes`, sort them, and write a run to scratch space; at the end
merge the runs. If all rows fit, they are sorted in memory. A merge works on whole batches: it joins
and sorts the first batches (heads) of all runs. A row is final if it sorts no later than the last
row of every head whose run has more batches. At most sixteen runs are merged at once, so that the
heads fit into half the memory. Equal rows keep their order.

Scratch space is not storage: its files have no names, so no run outlives the process that wrote it.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.errors import UnavailableError

Order = Callable[[pa.RecordBatch], npt.NDArray[np.int64]]
"""Returns the row numbers of a batch in sorted order; equal rows keep their order."""

FAN_IN = 16

_RELEASE_BYTES = 32 << 20
"""Bytes to merge before the allocator is asked again to release unused memory."""


class SortedRun:
    """Record batches in a file without a name. Close it to free the space."""

    def __init__(self, file: IO[bytes], reader: pa.RecordBatchFileReader) -> None:
        self._file, self._reader = file, reader
        self._next = 0

    @property
    def more(self) -> bool:
        """True while there is another batch."""
        return self._next < int(self._reader.num_record_batches)

    def read(self) -> pa.RecordBatch:
        """Return the next batch."""
        batch = self._reader.get_batch(self._next)
        self._next += 1
        return batch

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


class Scratch:
    """Writes runs to a local folder."""

    def __init__(self, folder: str | None) -> None:
        """
        Args:
            folder: None for the system's folder for temporary files (`TMPDIR`).
        """
        self._folder = folder
        self.written_bytes = 0

    def write(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> SortedRun:
        """Write a run of non-empty batches.

        Raises:
            UnavailableError: the folder cannot be written or is full.
        """
        try:
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - the run closes it
        except OSError as error:
            raise self._refused(error) from error
        options = pa.ipc.IpcWriteOptions(use_threads=False)
        try:
            sink = pa.PythonFile(file, "w")
            with pa.ipc.new_file(sink, schema, options=options) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.flush()
            self.written_bytes += file.tell()
            file.seek(0)
            return SortedRun(file, pa.ipc.open_file(pa.PythonFile(file, "r")))
        except OSError as error:
            file.close()
            raise self._refused(error) from error
        except BaseException:
            file.close()
            raise

    def _refused(self, error: OSError) -> UnavailableError:
        where = self._folder or tempfile.gettempdir()
        return UnavailableError(
            f"scratch space cannot be written: folder={where!r} {error.strerror}; name another "
            "one with settings.scratch_folder"
        )


def slices(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of at most `rows` rows; nothing is copied."""
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def sorted_batches(
    batches: Iterable[pa.RecordBatch],
    order: Order,
    *,
    schema: pa.Schema,
    memory_bytes: int,
    batch_rows: int,
    scratch: Scratch,
) -> Iterator[pa.RecordBatch]:
    """Yield all rows in order, in batches of at most `batch_rows` rows.

    Args:
        schema: of the batches.
        memory_bytes: bytes to gather before a run is written; the peak is about three times this.

    Raises:
        UnavailableError: the rows do not fit into memory, and the scratch space cannot be written.
    """
    runs = _Runs(order, schema, memory_bytes, scratch)
    try:
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes >= memory_bytes:
                runs.add(_sorted(held, order))
                held_bytes = 0
                runs.compact()
        last = _sorted(held, order) if held else None
        if not runs.any:
            if last is not None:
                yield from slices(last, batch_rows)
            return
        if last is not None:
            runs.add(last)
            last = None
            runs.compact()
        for batch in runs.merged():
            yield from slices(batch, batch_rows)
    finally:
        runs.close()


class _Runs:
    """Runs in scratch space, in levels: each run was merged from FAN_IN runs of the level below."""

    def __init__(
        self, order: Order, schema: pa.Schema, memory_bytes: int, scratch: Scratch
    ) -> None:
        self._order, self._schema, self._scratch = order, schema, scratch
        self._head_bytes = max(1, memory_bytes // (2 * FAN_IN))
        self._levels: list[list[SortedRun]] = [[]]

    @property
    def any(self) -> bool:
        """Whether there is any run."""
        return any(self._levels)

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a run of sorted rows. Among equal rows, rows of earlier runs come first."""
        self._levels[0].append(self._written([batch]))

    def compact(self) -> None:
        """Merge full levels. Not part of `add`, so that the added rows are out of memory first."""
        level = 0
        while len(self._levels[level]) == FAN_IN:
            if level + 1 == len(self._levels):
                self._levels.append([])
            merged = self._written(_merged(self._levels[level], self._order))
            self._levels[level + 1].append(merged)
            _close(self._levels[level])
            self._levels[level] = []
            level += 1

    def merged(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order."""
        # runs of higher levels hold earlier rows
        left = [run for level in reversed(self._levels) for run in level]
        self._levels = [left]
        while len(left) > FAN_IN:
            merged = self._written(_merged(left[:FAN_IN], self._order))
            _close(left[:FAN_IN])
            left[:FAN_IN] = [merged]
        yield from _merged(left, self._order)

    def close(self) -> None:
        """Free the scratch space."""
        for level in self._levels:
            _close(level)

    def _heads(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows in parts that a merge holds one at a time; a long row is a part."""
        if batch.num_rows == 1 or batch.nbytes <= self._head_bytes:
            yield batch
            return
        half = batch.num_rows // 2
        yield from self._heads(batch.slice(0, half))
        yield from self._heads(batch.slice(half))

    def _written(self, batches: Iterable[pa.RecordBatch]) -> SortedRun:
        heads = (head for batch in batches for head in self._heads(batch))
        run = self._scratch.write(heads, self._schema)
        pa.default_memory_pool().release_unused()
        return run


def _sorted(held: list[pa.RecordBatch], order: Order) -> pa.RecordBatch:
    """Return the held rows sorted. Empties `held`, so that the rows are not in memory twice."""
    joined = pa.concat_batches(held)
    held.clear()
    return joined.take(pa.array(order(joined)))


def _merged(runs: list[SortedRun], order: Order) -> Iterator[pa.RecordBatch]:
    """Yield the rows of sorted runs in order; among equal rows, those of earlier runs first."""
    heads: list[tuple[SortedRun, pa.RecordBatch]] = [(run, run.read()) for run in runs if run.more]
    passed = 0
    while len(heads) > 1:
        joined = pa.concat_batches([head for _, head in heads])
        ends = np.cumsum([head.num_rows for _, head in heads])
        order_of_rows = order(joined)
        unfinished = [int(end) - 1 for (run, _), end in zip(heads, ends, strict=True) if run.more]
        # a row after the last row of an unfinished head must wait for that run's next batch
        final = len(order_of_rows)
        if unfinished:
            final = int(np.flatnonzero(np.isin(order_of_rows, unfinished))[0]) + 1
        ready = order_of_rows[:final]
        made = joined.take(pa.array(ready))
        del joined
        passed += made.nbytes
        yield made
        del made
        if passed >= _RELEASE_BYTES:
            # the allocator keeps memory of each batch, which adds up
            pa.default_memory_pool().release_unused()
            passed = 0
        taken = np.bincount(np.searchsorted(ends, ready, side="right"), minlength=len(heads))
        heads = [
            (run, rest)
            for (run, head), count in zip(heads, taken.tolist(), strict=True)
            if (rest := _rest(run, head, count)) is not None
        ]
    for run, head in heads:
        yield head
        while run.more:
            yield run.read()


def _rest(run: SortedRun, head: pa.RecordBatch, taken: int) -> pa.RecordBatch | None:
    if taken < head.num_rows:
        return head.slice(taken)
    return run.read() if run.more else None


def _close(runs: list[SortedRun]) -> None:
    for run in runs:
        run.close()
