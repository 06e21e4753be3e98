"""Values without bytes of their own: few stored bytes hold any number of them."""

import numpy as np
import pyarrow as pa
import pytest

from durable_shuffle.serialization.arrow_checks import (
    BARE_BYTES,
    MAX_INFLATED_BYTES,
    bare_bytes,
    full_bytes,
)
from durable_shuffle.serialization.arrow_codec import decode_batch, encode_slices
from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.shuffle.write.segments import frame_bounds

MOST = MAX_INFLATED_BYTES // BARE_BYTES


def one(values: pa.Array) -> pa.Array:
    """Return a list array of one row that holds `values`."""
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)


def pairs(count: int) -> pa.Array:
    """Return a map array of one row whose keys and values are empty structs."""
    nothing = pa.nulls(0, pa.struct([]))
    kind = pa.map_(nothing.type, nothing.type)
    key = bare_structs(count)
    entries = pa.StructArray.from_arrays([key, key], fields=list(kind.field(0).type))
    offsets = pa.py_buffer(np.array([0, count], "<i4"))
    return pa.Array.from_buffers(kind, 1, [None, offsets], children=[entries])


def bare_structs(count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.struct([]), count, [None])


def columns(n: int) -> dict[str, tuple[pa.RecordBatch, int]]:
    """Return batches of a few hundred bytes, and how many values of each have none."""
    nothing = pa.record_batch([pa.nulls(n)], names=["c"])
    arrays = {
        "nulls in a list": (one(pa.nulls(n)), n),
        "empty structs in a list": (one(bare_structs(n)), n),
        "a struct of nulls in a list": (
            one(pa.StructArray.from_arrays([pa.nulls(n), pa.nulls(n)], names=["a", "b"])),
            2 * n,
        ),
        "lists of a fixed size in a list": (
            one(pa.FixedSizeListArray.from_arrays(pa.nulls(n), 4)),
            n,
        ),
        "lists of size 0 in a list": (
            one(
                pa.Array.from_buffers(
                    pa.list_(pa.int64(), 0), n, [None], children=[pa.array([], pa.int64())]
                )
            ),
            n,
        ),
        "bytes of width 0 in a list": (
            one(pa.Array.from_buffers(pa.binary(0), n, [None, pa.py_buffer(b"")])),
            n,
        ),
        "lists in a list": (one(one(pa.nulls(n))), n),
        "a map": (pairs(n), 2 * n),
        "a column of nulls": (pa.nulls(n), n),
        "a column of empty structs": (bare_structs(n), n),
    }
    found = {
        name: (pa.RecordBatch.from_arrays([array], names=["c"]), count)
        for name, (array, count) in arrays.items()
    }
    return {**found, "no columns": (nothing.select([]), n)}


def message(batch: pa.RecordBatch) -> bytes:
    """Return the body of a batch as Arrow's own writer gives it."""
    return bytes(batch.serialize())


@pytest.mark.parametrize("kind", sorted(columns(8)))
def test_a_reader_bounds_them(kind: str) -> None:
    """A body of a few hundred bytes with 50 million values is refused before memory is taken."""
    batch, count = columns(50_000_000)[kind]
    body = message(batch)
    assert len(body) < 1000
    before = pa.default_memory_pool().max_memory()
    for check in (True, False):
        with pytest.raises(CorruptDataError, match=f"{count} values have no bytes"):
            decode_batch(body, batch.schema, check_offsets=check)
    assert pa.default_memory_pool().max_memory() == before


@pytest.mark.parametrize("kind", sorted(columns(8)))
def test_writer_and_reader_draw_one_line(kind: str) -> None:
    """Exactly what the limit allows is written and read; one more is refused at the write."""
    each = columns(8)[kind][1] // 8
    most = MOST // each // 8 * 8
    for codec in ("none", "lz4"):
        batch, _ = columns(most)[kind]
        (body,) = encode_slices(batch, [(0, batch.num_rows)], codec)
        assert decode_batch(body, batch.schema).num_rows == batch.num_rows
        more, count = columns(most + 8)[kind]
        with pytest.raises(InvalidInputError, match=f"{count} values have no bytes"):
            encode_slices(more, [(0, more.num_rows)], codec)


@pytest.mark.parametrize("kind", sorted(columns(8)))
def test_what_a_writer_counts_a_reader_counts(kind: str) -> None:
    """Any slice of any layout counts at the writer as much as its decoded body."""
    part = columns(8)[kind][0]
    batch = pa.concat_batches([part, part.slice(0, 1), part, part.slice(0, 0), part])
    for start in range(batch.num_rows):
        for length in range(1, batch.num_rows - start + 1):
            (body,) = encode_slices(batch, [(start, length)], "lz4")
            found = decode_batch(body, batch.schema)
            assert bare_bytes(found) == bare_bytes(batch.slice(start, length)) > 0
            assert found.equals(batch.slice(start, length))


def test_what_has_bytes_does_not_count() -> None:
    """Plain columns, nested ones, and lists that hold nothing."""
    batch = pa.record_batch(
        {
            "a": [1, None, 3],
            "b": [["x"], [], None],
            "c": [{"x": True}, None, {"x": None}],
            "d": pa.array([[], None, []], pa.list_(pa.null())),
            "e": pa.array([b"12", b"34", None], pa.binary(2)),
            "f": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
            "g": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int8())),
        }
    )
    assert bare_bytes(batch) == 0
    assert full_bytes(batch) == batch.nbytes


@pytest.mark.parametrize("kind", ["nulls in a list", "a map", "no columns", "a column of nulls"])
def test_frames_are_cut_by_them(kind: str) -> None:
    """Many legal rows become several frames, none over twice the wanted size, and all are read."""
    part = columns(1000)[kind][0]
    batch = pa.concat_batches([part] * 40)
    wanted = 5000 * BARE_BYTES
    bounds = list(frame_bounds(batch, 0, batch.num_rows, wanted))
    assert len(bounds) > 3
    assert sum(rows for _, rows in bounds) == batch.num_rows
    assert all(full_bytes(batch.slice(*bound)) <= 2 * wanted for bound in bounds)
    for body, (start, rows) in zip(encode_slices(batch, bounds, "lz4"), bounds, strict=True):
        assert decode_batch(body, batch.schema).equals(batch.slice(start, rows))
