"""Delete data: orphans of attempts that never counted, and whole released stages.

Listings only suggest candidates. An attempt's segments are deleted only after the producer's log
holds its ABORT, and a stage's segments only after its log holds RELEASE. Deleting is idempotent and
may be interrupted anywhere.
"""

from collections import defaultdict
from dataclasses import dataclass

from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.appender_log import appender_log, settled_segments
from durable_shuffle.shuffle.log.layout import StagePath, parse_compacted_key, parse_segment_key
from durable_shuffle.shuffle.log.producer_log import abort_attempt, close_log
from durable_shuffle.shuffle.log.records import Closed, Release, StageRecord
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, stage_log
from durable_shuffle.shuffle.log.stage_fold import StageState
from durable_shuffle.shuffle.log.typed_log import TypedLog
from durable_shuffle.shuffle.seal.index_rewrite import abort_rewrite
from durable_shuffle.shuffle.storage.contract import Storage


@dataclass(frozen=True, slots=True)
class Freed:
    """How much a clean-up deleted: number of objects and their size in bytes."""

    objects: int
    data_bytes: int


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
    found: dict[tuple[int, str], list[tuple[str, int]]] = defaultdict(list)
    for info in stage.storage.list(stage.path.segments_prefix):
        producer, attempt, _ = parse_segment_key(info.key)
        if stage.path.names_data(info.key):  # gc reports any other name
            found[producer, attempt].append((info.key, info.size_bytes))
    if stage.describe.writing == "log":
        return _delete_unnamed(stage, found)
    objects = data_bytes = 0
    for (producer, attempt), segments in sorted(found.items()):
        if abort_attempt(stage.producer_log(producer), attempt, ids.new_id(), cause):
            stage.storage.delete([key for key, _ in segments])
            objects += len(segments)
            data_bytes += sum(size for _, size in segments)
    compactions: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for info in stage.storage.list(stage.path.compacted_prefix):
        attempt, _ = parse_compacted_key(info.key)
        if stage.path.names_data(info.key):
            compactions[attempt].append((info.key, info.size_bytes))
    for attempt, segments in sorted(compactions.items()):
        if abort_rewrite(stage, attempt, ids.new_id(), cause):
            stage.storage.delete([key for key, _ in segments] + [stage.path.index_key(attempt)])
            objects += len(segments)
            data_bytes += sum(size for _, size in segments)
    return Freed(objects, data_bytes)


def _delete_unnamed(
    stage: StageHandle, found: dict[tuple[int, str], list[tuple[str, int]]]
) -> Freed:
    """Delete unnamed segments of log producers' attempts that a newer OPEN, END or CLOSED ended."""
    doomed: list[tuple[str, int]] = []
    for producer in sorted({producer for producer, _ in found}):
        records = appender_log(stage.producer_log(producer)).records()
        named, stopped = settled_segments(record for _, record in records)
        for attempt in stopped:
            doomed.extend(
                (key, size)
                for key, size in found.get((producer, attempt), ())
                if (attempt, parse_segment_key(key)[2]) not in named
            )
    stage.storage.delete([key for key, _ in doomed])
    return Freed(len(doomed), sum(size for _, size in doomed))


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
    state = put_release(log, state, Release(ids.new_id(), generation, cause))
    for producer in range(producers):
        close_log(stage.producer_log(producer), ids.new_id(), cause)
    freed = delete_data(stage.storage, stage.path)
    put_closed(log, state, Closed(ids.new_id(), cause))
    return freed


def put_release(
    log: TypedLog[StageRecord, StageState], state: StageState, record: Release
) -> StageState:
    """Win RELEASE unless the log holds one; return the state after it."""
    return log.decide(state, lambda state: None if state.release else record)[0]


def put_closed(log: TypedLog[StageRecord, StageState], state: StageState, record: Closed) -> None:
    """Append CLOSED to the log of a released stage, unless it is there."""
    log.decide(state, lambda state: None if state.closed else record)


def delete_data(storage: Storage, path: StagePath) -> Freed:
    """Delete all segments and indexes of a released stage."""
    objects = data_bytes = 0
    for prefix in (path.segments_prefix, path.compacted_prefix, path.index_prefix):
        batch = [info for info in storage.list(prefix) if path.names_data(info.key)]
        storage.delete([info.key for info in batch])
        objects += len(batch)
        data_bytes += sum(info.size_bytes for info in batch)
    return Freed(objects, data_bytes)
