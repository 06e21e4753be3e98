"""Read pieces: the rows of a stream step or a batch read, in a task on any executor.

The checksum of every frame is checked, even of frames without wanted rows, and the number of rows
is compared with what was committed.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import decode_frame
from durable_shuffle.serialization.arrow_schemas import schema_from_bytes
from durable_shuffle.serialization.frames import Frame
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.sealed_reader import Pieces, fetch
from durable_shuffle.shuffle.stream.scan import Piece


def read_pieces(
    stage: StageHandle, pieces: Sequence[Piece], settings: Settings
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of each piece, in order, in the schema in which they were stored.

    Raises:
        CorruptDataError: a frame fails its check, or the number of rows is not the committed one;
            the message names the segment.
        NotFoundError: a segment is missing; the message says if the stage was released.
    """
    extents = [piece.extent for piece in pieces]
    places = {extent.schema: extent.place for extent in extents if extent.schema}
    schemas = {b"": stage.schema} | {
        data: schema_from_bytes(data, name=place) for data, place in places.items()
    }
    for piece, (_, parts) in zip(
        pieces, fetch(stage, [extent.where for extent in extents], settings), strict=True
    ):
        yield from _rows(stage, piece, parts, schemas[piece.extent.schema], settings)


def _rows(
    stage: StageHandle, piece: Piece, parts: Pieces, schema: pa.Schema, settings: Settings
) -> Iterator[pa.RecordBatch]:
    def wanted(frame: Frame, begin: int, before: int) -> Iterator[pa.RecordBatch]:
        skip, end = max(0, piece.skip - before), min(frame.rows, piece.end - before)
        if skip < end:
            batch = decode_frame(
                frame, schema, position=begin, check_offsets=settings.check_offsets
            )
            yield batch.slice(skip, end - skip)

    limit = settings.max_frame_bytes
    return piece.extent.frames(parts, stage.path.incarnation, wanted, max_body_bytes=limit)
