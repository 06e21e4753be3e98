"""Worker side of the read: checked frames, as they are stored, in blocks for the Java decoder.

A block is one binary value in one row. Each begins with its number and its flags, u64 both. The
bytes behind that, of all blocks of a task, are one stream of frames, cut anywhere. In the stream
each frame is a magic number, u32, its rows, u32, and the bytes of its body, u64; then the body. An
entry of the same form with another magic number and no rows says, in UTF-8, where the frames behind
it are stored: errors of the decoder name it. The
last block has flag 1 and states how many frames and rows there were, u64 both. So Java notices if
blocks are lost, doubled or out of order on the way (`decode/decode.java`).

Blocks are short, because Spark's JVM allocates each as one array. Arrays of half a MiB or more
are a burden for its garbage collector.
"""

import struct
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import arrow_of
from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import IncompatibleError
from durable_shuffle.serialization.frames import FRAME_MAGIC, Frame, FrameKind
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.sealed_reader import Pieces

BLOCK_COLUMN = "block"
BLOCKS_SCHEMA = f"{BLOCK_COLUMN} binary"
BLOCK_BYTES = 256 * 1024
"""Longest block, its header included."""
BATCH_BLOCKS = 4
"""How many blocks stand in one Arrow batch. Each batch costs time in both processes."""

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


def blocks_of(
    frames: Iterator[Frame | str],
    *,
    block_bytes: int = BLOCK_BYTES,
    batch_blocks: int = BATCH_BLOCKS,
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks of one task, all its frames in order; the last block always comes.

    Holds one batch, and one frame.

    Args:
        frames: of the whole task, and their places, see `frames_of`.
        block_bytes: longest block, its header included.
        batch_blocks: most blocks in a batch.
    """
    batch = _Batch(block_bytes, batch_blocks)
    count = rows = 0
    for frame in frames:
        if isinstance(frame, str):
            place = frame.encode()
            pieces: tuple[Bytes, ...] = (_FRAME.pack(_PLACE_MAGIC, 0, len(place)), place)
        else:
            count += 1
            rows += frame.rows
            pieces = (_FRAME.pack(FRAME_MAGIC, frame.rows, frame.body.nbytes), frame.body)
        for piece in pieces:
            taken, length = 0, len(piece)
            while taken < length:
                taken += batch.put(piece, taken)
                if batch.full:
                    yield batch.finish()
        del piece, pieces, frame
    batch.put_last(count, rows)
    yield batch.finish()


class _Batch:
    """Fills the memory of one batch of blocks, block after block."""

    def __init__(self, block_bytes: int, batch_blocks: int) -> None:
        self._block_bytes, self._batch_blocks = block_bytes, batch_blocks
        self._number = 0
        self._new()

    def _new(self) -> None:
        last = _BLOCK.size + _SUMS.size
        self._memory = pa.allocate_buffer(self._block_bytes * self._batch_blocks + last)
        self._bytes = memoryview(self._memory).cast("B")
        self._edges = [0]
        """Where blocks begin, and the open block after its header."""
        self._end = 0
        self._open = False

    @property
    def full(self) -> bool:
        """Whether no byte fits any more."""
        return not self._open and len(self._edges) > self._batch_blocks

    def put(self, data: Bytes, first: int) -> int:
        """Append the bytes of `data` from `first` on that fit into the open block; return how many.

        At least one fits, unless the batch is full.
        """
        if not self._open:
            self._begin(0)
        start = self._edges[-1]
        taken = min(len(data) - first, start + self._block_bytes - self._end)
        self._bytes[self._end : self._end + taken] = data[first : first + taken]
        self._end += taken
        if self._end == start + self._block_bytes:
            self._close()
        return taken

    def put_last(self, frames: int, rows: int) -> None:
        """Append the last block of the task."""
        if self._open:
            self._close()
        self._begin(_LAST)
        _SUMS.pack_into(self._bytes, self._end, frames, rows)
        self._end += _SUMS.size
        self._close()

    def finish(self) -> pa.RecordBatch:
        """Return the blocks, and start the next batch."""
        offsets = arrow_of(np.array(self._edges, dtype=np.int32)).buffers()[1]
        buffers = [None, offsets, self._memory.slice(0, self._end)]
        blocks = pa.Array.from_buffers(pa.binary(), len(self._edges) - 1, buffers)
        self._new()
        return pa.RecordBatch.from_arrays([blocks], names=[BLOCK_COLUMN])

    def _begin(self, flags: int) -> None:
        _BLOCK.pack_into(self._bytes, self._end, self._number, flags)
        self._number += 1
        self._end += _BLOCK.size
        self._open = True

    def _close(self) -> None:
        self._edges.append(self._end)
        self._open = False
