"""The Arrow batches that the JVM passes to a Python worker: their size, and a repair.

Since PySpark 4.1, Spark checks its limit in bytes per batch once per row, and adds up the sizes of
all column vectors each time. That takes half of the transfer (6 million rows of 16 columns: 5.7 s
with the limit, 2.7 s without). For rows of ordinary size a limit in rows does the same at no cost.
Spark's limit stays if a column's type can be large. Strings can be large too, and a plan does not
show it: the first task that gets too large a batch stops, and the stage is planned again under
Spark's limit. Not covered: rows with strings of more than half a MiB on average. 4,096 of these
exceed the 2 GiB of an Arrow string column, and the task fails in the JVM.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from durable_shuffle.jobs.spark_versions import types_named

ROWS_PER_BATCH = 4096
"""64 MiB if a row has 16 KiB. Smaller batches cost more; larger ones are not faster."""

LARGE_BATCH_BYTES = 64 * 1024 * 1024
"""A larger batch is too large. Spark's own limit has the same value."""

_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
TRANSFER_KEYS = (_ROWS, _BYTES)
_NO_LIMIT = str(2**31 - 1)
_LARGE = (ArrayType, BinaryType, MapType, StructType, *types_named("VariantType"))


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


def limited(batches: Iterator[pa.RecordBatch], max_bytes: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches; raise LargeRowsError at a batch of more than `max_bytes`."""
    for given in batches:
        batch = with_offsets(given)
        if max_bytes is not None and batch.nbytes > max_bytes:
            raise LargeRowsError(f"{batch.num_rows} rows have {batch.nbytes} bytes")
        yield batch


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with all its offsets; the same one if no column is nested.

    Seen with PySpark 3.5.1, 4.0.5 and 4.1.4, and pyarrow 26: if the nested lists, maps or strings
    of a column have no elements in a whole batch, their offsets are an empty buffer. pyarrow reads
    the first offset to compute sizes, and the Python worker crashes.
    """
    if not any(pa.types.is_nested(field.type) for field in batch.schema):
        return batch
    return pa.RecordBatch.from_arrays([_mended(c) for c in batch.columns], schema=batch.schema)


def _mended(array: pa.Array) -> pa.Array:
    kind = array.type
    if not len(array):
        return pa.array([], kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        own, children = array.buffers()[:2], [_mended(array.values)]
    elif pa.types.is_struct(kind) and array.offset == 0:
        own = array.buffers()[:1]
        children = [_mended(array.field(i)) for i in range(kind.num_fields)]
    else:
        return array
    return pa.Array.from_buffers(
        kind, len(array), own, array.null_count, array.offset, children=children
    )
