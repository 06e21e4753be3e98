"""Appends UNRECOGNISED: from then on, no later call uses the stage again."""

from collections.abc import Iterable

from durable_shuffle.shuffle.log.stage import StageHandle, StageState, read_state, stage_log
from durable_shuffle.shuffle.log.stage_notes import Unrecognised, bounded


def note_unrecognised(
    stage: StageHandle, reasons: Iterable[str], *, generation: int, record_id: str
) -> None:
    """Record why the rows are only good for whoever computes them now; the first record is enough.

    Call it before the record that makes the rows count: COMMIT, SEAL or REPLACE.

    Args:
        reasons: for people, at least one; long ones are cut.
        record_id: random id.
    """
    record = Unrecognised(record_id, generation, bounded(reasons))

    def unless_known(state: StageState) -> Unrecognised | None:
        return None if state.unrecognised or state.over is not None else record

    stage_log(stage).decide(read_state(stage), unless_known)
