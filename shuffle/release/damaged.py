"""Releasing a stage whose own logs are damaged or lost.

Strategy: the job log's RELEASED, which the caller has won, decides; nothing of the stage counts any
more. RELEASE goes behind the end of the stage log first: a slot that is mended may be emptied again
by somebody who carries out the same release, or taken by a late writer. Then RELEASE is put into
every slot of that log that is damaged or lost, CLOSED into those of producers' logs: what a late
writer must meet there. Then the data goes as it always does. A stage whose DESCRIBE was lost has
RELEASE in slot 0. Why so: `tests/protocol_model/protocol/damaged_release_model.py`.

What another version wrote, or what the storage cannot serve now, is no damage: it is an error.
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
    """Return whether a released stage's data is gone and its log is whole."""
    copy = copy_log(SlotLog(storage, path.log_prefix), STAGE_RECORDS, known=0)
    closed = any(isinstance(record, Closed) for record in copy.records.values())
    return closed and not copy.findings and not copy.gaps


def refuse_foreign(storage: Storage, path: StagePath) -> None:
    """Refuse to decide the release of a stage that this version cannot carry out.

    Raises:
        IncompatibleError: another version wrote its log. UnavailableError: it cannot be read now.
    """
    try:
        read_state(open_stage(storage, path))
    except (CorruptDataError, NotFoundError):
        return  # damaged: `release_damaged` takes it


def release_damaged(
    storage: Storage, path: StagePath, ids: IdSource, *, generation: int, cause: str
) -> Freed:
    """Fill what is damaged, close all logs and delete the stage's data. Safe to repeat.

    The caller has won the stage's RELEASED record in the job log.

    Raises:
        IncompatibleError, UnavailableError: a slot cannot be read for another reason than damage;
            the data stands, and the next `release` or `gc` goes on.
    """
    keys = [info.key for info in storage.list(path.prefix)]
    last = highest_slots(keys)
    log = SlotLog(storage, path.log_prefix)
    copy = _readable(log, STAGE_RECORDS, last.get(path.log_prefix, 0))
    slot = max([last.get(path.log_prefix, 0), *copy.records]) + 1
    # of a damaged log nothing matters any more but its end
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
    """Fill a producer's log, of whatever kind, and close it."""
    copy = _readable(log, AnyRecord(), last.get(log.prefix, -1))
    for slot in _bad(copy):
        log.mend(slot, PRODUCER_RECORDS.encode(Closed(ids.new_id(), cause)))
    close_log(log, ids.new_id(), cause)


def _readable(log: SlotLog, codec: Decoder[Any], known: int) -> LogCopy[Any]:
    """Return what a log holds, unless something in it is unknown and not damaged."""
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
    """Return the producers that there may be, by every record and name that can be read."""
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
