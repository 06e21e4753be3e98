"""Release the consumed part of a stage of log producers.

RELEASE_UPTO is won in the stage log, after the REGISTER by which it was decided, before anything is
deleted. Segments go of APPENDs that all registered consumers have passed. If the caller knows which
records a successor of a producer reads, older records go as well, one release later. OPENs stay, so
that an attempt that was given up always meets the one that fenced it
(docs/internals/decisions/009).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeGuard

import numpy as np

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.side_by_side import each_at_once
from durable_shuffle.shuffle.log.appender_log import Append, AppenderRecord, End, appender_log
from durable_shuffle.shuffle.log.appender_reads import gone_below, gone_of, loses_slots
from durable_shuffle.shuffle.log.records import Closed, ReleaseUpto
from durable_shuffle.shuffle.log.stage import (
    StageHandle,
    StageState,
    read_state,
    stage_log,
    stage_released,
)
from durable_shuffle.shuffle.release.retention import (
    AppendEnds,
    clamp,
    consumed_upto,
    consumers_acknowledged,
    progress_in,
)
from durable_shuffle.shuffle.release.stages import Freed, delete

_MOST_READ, _AT_ONCE = 1024, 64
"""Of so many old records a call finds out what they are, so many side by side: OPENs, and what an
earlier call or version left."""

NeededSlots = Callable[[StageHandle, int, bytes], Collection[int]]
"""Returns, given a stage, a producer and its newest source position, which older slots of its log a
successor reads."""


def release_upto(
    stage: StageHandle,
    asked: Mapping[int, int] | None,
    *,
    ids: IdSource,
    generation: int,
    since: Sequence[int] | None = None,
    needed: NeededSlots | None = None,
) -> Freed:
    """Release data that all registered consumers have acknowledged, and never more.

    Safe to repeat: a call also completes an earlier one that was interrupted.

    Args:
        asked: producer -> slot of its log, exclusive, below which data may be deleted; None for as
            much as possible. Slots are clamped to what all consumers have acknowledged.
        since: per producer, a slot below which the caller knows that all data is deleted. Lower
            slots are not read again. Default: what the newest RELEASE_UPTO says.
        needed: for producers of pipelines. With it, records go whose data an earlier call deleted;
            without it, all stay.

    Returns:
        What was deleted, without records; zeros if nothing more may be released.

    Raises:
        InvalidInputError: the stage has no log producers (a sealed stage is released as a whole),
            or its set of consumers is not closed.
        NotFoundError: the stage was released.
        CorruptDataError, IncompatibleError: a consumer's log cannot be read; nothing is guessed.
    """
    if stage.describe.writing != "log":
        raise InvalidInputError(f"a sealed stage goes only as a whole: {stage.path.prefix!r}")
    producers = range(stage.describe.producers)
    record_id = ids.new_id()
    before = read_state(stage)
    begin = before.deleted_below(len(producers))
    begin = tuple(map(max, begin, since or begin))
    records = {p: _records(stage, p, gone_of(begin, p)) for p in producers}
    appends = {p: [r for r in records[p] if _is_append(r, begin[p])] for p in producers}
    listed = list(stage.storage.list(stage.path.segments_prefix))

    def freed(low: Sequence[int], high: Sequence[int]) -> Freed:
        doomed = {
            stage.path.segment_key(p, record.record_id, segment.number)
            for p in producers
            for slot, record in appends[p]
            if low[p] <= slot < high[p]
            for segment in record.segments
        }
        return delete(stage.storage, [i for i in listed if i.key in doomed])

    deleted = before.released_below(len(producers))
    earlier = freed(begin, deleted)

    def more(state: StageState) -> ReleaseUpto | None:
        if state.release is not None:
            raise stage_released(stage, state.release)
        register = state.register
        if register is None or not register.closed:
            raise InvalidInputError(
                f"part of a stage goes only behind a closed set of consumers: {stage.path.prefix!r}"
            )
        progress = progress_in(stage, register.consumers)
        consumed = [consumed_upto(map(_ends, appends[p]), register, progress, p) for p in producers]
        standing = state.released_below(len(consumed))
        upto = clamp(asked, consumed, standing)
        if upto == standing:
            return None
        cause = consumers_acknowledged(register.consumers)
        done = tuple(map(max, deleted, state.deleted_below(len(consumed))))
        return ReleaseUpto(record_id, generation, _packed(upto), _packed(done), register, cause)

    state, _ = stage_log(stage).decide(before, more)
    now = freed(deleted, state.released_below(len(producers)))
    if needed is not None:
        for p in producers:
            delete_records(stage, p, gone_below(stage, state)[p], dict(records[p]), needed)
    return earlier + now


def _packed(slots: Sequence[int]) -> bytes:
    return np.array(slots, dtype="<u4").tobytes()


def _records(stage: StageHandle, producer: int, first: int) -> list[tuple[int, AppenderRecord]]:
    return list(appender_log(stage.producer_log(producer)).records(first))


def _is_append(record: tuple[int, AppenderRecord], first: int) -> TypeGuard[tuple[int, Append]]:
    return record[0] >= first and isinstance(record[1], Append)


def delete_records(
    stage: StageHandle,
    producer: int,
    gone: int,
    records: dict[int, AppenderRecord],
    needed: NeededSlots,
) -> None:
    """Delete the records of a pipeline's producer below a slot, except OPENs and needed ones.

    Args:
        gone: below it RELEASE_UPTO says that all data is deleted.
        records: what the caller has read of the log, ascending, to its end.
    """
    end, newest = next(reversed(records.items()), (0, None))
    if not gone or newest is None or not loses_slots(newest):
        return
    assert not isinstance(newest, Closed)
    gone = min(gone, end)  # of later ones, nothing is known of what they need
    slots = stage.producer_log(producer)
    old = sorted(slot for slot in slots.listed() if slot < gone)
    unknown, log = [slot for slot in old if slot not in records], appender_log(slots)
    for at in range(0, min(len(unknown), _MOST_READ), _AT_ONCE):
        some = unknown[at : at + _AT_ONCE]
        found = zip(some, each_at_once(log.record, some), strict=True)
        records |= {slot: record for slot, record in found if record is not None}
    stays = needed(stage, producer, newest.after.source_position)
    doomed = [s for s in old if isinstance(records.get(s), Append | End) and s not in stays]
    stage.storage.delete([slots.key(slot) for slot in doomed])


def _ends(append: tuple[int, Append]) -> AppendEnds:
    slot, record = append
    ends: dict[int, int] = {}
    for entry in record.extent_array(f"APPEND in slot {slot}"):
        k, first, rows = (int(entry[n]) for n in ("subpartition", "first_ordinal", "rows"))
        # a marker has no ordinal: a consumer surely passed it once it acknowledged a later record
        end = first + rows if rows else first + 1
        if int(entry["length"]):
            ends[k] = max(ends.get(k, 0), end)
    return AppendEnds(slot, ends)
