"""Markers: messages that a producer puts between its records, for every consumer.

A marker is a frame of kind MARKER with 0 rows, whose body is a control record. It comes after the
records that were written before it. It is not a record and has no ordinal; the consumer decides
what it means.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.frames import FrameKind, frame_parts

EndMode = Literal["FINITE", "DRAIN", "SUSPEND"]
"""How a producer ended: its input ended, it was told to finish, or it will continue later."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All records before this belong to checkpoint `id` or an earlier one."""

    KIND: ClassVar[str] = "CHECKPOINT"
    id: int
    """From 0."""


@dataclass(frozen=True, slots=True)
class EndOfData:
    """No more records follow. After mode SUSPEND more may follow; the next record cancels it."""

    KIND: ClassVar[str] = "END_OF_DATA"
    mode: EndMode


Marker = Checkpoint | EndOfData

_MARKERS: RecordCodec[Marker] = RecordCodec((Checkpoint, EndOfData))


def marker_frame(marker: Marker, seed: int) -> tuple[Bytes, ...]:
    """Return the parts of the marker's frame; write them one after the other.

    Args:
        seed: `checksum.frame_seed` with the ordinal of the next record.

    Raises:
        InvalidInputError: not a marker, or a field of another type.
    """
    return frame_parts(FrameKind.MARKER, 0, _MARKERS.encode(marker), seed)


def decode_marker(body: Bytes, *, name: str) -> Marker:
    """Return the marker in the body of a frame of kind MARKER.

    Raises:
        CorruptDataError: the bytes are not a control record.
        IncompatibleError: an intact record of another version or kind; names `name`.
    """
    return _MARKERS.decode(body, name)
