"""The kinds of reducers besides a plain generator function. Nothing here knows Spark."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.types as pt

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.rows.external_sort import Scratch, sorted_batches
from durable_shuffle.shuffle.rows.row_order import SortKey, check_group_key, group_starts, row_order


@dataclass(frozen=True)
class Grouped:
    """A reducer that is called once per group of rows with equal keys.

    The order of groups is not defined. Rows of a group come in the order of producers, or sorted by
    the stage's `sort_by`. The function is called once per key, however its rows are spread over
    frames.

    Args:
        function: `function(table)` or `function(key, table)`, as for Spark's `applyInArrow`: key is
            a tuple of pyarrow scalars. It returns a Table, a RecordBatch or an iterable of these.
            The table holds the whole group in memory.
        by: names of the key columns; default: the keys of the stage. All rows of a group must be in
            one partition.
        streamed: pass an iterator of RecordBatch instead of the table, for groups that are larger
            than memory. The function need not read it to the end.
    """

    function: Callable[..., Any]
    by: str | tuple[str, ...] | None = None
    streamed: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidInputError(f"Grouped needs a function, found {self.function!r}")

    def columns(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns to group by; `keys` are the keys of the stage."""
        if self.by is None:
            return keys
        return (self.by,) if isinstance(self.by, str) else tuple(self.by)

    def takes_key(self) -> bool:
        """Return whether the function takes the key as its first argument."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except ValueError:  # some built-in functions have no signature
            return False
        required = [
            p
            for p in parameters
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        ]
        return len(required) > 1


_STATEFUL = ("process", "snapshot", "restore")


def lacks_of_state(step: object) -> tuple[str, ...]:
    """Return the methods that an object lacks to keep its state over a restart."""
    return tuple(name for name in _STATEFUL if not callable(getattr(step, name, None)))


@runtime_checkable
class ResumableReducer(Protocol):
    """A reducer that continues in the middle of its partition after a crash.

    One record acknowledges its position in the input, its state and its output. After a crash,
    `restore` gets that state, and the reducer continues with the rows after that position. Output
    up to that position is kept and is not produced again. Each attempt at a partition works with a
    fresh copy of the object that was given.

    Optional methods at the true end of the input: `prepare_to_shutdown(token)`, called before the
    last record is acknowledged, after which nothing may be yielded, and `shutdown(token)`, called
    after it. The token is the same in all attempts: use it to do an action only once.
    Optional: `close()`, called once at the end of every attempt whose process is still alive.
    """

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch] | None:
        """Process the next rows; return output rows, if any."""

    def snapshot(self) -> bytes:
        """Return the state after all rows processed so far."""

    def restore(self, state: bytes) -> None:
        """Continue from a state that `snapshot` returned."""

    def finish(self) -> Iterable[pa.RecordBatch] | None:
        """Return the remaining output rows; there are no more input rows."""


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
    """Yield the tables and batches that the function returns for each group.

    Args:
        by: names of the key columns.
        sort_by: the order of rows within a group.
        schema: of the batches.
        memory_bytes: bytes of rows held in memory before they are written to scratch space.

    Raises:
        InvalidInputError: a key column has a type that cannot be grouped, or the function returned
            None.
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
    signed = any(
        pt.is_floating(kind) or pt.is_struct(kind)
        for kind in (schema.field(name).type for name in by)
    )
    columns = [schema.get_field_index(name) for name in by]
    for first, group in _groups(rows, by):
        content: Any = group if reducer.streamed else pa.Table.from_batches(list(group), schema)
        if with_key:
            key = tuple(first.column(n)[0] for n in columns)
            made = reducer.function(tuple(map(_unsigned_zero, key)) if signed else key, content)
        else:
            made = reducer.function(content)
        if made is None:
            raise InvalidInputError(
                "the grouped reducer must return a Table, a RecordBatch or an iterable of these, "
                "found None"
            )
        yield from [made] if isinstance(made, (pa.Table, pa.RecordBatch)) else made
        for _ in group:  # skip the rows that the function did not read
            pass


def _unsigned_zero(value: pa.Scalar) -> pa.Scalar:
    """Return the value that stands for all equal ones of a group: 0.0 for -0.0, as in Spark."""
    if pt.is_floating(value.type) and value.as_py() == 0:
        return pa.scalar(0.0, value.type)
    if pt.is_struct(value.type) and value.is_valid:
        fields = {name: _unsigned_zero(part).as_py() for name, part in value.items()}
        return pa.scalar(fields, value.type)
    return value


def _groups(
    rows: Iterator[pa.RecordBatch], by: tuple[str, ...]
) -> Iterator[tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]]:
    """Yield (first batch, all batches) of each group. Read all batches before the next group."""
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
    """Cut sorted batches where the key changes; yield (whether a group begins here, rows)."""
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
