"""Release the consumed part of a stage of log producers.

RELEASE_UPTO is won in the stage log, after the REGISTER by which it was decided, before anything is
deleted. Only segments are deleted, those of APPENDs that all registered consumers have passed. Logs
stay.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.appender_log import Append, appender_log
from durable_shuffle.shuffle.log.records import ReleaseUpto
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


def release_upto(
    stage: StageHandle,
    asked: Mapping[int, int] | None,
    *,
    ids: IdSource,
    generation: int,
    since: Sequence[int] | None = None,
) -> Freed:
    """Release data that all registered consumers have acknowledged, and never more.

    Safe to repeat: a call also completes an earlier one that was interrupted.

    Args:
        asked: producer -> slot of its log, exclusive, below which data may be deleted; None for as
            much as possible. Slots are clamped to what all consumers have acknowledged.
        since: per producer, a slot below which the caller knows that all data is deleted. Lower
            slots are not read again. Default: what the newest RELEASE_UPTO says.

    Returns:
        What was deleted; zeros if nothing more may be released.

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
    begin = tuple(since or before.deleted_below(len(producers)))
    appends = {p: appends_of(stage, p, begin[p]) for p in producers}

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
        return ReleaseUpto(record_id, generation, _packed(upto), _packed(begin), register, cause)

    state, _ = stage_log(stage).decide(before, more)
    upto = state.released_below(len(producers))
    doomed = {
        stage.path.segment_key(p, record.record_id, segment.number)
        for p in producers
        for slot, record in appends[p]
        if slot < upto[p]
        for segment in record.segments
    }
    prefix = stage.path.segments_prefix
    return delete(stage.storage, [i for i in stage.storage.list(prefix) if i.key in doomed])


def _packed(slots: Sequence[int]) -> bytes:
    return np.array(slots, dtype="<u4").tobytes()


def appends_of(stage: StageHandle, producer: int, begin: int = 0) -> list[tuple[int, Append]]:
    """Return the APPENDs of a producer with their slots, from slot `begin` on."""
    records = appender_log(stage.producer_log(producer)).records(begin)
    return [(slot, record) for slot, record in records if isinstance(record, Append)]


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
