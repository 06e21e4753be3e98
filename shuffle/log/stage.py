"""A stage as its log tells it: description, seal, consumers, release.

Slot 0 is DESCRIBE. SEAL, in a later slot, names one commit slot per producer and the index object;
only then may readers read. RELEASE is won before anything is deleted.

`StageState` is the pure fold of what stands behind DESCRIBE. A record counts or not by what stands
before it alone, so all who read as far see the same. A REPLACE changes what counts for some
producers, a COMPACT changes the index. Either is void if its author was aborted before, or if its
base, the SEAL or REPLACE that its index was made from, is no longer the newest: its index would
name what was replaced. Among COMPACTs with the same base the first one counts. A SUSPECT counts
until the next REPLACE or DAMAGED. Why so: `tests/protocol_model/protocol/compact_model.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_schemas import schema_from_bytes
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.serialization.msgpack_codec import PAIR_CODEC
from durable_shuffle.shuffle.base.side_by_side import side_by_side
from durable_shuffle.shuffle.log.consumer_set import set_behind
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import (
    PASSTHROUGH,
    STAGE_RECORDS,
    TABLES,
    Abort,
    Closed,
    Compact,
    Damaged,
    Describe,
    Register,
    Release,
    ReleaseUpto,
    Replace,
    Seal,
    StageRecord,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog, Won
from durable_shuffle.shuffle.log.stage_notes import Entered, Suspect, Unrecognised
from durable_shuffle.shuffle.log.typed_log import NOTHING, TypedLog
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import is_far

_SHORT = 8
"""A stage log up to this slot is read record by record."""


@dataclass(frozen=True, slots=True)
class StageState:
    """What a stage log says, up to its first empty slot."""

    seal: Seal | None = None
    """The seal as REPLACEs have changed it, with the index of the compaction that counts."""
    seal_slot: int = 0
    """Slot of the SEAL or REPLACE that counts: the base of the next change of the index."""
    compact: Compact | None = None
    """The compaction that counts."""
    replaced: Seal | None = None
    """As `seal`, with the index of the commits, whether or not there is a compaction."""
    counted: Mapping[str, Compact | Replace] = field(default_factory=dict)
    """All COMPACTs and REPLACEs that ever counted, by id. What they name stays until release."""
    void: Mapping[str, str] = field(default_factory=dict)
    """Ids of compactions and repairs that never count, each with the cause."""
    damaged: Mapping[int, int] = field(default_factory=dict)
    """Producers whose data cannot be read, each with the highest slot whose COMMIT is known to be
    bad: the COMMIT that counts, or one above it."""
    suspect: str = ""
    """The damage that a reader met and nobody has checked yet; empty if there is none."""
    release: Release | None = None
    closed: Closed | None = None
    """Set once a released stage's data is gone."""
    next_slot: int = 1
    register: Register | None = None
    """The registered consumers; None if there never was one."""
    upto: ReleaseUpto | None = None
    """What was released of a stage of log producers; None if nothing was."""
    entered: bool = False
    """Whether the job log counted it, although it was begun before."""
    unrecognised: tuple[str, ...] = ()
    """What the rows depend on although the fingerprint does not name it; empty if nothing known."""

    @property
    def over(self) -> Release | Closed | None:
        """The record that says that the stage was released; None if it was not."""
        return self.release or self.closed

    def released_below(self, producers: int) -> tuple[int, ...]:
        """Return per producer that appends the slot below which data went, 0 if none did.

        Raises:
            CorruptDataError: RELEASE_UPTO is of another number of producers.
        """
        return self._slots(b"" if self.upto is None else self.upto.upto, producers)

    def deleted_below(self, producers: int) -> tuple[int, ...]:
        """Return per producer that appends the slot below which all data is known to be deleted.

        Raises:
            CorruptDataError: RELEASE_UPTO is of another number of producers.
        """
        return self._slots(b"" if self.upto is None else self.upto.deleted, producers)

    def _slots(self, packed: bytes, producers: int) -> tuple[int, ...]:
        slots = numbers(packed)
        if self.upto is not None and len(slots) != producers:
            raise CorruptDataError(
                f"a RELEASE_UPTO does not fit its stage: record={self.upto.record_id} "
                f"slots={slots} M={producers}"
            )
        return tuple(slots) or (0,) * producers


