"""How the index of a sealed stage is changed: COMPACT and REPLACE, committed like any attempt.

Strategy: an author reads the log, writes objects under a random id of its own and sends one record,
slot by slot from where it stopped reading, until it is in or meets what makes it void. Whoever
would delete an author's objects gives it an ABORT first: failure is no reason to delete, and
neither is another author's record. Protocol: `tests/protocol_model/protocol/compact_model.py`.
"""

from durable_shuffle.serialization.errors import AbortedError
from durable_shuffle.shuffle.log.records import Abort, Compact, Replace
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, stage_log, stage_released
from durable_shuffle.shuffle.log.stage_fold import StageState, too_late
from durable_shuffle.shuffle.write.segment_writer import give_back


def commit_rewrite(
    stage: StageHandle, state: StageState, record: Compact | Replace, written: list[str]
) -> Compact | Replace:
    """Win `record`; return it, or the record that made it void.

    A loser deletes what it wrote. Of a COMPACT another COMPACT of the same base is in the way, and
    any REPLACE; of a REPLACE only another one is.

    Args:
        state: of the stage when the record was made.
        written: keys of the objects that it names.

    Raises:
        NotFoundError: the stage was released meanwhile.
        AbortedError: a cleaner gave this author up; nothing of it counts.
        OutcomeUnknownError: the storage did not say whether it took effect; the objects stay.
    """

    def unless_void(state: StageState) -> Compact | Replace | None:
        cause = state.void.get(record.record_id)
        if state.over is None and cause is None and not too_late(state, record):
            return record
        give_back(stage.storage, written)
        if state.over is not None:
            raise stage_released(stage, state.over)
        if cause is not None:
            raise AbortedError(
                f"this {record.KIND} was aborted before it counted: id={record.record_id} "
                f"stage={stage.path.prefix!r} cause={cause}; start again"
            )
        return None

    state, _ = stage_log(stage).decide(state, unless_void)
    return [*state.counted.values()][-1]


def abort_rewrite(stage: StageHandle, attempt: str, record_id: str, cause: str) -> bool:
    """Make sure that an author's record never counts, unless it does; return True if it never will.

    Only after True may anybody but the author itself delete what it wrote.
    """
    abort = Abort(record_id, attempt, cause)

    def unless_decided(state: StageState) -> Abort | None:
        decided = attempt in state.counted or attempt in state.void or state.over is not None
        return None if decided else abort

    state, _ = stage_log(stage).decide(read_state(stage), unless_decided)
    return attempt not in state.counted
