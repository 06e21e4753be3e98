"""The log of an appender: its records, what they add up to, and which record may come next.

Either a pipeline's producer writes such a log (`write/log_producer.py`), or starts of a streaming
query and write jobs do (`write/run_log.py`). All of them append under an epoch. Each record holds
the whole state that a successor goes on from, so a successor reads the last record alone.

`record_id` is the random id of the OPEN by which an attempt writes. All its records carry the id,
which means ownership, and the names of its segments contain it. Nothing of an attempt comes behind
the OPEN of another one. A write job needs no OPEN: the first record that names it, APPEND or
ABORT_JOB, is its fate.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import CorruptDataError, FencedError, InvalidInputError
from durable_shuffle.serialization.markers import EndMode
from durable_shuffle.shuffle.log.extent_table import (
    EXTENT,
    of_partitions,
    pack_table,
    unpack_extents,
    unpack_table,
)
from durable_shuffle.shuffle.log.field_checks import check_id
from durable_shuffle.shuffle.log.records import Closed, SegmentInfo
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.log.typed_log import Tail, TypedLog

_SHIFT = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class AppenderState:
    """What a successor goes on from."""

    epoch: int
    """Counts the OPENs, from 1; 0 before the first. Orders attempts; says nothing of ownership."""
    generation: int
    """The launcher's. An attempt that meets a higher one stops."""
    owner: str
    """`record_id` of the newest OPEN; "" before the first."""
    query: str | None
    """Id of the streaming query that writes here; "" while only write jobs have written; None if a
    pipeline's producer writes here."""
    batches: int
    """How many batches of the query are committed; the next one has this number."""
    batch_id: str
    """The newest batch id that a pipeline's producer was given; "" if none was."""
    source_position: bytes
    """Where a pipeline's producer goes on in its source; b"" before the first APPEND."""
    next_ordinals: bytes
    """Packed little-endian u8 per subpartition that this producer writes, ascending: how many
    records were appended there. So a subpartition without records is stated, not left out."""

    def ordinals(self, expected: int, name: str) -> npt.NDArray[np.uint64]:
        """Return `next_ordinals` as a new array.

        Raises:
            CorruptDataError: not `expected` numbers below 2**63; names `name`.
        """
        found = _unpack_u8(self.next_ordinals, expected, f"{name}: ordinals")
        if (found >> np.uint64(63)).any():
            raise CorruptDataError(f"{name}: ordinals up to {found.max()}")
        return found


@dataclass(frozen=True, slots=True)
class AppenderOpen:
    """An attempt begins; every older one is fenced."""

    KIND: ClassVar[str] = "OPEN"
    record_id: str
    producer: int
    after: AppenderState

    def __post_init__(self) -> None:
        if self.after.owner != self.record_id:
            raise InvalidInputError(
                f"an OPEN must make its own attempt the owner, found={self.after.owner!r:.100} "
                f"in that of {self.record_id!r:.100}"
            )


@dataclass(frozen=True, slots=True)
class Append:
    """Records and markers count from here on, and with them a batch or a source position."""

    KIND: ClassVar[str] = "APPEND"
    record_id: str
    """Of the OPEN under which the segments were written, or the id of a write job. The names of the
    segments contain it."""
    rows: int
    memory_bytes: int
    """Uncompressed Arrow bytes of the rows."""
    segments: tuple[SegmentInfo, ...]
    """None without rows and markers. Their numbers are unique within `record_id`, not dense."""
    extents: bytes
    """A table of EXTENT entries (`pack_table`), ordered by (subpartition, first ordinal); b"" for
    none. Markers have an entry of their own with rows 0, behind the records before them."""
    shifts: bytes
    """A table of a little-endian u8 per extent: what is to be added to an ordinal, modulo 2**64,
    for the seed of a frame. Not 0 where several tasks wrote before anyone knew the ordinals.
    b"" if all are 0."""
    schema: bytes
    """Arrow IPC schema message of the rows: DESCRIBE's, or one that adds nullable columns; b"" is
    DESCRIBE's."""
    after: AppenderState

    def __post_init__(self) -> None:
        check_id("the attempt of an APPEND", self.record_id)
        _check_owner("an APPEND", self.record_id, self.after)

    def extent_array(self, name: str, partitions: int | None = None) -> npt.NDArray[np.void]:
        """Return the extents as a structured array.

        Raises:
            CorruptDataError: no table, or a subpartition that does not exist; names `name`.
        """
        if not self.extents:
            return np.zeros(0, dtype=EXTENT)
        return of_partitions(unpack_table(self.extents, EXTENT, name), partitions, name)

    def shift_array(self, extents: int, name: str) -> npt.NDArray[np.uint64]:
        """Return the shift of each extent.

        Raises:
            CorruptDataError: not one shift per extent; names `name`.
        """
        if not self.shifts:
            return np.zeros(extents, dtype=np.uint64)
        found = unpack_table(self.shifts, _SHIFT, f"{name}: shifts")
        if len(found) != extents:
            raise CorruptDataError(f"{name}: {len(found)} shifts, expected {extents}")
        return found.astype(np.uint64)