def with_record(state: StageState, record: Any, name: str) -> StageState:
    """Return the state behind the record of slot `state.next_slot`, of any kind.

    Args:
        name: the record's key, for messages.

    Raises:
        CorruptDataError: a REPLACE or DAMAGED that does not fit the seal, a second SEAL, or a
            REGISTER that does not fit the one before it.
    """
    slot = state.next_slot
    state = replace(state, next_slot=slot + 1)
    match record:
        case Seal():
            if state.replaced is not None:
                raise CorruptDataError(
                    f"a stage log holds a second SEAL, and nobody seals a sealed stage: "
                    f"{name!r}, base of what counts: slot {state.seal_slot}; run verify"
                )
            return replace(
                state, seal=record, replaced=record, seal_slot=slot, compact=None, damaged={}
            )
        case Abort(attempt=attempt) if attempt not in state.counted:
            return replace(state, void={**state.void, attempt: record.cause})
        case Replace() | Compact():
            return _changed(state, slot, record, name)
        case Damaged() if state.replaced is not None:
            still = _still(state.replaced, record, name)
            return replace(state, damaged={**state.damaged, **still}, suspect="")
        case Suspect(index=index) if state.seal and state.replaced:
            counts = not state.suspect and index in (state.seal.index, state.replaced.index)
            return replace(state, suspect=record.why) if counts else state
        case Entered():
            return replace(state, entered=True)
        case Unrecognised(why=why):
            return replace(state, unrecognised=(*state.unrecognised, *why))
        case Release():
            return replace(state, release=record)
        case Register():
            return replace(state, register=set_behind(state.register, record, name))
        case ReleaseUpto():
            register = set_behind(state.register, record.register, name)
            return replace(state, upto=record, register=register)
        case Closed():
            return replace(state, closed=record)
    return state


def _changed(state: StageState, slot: int, record: Replace | Compact, name: str) -> StageState:
    if record.record_id in state.counted:
        return state
    before = state.replaced
    if before is None or too_late(state, record) or record.record_id in state.void:
        cause = state.void.get(record.record_id, "another record came first")
        return replace(state, void={**state.void, record.record_id: cause})
    counted = {**state.counted, record.record_id: record}
    if isinstance(record, Compact):
        seal = replace(before, index=record.index, index_bytes=record.index_bytes)
        return replace(state, seal=seal, compact=record, counted=counted)
    seal = replaced_seal(before, record, name)
    now = numbers(seal.commit_slots)
    damaged = {p: at for p, at in state.damaged.items() if now[p] <= at}
    return replace(
        state,
        seal=seal,
        replaced=seal,
        seal_slot=slot,
        compact=None,
        counted=counted,
        damaged=damaged,
        suspect="",
    )


def too_late(state: StageState, record: Replace | Compact) -> bool:
    """Return whether an earlier record keeps `record` from counting.

    Any REPLACE behind its base does, and a COMPACT keeps another COMPACT from counting.
    """
    if record.base != state.seal_slot:
        return True
    return isinstance(record, Compact) and state.compact is not None


def replaced_seal(seal: Seal, record: Replace, key: str) -> Seal:
    """Return the seal with what a REPLACE changes.

    Args:
        key: of the record, for messages.

    Raises:
        CorruptDataError: it does not name one value per producer, or producers that there are not.
    """
    producers = numbers(record.producers)
    changed: dict[str, Any] = {}
    for name, size in TABLES:
        values, table = getattr(record, name), bytearray(getattr(seal, name))
        if len(values) != size * len(producers) or max(producers, default=-1) >= seal.producers:
            raise CorruptDataError(
                f"a REPLACE does not fit its seal: key={key!r} {name} has "
                f"{len(values)} bytes for {len(producers)} producers of {seal.producers}"
            )
        for n, p in enumerate(producers):
            table[size * p : size * (p + 1)] = values[size * n : size * (n + 1)]
        changed[name] = bytes(table)
    return replace(
        seal,
        index=record.index,
        index_bytes=record.index_bytes,
        rows=record.rows,
        data_bytes=record.data_bytes,
        memory_bytes=record.memory_bytes,
        **changed,
    )


