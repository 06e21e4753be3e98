"""Reading the pairs of a sealed object stage: many readers, no cursor. See `sealed_reader`."""

from collections.abc import Iterator

from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.errors import CorruptDataError, IncompatibleError
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.serialization.frames import FrameKind
from durable_shuffle.serialization.pair_codec import Pair, unpack_pairs
from durable_shuffle.shuffle.records import Seal
from durable_shuffle.shuffle.sealed_reader import fetch, place_of, read_extents
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.stage import StageHandle


def read_pairs(
    stage: StageHandle, seal: Seal, subpartition: int, settings: Settings
) -> Iterator[Pair]:
    """Yield the pairs of partition k, all producers in order, each producer's pairs in order.

    About `writer_memory_bytes` are in memory at a time.

    Raises:
        CorruptDataError: a frame fails its check or pairs do not add up; names the segment.
        NotFoundError: a segment is gone; says so if the stage was released.
    """
    entries = read_extents(stage, seal, subpartition)
    entries = entries[entries["rows"] > 0]
    ranges = [place_of(stage, entry) for entry in entries]
    for entry, (where, data) in zip(entries, fetch(stage, ranges, settings), strict=True):
        producer = int(entry["producer"])

        def seed(ordinal: int, producer: int = producer) -> int:
            return frame_seed(stage.path.incarnation, producer, subpartition, ordinal)

        first = int(entry["first_ordinal"])
        decoder = FrameDecoder(seed, first_ordinal=first, max_body_bytes=settings.max_frame_bytes)
        decoder.feed(data)
        try:
            while (frame := decoder.next_record()) is not NEED_DATA:
                if frame.kind is not FrameKind.MSGPACK:
                    raise IncompatibleError(f"frame of kind {frame.kind.name} in an object stage")
                yield from unpack_pairs(frame.body, frame.rows)
            decoder.end()
        except CorruptDataError as error:
            end = where.start + where.length
            raise CorruptDataError(
                f"{error}: segment={where.key!r} bytes=[{where.start}, {end}) "
                f"subpartition={subpartition}"
            ) from error
        found = decoder.next_ordinal - first
        if found != int(entry["rows"]):
            raise CorruptDataError(
                f"rows delivered are not rows committed: expected={int(entry['rows'])} "
                f"found={found} segment={where.key!r} subpartition={subpartition}"
            )
