"""Reading the pairs of a sealed object stage: many readers, no cursor. See `sealed_reader`."""

from collections.abc import Iterable, Iterator

from durable_shuffle.serialization.errors import IncompatibleError
from durable_shuffle.serialization.frames import Frame, FrameKind
from durable_shuffle.serialization.msgpack_codec import Pair, unpack_pairs
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.sealed_reader import fetch_extents


def read_pairs(
    stage: StageHandle, seal: Seal, subpartition: int, settings: Settings
) -> Iterator[Pair]:
    """Yield the pairs of partition k, all producers in order, each producer's pairs in order.

    About `writer_memory_bytes` are in memory at a time.

    Raises:
        CorruptDataError: a frame fails its check or pairs do not add up; names the segment.
        NotFoundError: a segment is gone; says so if the stage was released.
    """
    incarnation, limit = stage.path.incarnation, settings.max_frame_bytes
    for extent, pieces in fetch_extents(stage, seal, subpartition, settings):
        yield from extent.frames(pieces, incarnation, _pairs, max_body_bytes=limit)


def _pairs(frame: Frame, _begin: int, _before: int) -> Iterable[Pair]:
    if frame.kind is not FrameKind.MSGPACK:
        raise IncompatibleError(f"frame of kind {frame.kind.name} in an object stage")
    return unpack_pairs(frame.body, frame.rows)
