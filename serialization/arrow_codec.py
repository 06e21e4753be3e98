"""Arrow batches as frame bodies: each body is one encapsulated Arrow IPC record batch message.

Strategy: the schema is stored once, elsewhere. A stream writer writes it first, and the messages
after it are sliced out of the writer's buffer without copying. Arrow's threads are off, because
slices are small and a Spark worker has one core. 200 slices of one million rows x 16 columns took
45 ms without threads and 150 ms with them; with lz4, 0.20 s and 0.23 s.

Columns are stored only in plain layouts. Dictionaries would need their own messages, views would
put all their data into every slice, and `take` supports neither views nor run-end encoding.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import pyarrow as pa

from durable_shuffle.serialization.arrow_checks import (
    MAX_BATCH_BYTES,
    MAX_INFLATED_BYTES,
    check_columns,
    check_lengths,
    holds_dense_union,
)
from durable_shuffle.serialization.bare_values import may_be_bare, refuse_bare
from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.frames import Frame, FrameKind

ArrowCompression: TypeAlias = Literal["lz4", "zstd", "none"]

_COMPRESSION: dict[str, str | None] = {"lz4": "lz4", "zstd": "zstd", "none": None}
# what pyarrow raises for bad bytes: ArrowException, and plain OSError, EOFError, KeyError,
# TypeError and NotImplementedError from its readers. MemoryError is not here: it is no damage.
_ARROW_ERRORS = (
    pa.ArrowException,
    OSError,
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    OverflowError,
    NotImplementedError,
    struct.error,
)
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
        msg = f"compression: expected one of {', '.join(_COMPRESSION)}, found {compression!r}"
        raise InvalidInputError(msg)
    if storable_schema(batch.schema) != batch.schema:
        msg = f"columns must be stored plain, see storable_batch; found {batch.schema.types}"
        raise InvalidInputError(msg)
    for start, length in bounds:
        if start < 0 or length < 0 or start + length > batch.num_rows:
            msg = f"slice ({start}, {length}) is outside a batch of {batch.num_rows} rows"
            raise InvalidInputError(msg)
    options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION[compression], use_threads=False)
    return _messages(_slices(batch, bounds), _empty_like(batch), options)


def decode_frame(
    frame: Frame, schema: pa.Schema, *, at: int, check_offsets: bool = True
) -> pa.RecordBatch:
    """Return the rows of a frame. See `decode_batch`.

    Args:
        at: position of the frame in bytes, for messages; see `FrameDecoder.position`.

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
        raise CorruptDataError(f"frame at byte {at}: {error}") from error
    if batch.num_rows != frame.rows:
        msg = f"frame at byte {at}: it states {frame.rows} rows and holds {batch.num_rows}"
        raise CorruptDataError(msg)
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
    found = memoryview(body).nbytes
    try:
        message = pa.ipc.read_message(pa.py_buffer(body))
        metadata, data = memoryview(message.metadata), memoryview(message.body or b"")
        expected = _PREFIX_BYTES + metadata.nbytes + data.nbytes
        if found != expected:
            raise ValueError(f"expected {expected} bytes, found {found}")
        check_lengths(metadata, data, max_bytes)
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate()
        refuse_bare(batch, max_bytes, CorruptDataError)
        if check_offsets:
            check_columns(batch)
    except CorruptDataError as error:
        raise CorruptDataError(f"arrow body of {found} bytes: {error}") from error
    except _ARROW_ERRORS as error:
        msg = f"arrow body of {found} bytes: {type(error).__name__}: {error}"
        raise CorruptDataError(msg) from error
    return batch


