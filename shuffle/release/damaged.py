"""Release a stage whose own logs are damaged or lost.

Strategy: the caller has won RELEASED in the job log, and that decides: nothing of the stage counts
any more. First append RELEASE at the end of the stage log. A mended slot is not enough: another
process that carries out the same release may empty it again, or a late writer may take it. Then
fill every damaged or lost slot, with RELEASE in the stage log and with CLOSED in producers' logs,
so that a late writer finds the release there. Then delete the data as usual. If DESCRIBE was lost,
slot 0 holds RELEASE. `tests/protocol_model/protocol/damaged_release_model.py` shows why this order
is needed.

A record of another version, or one that the storage cannot serve now, is not damage but an error.
"""

from typing import Any

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    ErrorKind,
    IncompatibleError,
    NotFoundError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.layout import StagePath, parse_segment_key
from durable_shuffle.shuffle.log.producer_log import close_log
from durable_shuffle.shuffle.log.records import (
    PRODUCER_RECORDS,
    STAGE_RECORDS,
    Closed,
    Describe,
    Release,
    Seal,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import open_stage, read_state
from durable_shuffle.shuffle.log.stage_fold import StageState, with_record
from durable_shuffle.shuffle.log.typed_log import AnyRecord, TypedLog
from durable_shuffle.shuffle.release.cleanup import Freed, delete_data, put_closed, put_release
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.logs import (
    Decoder,
    LogCopy,
    copy_log,
    highest_slots,
    slot_of,
)

_DAMAGE = (ErrorKind.CORRUPT_DATA, ErrorKind.NOT_FOUND)


def release_done(storage: Storage, path: StagePath) -> bool:
    """Return whether a stage's release is complete (CLOSED) and its log has no damaged slot."""
    copy = copy_log(SlotLog(storage, path.log_prefix), STAGE_RECORDS, known=0)
    closed = any(isinstance(record, Closed) for record in copy.records.values())
    return closed and not copy.findings and not copy.gaps


def refuse_foreign(storage: Storage, path: StagePath) -> None:
    """Raise if this version cannot carry out the release of the stage. Call it before deciding.

    Raises:
        IncompatibleError: another version wrote the stage's log.
        UnavailableError: the log cannot be read now.
    """
    try:
        read_state(open_stage(storage, path))
    except (CorruptDataError, NotFoundError):
        return  # damaged: `release_damaged` handles it


def release_damaged(
    storage: Storage, path: StagePath, ids: IdSource, *, generation: int, cause: str
) -> Freed:
    """Fill damaged slots, close all logs and delete the stage's data. Safe to repeat.

    The caller must have won the stage's RELEASED record in the job log.

    Raises:
        IncompatibleError, UnavailableError: a slot cannot be read, and the reason is not damage.
            No data was deleted; the next `release` or `gc` continues.
    """
    keys = [info.key for info in storage.list(path.prefix)]
    last = highest_slots(keys)
    log = SlotLog(storage, path.log_prefix)
    copy = _readable(log, STAGE_RECORDS, last.get(path.log_prefix, 0))
    slot = max([last.get(path.log_prefix, 0), *copy.records]) + 1
    # only the end of a damaged log matters from here on
    state = StageState(next_slot=slot, release=copy.last(Release), closed=copy.last(Closed))
    records = TypedLog(log, STAGE_RECORDS, with_record)
    state = put_release(records, state, Release(ids.new_id(), generation, cause))
    for bad in _bad(copy):
        log.mend(bad, STAGE_RECORDS.encode(Release(ids.new_id(), generation, cause)))
    for producer in _producers(path, keys, copy):
        _close(SlotLog(storage, path.producer_log_prefix(producer)), last, ids, cause)
    freed = delete_data(storage, path)
    put_closed(records, state, Closed(ids.new_id(), cause))
    return freed


def _close(log: SlotLog, last: dict[str, int], ids: IdSource, cause: str) -> None:
    """Fill the damaged slots of a producer's log of any kind, then close it."""
    copy = _readable(log, AnyRecord(), last.get(log.prefix, -1))
    for slot in _bad(copy):
        log.mend(slot, PRODUCER_RECORDS.encode(Closed(ids.new_id(), cause)))
    close_log(log, ids.new_id(), cause)


def _readable(log: SlotLog, codec: Decoder[Any], known: int) -> LogCopy[Any]:
    """Return a copy of a log; raise if a slot cannot be read and the reason is not damage."""
    copy = copy_log(log, codec, known=known)
    for finding in copy.findings:
        if finding.kind is ErrorKind.INCOMPATIBLE:
            raise IncompatibleError(f"a stage cannot be released by this version: {finding}")
        if finding.kind not in _DAMAGE:
            raise UnavailableError(f"a stage cannot be released yet, try again: {finding}")
    return copy


def _bad(copy: LogCopy[Any]) -> list[int]:
    return sorted({*copy.gaps, *(slot_of(finding) for finding in copy.findings)})


def _producers(path: StagePath, keys: list[str], copy: LogCopy[Any]) -> range:
    """Return the numbers of all producers that readable records or object names suggest."""
    most = 0
    for record in copy.records.values():
        if isinstance(record, (Describe, Seal)):
            most = max(most, record.producers)
    for key in keys:
        if key.startswith(path.segments_prefix) and path.names_data(key):
            most = max(most, parse_segment_key(key)[0] + 1)
        elif key.startswith(path.producers_prefix):
            text = key.removeprefix(path.producers_prefix).partition("/")[0][1:]
            most = max(most, int(text) + 1) if text.isascii() and text.isdigit() else most
    return range(most)
