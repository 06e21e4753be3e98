"""A stage as its log tells it: description, seal, release.

Slot 0 is DESCRIBE. SEAL, in a later slot, names one commit slot per producer and the index object;
only then may readers read. RELEASE is won before anything is deleted.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import schema_from_bytes
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    IncompatibleError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.shuffle.index import build_index, content_tag
from durable_shuffle.shuffle.layout import StagePath
from durable_shuffle.shuffle.producer_log import Committed
from durable_shuffle.shuffle.records import (
    STAGE_RECORDS,
    Abort,
    Closed,
    Compact,
    Describe,
    Register,
    Release,
    ReleaseUpto,
    Seal,
)
from durable_shuffle.shuffle.slot_log import SlotLog, Won
from durable_shuffle.shuffle.storage import Storage

PASSTHROUGH = "passthrough"
_TAG_BYTES = 32

StageRecord = Describe | Seal | Compact | Abort | Register | ReleaseUpto | Release | Closed


@dataclass(frozen=True)
class StageHandle:
    """One incarnation of a stage on a storage. Cheap; holds no connection of its own."""

    storage: Storage
    path: StagePath
    describe: Describe

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the stored records."""
        return schema_from_bytes(self.describe.schema)

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


def decode(log: SlotLog, slot: int, data: bytes) -> StageRecord:
    """Decode one record of a stage log."""
    record = STAGE_RECORDS.decode(data, name=log.key(slot))
    if not isinstance(record, StageRecord):
        raise CorruptDataError(f"not a stage record: key={log.key(slot)!r}")
    return record


def describe_stage(storage: Storage, path: StagePath, describe: Describe) -> StageHandle:
    """Put DESCRIBE into slot 0 of a new incarnation."""
    log = SlotLog(storage, path.log_prefix)
    if not isinstance(log.append(0, STAGE_RECORDS.encode(describe)), Won):
        raise IncompatibleError(f"a stage stands at a path that must be new: {path.prefix!r}")
    return StageHandle(storage, path, describe)


def open_stage(storage: Storage, path: StagePath) -> StageHandle:
    """Return the handle of a described stage.

    Raises:
        NotFoundError: there is no DESCRIBE.
    """
    log = SlotLog(storage, path.log_prefix)
    data = log.read(0)
    if data is None:
        raise NotFoundError(f"no such stage: {path.prefix!r} on {storage.description}")
    record = decode(log, 0, data)
    if not isinstance(record, Describe):
        raise CorruptDataError(f"slot 0 must be DESCRIBE: key={log.key(0)!r} found={record.KIND}")
    return StageHandle(storage, path, record)


@dataclass(frozen=True, slots=True)
class StageState:
    """What a stage log says, up to its first empty slot."""

    seal: Seal | None
    """The seal that counts, with the index of the compaction that counts, if there is one."""
    release: Release | None
    closed: bool
    """True once a released stage's data is gone."""
    next_slot: int
    seal_slot: int = 0
    """Slot of the seal that counts."""
    register: Register | None = None
    """Who is registered; None if nobody ever was."""
    upto: ReleaseUpto | None = None
    """What was released of a stage of log producers; None if nothing was."""
    compact: Compact | None = None
    """The compaction that counts."""
    aborted: frozenset[str] = frozenset()
    """Compactions that will never count."""


def read_state(stage: StageHandle) -> StageState:
    """Read the stage log; the newest SEAL counts."""
    seal: Seal | None = None
    release: Release | None = None
    register: Register | None = None
    upto: ReleaseUpto | None = None
    compactions: list[Compact | Abort] = []
    closed = False
    log = stage.log()
    slot = seal_slot = 0
    for slot, data in log.read_from(1):
        record = decode(log, slot, data)
        if isinstance(record, Seal):
            seal, seal_slot = record, slot
        elif isinstance(record, (Compact, Abort)):
            compactions.append(record)
        elif isinstance(record, Release):
            release = record
        elif isinstance(record, Register):
            register = record
        elif isinstance(record, ReleaseUpto):
            upto = record
        elif isinstance(record, Closed):
            closed = True
    next_slot = slot + 1 if slot else 1
    compact, aborted = compaction_of(compactions)
    if seal is not None and compact is not None:
        seal = replace(seal, index=compact.index, index_bytes=compact.index_bytes)
    return StageState(
        seal,
        release,
        closed,
        next_slot,
        seal_slot,
        register,
        upto,
        compact,
        aborted,
    )


