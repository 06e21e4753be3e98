"""Reading pieces: the rows of a stream step or a batch read, wherever a task runs.

Every frame's checksum is checked, also of frames of which nothing is wanted; rows are reconciled
with what was committed.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import decode_frame, schema_from_bytes
from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.frames import Frame
from durable_shuffle.shuffle.extent_feed import shifted
from durable_shuffle.shuffle.extent_frames import place_text, read_frames
from durable_shuffle.shuffle.sealed_reader import fetch
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.stage import StageHandle
from durable_shuffle.shuffle.storage import ByteRange
from durable_shuffle.shuffle.stream_scan import Piece


def read_pieces(
    stage: StageHandle, pieces: Sequence[Piece], settings: Settings
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of each piece, in order, in the schema in which they are stored.

    Raises:
        CorruptDataError: a frame fails its check, or rows do not add up; names the segment.
        NotFoundError: a segment is gone; says so if the stage was released.
    """
    ranges = [ByteRange(piece.key, piece.offset, piece.length) for piece in pieces]
    schemas = {data: schema_from_bytes(data) for data in {piece.schema for piece in pieces}}
    for piece, (where, data) in zip(pieces, fetch(stage, ranges, settings), strict=True):
        yield from _rows(stage, piece, where, data, schemas[piece.schema], settings)


def _rows(
    stage: StageHandle,
    piece: Piece,
    where: ByteRange,
    data: memoryview,
    schema: pa.Schema,
    settings: Settings,
) -> Iterator[pa.RecordBatch]:
    def seed(ordinal: int) -> int:
        seeded = shifted(ordinal, piece.seeded)
        return frame_seed(stage.path.incarnation, piece.producer, piece.subpartition, seeded)

    def wanted(frame: Frame, begin: int, before: int) -> Iterator[pa.RecordBatch]:
        skip, end = max(0, piece.skip - before), min(frame.rows, piece.end - before)
        if skip < end:
            batch = decode_frame(frame, schema, at=begin, check_offsets=settings.check_offsets)
            yield batch.slice(skip, end - skip)

    return read_frames(
        data,
        seed,
        wanted,
        rows=piece.rows,
        place=place_text(where, piece.subpartition),
        max_body_bytes=settings.max_frame_bytes,
    )
