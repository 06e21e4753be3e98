"""Arrow batches as frame bodies: each body is one encapsulated Arrow IPC record batch message.

Strategy: the schema is stored once, elsewhere. A stream writer writes it first, and the messages
after it are sliced out of the writer's buffer without copying. Arrow's threads are off, because
slices are small and a Spark worker has one core. 200 slices of one million rows x 16 columns took
45 ms without threads and 150 ms with them; with lz4, 0.20 s and 0.23 s.

Columns are stored only in plain layouts (`arrow_schemas.py`).

`pyarrow.array`, `pyarrow.scalar` and `Array.to_numpy` import pandas at their first call, to check
for pandas objects. That takes 0.2 s in each new Python worker, often longer than a task. So map
tasks use `arrow_of`, `numbers_of` and `array_of_one`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_checks import (
    MAX_BATCH_BYTES,
    MAX_INFLATED_BYTES,
    check_columns,
    check_lengths,
    holds_dense_union,
    may_be_bare,
    refuse_bare,
)
from durable_shuffle.serialization.arrow_schemas import ARROW_ERRORS, storable_schema
from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.frames import Frame, FrameKind

_COMPRESSION: dict[str, str | None] = {"lz4": "lz4", "zstd": "zstd", "none": None}
# Bytes per stream. One stream per slice would serialise the schema each time. With one stream for
# all, the bytes would leave the cache before their checksum is computed (20% slower, measured).
_STREAM_BYTES = 256 * 1024
# more than the metadata of some hundred columns
_EXCESS_BYTES = 64 * 1024
# schema, and what compression adds to buffers that it cannot make shorter
_SPARE_BYTES = 64 * 1024
_PREFIX_BYTES = 8  # of a message: ffffffff, then the length of its metadata


def encode_slices(
    batch: pa.RecordBatch, bounds: Sequence[tuple[int, int]], compression: str
) -> list[memoryview]:
    """Return one body per slice of `batch`, all at once. See `iter_slices`."""
    return list(iter_slices(batch, bounds, compression))


def iter_slices(
    batch: pa.RecordBatch, bounds: Sequence[tuple[int, int]], compression: str
) -> Iterator[memoryview]:
    """Yield one body per slice of `batch`, in order, each a multiple of 8 bytes long.

    Compute the checksum of a body before you take the next one, while it is in the processor's
    cache. A slice over MAX_INFLATED_BYTES is not compressed, because readers would refuse it.

    Args:
        batch: with a storable schema, see `storable_batch`.
        bounds: (first row, number of rows) of each slice; may overlap, may be of zero rows.
        compression: "lz4", "zstd" or "none", applied per column buffer.

    Raises:
        InvalidInputError: unknown compression, bounds outside the batch, or a schema that is not
            storable; raised by this call. While iterating: a slice of over 2 GiB, or one with more
            values without bytes than a reader accepts (`bare_values`).
    """
    if compression not in _COMPRESSION:
        raise InvalidInputError(
            f"compression: expected one of {', '.join(_COMPRESSION)}, found {compression!r}"
        )
    if storable_schema(batch.schema) != batch.schema:
        raise InvalidInputError(
            f"columns must be stored plain, see storable_batch; found {batch.schema.types}"
        )
    for start, length in bounds:
        if start < 0 or length < 0 or start + length > batch.num_rows:
            raise InvalidInputError(
                f"slice ({start}, {length}) is outside a batch of {batch.num_rows} rows"
            )
    options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION[compression], use_threads=False)
    return _messages(_slices(batch, bounds), _empty_like(batch), options)


def decode_frame(
    frame: Frame, schema: pa.Schema, *, position: int, check_offsets: bool = True
) -> pa.RecordBatch:
    """Return the rows of a frame. See `decode_batch`.

    Args:
        position: of the frame in bytes, for messages; see `FrameDecoder.position`.

    Raises:
        CorruptDataError: the body is not a batch of that schema, or has another number of rows than
            the header states.
        IncompatibleError: the frame is of another kind.
    """
    if frame.kind is not FrameKind.ARROW:
        raise IncompatibleError(f"frame of kind {frame.kind.name} in an Arrow stage")
    try:
        batch = decode_batch(frame.body, schema, check_offsets=check_offsets)
    except CorruptDataError as error:
        raise CorruptDataError(f"frame at byte {position}: {error}") from error
    if batch.num_rows != frame.rows:
        raise CorruptDataError(
            f"frame at byte {position}: it states {frame.rows} rows and holds {batch.num_rows}"
        )
    return batch


def decode_batch(
    body: Bytes,
    schema: pa.Schema,
    *,
    check_offsets: bool = True,
    max_bytes: int = MAX_INFLATED_BYTES,
) -> pa.RecordBatch:
    """Return the batch in `body`. Buffers that are not compressed are not copied.

    Even for a forged body, no offset of the batch points outside it. Not checked here: that the
    values are the ones that were written; the frame's CRC checks this.

    Args:
        check_offsets: False skips the checks that only a forged body can fail (`arrow_checks`).
            Such a body may then crash the process that uses the batch.
        max_bytes: limit on the total size of the compressed buffers after decompression, and on
            what values without bytes count as.

    Raises:
        CorruptDataError: the bytes are not exactly one record batch of that schema.
        MemoryError: there is not enough memory for a valid body.
    """
    size_bytes = memoryview(body).nbytes
    try:
        message = pa.ipc.read_message(pa.py_buffer(body))
        metadata, data = memoryview(message.metadata), memoryview(message.body or b"")
        expected = _PREFIX_BYTES + metadata.nbytes + data.nbytes
        if size_bytes != expected:
            raise ValueError(f"expected {expected} bytes, found {size_bytes}")
        check_lengths(metadata, data, max_bytes)
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate()
        refuse_bare(batch, max_bytes, CorruptDataError)
        if check_offsets:
            check_columns(batch)
    except CorruptDataError as error:
        raise CorruptDataError(f"arrow body of {size_bytes} bytes: {error}") from error
    except ARROW_ERRORS as error:
        raise CorruptDataError(
            f"arrow body of {size_bytes} bytes: {type(error).__name__}: {error}"
        ) from error
    return batch


def _messages(
    slices: Iterator[pa.RecordBatch], empty: pa.RecordBatch, options: pa.ipc.IpcWriteOptions
) -> Iterator[memoryview]:
    """Yield the messages of `slices`; several slices share a stream (`_STREAM_BYTES`)."""
    plain = pa.ipc.IpcWriteOptions(use_threads=False)
    group: list[pa.RecordBatch] = []
    size = 0
    for part in slices:
        needed = pa.ipc.get_record_batch_size(part)
        if needed > MAX_BATCH_BYTES:
            raise InvalidInputError(
                f"{part.num_rows} rows take {needed} bytes, one frame holds {MAX_BATCH_BYTES}"
            )
        if needed > MAX_INFLATED_BYTES:
            if group:
                yield from _stream([empty, *group], options, size)
                group, size = [], 0
            yield from _stream([empty, part], plain, needed)
            continue
        group.append(part)
        size += needed
        if size >= _STREAM_BYTES:
            yield from _stream([empty, *group], options, size)
            group, size = [], 0
    if group:
        yield from _stream([empty, *group], options, size)


def _stream(
    batches: Sequence[pa.RecordBatch], options: pa.ipc.IpcWriteOptions, size: int
) -> Iterator[memoryview]:
    """Yield the messages of all batches but the first, which is dropped together with the schema.

    They are written into memory of fixed size, because growing it takes a tenth of the encoding
    time. If compression makes the data longer than that memory, which is rare, they are written
    again into memory that grows.
    """
    memory = pa.allocate_buffer(size + size // 64 + _SPARE_BYTES)
    try:
        edges = _write(pa.FixedSizeBufferWriter(memory), batches, options)
    except OSError:
        sink = pa.BufferOutputStream()
        edges = _write(sink, batches, options)
        memory = sink.getvalue()
    stream = memoryview(memory).toreadonly().cast("B")
    for start, end in pairwise(edges):
        yield stream[start:end]


def _write(
    sink: pa.NativeFile, batches: Sequence[pa.RecordBatch], options: pa.ipc.IpcWriteOptions
) -> list[int]:
    """Return where the message of each batch ends."""
    writer = pa.ipc.new_stream(sink, batches[0].schema, options=options)
    edges = []
    for batch in batches:
        writer.write_batch(batch)
        edges.append(sink.tell())
    return edges


def _slices(batch: pa.RecordBatch, bounds: Sequence[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
    """Yield the slices in a form for which Arrow writes only their own rows.

    For an array of zero length, Arrow writes the offsets of the whole original array: 4 MB for a
    string column of a million rows. The same happens to strings inside lists that are all empty.
    Rows of a dense union that share a value get one each, because readers refuse shared values.
    """
    empty = _empty_like(batch)
    bare, dense = may_be_bare(batch.schema), holds_dense_union(batch.schema)
    nested = dense or any(pa.types.is_nested(field.type) for field in batch.schema)
    for start, length in bounds:
        part = batch.slice(start, length) if length else empty
        if bare:
            refuse_bare(part, MAX_INFLATED_BYTES, InvalidInputError)
        if nested and length:
            excess = pa.ipc.get_record_batch_size(part) - 2 * part.nbytes
            if excess > _EXCESS_BYTES or dense:
                part = part.take(pa.array(range(length), pa.int64()))
        yield part


def _empty_like(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.nulls(0, field.type) for field in batch.schema], schema=batch.schema
    )


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
