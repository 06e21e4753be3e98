"""Repair a job log: put back the records that the stored stages prove.

Strategy: a driver enters a stage into the job log before any producer writes. So a stage folder
that holds more than its DESCRIBE proves a record of the job log. Damaged and lost slots are filled
with the missing records, oldest stage first, and then with CLAIMs. The remaining records are
appended at the end, after a new CLAIM, which fences the driver that ran the job before.

It must not touch a readable slot, nor any object outside the job log, its snapshots and its floors.
All snapshots go if anything was wrong; the next driver writes a new one. A damaged floor is made
anew from the other one or from a snapshot.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from durable_shuffle.serialization.errors import DurableShuffleError, ErrorKind
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.job_floor import put_floor
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.job_records import JOB_RECORDS, JobRecord
from durable_shuffle.shuffle.log.job_state import (
    JobState,
    newest_snapshot,
    snapshots_listed,
    with_job_record,
)
from durable_shuffle.shuffle.log.layout import StagePath, job_log_prefix, job_snapshots_prefix
from durable_shuffle.shuffle.log.named_stage import is_empty, written_stages
from durable_shuffle.shuffle.log.records import LAYOUT_VERSION, Claim, StageReleased, StageUse
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, read_state
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.logs import LogCopy, copy_log, last_slots
from durable_shuffle.shuffle.verify.snapshots import check_snapshots, readable_floor

_MOST_FILLED = 10_000
"""So many slots are filled at most: a listed object far behind the others is hardly a slot."""


@dataclass(frozen=True, slots=True)
class JobRepair:
    """The result of repairing a job log."""

    slots: tuple[int, ...] = ()
    """Damaged or lost slots that hold a record again."""
    entered: tuple[StagePath, ...] = ()
    """Stages that were entered into the log again."""
    released: tuple[StagePath, ...] = ()
    """Stages that were entered as released again."""
    why: str = ""
    """Why the log could not be repaired, and what to do; "" if it could."""


def repair_job_log(storage: Storage, job: str, ids: IdSource) -> JobRepair:
    """Put back the job log's lost records of stages that the storage holds. Safe to repeat.

    Claims the job if it changes anything. Skips stages whose own log cannot be read.

    Raises:
        FencedError: a driver claimed the job meanwhile; start again.
    """
    prefix = job_log_prefix(job)
    log = SlotLog(storage, prefix)
    last, problems = last_slots(storage, prefix)
    if problems:
        return JobRepair(why=f"the log cannot be listed, nothing was changed: {problems[0]}")
    # before the log is read, which names all that is whole
    proofs = {path: _proof(storage, path) for path in written_stages(storage, job)}
    base, bad_floors = readable_floor(storage, job)
    if bad_floors:  # what a lower floor holds is in snapshots, too, unless these are damaged
        base = max(base, newest_snapshot(storage, job)[0], key=lambda state: state.next_slot)
    copy: LogCopy[Any] = copy_log(
        log, JOB_RECORDS, known=last.get(prefix, -1), first=base.next_slot
    )
    unsure = [
        finding
        for finding in (*bad_floors, *copy.findings)
        if finding.kind not in (ErrorKind.CORRUPT_DATA, ErrorKind.NOT_FOUND)
    ]
    if unsure:
        return JobRepair(why=f"not everything could be read, nothing was changed: {unsure[0]}")
    state = base
    for record in copy.records.values():
        state = with_job_record(state, record)
    missing = list(_missing(storage, state, proofs, ids))
    end = last.get(prefix, -1) + 1
    if end - base.next_slot - len(copy.records) > _MOST_FILLED:
        return JobRepair(
            why="nothing was changed: too many slots are missing before the last, which may not "
            f"belong to the log: {log.key(end - 1)}"
        )
    bad = [slot for slot in range(base.next_slot, end) if slot not in copy.records]
    wrong = [] if bad else [f.key for f in check_snapshots(storage, job, copy.records, base)]
    if bad_floors:
        storage.delete([finding.key for finding in bad_floors])
        put_floor(storage, base, ids.new_id())
    if bad or missing or wrong:  # they may hold what the repaired log does not say
        slots = SlotLog(storage, job_snapshots_prefix(job))
        storage.delete([slots.key(slot) for slot in snapshots_listed(storage, job)])
    if not bad and not missing:
        return JobRepair()
    left = [record for _, record in missing]
    for slot in bad:
        generation = max(base.generation, _generation(copy, slot))
        filler: JobRecord = Claim(ids.new_id(), job, generation, LAYOUT_VERSION)
        record = left.pop(0) if left and slot else filler
        log.mend(slot, JOB_RECORDS.encode(record))
    with JobLog.claim(storage, job, ids.new_id(), run=False) as claimed:
        for record in left:
            assert isinstance(record, StageUse | StageReleased)
            claimed.append(record)
    return JobRepair(
        tuple(bad),
        tuple(path for path, record in missing if isinstance(record, StageUse)),
        tuple(path for path, record in missing if isinstance(record, StageReleased)),
    )


def _generation(copy: LogCopy[Any], slot: int) -> int:
    """Return the highest generation that was claimed in an earlier slot, at least 1."""
    before = [r.generation for s, r in copy.records.items() if s < slot and isinstance(r, Claim)]
    return max([1, *before])


@dataclass(frozen=True, slots=True)
class _Proof:
    """What a stage's own log says."""

    stage: StageHandle
    released: bool
    entered: bool


def _proof(storage: Storage, path: StagePath) -> _Proof | None:
    """Return what the log of a stage proves; None if it cannot be read, a finding of that stage."""
    try:
        stage = open_stage(storage, path)
        state = read_state(stage)
    except DurableShuffleError:
        return None
    return _Proof(stage, state.release is not None, state.entered)


def _missing(
    storage: Storage, state: JobState, proofs: dict[StagePath, _Proof | None], ids: IdSource
) -> Iterator[tuple[StagePath, JobRecord]]:
    """Yield the records that stages prove and the job log lacks, oldest stage first.

    The driver's generation says which stage is older; clocks only order those of one driver.

    Args:
        proofs: of the stages that are written, from before the log was read.
    """
    proven: list[tuple[tuple[int, float], StagePath, bool]] = []
    for path in {*proofs, *state.order}:
        proof = proofs[path] if path in proofs else _proof(storage, path)
        if path in state.released or proof is None or (path in state.begun and not proof.entered):
            continue
        counts, stage = path in state.order, proof.stage
        if not (counts or proof.released or proof.entered) and is_empty(stage):
            continue  # a write job that died before its commit, and whose BEGUN is lost
        if proof.released or not counts:
            age = stage.describe.generation, stage.describe.created_wall_seconds
            proven.append((age, path, proof.released))
    generation = max(1, state.generation)
    for _, path, released in sorted(proven, key=lambda item: (item[0], item[1].prefix)):
        names = (path.name, path.fingerprint, path.incarnation)
        if released:
            cause = "its own log says so; the job's log lost the record"
            yield path, StageReleased(ids.new_id(), generation, *names, cause)
        else:
            yield path, StageUse(ids.new_id(), generation, *names)
