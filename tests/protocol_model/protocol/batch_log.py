"""What the two logs of batch_model.py say: what counts, which tags are equal, what may go."""

from typing import NamedTuple

from protocol.batch_values import (
    DELETED,
    NOT_WRITTEN,
    BatchSetup,
    BatchState,
    Licence,
    Record,
)


class Reading(NamedTuple):
    """The logs as everyone reads them in one state."""

    commits: tuple[int, ...]
    """Slots of the COMMITs that are not void, in order."""
    current: int | None
    """The commit slot that counts; None while the stage is not sealed."""


def read_logs(setup: BatchSetup, state: BatchState) -> Reading:
    commits: list[int] = []
    aborted: set[int] = set()
    for slot, record in enumerate(state.producer_log):
        if record.kind == "ABORT":
            aborted.add(record.attempt_id)
        elif not (setup.first_record_decides and record.attempt_id in aborted):
            commits.append(slot)
    current = None
    if state.stage_log:
        current = commits[-1] if setup.follows_newest_commit else state.stage_log[-1].commit_slot
    return Reading(tuple(commits), current)


def same_tag(
    setup: BatchSetup, log: tuple[Record, ...], slot: int | None, other: int | None
) -> bool:
    """Whether two commit slots carry one tag."""
    if slot == other or slot is None or other is None:
        return slot == other
    return setup.tag_is_content and log[slot].content == log[other].content


def may_delete(setup: BatchSetup, state: BatchState, target: int) -> bool:
    """Whether a cleaner has leave to delete the objects of attempt id `target`."""
    log, licence = state.producer_log, setup.licence
    named_by = [record.kind for record in log if record.attempt_id == target]
    fate = named_by[0] if named_by else None
    other_commit = any(r.kind == "COMMIT" and r.attempt_id != target for r in log)
    if licence is Licence.FATE_IS_ABORT:
        return fate == "ABORT"
    if licence is Licence.ANY_ABORT:
        return "ABORT" in named_by
    if licence is Licence.OTHER_COMMIT:
        return fate == "ABORT" or (other_commit and fate is None)
    if licence is Licence.NOT_REPLACED_BY:
        return "ABORT" in named_by or (other_commit and not replaced_by(state, target))
    return fate != "COMMIT"


def replaced_by(state: BatchState, attempt_id: int) -> bool:
    """Whether a REPLACE names a COMMIT of this attempt."""
    return any(
        entry.kind == "REPLACE" and state.producer_log[entry.commit_slot].attempt_id == attempt_id
        for entry in state.stage_log
    )


def read_segment(state: BatchState, commit_slot: int, segment: int) -> int | None:
    """Return the content of a committed segment, or None if it is missing, bad or another's."""
    commit = state.producer_log[commit_slot]
    stored = state.objects[commit.attempt_id]
    missing = stored in (DELETED, NOT_WRITTEN)
    if missing or (commit.attempt_id, segment) in state.bad or stored - 1 != commit.content:
        return None
    return stored - 1
