"""Binary columns as memory, without a copy and without Python objects of Arrow per value."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa


def binary_views(column: pa.Array) -> Iterator[memoryview | None]:
    """Yield the bytes of each value, None for nulls. They hold the memory of the whole column.

    Args:
        column: of type binary or large_binary.
    """
    width = "<i8" if pa.types.is_large_binary(column.type) else "<i4"
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, width, len(column) + 1, column.offset * int(width[-1])).tolist()
    view = memoryview(data if data is not None else b"")
    valid = column.is_valid().to_pylist() if column.null_count else [True] * len(column)
    for i, there in enumerate(valid):
        yield view[edges[i] : edges[i + 1]] if there else None
