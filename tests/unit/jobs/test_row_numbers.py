"""The numbers that Spark gives rows, held against what arrives: every loss must be an error."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from durable_shuffle.jobs.engine.row_numbers import ROW_BITS, CountedRows, in_a_column
from durable_shuffle.serialization.arrow_schemas import logical_batch, under_schema
from durable_shuffle.serialization.errors import CorruptDataError

PARTITION = 3
FIRST = PARTITION << ROW_BITS
NOT_ALL = "rows did not arrive from Spark as it counted them"
Batches = list[pa.RecordBatch]


def arrived(rows: int, *, columns: int = 1, size: int = 4, ends: bool = True) -> Batches:
    """The batches of a partition as the JVM makes them: some columns and the rows' numbers."""
    numbers = list(range(FIRST, FIRST + rows)) + [~(FIRST + rows)] * ends
    made = []
    for start in range(0, len(numbers), size):
        some = pa.array(numbers[start : start + size], pa.int64())
        names = [*(f"c{i}" for i in range(columns)), "row"]
        made.append(pa.RecordBatch.from_arrays([some] * (columns + 1), names=names))
    return made


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("columns", [0, 1, 3])
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 10])
def test_all_rows_pass_without_their_numbers(rows: int, columns: int, *, ends: bool) -> None:
    """The last column goes, and the row at the end; a batch without other columns keeps its
    rows."""
    counted = CountedRows(arrived(rows, columns=columns, ends=ends), PARTITION, ends=ends)
    assert counted.rows is None
    found = list(counted)
    assert sum(batch.num_rows for batch in found) == counted.rows == rows
    assert {batch.num_columns for batch in found} <= {columns}
    assert all(batch.num_rows for batch in found)
    counted.check(rows)
    for wrong in (rows - 1, rows + 1):
        with pytest.raises(CorruptDataError, match=f"counted={rows} written={wrong}"):
            counted.check(wrong)


LOSSES: dict[str, Callable[[Batches], Batches]] = {
    "a batch": lambda b: [b[0], *b[2:]],
    "the first batch": lambda b: b[1:],
    "a row at the end of a batch": lambda b: [b[0], b[1].slice(0, 3), *b[2:]],
    "a row at the start of a batch": lambda b: [b[0], b[1].slice(1), *b[2:]],
    "a row inside": lambda b: [b[0].take(pa.array([0, 1, 3])), *b[1:]],
    "a batch twice": lambda b: [b[0], b[0], *b[1:]],
    "a row twice": lambda b: [b[0].take(pa.array([0, 1, 1, 2, 3])), *b[1:]],
    "two batches swapped": lambda b: [b[1], b[0], *b[2:]],
    "all rows of a batch": lambda b: [b[0], b[1].slice(0, 0), *b[2:]],
}
LOSSES_AT_THE_END: dict[str, Callable[[Batches], Batches]] = {
    "the last batch": lambda b: b[:-1],
    "the last row": lambda b: [*b[:-1], b[-1].slice(0, b[-1].num_rows - 1)],
    "the row before the end": lambda b: [*b[:-1], b[-1].take(pa.array([0, 2]))],
    "everything": lambda b: [],
    "all but the end": lambda b: [b[-1].slice(2)],
    "rows behind the end": lambda b: [*b, b[0]],
    "the end twice": lambda b: [*b, b[-1].slice(2)],
}


@pytest.mark.parametrize("columns", [0, 2])
@pytest.mark.parametrize(
    ("loss", "ends"),
    [(loss, ends) for loss in LOSSES for ends in (True, False)]
    + [(loss, True) for loss in LOSSES_AT_THE_END],
)
def test_a_lost_or_doubled_row_is_an_error(loss: str, columns: int, *, ends: bool) -> None:
    """Whatever went missing on the way, and although a function passes over the error."""
    given = (LOSSES | LOSSES_AT_THE_END)[loss](arrived(14, columns=columns, ends=ends))
    counted = CountedRows(given, PARTITION, ends=ends)
    with pytest.raises(CorruptDataError, match=NOT_ALL):
        list(counted)
    assert counted.rows is None
    for written in (None, 14):
        with pytest.raises(CorruptDataError, match=NOT_ALL):
            counted.check(written)


def test_rows_of_another_partition_are_refused() -> None:
    """Spark's numbers name the partition, too."""
    with pytest.raises(CorruptDataError, match=f"partition=2 expected number {2 << ROW_BITS}"):
        list(CountedRows(arrived(3), 2, ends=True))


def test_rows_that_nobody_read_to_the_end_are_not_all_rows() -> None:
    """Who must store all rows cannot stop early; a function of the user's may."""

    def first(rows: CountedRows) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            yield batch
            return

    counted = CountedRows(arrived(10), PARTITION, ends=True)
    assert sum(batch.num_rows for batch in first(counted)) == 4
    counted.check(None)
    with pytest.raises(CorruptDataError, match="counted=None written=4"):
        counted.check(4)


def test_batches_without_columns_keep_their_rows() -> None:
    """Renamed, given back as decimals, put into a column: the number of rows stays."""
    (batch,) = CountedRows(arrived(4, columns=0, size=5), PARTITION, ends=True)
    nothing = pa.schema([])
    assert under_schema(batch, nothing).num_rows == 4
    assert logical_batch(batch, nothing).num_rows == 4
    (column,) = in_a_column([batch])
    assert (column.num_rows, column.num_columns, column.column(0).null_count) == (4, 1, 4)
