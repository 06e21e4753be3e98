"""Check the snapshots and floors of a job log against the log.

A snapshot only saves reading, so a bad one loses nothing; but a driver that begins at a wrong one
believes what no record says. A repair deletes all snapshots that this finds.
"""

from collections.abc import Iterable, Iterator, Mapping

from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.log.job_floor import NAMES, floors, read_floor
from durable_shuffle.shuffle.log.job_records import JobRecord
from durable_shuffle.shuffle.log.job_state import (
    JobState,
    read_snapshot,
    snapshots_listed,
    with_job_record,
)
from durable_shuffle.shuffle.log.layout import job_snapshots_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.report import Finding, damage, finding_of


def readable_floor(storage: Storage, job: str) -> tuple[JobState, tuple[Finding, ...]]:
    """Return the highest floor that can be read, else an empty log, and findings on the others."""
    state, findings, log = JobState(job), list[Finding](), floors(storage, job)
    for name in NAMES:
        try:
            found = read_floor(storage, job, name)
        except DurableShuffleError as error:
            findings.append(finding_of(error, log.key(name), "a floor of the job log"))
        else:
            state = max(state, found or state, key=lambda floor: floor.next_slot)
    return state, tuple(findings)


def check_snapshots(
    storage: Storage, job: str, records: Mapping[int, JobRecord], base: JobState
) -> tuple[Finding, ...]:
    """Return a finding for each snapshot that is damaged or differs from the records below it.

    Args:
        records: the job log from `base` on, without findings, read before this call. Snapshots of
            slots behind it, and below `base`, are checked for damage only.
        base: the state below the records.
    """
    try:
        listed = snapshots_listed(storage, job)
    except DurableShuffleError as error:
        return (finding_of(error, job_snapshots_prefix(job), "a listing of snapshots"),)
    if not listed:
        return ()
    log = SlotLog(storage, job_snapshots_prefix(job))
    return tuple(_findings(storage, job, log, listed, _states(base, records, listed)))


def _findings(
    storage: Storage, job: str, log: SlotLog, listed: Iterable[int], states: Mapping[int, JobState]
) -> Iterator[Finding]:
    for slot in listed:
        try:
            state = read_snapshot(storage, job, slot)
        except DurableShuffleError as error:
            yield finding_of(error, log.key(slot), "a snapshot of the job log")
            continue
        if state is not None and state != states.get(slot, state):
            wanted = f"what the {slot} records of the job log below it add up to"
            yield damage(log.key(slot), wanted, "something else; verify --repair deletes it")


def _states(
    state: JobState, records: Mapping[int, JobRecord], wanted: Iterable[int]
) -> dict[int, JobState]:
    """Return the log's state below each of the wanted slots that the records reach."""
    states, slots = {state.next_slot: state}, set(wanted)
    for record in records.values():
        state = with_job_record(state, record)
        if state.next_slot in slots:
            states[state.next_slot] = state
    return states