def storable_schema(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with plain layouts instead of dictionaries, views and run-end encoding.

    Names, order, nullability and metadata stay. A schema that is storable is returned unchanged.

    Raises:
        InvalidInputError: an extension type is built on such a layout.
    """
    fields = [field.with_type(_storable_type(field.type, field.name)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def storable_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` converted to `schema`, which comes from `storable_schema`.

    Raises:
        InvalidInputError: a column cannot be converted; it is named.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if batch.num_columns != len(schema):
        msg = f"batch: expected {len(schema)} columns, found {batch.num_columns}"
        raise InvalidInputError(msg)
    if not batch.num_columns:
        return batch.replace_schema_metadata(schema.metadata)
    columns = [_convert(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def under_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the same rows under another schema of the same types; nothing is converted.

    A batch without columns keeps its number of rows, which `RecordBatch.from_arrays` would lose.
    """
    if not batch.num_columns and not len(schema):
        return batch.replace_schema_metadata(schema.metadata)
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def schema_to_bytes(schema: pa.Schema) -> bytes:
    """Return `schema` as one Arrow IPC schema message."""
    raw: bytes = schema.serialize().to_pybytes()
    return raw


def schema_from_bytes(data: Bytes) -> pa.Schema:
    """Return the schema in `data`.

    Raises:
        CorruptDataError: the bytes are not an Arrow IPC schema message; or the schema has layouts
            that are never stored, in which a few bytes can stand for any number of values.
    """
    try:
        found = pa.ipc.read_schema(pa.py_buffer(data))
        storable = storable_schema(found) == found
    except (*_ARROW_ERRORS, InvalidInputError) as error:
        msg = f"arrow schema of {memoryview(data).nbytes} bytes: {error}"
        raise CorruptDataError(msg) from error
    if not storable:
        raise CorruptDataError(f"columns are not stored plain: {found.types}")
    return found


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
            msg = f"{part.num_rows} rows take {needed} bytes, one frame holds {MAX_BATCH_BYTES}"
            raise InvalidInputError(msg)
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


def _convert(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    import pyarrow.compute as pc  # 30 ms that tasks which only read do not need

    try:
        if pa.types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        elif pa.types.is_dictionary(column.type):
            column = column.dictionary.take(column.indices)
        elif isinstance(column, pa.ListViewArray | pa.LargeListViewArray):
            column = _plain_list(column)
        column = column.cast(field.type)
        column.validate()
    except _ARROW_ERRORS as error:
        msg = f"column {field.name!r}: cannot store {column.type} as {field.type}: {error}"
        raise InvalidInputError(msg) from error
    return column


def _plain_list(column: pa.Array) -> pa.Array:
    """Return a list view as a list. Arrow's own cast leaves the last offset out (26.0.1)."""
    import pyarrow.compute as pc

    wide = isinstance(column, pa.LargeListViewArray)
    lengths = pc.fill_null(column.value_lengths(), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    plain = pa.LargeListArray if wide else pa.ListArray
    return plain.from_arrays(
        offsets.cast(pa.int64() if wide else pa.int32()), column.flatten(), mask=column.is_null()
    )


def _storable_type(kind: pa.DataType, column: str) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _storable_type(kind.value_type, column)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if isinstance(kind, pa.BaseExtensionType):
        if _storable_type(kind.storage_type, column) != kind.storage_type:
            msg = f"column {column!r}: extension type {kind} is not stored plain"
            raise InvalidInputError(msg)
        return kind
    if not types.is_nested(kind):
        return kind
    children = [kind.field(i) for i in range(kind.num_fields)]
    plain = [child.with_type(_storable_type(child.type, column)) for child in children]
    return _rebuilt(kind, children, plain)


def _rebuilt(kind: pa.DataType, children: list[pa.Field], plain: list[pa.Field]) -> pa.DataType:
    types = pa.types
    if types.is_list_view(kind):
        return pa.list_(plain[0])
    if types.is_large_list_view(kind):
        return pa.large_list(plain[0])
    if plain == children:
        return kind
    if types.is_list(kind):
        return pa.list_(plain[0])
    if types.is_large_list(kind):
        return pa.large_list(plain[0])
    if types.is_fixed_size_list(kind):
        return pa.list_(plain[0], kind.list_size)
    if types.is_struct(kind):
        return pa.struct(plain)
    if types.is_map(kind):
        entries = plain[0].type
        return pa.map_(entries.field(0), entries.field(1), keys_sorted=kind.keys_sorted)
    return pa.union(plain, mode=kind.mode, type_codes=kind.type_codes)
