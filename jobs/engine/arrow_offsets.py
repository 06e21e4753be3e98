"""Repairs record batches of PySpark before 4.3, which leave out offsets if there are no elements.

Seen with PySpark 4.0.5 and 4.1.4 and pyarrow 26: if the nested lists, maps or strings of a column
have no elements in a whole batch, their offsets are an empty buffer. pyarrow reads the first offset
to compute sizes, and the Python worker crashes.
"""

import pyarrow as pa
import pyspark

NEEDED = pyspark.__version__.startswith(("4.0.", "4.1.", "4.2."))


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with all its offsets; the same one if no column is nested."""
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
