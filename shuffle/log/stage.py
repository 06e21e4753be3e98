"""A stage as its log tells it: description, seal, release.

Slot 0 is DESCRIBE. SEAL, in a later slot, names one commit slot per producer and the index object;
only then may readers read. What later records change is in `stage_fold`. RELEASE is won before
anything is deleted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

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
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import (
    STAGE_RECORDS,
    Closed,
    Describe,
    Release,
    Seal,
    StageRecord,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog, Won
from durable_shuffle.shuffle.log.stage_fold import TAG_BYTES, StageState, with_record
from durable_shuffle.shuffle.log.typed_log import TypedLog
from durable_shuffle.shuffle.storage.contract import Storage

PASSTHROUGH = "passthrough"


@dataclass(frozen=True)
class StageHandle:
    """One incarnation of a stage on a storage. Cheap; holds no connection of its own."""

    storage: Storage
    path: StagePath
    describe: Describe
    damaged: Mapping[int, int] = field(default_factory=dict)
    """Producers that must run again, with the slot of the COMMIT whose data cannot be read."""

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


def read_state(stage: StageHandle, *, through: int | None = None) -> StageState:
    """Read the stage log.

    Args:
        through: last slot that is read; default the last there is.

    Raises:
        CorruptDataError: a record does not fit those before it.
    """
    end = math.inf if through is None else through + 1
    return stage_log(stage).read(StageState(), until=lambda state: state.next_slot >= end)


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
        CorruptDataError: the slot holds no SEAL and no REPLACE.
    """
    state = read_state(stage, through=slot)
    if state.seal is None or state.seal_slot != slot:
        key = stage.log().key(slot)
        raise CorruptDataError(f"a position was read by a slot that is no SEAL or REPLACE: {key!r}")
    tags = state.seal.content_tags
    return [tags[at : at + TAG_BYTES] for at in range(0, len(tags), TAG_BYTES)]


def require_not_released(stage: StageHandle) -> None:
    """Raise NotFoundError, with the cause, if the stage was released."""
    state = read_state(stage)
    if state.release is not None:
        raise stage_released(stage, state.release)


def stage_released(stage: StageHandle, record: Release | Closed) -> NotFoundError:
    """Return the error for whoever still wants the stage."""
    return NotFoundError(f"the stage was released: {stage.path.prefix!r} cause={record.cause}")
