"""Worker side of the read: checked frames, as they are stored, in blocks for the Java decoder.

Each block begins with its number and its flags, u64 both. The bytes behind that, of all blocks of a
task, are one stream of frames, cut anywhere. In the stream each frame is a magic number, u32, its
rows, u32, and the bytes of its body, u64; then the body. An entry of the same form with another
magic number and no rows says, in UTF-8, where the frames behind it are stored: errors of the
decoder name it. The last block has flag 1 and states how many frames and rows there were, u64 both.
So Java notices if blocks are lost, doubled or out of order on the way (`decode/blocks.java`).

Blocks are short, because Spark's JVM allocates each as one array. Arrays of half a MiB or more
are a burden for its garbage collector.
"""

import struct
from collections.abc import Iterable, Iterator

from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import IncompatibleError
from durable_shuffle.serialization.frames import FRAME_MAGIC, Frame, FrameKind
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.sealed_reader import Pieces

BLOCK_BYTES = 256 * 1024
"""Longest block, its header included."""

_LAST = 1
_PLACE_MAGIC = 0x43414C50  # "PLAC"
_BLOCK = struct.Struct("<QQ")
_FRAME = struct.Struct("<IIQ")
_SUMS = struct.Struct("<QQ")


def raw_frame(frame: Frame, begin: int, _before: int) -> tuple[Frame]:
    """Return the frame as it is; for `Extent.frames`, whose checks it has passed.

    Raises:
        IncompatibleError: the frame does not hold an Arrow batch.
    """
    if frame.kind is not FrameKind.ARROW:
        raise IncompatibleError(
            f"frame at byte {begin}: frame of kind {frame.kind.name} in an Arrow stage"
        )
    return (frame,)


def frames_of(
    stage: StageHandle, extents: Iterable[tuple[Extent, Pieces]], settings: Settings
) -> Iterator[Frame | str]:
    """Yield the frames of extents in their order, each checked, and all rows counted.

    Each extent begins with its place, for messages.

    Args:
        extents: with their bytes, see `fetch_extents`.

    Raises:
        CorruptDataError: a frame fails its check or rows do not add up; names the segment.
        IncompatibleError: see `raw_frame`.
    """
    incarnation, limit = stage.path.incarnation, settings.max_frame_bytes
    for extent, pieces in extents:
        yield extent.place
        yield from extent.frames(pieces, incarnation, raw_frame, max_body_bytes=limit)


def blocks_of(frames: Iterator[Frame | str], *, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the blocks of one task, all its frames in order; the last block always comes.

    Holds one block, and the frames of which it has bytes.

    Args:
        frames: of the whole task, and their places, see `frames_of`.
        block_bytes: longest block, its header included.
    """
    number = count = rows = 0
    parts: list[memoryview] = []
    most = room = block_bytes - _BLOCK.size
    for frame in frames:
        if isinstance(frame, str):
            place = frame.encode()
            pieces: tuple[Bytes, ...] = (_FRAME.pack(_PLACE_MAGIC, 0, len(place)), place)
        else:
            count += 1
            rows += frame.rows
            pieces = (_FRAME.pack(FRAME_MAGIC, frame.rows, frame.body.nbytes), frame.body)
        for piece in pieces:
            left = memoryview(piece)
            while left:
                parts.append(left[:room])
                left = left[room:]
                room -= len(parts[-1])
                if not room:
                    yield b"".join([_BLOCK.pack(number, 0), *parts])
                    number, parts, room = number + 1, [], most
        del piece, pieces, frame
    if parts:
        yield b"".join([_BLOCK.pack(number, 0), *parts])
        number += 1
    yield _BLOCK.pack(number, _LAST) + _SUMS.pack(count, rows)
