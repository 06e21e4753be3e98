"""Reading pieces: the rows of a stream step or a batch read, wherever a task runs.

Every frame's checksum is checked, also of frames of which nothing is wanted; rows are reconciled
with what was committed.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import decode_frame, schema_from_bytes
from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.shuffle.extent_feed import shifted
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
    for piece, (_, data) in zip(pieces, fetch(stage, ranges, settings), strict=True):
        try:
            yield from _rows(stage, piece, data, schemas[piece.schema], settings)
        except CorruptDataError as e:
            raise CorruptDataError(
                f"{e}: segment={piece.key!r} bytes=[{piece.offset}, {piece.offset + piece.length}) "
                f"subpartition={piece.subpartition}"
            ) from e


def _rows(
    stage: StageHandle, piece: Piece, data: memoryview, schema: pa.Schema, settings: Settings
) -> Iterator[pa.RecordBatch]:
    def seed(ordinal: int) -> int:
        at = shifted(ordinal, piece.seeded)
        return frame_seed(stage.path.incarnation, piece.producer, piece.subpartition, at)

    decoder = FrameDecoder(seed, max_body_bytes=settings.max_frame_bytes)
    decoder.feed(data)
    first = at = 0
    while (frame := decoder.next_record()) is not NEED_DATA:
        skip, end = max(0, piece.skip - first), min(frame.rows, piece.end - first)
        first += frame.rows
        start, at = at, decoder.record_position
        if skip >= end:
            continue
        batch = decode_frame(frame, schema, at=start, check_offsets=settings.check_offsets)
        yield batch.slice(skip, end - skip)
    decoder.end()
    if first != piece.rows:
        raise CorruptDataError(
            f"rows delivered are not rows committed: expected={piece.rows} found={first}"
        )
