"""How the index of a sealed stage is changed: COMPACT and REPLACE, committed like any attempt.

Strategy: an author reads the log, writes objects under a random id of its own and sends one record,
slot by slot from where it stopped reading, until it is in or meets what makes it void. Whoever
would delete an author's objects gives it an ABORT first: failure is no reason to delete, and
neither is another author's record. Protocol: `shuffle/testing/protocol/compact_model.py`.
"""

from durable_shuffle.serialization.errors import AbortedError
from durable_shuffle.shuffle.records import (
    STAGE_RECORDS,
    Abort,
    Closed,
    Compact,
    Release,
    Replace,
)
from durable_shuffle.shuffle.segment_writer import give_back
from durable_shuffle.shuffle.slot_log import Won
from durable_shuffle.shuffle.stage import StageHandle, decode, read_state, stage_released
from durable_shuffle.shuffle.stage_fold import StageState, with_record


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
    data = STAGE_RECORDS.encode(record)
    log, slot = stage.log(), state.next_slot
    while True:  # ends: every turn passes one existing record of a finite log
        answer = log.append(slot, data)
        if isinstance(answer, Won):
            return record
        found = decode(log, slot, answer.existing)
        if isinstance(found, (Release, Closed)):
            give_back(stage.storage, written)
            raise stage_released(stage, found)
        if isinstance(found, Abort) and found.attempt == record.record_id:
            give_back(stage.storage, written)
            raise AbortedError(
                f"this {record.KIND} was aborted before it counted: id={record.record_id} "
                f"stage={stage.path.prefix!r} cause={found.cause}; start again"
            )
        state = with_record(state, slot, found)
        if (
            isinstance(found, (Compact, Replace))
            and found.record_id in state.counted
            and (isinstance(found, Replace) or isinstance(record, Compact))
        ):
            give_back(stage.storage, written)
            return found
        slot += 1


def abort_rewrite(stage: StageHandle, attempt: str, record_id: str, cause: str) -> bool:
    """Make sure that an author's record never counts, unless it does; return True if it never will.

    Only after True may anybody but the author itself delete what it wrote.
    """
    data = STAGE_RECORDS.encode(Abort(record_id, attempt, cause))
    while True:  # ends: every turn finds at least one more record of a finite log
        state = read_state(stage)
        if attempt in state.counted:
            return False
        if attempt in state.void or state.release is not None or state.closed:
            return True
        if isinstance(stage.log().append(state.next_slot, data), Won):
            return True
