"""The records of a consumer log, as values. docs/internals/format.md lists the fields.

One log per consumer task, over all its inputs. `record_id` is the random id of the OPEN by which a
view lives; all other records of that view carry it, and that is what ownership means. A full record
(OPEN, and every so many ACKs) holds the whole resume set, the others what changed since the record
before.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.storage.contract import MAX_WHOLE_BYTES

ResumeMode = Literal["exact", "approximate"]


@dataclass(frozen=True, slots=True)
class InputCursor:
    """How far the consumer task is in one of its inputs."""

    stage: str
    """The stage's folder below the job: name, fingerprint, incarnation."""
    subpartition: int
    stage_slot: int
    """Slot of the stage log by which the input is read (its SEAL or newest REPLACE), 0 for a stage
    of log producers. The log up to there gives the content tag of each producer's records."""
    positions: bytes
    """Packed POSITION entries: all that are not 0 in a full record, else those that changed."""

    def __post_init__(self) -> None:
        if self.subpartition < 0 or self.stage_slot < 0:
            raise InvalidInputError(
                f"a cursor is in a subpartition and reads by a slot, both from 0: found "
                f"subpartition={self.subpartition} stage_slot={self.stage_slot}"
            )


@dataclass(frozen=True, slots=True)
class OutputRef:
    """A published output: an object that was written before the record that names it."""

    key: str
    length: int
    rows: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class StateRef:
    """A consumer's state that is too large for the record."""

    key: str
    length: int
    sha256: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.length <= MAX_WHOLE_BYTES:
            raise InvalidInputError(
                f"length of a consumer's state: expected at most {MAX_WHOLE_BYTES} bytes, "
                f"found {self.length}"
            )


@dataclass(frozen=True, slots=True)
class PendingEffect:
    """An effect outside this storage that may or may not have happened yet."""

    token: str
    """The same at every try. The receiver remembers it and ignores repeats."""
    payload: bytes
    objects: tuple[str, ...] = ()
    """Keys of the consumer's outputs that the effect needs: they stay while it is pending."""


State = bytes | StateRef | None


@dataclass(frozen=True, slots=True)
class Ending:
    """A consumer that shall read no more: how far its end is."""

    mode: Literal["FINITE", "DRAIN"]
    commit: int
    """Number of the commit that PREPARED is; the consumer's runner counts it."""
    committed: bool
    """Whether COMMITTED stands: everything that PREPARED left pending has happened."""


@dataclass(frozen=True, slots=True)
class Open:
    """A view begins; every older view of this consumer task is fenced. A full record."""

    KIND: ClassVar[str] = "OPEN"
    record_id: str
    generation: int
    """The launcher's. A view that meets a higher one stops."""
    epoch: int
    consumer: str
    task: str
    resume: ResumeMode
    inputs: tuple[InputCursor, ...]
    outputs: tuple[OutputRef, ...]
    state: State
    marker_floor: int
    """Checkpoint markers up to this id, inclusive, are dropped."""
    pending: tuple[PendingEffect, ...]
    dropped: int
    """Approximate mode: records delivered to earlier views and never acknowledged, in sum."""
    dropped_exact: bool
    """False if `dropped` is an upper bound."""
    ending: Ending | None = None
    """None while there is something to read."""
    code: str = ""
    """Digest of the code that processes the records; "" if the reader gave none."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Fields that OPEN holds, and that an ACK or FINISHED repeats when it is a full record."""

    generation: int
    resume: ResumeMode
    dropped: int
    dropped_exact: bool
    reached: tuple[InputCursor, ...]
    """Approximate mode: up to where records may have been delivered; else empty."""
    code: str = ""
    """As in OPEN."""


@dataclass(frozen=True, slots=True)
class _Acknowledgement:
    record_id: str
    epoch: int
    whole: Whole | None
    """None if positions and outputs are only those that are new in this record."""
    inputs: tuple[InputCursor, ...]
    outputs: tuple[OutputRef, ...]
    state: State
    marker_floor: int
    pending: tuple[PendingEffect, ...]


@dataclass(frozen=True, slots=True)
class Ack(_Acknowledgement):
    """Positions, published outputs and state of a view move on together, or not at all."""

    KIND: ClassVar[str] = "ACK"


@dataclass(frozen=True, slots=True)
class Finished(_Acknowledgement):
    """All inputs are read to their end and acknowledged; the last outputs. A full record."""

    KIND: ClassVar[str] = "FINISHED"
    whole: Whole


@dataclass(frozen=True, slots=True)
class Prepared(_Acknowledgement):
    """All input is acknowledged for good, the last outputs are parked. A full record.

    Behind it stand OPENs, COMMITTED and FINISHED, nothing else.
    """

    KIND: ClassVar[str] = "PREPARED"
    whole: Whole
    ending: Ending


@dataclass(frozen=True, slots=True)
class Committed:
    """What was pending behind PREPARED has happened."""

    KIND: ClassVar[str] = "COMMITTED"
    record_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """Approximate mode: records up to here may have been delivered. Written before they are."""

    KIND: ClassVar[str] = "RESERVE"
    record_id: str
    epoch: int
    inputs: tuple[InputCursor, ...]


@dataclass(frozen=True, slots=True)
class ViewReleased:
    """A view ended by itself; `inputs` is what it delivered, to the next whole record."""

    KIND: ClassVar[str] = "VIEW_RELEASED"
    record_id: str
    epoch: int
    inputs: tuple[InputCursor, ...]


ConsumerRecord = Open | Ack | Reserve | ViewReleased | Prepared | Committed | Finished | Closed
CONSUMER_RECORDS: RecordCodec[ConsumerRecord] = RecordCodec(
    (Open, Ack, Reserve, ViewReleased, Prepared, Committed, Finished, Closed)
)
