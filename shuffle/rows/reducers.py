"""What a reducer may be, besides a plain generator function. Knows nothing of Spark."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.rows.external_sort import sorted_batches
from durable_shuffle.shuffle.rows.row_order import SortKey, check_group_key, group_starts, row_order
from durable_shuffle.shuffle.rows.scratch import Scratch


@dataclass(frozen=True)
class Grouped:
    """A reducer that is called once per group of rows with equal keys.

    Groups come in no particular order; rows within a group in the order of producers, or sorted by
    `sort_by` of the stage. Each key is seen once, however its rows are spread over frames.

    Args:
        function: `function(table)` or `function(key, table)`, as Spark's `applyInArrow` takes it:
            key is a tuple of pyarrow scalars. Returns a Table, a RecordBatch or an iterable of
            these. The table holds the whole group in memory.
        by: names of the key columns; default: the keys of the stage. They must be such that all
            rows of a group are in one partition.
        streamed: the function gets an iterator of RecordBatch in place of the table, for groups
            that are larger than memory. It need not read it to the end.
    """

    function: Callable[..., Any]
    by: str | tuple[str, ...] | None = None
    streamed: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidInputError(f"Grouped needs a function, found {self.function!r}")

    def columns(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns to group by; `keys` are the stage's."""
        if self.by is None:
            return keys
        return (self.by,) if isinstance(self.by, str) else tuple(self.by)

    def takes_key(self) -> bool:
        """True if the function wants the key as its first argument."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except ValueError:  # some built-in functions do not say
            return False
        required = [
            p
            for p in parameters
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        ]
        return len(required) > 1


@runtime_checkable
class ResumableReducer(Protocol):
    """A reducer that goes on inside its partition after a crash.

    Its position in the input, its state and its output are acknowledged in one record: after a
    crash it starts from `restore` with the rows behind that position, and what it had yielded up to
    there is not asked of it again. One object serves one partition; it is made anew, by copying the
    one that was given, for every attempt.

    Optional, called only at the true end of the input, with a token that stays the same over
    attempts (do what must happen once under that name): `prepare_to_shutdown(token)` before the
    last record is acknowledged, after which nothing may be yielded, and `shutdown(token)` after.
    Optional: `close()`, called once at the end of every attempt that can still call it.
    """

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch] | None:
        """Take rows; return what can be said already."""

    def snapshot(self) -> bytes:
        """Return the state after all rows taken so far."""

    def restore(self, state: bytes) -> None:
        """Become what `snapshot` saw."""

    def finish(self) -> Iterable[pa.RecordBatch] | None:
        """Return what is left to say; there are no more rows."""


def run_grouped(
    reducer: Grouped,
    batches: Iterator[pa.RecordBatch],
    *,
    by: tuple[str, ...],
    sort_by: tuple[SortKey, ...],
    schema: pa.Schema,
    memory_bytes: int,
    batch_rows: int,
    scratch: Scratch,
) -> Iterator[Any]:
    """Yield what the function returns for each group, flattened to tables and batches.

    Args:
        schema: of the batches.
        memory_bytes: rows held before they go to scratch.
    """
    for name in by:
        check_group_key(name, schema.field(name).type)
    keys = (*(SortKey(name) for name in by), *sort_by)
    rows = sorted_batches(
        batches,
        lambda batch: row_order(batch, keys),
        schema=schema,
        memory_bytes=memory_bytes,
        batch_rows=batch_rows,
        scratch=scratch,
    )
    with_key = reducer.takes_key()
    columns = [schema.get_field_index(name) for name in by]
    for first, group in _groups(rows, by):
        content: Any = group if reducer.streamed else pa.Table.from_batches(list(group), schema)
        if with_key:
            made = reducer.function(tuple(first.column(n)[0] for n in columns), content)
        else:
            made = reducer.function(content)
        if made is None:
            raise InvalidInputError(
                "the grouped reducer must return a Table, a RecordBatch or an iterable of these, "
                "found None"
            )
        yield from [made] if isinstance(made, (pa.Table, pa.RecordBatch)) else made
        for _ in group:  # what the function left of its group must not reach the next one
            pass


def _groups(
    rows: Iterator[pa.RecordBatch], by: tuple[str, ...]
) -> Iterator[tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]]:
    """Yield (first rows, all batches) of each group; it must be read up before the next."""
    parts = _parts(rows, by)
    ahead = next(parts, None)
    while ahead is not None:
        first = ahead[1]

        def group(first: pa.RecordBatch = first) -> Iterator[pa.RecordBatch]:
            nonlocal ahead
            yield first
            ahead = next(parts, None)
            while ahead is not None and not ahead[0]:
                yield ahead[1]
                ahead = next(parts, None)

        yield first, group()


def _parts(
    rows: Iterator[pa.RecordBatch], by: tuple[str, ...]
) -> Iterator[tuple[bool, pa.RecordBatch]]:
    """Cut sorted batches where the key changes; yield whether a group begins, and the rows."""
    before: pa.RecordBatch | None = None
    for batch in rows:
        begins = True
        if before is not None:
            pair = pa.concat_batches([before, batch.slice(0, 1)])
            begins = bool(len(group_starts(pair, by)))
        starts = [0, *group_starts(batch, by).tolist()]
        for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            yield begins or start > 0, batch.slice(start, end - start)
        before = batch.slice(batch.num_rows - 1)
