"""From checked frames to record batches: the last step before a view hands records out."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import decode_frame
from durable_shuffle.serialization.arrow_schemas import fit_batch, schema_from_bytes
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.frames import FrameKind
from durable_shuffle.serialization.markers import Marker, decode_marker
from durable_shuffle.shuffle.read.extent_feed import EndOfInput
from durable_shuffle.shuffle.read.frame_source import FrameSource, NothingYet, PlacedFrame


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """A frame and the records in it."""

    placed: PlacedFrame
    batch: pa.RecordBatch | None
    """None for a marker, and for a frame of which nothing is wanted."""
    marker: Marker | None = None


@dataclass(frozen=True, slots=True)
class PlacedMarker:
    """A marker as a view hands it out."""

    producer: int
    marker: Marker


@dataclass(frozen=True, slots=True)
class BatchSource:
    """Decodes frames of Arrow records. Not thread-safe.

    Args:
        schema: the stage's; columns that were added to it later are left out.
        wanted: says of a frame whether any of its records will be handed out.
        check_offsets: see `Settings`.
    """

    frames: FrameSource
    schema: pa.Schema
    wanted: Callable[[PlacedFrame], bool]
    check_offsets: bool = True

    def next(self) -> PlacedBatch | EndOfInput | NothingYet:
        """Return the next frame, decoded.

        Raises:
            CorruptDataError: the frame is damaged or holds other rows than it states.
            IncompatibleError: it holds no Arrow records.
        """
        placed = self.frames.next()
        if not isinstance(placed, PlacedFrame):
            return placed
        frame = placed.frame
        if frame.kind is FrameKind.MARKER:
            return PlacedBatch(placed, None, decode_marker(frame.body, name=placed.extent.key))
        if not self.wanted(placed):
            return PlacedBatch(placed, None)
        own = placed.extent.schema
        schema = schema_from_bytes(own, name=placed.extent.place) if own else self.schema
        try:
            batch = decode_frame(
                frame, schema, position=placed.offset, check_offsets=self.check_offsets
            )
            batch = fit_batch(batch, self.schema) if own else batch
        except CorruptDataError as e:
            raise CorruptDataError(f"{e}: segment={placed.extent.key!r}") from e
        return PlacedBatch(placed, batch)