@dataclass(frozen=True, slots=True)
class End:
    """No more records. After SUSPEND a successor may open, and its records supersede this."""

    KIND: ClassVar[str] = "END"
    record_id: str
    mode: EndMode
    after: AppenderState

    def __post_init__(self) -> None:
        _check_owner("an END", self.record_id, self.after)


@dataclass(frozen=True, slots=True)
class JobAbort:
    """A write job was given up: no APPEND that names it counts from here on. It opens nothing."""

    KIND: ClassVar[str] = "ABORT_JOB"
    record_id: str
    attempt: str
    """Id of the write job."""
    cause: str
    after: AppenderState


AppenderRecord = AppenderOpen | Append | End | JobAbort | Closed
APPENDER_RECORDS: RecordCodec[AppenderRecord] = RecordCodec(get_args(AppenderRecord))
AppenderTail = Tail[AppenderRecord]


def _check_owner(what: str, record_id: str, after: AppenderState) -> None:
    if after.query is None and after.owner != record_id:
        raise InvalidInputError(
            f"{what} of a pipeline must be of the newest OPEN {after.owner!r:.100}, "
            f"found={record_id!r:.100}"
        )


def _unpack_u8(data: bytes, expected: int, what: str) -> npt.NDArray[np.uint64]:
    if len(data) != expected * 8:
        raise CorruptDataError(f"{what} take {len(data)} bytes, expected {expected * 8}")
    return np.frombuffer(data, dtype="<u8").astype(np.uint64)


# -- reading


def appender_log(slots: SlotLog) -> TypedLog[AppenderRecord, AppenderTail]:
    """Return an appender's log. Its last record is all that the next one goes on from."""
    return TypedLog(slots, APPENDER_RECORDS, Tail.followed_by)


# -- what records mean, and which may come next; pure


def decides(record: AppenderRecord | None, attempt: str) -> bool:
    """Return whether a record decides if a write job counts. The first one that does is its fate.

    It names the job (APPEND says that it counts, ABORT_JOB that it never will), or is CLOSED.
    """
    match record:
        case JobAbort():
            return record.attempt == attempt
        case Append() | AppenderOpen():
            return record.record_id == attempt
    return isinstance(record, Closed)


def settled_segments(records: Iterable[AppenderRecord]) -> tuple[set[tuple[str, int]], set[str]]:
    """Return the named segments as (attempt, number) and the attempts that will name no more.

    Segments of such an attempt that are not named may be deleted; all others stay.
    """
    named: set[tuple[str, int]] = set()
    finished: set[str] = set()
    current: str | None = None
    for record in records:
        if isinstance(record, Append):
            named.update((record.record_id, segment.number) for segment in record.segments)
            if record.record_id != current:  # a write job appends once
                finished.add(record.record_id)
        elif isinstance(record, JobAbort):
            finished.add(record.attempt)
        elif current is not None:  # OPEN, END and CLOSED all stop the attempt before them
            finished.add(current)
        if isinstance(record, AppenderOpen):
            current = record.record_id
    return named, finished


def state_behind(stage: StageHandle, producer: int, tail: AppenderTail) -> AppenderState:
    """Return what the next record goes on from."""
    if tail.last is None or isinstance(tail.last, Closed):
        ordinals = bytes(8 * len(stage.subpartitions_of(producer)))
        return AppenderState(0, stage.describe.generation, "", "", 0, "", b"", ordinals)
    return tail.last.after


