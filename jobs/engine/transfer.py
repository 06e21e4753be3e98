"""Settings for the size of the Arrow batches that the JVM passes to a Python worker.

Since PySpark 4.1, Spark checks its limit in bytes per batch once per row, and adds up the sizes of
all column vectors each time. That takes half of the transfer (6 million rows of 16 columns: 5.7 s
with the limit, 2.7 s without). For rows of ordinary size a limit in rows does the same at no cost.
Spark's limit stays if a column's type can be large. Strings can be large too, and a plan does not
show it: the first task that gets too large a batch stops, and the stage is planned again under
Spark's limit. Not covered: rows with strings of more than half a MiB on average. 4,096 of these
exceed the 2 GiB of an Arrow string column, and the task fails in the JVM.
"""

from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, VariantType

ROWS_PER_BATCH = 4096
"""64 MiB if a row has 16 KiB. Smaller batches cost more; larger ones are not faster."""

LARGE_BATCH_BYTES = 64 * 1024 * 1024
"""A larger batch is too large. Spark's own limit has the same value."""

_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
TRANSFER_KEYS = (_ROWS, _BYTES)
_NO_LIMIT = str(2**31 - 1)
_LARGE = (ArrayType, BinaryType, MapType, StructType, VariantType)


class LargeRowsError(Exception):
    """Batches of ROWS_PER_BATCH rows are too large; plan again with `large_rows`. Internal."""


def transfer_settings(schema: StructType, *, large_rows: bool) -> dict[str, str]:
    """Return the settings to plan the map side with; empty to keep Spark's limits.

    Args:
        large_rows: an earlier attempt got too large a batch.
    """
    if large_rows or any(isinstance(field.dataType, _LARGE) for field in schema):
        return {}
    return {_ROWS: str(ROWS_PER_BATCH), _BYTES: _NO_LIMIT}
