"""The numbers that Spark gives rows, held against what arrives: every loss must be an error."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from durable_shuffle.jobs.row_numbers import ROW_BITS, as_counted, in_a_column
from durable_shuffle.serialization.arrow_codec import under_schema
from durable_shuffle.serialization.decimals import logical_batch
from durable_shuffle.serialization.errors import CorruptDataError

PARTITION = 3
FIRST = PARTITION << ROW_BITS


def arrived(rows: int, *, columns: int = 1, size: int = 4) -> list[pa.RecordBatch]:
    """The batches of a partition as the JVM makes them, some values and the rows' numbers."""
    made = []
    for start in range(0, rows, size):
        numbers = pa.array(range(FIRST + start, FIRST + min(rows, start + size)), pa.int64())
        made.append(
            pa.RecordBatch.from_arrays(
                [numbers] * (columns + 1), names=[*(f"c{i}" for i in range(columns)), "row"]
            )
        )
    return made


@pytest.mark.parametrize("columns", [0, 1, 3])
def test_all_rows_pass_without_their_numbers(columns: int) -> None:
    """The last column goes; a batch without others keeps its rows."""
    found = list(as_counted(arrived(10, columns=columns), PARTITION))
    assert [batch.num_rows for batch in found] == [4, 4, 2]
    assert {batch.num_columns for batch in found} == {columns}


LOSSES: dict[str, Callable[[list[pa.RecordBatch]], list[pa.RecordBatch]]] = {
    "a batch": lambda b: [x for i, x in enumerate(b) if i != 1],
    "the first batch": lambda b: b[1:],
    "a row at the end of a batch": lambda b: [b[0], b[1].slice(0, 3), *b[2:]],
    "a row at the start of a batch": lambda b: [b[0], b[1].slice(1), *b[2:]],
    "a row inside": lambda b: [b[0].take(pa.array([0, 1, 3])), *b[1:]],
    "a batch twice": lambda b: [b[0], b[0], *b[1:]],
    "a row twice": lambda b: [b[0].take(pa.array([0, 1, 1, 2, 3])), *b[1:]],
    "two batches swapped": lambda b: [b[1], b[0], *b[2:]],
    "all rows of a batch": lambda b: [b[0], b[1].slice(0, 0), *b[2:]],
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("columns", [0, 2])
def test_a_lost_or_doubled_row_is_an_error(loss: str, columns: int) -> None:
    """Whatever went missing on the way, nothing behind it is taken."""
    given = LOSSES[loss](arrived(14, columns=columns))
    with pytest.raises(CorruptDataError, match="rows did not arrive from Spark as it counted them"):
        list(as_counted(given, PARTITION))


def test_rows_of_another_partition_are_refused() -> None:
    """Spark's numbers name the partition, too."""
    with pytest.raises(CorruptDataError, match="partition=2 expected row 0"):
        list(as_counted(arrived(4), 2))


def test_batches_without_columns_keep_their_rows() -> None:
    """Renamed, given back as decimals, put into a column: the number of rows stays."""
    (batch,) = as_counted(arrived(4, columns=0), PARTITION)
    nothing = pa.schema([])
    assert under_schema(batch, nothing).num_rows == 4
    assert logical_batch(batch, nothing).num_rows == 4
    (column,) = in_a_column([batch])
    assert (column.num_rows, column.num_columns, column.column(0).null_count) == (4, 1, 4)
