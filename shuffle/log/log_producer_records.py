"""The records of a log producer's log, as values. docs/format.md lists the fields.

Every record is the whole state that a successor goes on from, so that only the last one is read to
go on. `record_id` is the random id of the OPEN by which an attempt writes; all its records carry
it, and that is what ownership means. The id also names the attempt's segments. Write jobs need no
OPEN: the first record that names one, APPEND_PARTS or ABORT, is its fate.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.markers import EndMode
from durable_shuffle.shuffle.log.records import Closed, SegmentInfo, check_id, unpack_extents


@dataclass(frozen=True, slots=True)
class Streaming:
    """Which streaming query writes a log, and how far it is."""

    query: str = ""
    """Id of the query; "" while only write jobs have written."""
    batches: int = 0
    """How many of its batches stand; the next one has this number."""
    opened: str = ""
    """`record_id` of the newest OPEN; "" if there is none."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a producer is, after the record that holds this."""

    source_position: bytes
    """The caller's; b"" before the first APPEND."""
    batch_id: str
    """The newest one that was given; "" if none was."""
    next_ordinals: bytes
    """Packed little-endian u8 per subpartition that this producer writes, ascending: how many
    records it has appended there. So a subpartition without records is stated, not left out."""
    stream: Streaming | None = None
    """None in a log that a pipeline's producer writes."""

    def ordinals(self, expected: int, name: str) -> npt.NDArray[np.uint64]:
        """Return `next_ordinals` as a new array.

        Raises:
            CorruptDataError: not `expected` numbers; names `name`.
        """
        if len(self.next_ordinals) != expected * 8:
            raise CorruptDataError(
                f"{name}: ordinals take {len(self.next_ordinals)} bytes, expected {expected * 8}"
            )
        return np.frombuffer(self.next_ordinals, dtype="<u8").astype(np.uint64)


@dataclass(frozen=True, slots=True)
class ProducerOpen:
    """An attempt begins; every older one is fenced."""

    KIND: ClassVar[str] = "OPEN"
    record_id: str
    epoch: int
    generation: int
    """The launcher's; who meets a higher one stops."""
    producer: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class Append:
    """Records and markers of an attempt count from here on, and with them a source position."""

    KIND: ClassVar[str] = "APPEND"
    record_id: str
    epoch: int
    generation: int
    rows: int
    memory_bytes: int
    """Uncompressed Arrow bytes of the rows."""
    segments: tuple[SegmentInfo, ...]
    """One, or more if the rows took more than a writer's memory; none without rows and markers."""
    extents: bytes
    """Packed EXTENT entries, ordered by (subpartition, first ordinal). Markers have an entry of
    their own with rows 0, behind the records before them."""
    progress: Progress

    def __post_init__(self) -> None:
        check_id("the attempt of an APPEND", self.record_id)

    def extent_array(self, name: str, partitions: int | None = None) -> npt.NDArray[np.void]:
        """Return the extents as a structured array, see `unpack_extents`."""
        return unpack_extents(self.extents, name, partitions=partitions)


@dataclass(frozen=True, slots=True)
class AppendParts(Append):
    """An APPEND of segments that were written side by side, before anyone knew their ordinals.

    Frames are seeded with ordinals of their writer's own count. `record_id` is that of the query's
    OPEN under which the parts were written, or the id of a write job, which never opens. All
    writers name their segments by it, with numbers of their own choice.
    """

    KIND: ClassVar[str] = "APPEND_PARTS"
    shifts: bytes
    """Packed little-endian u8 per extent: what is to be added to an ordinal, modulo 2**64, for the
    seed of a frame."""
    schema: bytes
    """Arrow IPC schema message of these rows: DESCRIBE's, or one that adds nullable columns."""


@dataclass(frozen=True, slots=True)
class End:
    """No more records. After SUSPEND a successor may open, and its records supersede this."""

    KIND: ClassVar[str] = "END"
    record_id: str
    epoch: int
    generation: int
    mode: EndMode
    progress: Progress


@dataclass(frozen=True, slots=True)
class RunAbort:
    """A write job was given up: no APPEND that names it counts from here on. It opens nothing."""

    KIND: ClassVar[str] = "ABORT"
    record_id: str
    epoch: int
    generation: int
    attempt: str
    """Id of the write job."""
    cause: str
    progress: Progress


def parts_of(record: Append, extents: int, name: str) -> tuple[npt.NDArray[np.uint64], bytes]:
    """Return the shift of each extent of an APPEND, and the schema of its rows, b"" if it is the
    stage's.

    Raises:
        CorruptDataError: not one shift per extent; names `name`.
    """
    if not isinstance(record, AppendParts):
        return np.zeros(extents, dtype=np.uint64), b""
    if len(record.shifts) != extents * 8:
        raise CorruptDataError(
            f"{name}: shifts take {len(record.shifts)} bytes, expected {extents * 8}"
        )
    return np.frombuffer(record.shifts, dtype="<u8").astype(np.uint64), record.schema


def owner_after(record: ProducerOpen | Append | End | RunAbort) -> str:
    """Return the id of the OPEN that stands behind a record; "" if none ever did."""
    stream = record.progress.stream
    return record.record_id if stream is None else stream.opened


LogProducerRecord = ProducerOpen | Append | End | RunAbort | Closed
LOG_PRODUCER_RECORDS: RecordCodec[LogProducerRecord] = RecordCodec(
    (ProducerOpen, Append, AppendParts, End, RunAbort, Closed)
)
