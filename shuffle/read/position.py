"""Positions: how far a consumer is in one partition, per producer. Pure.

A position holds, for each producer, the ordinal of the next record, also inside a frame. It also
holds a hint, the place of that record's frame, so that a resumed view seeks instead of reading its
way there. A hint is never proof: its reader checks the frame's checksum, which is seeded with the
frame's ordinal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from durable_shuffle.serialization.errors import CorruptDataError

POSITION = np.dtype(
    [
        ("producer", "<u4"),
        ("segment", "<u4"),
        ("slot", "<u4"),
        ("frame_back", "<u4"),
        ("next_ordinal", "<u8"),
        ("frame_offset", "<u8"),
    ]
)
"""One producer's entry as stored, 32 bytes; producers without an entry are at ordinal 0."""


@dataclass(frozen=True, slots=True)
class ProducerPosition:
    """How far a consumer is in the records that one producer wrote for it."""

    next_ordinal: int
    """Ordinal of the next record, from 0."""
    segment: int = 0
    """Hint: number of the segment, within its attempt, that holds the next record's frame."""
    slot: int = 0
    """Hint: which attempt's segment it is, see `Extent.slot`."""
    frame_offset: int = 0
    """Hint: byte of the segment at which that frame, or one before it, starts; 0 with `frame_back`
    0 if unknown."""
    frame_back: int = 0
    """Hint: number of records from that frame's first record to the next record."""

    @property
    def frame_ordinal(self) -> int:
        """Hint: ordinal of that frame's first record."""
        return self.next_ordinal - self.frame_back

    def at(self, ordinal: int) -> "ProducerPosition":
        """Return the position before record `ordinal`, with the same hint.

        Args:
            ordinal: of a record of the hint's frame, or behind it in its segment.
        """
        return replace(self, next_ordinal=ordinal, frame_back=ordinal - self.frame_ordinal)


AT_START = ProducerPosition(0)

Positions = Mapping[int, ProducerPosition]
"""Producer -> position; a producer that is missing is at its start."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a consumer is in one partition: an immutable value, made by a view."""

    stage: str
    """The stage's folder below the job."""
    subpartition: int
    producers: Positions

    @property
    def ordinals(self) -> dict[int, int]:
        """Ordinal of the next record, per producer that is not at its start."""
        return {p: at.next_ordinal for p, at in self.producers.items()}

    @property
    def records(self) -> int:
        """The number of records before this position."""
        return sum(at.next_ordinal for at in self.producers.values())


def refuse_unknown(positions: Positions, producers: int, *, name: str) -> None:
    """Refuse positions of producers that there are not.

    Args:
        producers: M.
        name: of the stage, for messages.

    Raises:
        CorruptDataError: names the first such producer.
    """
    if (last := max(positions, default=-1)) >= producers:
        raise CorruptDataError(f"{name}: a position of producer {last}, there are {producers}")


def ordinal_of(positions: Positions, producer: int) -> int:
    """Return the ordinal of the next record of a producer."""
    return positions.get(producer, AT_START).next_ordinal


def pack_positions(positions: Positions) -> bytes:
    """Return the entries, ascending by producer; equal positions are equal bytes."""
    entries = np.zeros(len(positions), dtype=POSITION)
    for n, producer in enumerate(sorted(positions)):
        at = positions[producer]
        entries[n] = (
            producer,
            at.segment,
            at.slot,
            at.frame_back,
            at.next_ordinal,
            at.frame_offset,
        )
    return entries.tobytes()


def unpack_positions(data: bytes, *, name: str) -> dict[int, ProducerPosition]:
    """Return what `pack_positions` packed.

    Args:
        name: of the record, for messages.

    Raises:
        CorruptDataError: not a whole number of entries, or producers that do not ascend.
    """
    if len(data) % POSITION.itemsize:
        raise CorruptDataError(
            f"{name}: positions have {len(data)} bytes, expected a multiple of {POSITION.itemsize}"
        )
    entries = np.frombuffer(data, dtype=POSITION)
    if (np.diff(entries["producer"].astype(np.int64)) <= 0).any():
        raise CorruptDataError(f"{name}: positions name producers twice or out of order")
    return {
        producer: ProducerPosition(next_ordinal, segment, slot, frame_offset, frame_back)
        for producer, segment, slot, frame_back, next_ordinal, frame_offset in entries.tolist()
    }


def changed(before: Positions, after: Positions) -> dict[int, ProducerPosition]:
    """Return the entries of `after` that differ from those of `before`."""
    return {p: at for p, at in after.items() if before.get(p) != at}


def first_behind(before: Positions, after: Positions) -> int | None:
    """Return a producer for which `after` lies behind `before`, None if there is none."""
    for producer, at in before.items():
        if ordinal_of(after, producer) < at.next_ordinal:
            return producer
    return None


def records_between(before: Positions, after: Positions) -> int:
    """Return how many records lie in [before, after), over all producers."""
    producers = {*before, *after}
    return sum(ordinal_of(after, p) - ordinal_of(before, p) for p in producers)