def _still(seal: Seal, record: Damaged, name: str) -> dict[int, int]:
    """Return the producers of a DAMAGED of which no COMMIT above the named one counts."""
    producers, slots = numbers(record.producers), numbers(record.commit_slots)
    if len(producers) != len(slots) or max(producers, default=-1) >= seal.producers:
        raise CorruptDataError(
            f"a DAMAGED does not fit its seal: key={name!r} producers={producers} "
            f"commit_slots={slots} M={seal.producers}"
        )
    now = numbers(seal.commit_slots)
    return {p: at for p, at in zip(producers, slots, strict=True) if now[p] <= at}


def numbers(data: bytes) -> list[int]:
    """Return packed little-endian u4 values; an incomplete one at the end is left out."""
    return [int(n) for n in np.frombuffer(data[: len(data) // 4 * 4], dtype="<u4")]


@dataclass(frozen=True)
class StageHandle:
    """One incarnation of a stage on a storage. Cheap; holds no connection of its own."""

    storage: Storage
    path: StagePath
    describe: Describe
    damaged: Mapping[int, int] = field(default_factory=dict)
    """Producers that must run again, with the slot of the COMMIT whose data cannot be read."""
    unrecognised: bool = False
    """Whether only the call that computes it may use it."""
    untried: bool = False
    """Whether hardly any attempt of a producer can have committed before: it saves the request that
    looks, and if one has, that COMMIT counts all the same."""
    index: tuple[str, bytes] | None = field(default=None, repr=False, compare=False)
    """Key and bytes of a small index that the driver has read for the tasks."""

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the stored records."""
        name = f"DESCRIBE of {self.path.prefix!r}"
        schema = schema_from_bytes(self.describe.schema, name=name)
        pairs = self.describe.codec == PAIR_CODEC  # these have columns and no Arrow schema
        if not pairs and (found := len(self.describe.columns)) != len(schema):
            raise CorruptDataError(
                f"DESCRIBE names {found} columns and its schema has {len(schema)}: "
                f"{self.log().key(0)!r}; run verify"
            )
        return schema

    def log(self) -> SlotLog:
        return SlotLog(self.storage, self.path.log_prefix)

    def producer_log(self, producer: int) -> SlotLog:
        return SlotLog(self.storage, self.path.producer_log_prefix(producer))

    def subpartitions_of(self, producer: int) -> npt.NDArray[np.uint32]:
        """Return the subpartitions that this producer must state, ascending."""
        if self.describe.partitioner == PASSTHROUGH:
            return np.array([producer], dtype=np.uint32)
        return np.arange(self.describe.partitions, dtype=np.uint32)

    def producers_of(self, subpartition: int, producers: int) -> range:
        """Return the producers that must have an entry for this subpartition."""
        if self.describe.partitioner == PASSTHROUGH:
            return range(subpartition, subpartition + 1)
        return range(producers)


def stage_log(stage: StageHandle) -> TypedLog[StageRecord, StageState]:
    """Return the stage's log, to be read from `StageState()` on: behind DESCRIBE."""
    return TypedLog(stage.log(), STAGE_RECORDS, with_record)


def describe_stage(storage: Storage, path: StagePath, describe: Describe) -> StageHandle:
    """Put DESCRIBE into slot 0 of a new incarnation."""
    log = SlotLog(storage, path.log_prefix)
    if not isinstance(log.append(0, STAGE_RECORDS.encode(describe)), Won):
        raise IncompatibleError(f"a stage stands at a path that must be new: {path.prefix!r}")
    return StageHandle(storage, path, describe)


def open_stage(storage: Storage, path: StagePath) -> StageHandle:
    """Return the handle of a described stage.

    Raises:
        NotFoundError: there is no DESCRIBE, or it was lost and the stage released then.
        CorruptDataError: the record is damaged, or tells of another stage.
    """
    log = SlotLog(storage, path.log_prefix)
    data = log.read(0)
    if data is None:
        raise NotFoundError(
            f"no such stage: {log.key(0)!r} is missing on {storage.description}; if the job's log "
            "names the stage, this record was lost: run `durable-shuffle verify`"
        )
    record = STAGE_RECORDS.decode(data, log.key(0))
    if isinstance(record, Release):
        raise NotFoundError(f"the stage was released: {path.prefix!r} cause={record.cause}")
    if not isinstance(record, Describe):
        raise CorruptDataError(f"slot 0 must be DESCRIBE: key={log.key(0)!r} found={record.KIND}")
    expected = path.name, path.fingerprint, path.incarnation
    found = record.name, record.fingerprint, record.incarnation
    if found != expected:
        raise CorruptDataError(
            f"DESCRIBE tells of another stage: key={log.key(0)!r} expected={'-'.join(expected)} "
            f"found={'-'.join(found)}"
        )
    return StageHandle(storage, path, record)


SEALED = 2
"""SEAL, and the empty slot behind it: as a rule all that stands behind DESCRIBE."""


def open_with_log(
    storage: Storage, path: StagePath
) -> tuple[StageHandle, Mapping[int, bytes | None]]:
    """As `open_stage`, and what stands in the first slots behind DESCRIBE, for `read_state`."""
    log = SlotLog(storage, path.log_prefix)
    return side_by_side(
        lambda: open_stage(storage, path),
        lambda: log.read_many(range(1, 1 + SEALED)),
        far=is_far(storage),
    )


def read_state(
    stage: StageHandle,
    *,
    through: int | None = None,
    ahead: int = 0,
    asked: Mapping[int, bytes | None] = NOTHING,
) -> StageState:
    """Read the stage log.

    Args:
        through: last slot that is read; default the last there is.
        ahead: so many slots are asked for at once.
        asked: slots that the caller has read just now, and what stood there.

    Raises:
        CorruptDataError: a record does not fit those before it.
    """
    log, begin = stage_log(stage), StageState()
    if through is None and stage.describe.writing == "log":
        begin = log.read(begin, until=lambda state: state.next_slot > _SHORT)
        if begin.next_slot > _SHORT:
            begin = _newest_release(log, begin)
    end = math.inf if through is None else through + 1
    return log.read(
        begin,
        until=lambda state: state.next_slot >= end,
        ahead=ahead,
        first_too=True,
        asked=asked,
    )


def _newest_release(log: TypedLog[StageRecord, StageState], begin: StageState) -> StageState:
    """Return the state before the newest RELEASE_UPTO, which holds what the records before it say.

    Few records stand behind it. If there is none, return `begin`.
    """
    end = log.slots.find_end(begin.next_slot)
    for slot in reversed(range(begin.next_slot, end)):
        if isinstance(log.record(slot), ReleaseUpto):
            return StageState(next_slot=slot)
    return begin


def require_seal(stage: StageHandle) -> Seal:
    """Return the seal that counts.

    Raises:
        NotFoundError: the stage was released.
        NotReadyError: its producers have not all committed.
    """
    state = live_state(stage)
    if state.seal is None:
        raise NotReadyError(f"the stage is not sealed yet: {stage.path.prefix!r}")
    return state.seal


def live_state(stage: StageHandle) -> StageState:
    """Read the log of a stage that must not be released.

    Raises:
        NotFoundError: it was released; names the cause.
    """
    state = read_state(stage)
    if state.release is not None:
        raise stage_released(stage, state.release)
    return state


def stage_released(stage: StageHandle, record: Release | Closed) -> NotFoundError:
    """Return the error for a caller that still wants the stage."""
    return NotFoundError(f"the stage was released: {stage.path.prefix!r} cause={record.cause}")
