"""Delete data: orphans of attempts that never counted, and whole released stages.

Listings only suggest candidates. An attempt's segments are deleted only after the producer's log
holds its ABORT, and a stage's only after the job log holds RELEASED and then the stage log RELEASE.
So a driver that plans to reuse a stage, and wins a slot of the job log for that, learns of the
release before anything is deleted, or prevents it. Deleting is idempotent and may be interrupted
anywhere.

A stage whose own logs are damaged is released, too, because RELEASED in the job log decides. First
append RELEASE at the end of the stage log. A mended slot is not enough: another process that
carries out the same release may empty it again, or a late writer may take it. Then fill every
damaged or lost slot, with RELEASE in the stage log and with CLOSED in producers' logs, so that a
late writer finds the release there. Then delete the data as usual. If DESCRIBE was lost, slot 0
holds RELEASE. `tests/protocol_model/protocol/damaged_release_model.py` shows why this order is
needed. A record of another version, or one that the storage cannot serve now, is not damage but an
error.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    ErrorKind,
    IncompatibleError,
    NotFoundError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.appender_log import End, settled_segments
from durable_shuffle.shuffle.log.appender_reads import gone_below, kept_records, read_tail
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.job_state import JobState
from durable_shuffle.shuffle.log.layout import (
    StagePath,
    named_here,
    parse_compacted_key,
    parse_segment_key,
)
from durable_shuffle.shuffle.log.producer_log import abort_attempt, close_log
from durable_shuffle.shuffle.log.records import (
    PRODUCER_RECORDS,
    STAGE_RECORDS,
    Closed,
    Describe,
    Release,
    Seal,
    StageRecord,
    StageReleased,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import (
    StageHandle,
    StageState,
    open_stage,
    read_state,
    stage_log,
    with_record,
)
from durable_shuffle.shuffle.log.typed_log import AnyRecord, TypedLog
from durable_shuffle.shuffle.release.retention import (
    Keep,
    attempt_failed,
    judge_consumed,
    progress_in,
    released_by_user,
)
from durable_shuffle.shuffle.seal.rewrite import abort_rewrite
from durable_shuffle.shuffle.storage.contract import ObjectInfo, Storage
from durable_shuffle.shuffle.verify.logs import Decoder, LogCopy, copy_log, highest_slots

_DAMAGE = (ErrorKind.CORRUPT_DATA, ErrorKind.NOT_FOUND)


@dataclass(frozen=True, slots=True)
class Freed:
    """How much a clean-up deleted: number of objects and their size in bytes."""

    objects: int
    data_bytes: int

    def __add__(self, other: "Freed") -> "Freed":
        return Freed(self.objects + other.objects, self.data_bytes + other.data_bytes)


def delete(storage: Storage, objects: Collection[ObjectInfo]) -> Freed:
    """Delete listed objects."""
    storage.delete([info.key for info in objects])
    return Freed(len(objects), sum(info.size_bytes for info in objects))


def delete_orphans(stage: StageHandle, ids: IdSource, *, cause: str) -> Freed:
    """Delete segments that no record names or can ever name.

    For batch producers, abort every attempt without a COMMIT first. An attempt that is still
    running then fails at its commit, so call this when none should be running. Compactions without
    a COMPACT are aborted in the same way.

    Log producers are not stopped: segments of a producer's newest attempt stay until that attempt
    ends or another one opens.

    Args:
        cause: the reason that each ABORT states.
    """
    storage, path, freed = stage.storage, stage.path, Freed(0, 0)
    segments: dict[tuple[int, str], list[ObjectInfo]] = defaultdict(list)
    listed = named_here(storage.list(path.segments_prefix), parse_segment_key)
    for info, (producer, attempt, _) in listed:
        if path.names_data(info.key):  # gc reports any other name
            segments[producer, attempt].append(info)
    if stage.describe.writing == "log":
        return delete(storage, list(_unnamed(stage, segments)))
    for committed in _sealed_attempts(stage):
        segments.pop(committed, None)
    for (producer, attempt), objects in sorted(segments.items(), key=lambda item: item[0]):
        if abort_attempt(stage.producer_log(producer), attempt, ids.new_id(), cause):
            freed += delete(storage, objects)
    compactions: dict[str, list[ObjectInfo]] = defaultdict(list)
    rewritten = named_here(storage.list(path.compacted_prefix), parse_compacted_key)
    for info, (attempt, _) in rewritten:
        if path.names_data(info.key):
            compactions[attempt].append(info)
    indexes = [info.key for info in storage.list(path.index_prefix)] if compactions else []
    for attempt, objects in sorted(compactions.items(), key=lambda item: item[0]):
        if abort_rewrite(stage, attempt, ids.new_id(), cause):
            mine = {path.index_key(attempt), *(k for k in indexes if path.index_of(k) == attempt)}
            storage.delete(sorted(mine))  # the segments lead here again until last
            freed += delete(storage, objects)
    return freed


def _sealed_attempts(stage: StageHandle) -> Iterator[tuple[int, str]]:
    """Yield each producer with the attempt whose COMMIT counts in the sealed stage."""
    seal = read_state(stage).seal
    if seal is not None:
        for producer in range(seal.producers):
            yield producer, seal.attempts[16 * producer : 16 * (producer + 1)].hex()


def _unnamed(
    stage: StageHandle, segments: Mapping[tuple[int, str], list[ObjectInfo]]
) -> Iterator[ObjectInfo]:
    """Yield unnamed segments of log producers' attempts that a newer OPEN, END or CLOSED ended."""
    for producer in sorted({producer for producer, _ in segments}):
        records = [record for _, record in kept_records(stage, producer)]
        named, stopped = settled_segments(records)
        for attempt in stopped:
            for info in segments.get((producer, attempt), ()):
                if (attempt, parse_segment_key(info.key)[2]) not in named:
                    yield info


