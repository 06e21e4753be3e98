"""How rows travel from the JVM to a Python worker: settings for the planning session.

From PySpark 4.1 on a limit in bytes per Arrow batch is checked by adding up the sizes of all column
vectors once per row, which takes half of the whole hand-over (measured with 6 million rows of 16
columns: 5.7 s with it, 2.7 s without). A limit in rows does the same at no cost where rows are of
ordinary size; where columns can be large, Spark's limit stays. A string can be large too, which no
plan tells: the first task that is handed too large a batch stops, and the stage is planned anew
under Spark's limit. Not covered: rows of more than half a MiB each on average, of which 4,096 are
over the 2 GiB that an Arrow string column can hold; the task fails in the JVM.
"""

from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, VariantType

ROWS_PER_BATCH = 4096
"""64 MiB of rows of 16 KiB; smaller batches cost more, larger ones gain nothing."""

LARGE_BATCH_BYTES = 64 * 1024 * 1024
"""Above this a batch is too large; Spark's own limit, too."""

_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
TRANSFER_KEYS = (_ROWS, _BYTES)
_NO_LIMIT = str(2**31 - 1)
_LARGE = (ArrayType, BinaryType, MapType, StructType, VariantType)


class LargeRowsError(Exception):
    """Batches of ROWS_PER_BATCH rows are too large: plan again with `large_rows`. Users never see
    it."""


def transfer_settings(schema: StructType, *, large_rows: bool) -> dict[str, str]:
    """Return the settings under which to plan the map side of rows of this schema.

    Args:
        large_rows: the rows have turned out to be large.
    """
    if large_rows or any(isinstance(field.dataType, _LARGE) for field in schema):
        return {}
    return {_ROWS: str(ROWS_PER_BATCH), _BYTES: _NO_LIMIT}