def refuse_other_writer(tail: AppenderTail, query: str | None, where: str) -> None:
    """Refuse to write a log that is closed or belongs to another kind of writer or query.

    Args:
        query: of the caller, as in `AppenderState.query`.
        where: names the log in messages.

    Raises:
        FencedError: the stage was released.
        InvalidInputError: another writer owns the log; names it.
    """
    last = tail.last
    if last is None:
        return
    if isinstance(last, Closed):
        raise FencedError(f"the stage was released, cause={last.cause}: {where}; stop")
    theirs = last.after.query
    if theirs is not None and query is None:
        raise InvalidInputError(
            f"streaming queries or write jobs write here, a pipeline cannot: {where}; give another "
            "stage"
        )
    if theirs is None and query is not None:
        raise InvalidInputError(
            f"this log is written by a pipeline, not by streaming queries: {where}; give another "
            "stage"
        )
    if theirs and query and theirs != query:
        raise InvalidInputError(
            f"streaming query {theirs} writes here, found streaming query {query}: {where}; give "
            "another stage, another producer, or the checkpoint of that query"
        )


def opening(
    state: AppenderState, producer: int, record_id: str, generation: int, query: str | None
) -> AppenderOpen:
    """Return the OPEN by which an attempt fences all before it."""
    epoch = state.epoch + 1
    after = replace(state, epoch=epoch, generation=generation, owner=record_id, query=query)
    return AppenderOpen(record_id, producer, after)


@dataclass(frozen=True, slots=True)
class Begun:
    """What a task writes its part under."""

    attempt: str
    """Names its segments: id of an OPEN, or of a write job."""
    slot: int
    """The log was read up to here, exclusive, and did not name the part's batch."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one task wrote of a batch. Nothing of it counts yet. Ordinals are of its own count."""

    begun: Begun
    number: int
    """Of the task within the batch: rows of lower ones come first."""
    rows: int
    memory_bytes: int
    segments: tuple[SegmentInfo, ...]
    extents: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append came to."""

    slot: int
    """Of the record that makes the batch count."""
    rows: int
    """0 if the batch was there already."""
    wrote: bool
    """False if the batch was there already."""
    first: bool = False
    """Of a streaming query: it is the first one behind an OPEN that followed another run's."""


def appending(
    stage: StageHandle,
    producer: int,
    state: AppenderState,
    parts: Sequence[Part],
    schema: bytes = b"",
) -> Append:
    """Return the APPEND that makes parts of one attempt count, in the order of their numbers.

    Args:
        state: what the record goes on from, with the batch or source position that it reaches.
        schema: see `Append.schema`.

    Raises:
        InvalidInputError: rows for a subpartition that the producer does not write; or more extents
            than a record holds.
    """
    name = stage.path.producer_log_prefix(producer)
    owned = stage.subpartitions_of(producer)
    ordinals = np.zeros(stage.describe.partitions, dtype=np.uint64)
    ordinals[owned] = state.ordinals(len(owned), name)
    ordered = sorted(parts, key=lambda part: part.number)
    arrays = [unpack_extents(part.extents, name).copy() for part in ordered]
    extents = np.concatenate([*arrays, np.zeros(0, dtype=EXTENT)])
    if not np.isin(extents["subpartition"], owned).all():
        raise InvalidInputError(
            f"rows for a subpartition that producer {producer} does not write: "
            f"stage={stage.path.prefix!r}"
        )
    extents = extents[np.argsort(extents["subpartition"], kind="stable")]
    k, rows = extents["subpartition"], extents["rows"]
    before = np.cumsum(rows, dtype=np.uint64) - rows
    first = ordinals[k] + before - before[np.searchsorted(k, k)]
    shifts = extents["first_ordinal"] - first  # modulo 2**64
    extents["first_ordinal"] = first
    np.add.at(ordinals, k, rows)
    return Append(
        record_id=ordered[0].begun.attempt,
        rows=sum(part.rows for part in ordered),
        memory_bytes=sum(part.memory_bytes for part in ordered),
        segments=tuple(segment for part in ordered for segment in part.segments),
        extents=pack_table(extents) if len(extents) else b"",
        shifts=pack_table(shifts.astype(_SHIFT)) if shifts.any() else b"",
        schema=schema,
        after=replace(state, next_ordinals=ordinals[owned].astype("<u8").tobytes()),
    )