def release_stage(
    stage: StageHandle, ids: IdSource, *, generation: int, producers: int, cause: str
) -> Freed:
    """Win RELEASE, close the producers' logs and delete the stage's data.

    The caller must have won the stage's RELEASED record in the job log. The logs stay, so that a
    late writer finds CLOSED and never an empty log. Safe to repeat. CLOSED in the stage log means
    that the release is complete.

    Args:
        producers: the number of producer logs to close.
    """
    log, state = stage_log(stage), read_state(stage)
    state = _put_release(log, state, Release(ids.new_id(), generation, cause))
    gone = gone_below(stage, state) if state.upto else (0,) * producers
    for producer in range(producers):
        close_log(stage.producer_log(producer), ids.new_id(), cause, hint=gone[producer])
    freed = _delete_data(stage.storage, stage.path)
    _put_closed(log, state, Closed(ids.new_id(), cause))
    return freed


def _put_release(
    log: TypedLog[StageRecord, StageState], state: StageState, record: Release
) -> StageState:
    """Win RELEASE unless the log holds one; return the state after it."""
    return log.decide(state, lambda state: None if state.release else record)[0]


def _put_closed(log: TypedLog[StageRecord, StageState], state: StageState, record: Closed) -> None:
    """Append CLOSED to the log of a released stage, unless it is there."""
    log.decide(state, lambda state: None if state.closed else record)


def _delete_data(storage: Storage, path: StagePath) -> Freed:
    """Delete all segments and indexes of a released stage."""
    freed = Freed(0, 0)
    for prefix in (path.segments_prefix, path.compacted_prefix, path.index_prefix):
        freed += delete(storage, [i for i in storage.list(prefix) if path.names_data(i.key)])
    return freed


def release_done(storage: Storage, path: StagePath) -> bool:
    """Return whether a stage's release is complete (CLOSED) and its log has no damaged slot."""
    copy = copy_log(SlotLog(storage, path.log_prefix), STAGE_RECORDS, known=0)
    closed = any(isinstance(record, Closed) for record in copy.records.values())
    return closed and not copy.findings and not copy.gaps


def _refuse_foreign(storage: Storage, path: StagePath) -> None:
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
    state = _put_release(records, state, Release(ids.new_id(), generation, cause))
    for bad in copy.bad:
        log.mend(bad, STAGE_RECORDS.encode(Release(ids.new_id(), generation, cause)))
    for producer in sorted(_suggested_producers(path, keys, copy)):
        _mend_and_close(SlotLog(storage, path.producer_log_prefix(producer)), last, ids, cause)
    freed = _delete_data(storage, path)
    _put_closed(records, state, Closed(ids.new_id(), cause))
    return freed


def _mend_and_close(log: SlotLog, last: dict[str, int], ids: IdSource, cause: str) -> None:
    """Fill the damaged slots of a producer's log of any kind, then close it."""
    copy = _readable(log, AnyRecord(), last.get(log.prefix, -1))
    for slot in copy.bad:
        log.mend(slot, PRODUCER_RECORDS.encode(Closed(ids.new_id(), cause)))
    close_log(log, ids.new_id(), cause, hint=max(0, last.get(log.prefix, 0)))


def _readable(log: SlotLog, codec: Decoder[Any], known: int) -> LogCopy[Any]:
    """Return a copy of a log; raise if a slot cannot be read and the reason is not damage."""
    copy = copy_log(log, codec, known=known)
    for finding in copy.findings:
        if finding.kind is ErrorKind.INCOMPATIBLE:
            raise IncompatibleError(f"a stage cannot be released by this version: {finding}")
        if finding.kind not in _DAMAGE:
            raise UnavailableError(f"a stage cannot be released yet, try again: {finding}")
    return copy


