"""A consumer's outputs: objects of Arrow frames that count once an acknowledgement names them.

Strategy: write an output whole, under a random name, before the record that publishes it. The
checksums of its frames are seeded with that name, so an object under another name fails its check.
Objects that no record names are garbage; gc deletes them.
"""

import hashlib
from collections.abc import Iterable, Iterator

import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import decode_frame, iter_slices
from durable_shuffle.serialization.arrow_schemas import storable_batch
from durable_shuffle.serialization.checksum import Bytes, frame_seed
from durable_shuffle.serialization.frames import (
    MAX_FRAME_BODY_BYTES,
    Frame,
    FrameKind,
    record_parts,
)
from durable_shuffle.shuffle.consume.task import ConsumerTask
from durable_shuffle.shuffle.log.consumer_records import OutputRef
from durable_shuffle.shuffle.read.extents import read_frames
from durable_shuffle.shuffle.storage.contract import ByteRange, Storage
from durable_shuffle.shuffle.storage.range_plan import PIECE_BYTES, read_pieces
from durable_shuffle.shuffle.write.segments import frame_bounds, wanted_bytes


def write_output(
    task: ConsumerTask, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> OutputRef:
    """Write one output of a consumer task; pass the result to `ack(outputs=...)`.

    The output counts only once a record names it. Otherwise it is garbage, which `gc` deletes.

    Args:
        schema: the schema of all outputs of this consumer. It is not stored; the reader must know
            it.
        batches: held in memory until the object is written.
    """
    name = task.ids.new_id()
    parts: list[Bytes] = []
    digest = hashlib.sha256()
    rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        stored = storable_batch(batch, schema)
        limit = task.settings.max_frame_bytes
        bounds = list(frame_bounds(stored, 0, stored.num_rows, wanted_bytes(limit, limit)))
        bodies = iter_slices(stored, bounds, task.settings.compression)
        for body, (_, count) in zip(bodies, bounds, strict=True):
            seed = frame_seed(name, 0, 0, rows)
            for part in record_parts(FrameKind.ARROW, count, body, seed, max_body_bytes=limit):
                parts.append(part)
                digest.update(part)
            rows += count
    key = task.path.output_key(name)
    task.storage.put(key, parts)
    length = sum(memoryview(part).nbytes for part in parts)
    return OutputRef(key, length, rows, digest.digest())


def read_output(storage: Storage, output: OutputRef, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one output.

    Raises:
        CorruptDataError: the object differs from the published output; the message names it.
        NotFoundError: the object is missing.
    """
    name = output.key.rsplit("/", 1)[-1]
    pieces = read_pieces(storage, ByteRange(output.key, 0, output.length), 4 * PIECE_BYTES)

    def batch_of(frame: Frame, begin: int, _before: int) -> tuple[pa.RecordBatch]:
        return (decode_frame(frame, schema, position=begin),)

    yield from read_frames(
        pieces,
        lambda ordinal: frame_seed(name, 0, 0, ordinal),
        batch_of,
        rows=output.rows,
        place=f"output={output.key!r}",
        max_body_bytes=MAX_FRAME_BODY_BYTES,
    )