def compaction_of(records: Iterable[Any]) -> tuple[Compact | None, frozenset[str]]:
    """Return the COMPACT of a stage log that counts, and the compactions aborted before it."""
    aborted: set[str] = set()
    for record in records:
        if isinstance(record, Compact) and record.record_id not in aborted:
            return record, frozenset(aborted)
        if isinstance(record, Abort):
            aborted.add(record.attempt)
    return None, frozenset(aborted)


def require_seal(stage: StageHandle) -> Seal:
    """Return the seal that counts.

    Raises:
        NotFoundError: the stage was released.
        NotReadyError: its producers have not all committed.
    """
    state = read_state(stage)
    if state.release is not None:
        raise stage_released(stage, state.release)
    if state.seal is None:
        raise NotReadyError(f"the stage is not sealed yet: {stage.path.prefix!r}")
    return state.seal


def content_tags(stage: StageHandle, slot: int) -> list[bytes]:
    """Return the content tag of each producer's records as the stage log names them in `slot`.

    Raises:
        CorruptDataError: the slot holds no SEAL.
    """
    log = stage.log()
    data = log.read(slot)
    record = None if data is None else decode(log, slot, data)
    if not isinstance(record, Seal):
        raise CorruptDataError(f"a position was read by a slot that is no SEAL: {log.key(slot)!r}")
    tags = record.content_tags
    return [tags[at : at + _TAG_BYTES] for at in range(0, len(tags), _TAG_BYTES)]


def require_not_released(stage: StageHandle) -> None:
    """Raise NotFoundError, with the cause, if the stage was released."""
    state = read_state(stage)
    if state.release is not None:
        raise stage_released(stage, state.release)


def seal_stage(
    stage: StageHandle,
    commits: Mapping[int, Committed],
    *,
    producers: int,
    generation: int,
    record_id: str,
) -> Seal:
    """Write the index object and win SEAL, or return the seal that stands: there is only one.

    Args:
        commits: the COMMIT that counts of each producer, read from its slot.
        record_id: random id, also the index object's name.

    Raises:
        NotReadyError: a producer is missing; names the first.
        NotFoundError: the stage was released meanwhile.
    """
    missing = [p for p in range(producers) if p not in commits]
    if missing:
        raise NotReadyError(
            f"{len(missing)} of {producers} producers have not committed: first={missing[0]} "
            f"stage={stage.path.prefix!r}"
        )
    ordered = [commits[p] for p in range(producers)]
    for p, c in enumerate(ordered):
        if c.commit.producers != producers or c.commit.producer != p:
            raise IncompatibleError(
                f"a COMMIT is of another plan: producer={p} expected M={producers}, found "
                f"producer={c.commit.producer} M={c.commit.producers} stage={stage.path.prefix!r}"
            )
    state = read_state(stage)
    if state.release is not None:
        raise stage_released(stage, state.release)
    if state.seal is not None:
        return state.seal
    index = build_index([c.commit for c in ordered], stage.describe.partitions)
    stage.storage.put(stage.path.index_key(record_id), [index])
    seal = Seal(
        record_id=record_id,
        generation=generation,
        producers=producers,
        index=record_id,
        index_bytes=len(index),
        commit_slots=np.array([c.slot for c in ordered], dtype="<u4").tobytes(),
        attempts=bytes.fromhex("".join(c.commit.record_id for c in ordered)),
        content_tags=b"".join(content_tag(c.commit) for c in ordered),
        rows=sum(c.commit.rows for c in ordered),
        data_bytes=sum(s.length for c in ordered for s in c.commit.segments),
        memory_bytes=sum(c.commit.memory_bytes for c in ordered),
    )
    data = STAGE_RECORDS.encode(seal)
    log, slot = stage.log(), state.next_slot
    while True:  # ends: every turn passes one existing record of a finite log
        answer = log.append(slot, data)
        if isinstance(answer, Won):
            return seal
        record = decode(log, slot, answer.existing)
        if isinstance(record, (Seal, Release, Closed)):
            # ours was never named and never will be; nobody else would find it to delete it
            with suppress(DurableShuffleError):  # then it costs space, not correctness
                stage.storage.delete([stage.path.index_key(record_id)])
        if isinstance(record, Seal):
            return record
        if isinstance(record, (Release, Closed)):
            raise stage_released(stage, record)
        slot += 1


def stage_released(stage: StageHandle, record: Release | Closed) -> NotFoundError:
    """Return the error for whoever still wants the stage."""
    return NotFoundError(f"the stage was released: {stage.path.prefix!r} cause={record.cause}")