def _suggested_producers(path: StagePath, keys: list[str], copy: LogCopy[Any]) -> set[int]:
    """Return the numbers of all producers that readable records or object names suggest."""
    stated = [r.producers for r in copy.records.values() if isinstance(r, Describe | Seal)]
    ours = (k for k in keys if path.names_data(k) or k.startswith(path.producers_prefix))
    named = {number for key in ours if (number := path.producer_of(key)) is not None}
    return {*range(max([0, *stated])), *named}


def release_stage_of(
    log: JobLog, storage: Storage, path: StagePath, ids: IdSource, cause: str | None = None
) -> Freed:
    """Append RELEASED to the job log unless it is there, then delete the stage's data.

    Args:
        cause: written to both logs; by default, that the user asked for the release.

    Raises:
        FencedError: a newer driver claimed the job; nothing was deleted.
        IncompatibleError: another version wrote the stage; nothing was decided.
    """
    because = cause or released_by_user(log.generation)
    if path not in log.state.gone:
        decide_release(log, storage, path, ids, because)
    return _carry_out(log, storage, path, ids, because)


def decide_release(
    log: JobLog,
    storage: Storage,
    path: StagePath,
    ids: IdSource,
    cause: str,
    unless: Callable[[JobState], bool] = lambda _: False,
) -> bool:
    """Append RELEASED to the job log; `finish_release` then deletes the stage's data.

    Return whether it was appended: not if `unless` holds of the state before it.

    Raises:
        FencedError: a newer driver claimed the job; nothing was decided.
        IncompatibleError: another version wrote the stage; nothing was decided.
    """
    _refuse_foreign(storage, path)
    return log.append(_released(log, path, ids, cause), unless=unless)


def _released(log: JobLog, path: StagePath, ids: IdSource, cause: str) -> StageReleased:
    names = path.name, path.fingerprint, path.incarnation
    return StageReleased(ids.new_id(), log.generation, *names, cause)


def give_up_stage(log: JobLog, path: StagePath, ids: IdSource) -> bool:
    """Decide that a begun stage never counts, so that `finish_release` can delete its data.

    Return False if the stage is not merely begun any more: it counts by now, or was given up.

    Raises:
        FencedError: a newer driver claimed the job; nothing was deleted.
    """
    because = attempt_failed(f"never finished, given up by generation {log.generation}")
    record = _released(log, path, ids, because)
    return log.append(record, unless=lambda state: path not in state.begun)


def release_consumed(log: JobLog, storage: Storage, path: StagePath, ids: IdSource) -> Freed | Keep:
    """Release a stage if all consumers of its declared, closed set have finished.

    Returns:
        What was deleted, or why the stage stays.

    Raises:
        FencedError: a newer driver claimed the job; nothing was deleted.
        CorruptDataError, IncompatibleError: a consumer's log cannot be read; nothing is guessed.
    """
    stage = open_stage(storage, path)
    state = read_state(stage)
    if state.release is not None:
        return Keep(f"it was released: {state.release.cause}")
    progress = progress_in(stage, state.register.consumers if state.register else ())
    judged = judge_consumed(
        state.register,
        progress,
        partitions=stage.describe.partitions,
        written=_all_ended(stage) if stage.describe.writing == "log" else state.seal is not None,
    )
    if isinstance(judged, Keep):
        return judged
    return release_stage_of(log, storage, path, ids, judged)


def _all_ended(stage: StageHandle) -> bool:
    """Return whether every log producer has ended for good, not merely suspended."""
    last = (read_tail(stage, p).last for p in range(stage.describe.producers))
    return all(isinstance(record, End) and record.mode != "SUSPEND" for record in last)


def finish_release(log: JobLog, storage: Storage, path: StagePath, ids: IdSource) -> Freed:
    """Complete a release that the job log has decided. Safe to repeat."""
    return _carry_out(log, storage, path, ids, f"release finished by generation {log.generation}")


@contextmanager
def skipping_damaged(failed: list[DurableShuffleError]) -> Iterator[None]:
    """Run the body for one of several stages; if it is damaged, add the error to `failed`."""
    try:
        yield
    except (CorruptDataError, IncompatibleError, NotFoundError) as error:
        failed.append(error)


def raise_first(failed: list[DurableShuffleError]) -> None:
    """Raise the first of the errors, if any. Call this after all other stages are done."""
    if failed:
        failed[0].add_note(
            f"{len(failed)} damaged stages were left as they are, all others are done; "
            "`durable-shuffle verify` names what is damaged"
        )
        raise failed[0]


def _carry_out(log: JobLog, storage: Storage, path: StagePath, ids: IdSource, cause: str) -> Freed:
    generation = log.generation
    try:
        stage = open_stage(storage, path)
        producers = stage.describe.producers
        return release_stage(stage, ids, generation=generation, producers=producers, cause=cause)
    except (CorruptDataError, NotFoundError):  # a log is damaged: do all steps again
        return release_damaged(storage, path, ids, generation=generation, cause=cause)
