"""How rows travel from the JVM to a Python worker: settings for the planning session.

From PySpark 4.1 on a limit in bytes per Arrow batch is checked by adding up the sizes of all column
vectors once per row, which takes half of the whole hand-over (measured with 6 million rows of 16
columns: 5.7 s with it, 2.7 s without). A limit in rows does the same at no cost where rows are of
ordinary size; where columns can be large, Spark's limit stays.
"""

from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, VariantType

ROWS_PER_BATCH = 4096
"""64 MiB of rows of 16 KiB; smaller batches cost more, larger ones gain nothing."""

_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = str(2**31 - 1)
_LARGE = (ArrayType, BinaryType, MapType, StructType, VariantType)


def transfer_settings(schema: StructType) -> dict[str, str]:
    """Return the settings under which to plan the map side of rows of this schema."""
    if any(isinstance(field.dataType, _LARGE) for field in schema):
        return {}
    return {_ROWS: str(ROWS_PER_BATCH), _BYTES: _NO_LIMIT}
