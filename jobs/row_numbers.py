"""Rows bring the numbers that Spark gave them, and are held against these in Python.

Each row that is stored arrives with its number within its partition as the last column. The JVM
counts (`monotonically_increasing_id`), nothing of ours does; so a row that is lost, doubled or out
of order on the way is an error before anything is committed. And a DataFrame without columns has a
column to travel in: PySpark takes a batch without columns for one without rows, and so does Arrow.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.plain_arrays import numbers_of

ROW_COLUMN = "__row"
ROW_BITS = 33
"""`monotonically_increasing_id` is the partition's number, then the row's in so many bits."""


def as_counted(batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one partition without their last column, the rows' numbers.

    Raises:
        CorruptDataError: these are not all rows, in the order in which Spark counted them.
    """
    next_row = partition << ROW_BITS
    for batch in batches:
        last = batch.num_columns - 1
        numbers = numbers_of(batch.column(last))
        expected = np.arange(next_row, next_row + len(numbers), dtype=np.int64)
        if not np.array_equal(numbers, expected):
            at = int(np.flatnonzero(numbers != expected)[0])
            first = partition << ROW_BITS
            raise CorruptDataError(
                "rows did not arrive from Spark as it counted them: "
                f"partition={partition} expected row {int(expected[at]) - first}, found row "
                f"{int(numbers[at]) - first}; nothing was committed, run it again"
            )
        next_row += len(numbers)
        yield batch.select(range(last))  # keeps the number of rows, even without columns


def in_a_column(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches without columns as one column of nulls, which PySpark hands on."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, pa.int8())], names=[ROW_COLUMN])
