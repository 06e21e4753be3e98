"""Checks in Python that rows arrive as Spark numbered them.

Each row arrives with its number within its partition as the last column. The JVM counts the rows
(`monotonically_increasing_id`), not this library. So if a row is lost, doubled or out of order on
the way, the task fails before anything is committed. On classic Spark an end row follows the last
row of each partition; its number says how many rows came before it, so rows lost at the end are
noticed too. On Spark Connect there is no end row, and rows lost at the end are not noticed.

The number also gives a DataFrame without columns one column. Without it, PySpark and Arrow take a
batch without columns for a batch without rows.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import numbers_of
from durable_shuffle.serialization.errors import CorruptDataError

ROW_COLUMN = "__row"
ROW_BITS = 33
"""In `monotonically_increasing_id` this many low bits are the row's number; above them is the
partition's number."""
_NOT_ALL = "rows did not arrive from Spark as it counted them"


class CountedRows:
    """The batches of one partition without their last column, the row numbers. Iterate once.

    Args:
        ends: whether an end row follows the last row (`rdd_frames.counted_to_the_end`).
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], partition: int, *, ends: bool) -> None:
        self._batches, self._partition, self._ends = batches, partition, ends
        self._rows = 0
        self._all = False
        self._lost: CorruptDataError | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches that have rows.

        Raises:
            CorruptDataError: rows are missing, doubled or in another order than Spark's.
        """
        try:
            yield from self._checked()
        except CorruptDataError as error:
            self._lost = error  # the user's function may swallow it
            raise

    @property
    def rows(self) -> int | None:
        """How many rows arrived and were checked; None if they were not read to the end."""
        return self._rows if self._all else None

    def check(self, committing: int | None) -> None:
        """Refuse a COMMIT after rows were lost.

        Args:
            committing: how many rows the COMMIT states; None if that may differ from the rows read.

        Raises:
            CorruptDataError: rows were lost, either before they arrived here or after.
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
                rows = batch.select(range(last))  # keeps rows even without columns
                yield rows.slice(0, count) if ended else rows
        if self._ends and not ended:
            raise CorruptDataError(
                f"{_NOT_ALL}: partition={self._partition} {self._rows} rows arrived, but not the "
                "row that marks their end; nothing was committed, run it again"
            )
        self._all = True

    def _other(
        self, numbers: npt.NDArray[np.int64], expected: npt.NDArray[np.int64]
    ) -> CorruptDataError:
        first = int(np.argmax(numbers != expected))  # 0 if none differs
        return CorruptDataError(
            f"{_NOT_ALL}: partition={self._partition} expected number {int(expected[first])}, "
            f"found {int(numbers[first])}; nothing was committed, run it again"
        )


def in_a_column(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches without columns as batches of one column of nulls, which PySpark keeps."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, pa.int8())], names=[ROW_COLUMN])
