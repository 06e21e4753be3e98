"""Converts between numbers and Arrow arrays without importing pandas.

`pyarrow.array`, `pyarrow.scalar` and `Array.to_numpy` import pandas at their first call, to check
for pandas objects. That takes 0.2 s in each new Python worker, often longer than a task. So map
tasks use these functions.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def arrow_of(numbers: npt.NDArray[Any]) -> pa.Array:
    """Return an array of the same numbers over the same memory.

    Args:
        numbers: one-dimensional, contiguous, of a type that Arrow has; not booleans.
    """
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """Return the integers of an array without nulls, over the same memory, read-only."""
    assert array.null_count == 0
    dtype = np.dtype(str(array.type))
    if not len(array):
        return np.empty(0, dtype=dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def array_of_one(value: object, kind: pa.DataType) -> pa.Array:
    """Return an array of one value: None, or an int64, float64, bool, text or bytes by `kind`."""
    if value is None:
        return pa.nulls(1, kind)
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes([bool(value)]))])
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        edges = np.array([0, len(data)], dtype=np.int32)
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    return arrow_of(np.array([value], dtype=np.dtype(kind.to_pandas_dtype())))
