"""Track what a view has handed out, and which of it may be acknowledged. Pure."""

from dataclasses import dataclass, field, replace

from durable_shuffle.serialization.buffers import Buffer
from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.shuffle.consume.resume_set import InputKey
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.feed import EndOfInput
from durable_shuffle.shuffle.read.position import (
    Position,
    ProducerPosition,
    first_behind,
    ordinal_of,
)


@dataclass(slots=True)
class Delivered:
    """The records that a view has handed out. Grows record by record or buffer by buffer, and
    refuses gaps."""

    key: InputKey
    producers: dict[int, ProducerPosition]
    """Per producer, the position after the last record that was handed out, if only in part."""
    _cut: dict[int, int] = field(default_factory=dict, init=False)
    """Per producer, the ordinal of a record that was handed out only in part so far."""

    @property
    def position(self) -> Position:
        """The position after everything that was handed out, in part or whole."""
        return Position(*self.key, dict(self.producers))

    @property
    def whole(self) -> Position:
        """The position up to which every record was handed out whole."""
        whole = dict(self.producers)
        for producer, ordinal in self._cut.items():
            whole[producer] = whole[producer].at(ordinal)
        return Position(*self.key, whole)

    def rows(self, producer: int, after: ProducerPosition) -> None:
        """Note that the producer's rows up to `after` are handed out."""
        self.producers[producer] = after

    def skipped(self, extent: Extent, first_ordinal: int) -> int:
        """Return how many records from `first_ordinal` on were already handed out.

        Raises:
            CorruptDataError: records before `first_ordinal` were not handed out.
        """
        delivered = ordinal_of(self.producers, extent.producer)
        if first_ordinal > delivered:
            raise CorruptDataError(
                f"records are missing: producer={extent.producer} expected ordinal {delivered}, "
                f"found {first_ordinal}: segment={extent.key!r}"
            )
        return delivered - first_ordinal

    def check_begins(self, extent: Extent, buffer: Buffer) -> None:
        """Refuse a buffer whose first frame holds records that were already handed out.

        Raises:
            InvalidInputError: the position lies inside that frame.
        """
        if buffer.carry_bytes or buffer.marker:
            return
        if self.skipped(extent, buffer.first_ordinal):
            raise InvalidInputError(
                f"the position lies inside a frame, which buffers do not cut: producer="
                f"{extent.producer} next_ordinal={self.producers[extent.producer].next_ordinal} "
                f"frame from={buffer.first_ordinal}; read batches or records"
            )

    def frame(self, extent: Extent, buffer: Buffer, offset: int) -> ProducerPosition:
        """Return the position of the first frame that starts in `buffer`.

        If no frame starts there, return the position of the last known frame of the same segment.

        Args:
            offset: of the buffer in its segment, in bytes.
        """
        first = ProducerPosition(buffer.whole_ordinal, extent.segment, extent.slot)
        if buffer.carry_ends:
            begins = offset + buffer.carry_bytes
            return replace(first, next_ordinal=buffer.first_ordinal, frame_offset=begins)
        known = self.producers.get(extent.producer, first)
        same = (known.segment, known.slot) == (extent.segment, extent.slot)
        return known.at(known.frame_ordinal) if same else first

    def buffer(self, extent: Extent, buffer: Buffer, offset: int) -> None:
        """Note that `buffer` is handed out."""
        producer = extent.producer
        if buffer.cut:
            self._cut[producer] = buffer.whole_ordinal
        elif not buffer.marker:
            self._cut.pop(producer, None)
        if buffer.end_ordinal > ordinal_of(self.producers, producer):
            begin = self.frame(extent, buffer, offset)
            self.producers[producer] = begin.at(buffer.end_ordinal)

    def checked(self, position: Position | None) -> Position:
        """Return the position to acknowledge; None means everything that was handed out whole.

        A position of another input is returned unchecked: the task refuses it.

        Raises:
            InvalidInputError: the position covers records that were never handed out.
        """
        whole = self.whole
        if position is None:
            return whole
        if (position.stage, position.subpartition) != self.key:
            return position  # refused by the task, which knows its inputs
        beyond = first_behind(position.producers, whole.producers)
        if beyond is not None:
            raise InvalidInputError(
                f"records that were never handed out cannot be acknowledged: producer={beyond} "
                f"handed out={ordinal_of(whole.producers, beyond)} "
                f"found={position.producers[beyond].next_ordinal}"
            )
        for producer, asked in position.producers.items():
            if producer not in whole.producers or asked.next_ordinal < 0:
                raise InvalidInputError(
                    f"not a position of this view: producer={producer} next_ordinal="
                    f"{asked.next_ordinal}"
                )
        return position

    def check_complete(self, end: EndOfInput) -> None:
        """Check at the end of the input that exactly the committed records were handed out.

        Raises:
            CorruptDataError: the number of records differs from the committed one.
        """
        records = self.position.records
        if end.records is not None and records != end.records:
            raise CorruptDataError(
                f"records delivered are not records committed: expected={end.records} "
                f"found={records} stage={self.key[0]!r} subpartition={self.key[1]}"
            )


@dataclass(frozen=True, slots=True)
class ViewStatistics:
    """Figures of one view."""

    epoch: int
    records_delivered: int
    records_acknowledged: int
    """Records acknowledged by this view."""
    records_dropped: int
    """In approximate mode, records that all views of this consumer dropped: delivered, or perhaps
    delivered, but never acknowledged."""
    dropped_exact: bool
    """False if `records_dropped` is an upper bound."""
    bytes_trimmed: int
    """Bytes of partial records that were cut off for this view."""
    in_flight_bytes: int
    """Bytes that are being fetched, or were fetched and are still in use."""
