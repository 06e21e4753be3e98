"""Rows bring the numbers that Spark gave them, and are held against these in Python.

Each row that is stored arrives with its number within its partition as the last column. The JVM
counts (`monotonically_increasing_id`), nothing of ours does; so a row that is lost, doubled or out
of order on the way is an error before anything is committed. Classic Spark adds one row behind the
last one of each partition, so that rows lost at the end are noticed, too: its number says how many
came before it. And a DataFrame without columns has a column to travel in: PySpark takes a batch
without columns for one without rows, and so does Arrow.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.plain_arrays import numbers_of

ROW_COLUMN = "__row"
ROW_BITS = 33
"""`monotonically_increasing_id` is the partition's number, then the row's in so many bits."""
_NOT_ALL = "rows did not arrive from Spark as it counted them"


class CountedRows:
    """The batches of one partition without their last column, the rows' numbers. Iterated once.

    Args:
        ends: whether Spark puts a row behind the last one, whose number is the complement of how
            many came before it.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], partition: int, *, ends: bool) -> None:
        self._batches, self._partition, self._ends = batches, partition, ends
        self._rows = 0
        self._all = False
        self._lost: CorruptDataError | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches that have rows.

        Raises:
            CorruptDataError: these are not all rows, in the order in which Spark counted them.
        """
        try:
            yield from self._checked()
        except CorruptDataError as error:
            self._lost = error  # functions of the user's may pass over it
            raise

    @property
    def rows(self) -> int | None:
        """How many rows Spark counted; None if they were not read to the end."""
        return self._rows if self._all else None

    def check(self, committing: int | None) -> None:
        """Refuse a COMMIT after rows were lost.

        Args:
            committing: how many rows it would state, if these must be all of them.

        Raises:
            CorruptDataError: rows were lost, before they got here or behind.
        """
        if self._lost is not None:
            raise self._lost
        if committing is not None and committing != self.rows:
            raise CorruptDataError(
                f"{_NOT_ALL}: partition={self._partition} counted={self.rows} "
                f"written={committing}; nothing was committed, run it again"
            )

    def _checked(self) -> Iterator[pa.RecordBatch]:
        ended = False
        for batch in self._batches:
            count, last = batch.num_rows, batch.num_columns - 1
            if not count:
                continue
            numbers = numbers_of(batch.column(last))
            first = (self._partition << ROW_BITS) + self._rows
            expected = np.arange(first, first + count, dtype=np.int64)
            if self._ends and numbers[-1] < 0:
                expected[-1] = ~expected[-1]
            if ended or not np.array_equal(numbers, expected):
                raise self._other(numbers, expected)
            ended = self._ends and bool(numbers[-1] < 0)
            count -= ended
            self._rows += count
            if count:
                rows = batch.select(range(last))  # they stay rows without columns, too
                yield rows.slice(0, count) if ended else rows
        if self._ends and not ended:
            raise CorruptDataError(
                f"{_NOT_ALL}: partition={self._partition} {self._rows} rows arrived, and not the "
                "one that Spark puts behind the last; nothing was committed, run it again"
            )
        self._all = True

    def _other(
        self, found: npt.NDArray[np.int64], expected: npt.NDArray[np.int64]
    ) -> CorruptDataError:
        different = np.flatnonzero(found != expected)
        at = int(different[0]) if len(different) else 0
        return CorruptDataError(
            f"{_NOT_ALL}: partition={self._partition} expected number {int(expected[at])}, found "
            f"{int(found[at])}; nothing was committed, run it again"
        )


def in_a_column(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches without columns as one column of nulls, which PySpark hands on."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, pa.int8())], names=[ROW_COLUMN])
