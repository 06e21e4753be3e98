"""Batches as PySpark before 4.3 hands them over: empty nested arrays have no offsets."""

import pyarrow as pa
import pytest

from durable_shuffle.jobs.engine.transfer import with_offsets

INTS = pa.list_(pa.int64())


def without_offsets(kind: pa.DataType) -> pa.Array:
    """An empty list array whose offsets are not there."""
    return pa.Array.from_buffers(kind, 0, [None, None], children=[pa.array([], kind.value_type)])


def nulls(kind: pa.DataType, child: pa.Array, rows: int) -> pa.Array:
    """A list array of nulls over that child."""
    offsets = pa.py_buffer(b"\0" * 4 * (rows + 1))
    return pa.Array.from_buffers(kind, rows, [pa.py_buffer(b"\0"), offsets], children=[child])


@pytest.mark.parametrize("wrapped", [False, True], ids=["list", "in a struct"])
def test_missing_offsets_are_put_there(*, wrapped: bool) -> None:
    """Values stay as they were; sizes can be asked for, and rows be taken."""
    column = nulls(pa.list_(INTS), without_offsets(INTS), 3)
    if wrapped:
        kind = pa.struct([("inner", column.type)])
        column = pa.Array.from_buffers(kind, 3, [None], children=[column])
    values = pa.array([[1], None, [2, 3]], INTS)
    batch = pa.record_batch([pa.array([1, 2, 3]), column, values], names=["n", "odd", "list"])
    mended = with_offsets(batch)
    nothing = {"inner": None} if wrapped else None
    expected = {"n": [1, 2, 3], "odd": [nothing] * 3, "list": [[1], None, [2, 3]]}
    assert mended.to_pydict() == expected
    assert mended.schema == batch.schema
    assert mended.nbytes > 0
    inner = mended.column(1).field(0) if wrapped else mended.column(1)
    assert inner.values.buffers()[1] is not None
    assert mended.take(pa.array([2, 0])).to_pydict()["list"] == [[2, 3], [1]]


def test_flat_batches_are_left_alone() -> None:
    """Nothing is copied or looked at."""
    batch = pa.record_batch({"n": [1, 2]})
    assert with_offsets(batch) is batch
