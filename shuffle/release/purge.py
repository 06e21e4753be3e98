"""Finish the releases that were decided, and purge released stages: delete their logs, too.

The logs of a released stage stay for a horizon, so that a late writer finds CLOSED and never an
empty log. After it they are deleted, and the job log forgets the stage. That is safe only if no
process and no request of a run that knew the stage is alive any more:
`tests/protocol_model/protocol/snapshot_model.py`. A late writer beyond the horizon would leave
objects that `gc` reports as unknown; it cannot reach a later stage, whose path is another one.
"""

from typing import Protocol, runtime_checkable

from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.job_floor import lower_floor, newest_floor, put_floor
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.job_records import StagesGone
from durable_shuffle.shuffle.log.job_state import SNAPSHOT_EVERY, JobState, with_job_record
from durable_shuffle.shuffle.log.layout import (
    StagePath,
    consumers_prefix,
    job_log_prefix,
    job_snapshots_prefix,
    named_here,
    parse_consumer_key,
)
from durable_shuffle.shuffle.log.records import Claim
from durable_shuffle.shuffle.log.slot_log import SlotLog, slots_listed
from durable_shuffle.shuffle.release.stages import (
    Freed,
    finish_release,
    raise_first,
    release_done,
    skipping_damaged,
)
from durable_shuffle.shuffle.storage.contract import Storage, backend_of


@runtime_checkable
class HasFolders(Protocol):
    """A storage whose folders outlive what they hold."""

    def remove_empty_folders(self, prefix: str) -> None:
        """Remove the folders at and below `prefix` that hold nothing."""


MOST_PURGED = 1000
"""Stages that one record forgets, and slots that one call looks at."""


def finish_releases(
    log: JobLog,
    storage: Storage,
    ids: IdSource,
    failed: list[DurableShuffleError] | None = None,
    now: float = 0.0,
) -> list[Freed]:
    """Complete the releases that an earlier driver decided but did not complete.

    Args:
        failed: receives the errors of damaged stages. Without it, the first error is raised after
            all other stages are done.
        now: since 1970; with it, completed releases are noted, so that they are looked at once.
    """
    mine: list[DurableShuffleError] = []
    freed, done = [], []
    for path in [path for path, gone in log.state.gone.items() if not gone.freed]:
        with skipping_damaged(mine if failed is None else failed):
            if release_done(storage, path):
                done.append(path.folder)
            else:
                freed.append(finish_release(log, storage, path, ids))
    if done and now:
        log.append(StagesGone(ids.new_id(), log.generation, tuple(done), now, logs=False))
    raise_first(mine)
    return freed


def purgeable(state: JobState, now: float, horizon_seconds: float) -> list[StagePath]:
    """Return the stages whose data was gone `horizon_seconds` ago, oldest first. Pure."""
    return [
        path
        for path, gone in state.gone.items()
        if gone.freed and now - gone.freed >= horizon_seconds
    ]


def purge_released(
    log: JobLog, storage: Storage, ids: IdSource, *, now: float, horizon_seconds: float
) -> tuple[StagePath, ...]:
    """Delete what is left of the stages whose data was gone `horizon_seconds` ago; return them.

    Safe to repeat and to interrupt anywhere. A stage with an object that this library does not
    name stays as it is; `gc` reports it.

    Args:
        now: since 1970.

    Raises:
        FencedError: a newer driver claimed the job; nothing more is deleted.
    """
    purged = []
    for path in purgeable(log.state, now, horizon_seconds)[:MOST_PURGED]:
        log.check_owner()
        if _purge(storage, path):
            purged.append(path)
    if purged:
        _purge_consumers(storage, log.state.job, {path.incarnation for path in purged})
        folders = tuple(path.folder for path in purged)
        log.append(StagesGone(ids.new_id(), log.generation, folders, now, logs=True))
    return tuple(purged)


def purge_slots(
    log: JobLog, storage: Storage, ids: IdSource, *, now: float, horizon_seconds: float
) -> int:
    """Delete the slots of the job's own log below a run that began `horizon_seconds` ago.

    What they add up to stays as the log's floor (`log/job_floor.py`). The horizon is for people and
    reports; nobody is deceived without it. Safe to repeat and to interrupt anywhere.

    Args:
        now: since 1970.

    Returns:
        How many slots were deleted.

    Raises:
        FencedError: a newer driver claimed the job; nothing was deleted.
    """
    job = log.state.job
    floor = newest_floor(storage, job) or JobState(job)
    higher = _higher_floor(log, floor, now - horizon_seconds)
    log.check_owner()
    if higher is not None or floor.next_slot:  # raises the other one, too, if it was lost
        put_floor(storage, higher or floor, ids.new_id())
    below, gone = lower_floor(storage, job), 0
    for prefix in (job_log_prefix(job), job_snapshots_prefix(job)):
        slots = SlotLog(storage, prefix)
        listed = slots_listed(info.key for info in storage.list(prefix)).get(prefix, set())
        old = sorted(slot for slot in listed if slot < below)
        storage.delete([slots.key(slot) for slot in old])
        gone += len(old) if prefix == job_log_prefix(job) else 0
    return gone


def _higher_floor(log: JobLog, floor: JobState, before: float) -> JobState | None:
    """Return the state below the newest run that began before that time; None if it is too near."""
    found, state = None, floor
    for slot, record in log.records(floor.next_slot):
        if isinstance(record, Claim) and record.wall_seconds > before:
            break
        if isinstance(record, Claim) and record.wall_seconds:
            found = state
        if slot >= floor.next_slot + MOST_PURGED:
            break
        state = with_job_record(state, record)
    near = found is None or found.next_slot < floor.next_slot + SNAPSHOT_EVERY
    return None if near else found


def _purge(storage: Storage, path: StagePath) -> bool:
    """Delete all objects of a stage; return False, and delete nothing, if one is not the stage's.

    The slots of its own log go last, so that a purge that died leaves a log that says RELEASE.
    """
    keys = [info.key for info in storage.list(path.prefix)]
    if not all(path.names_data(key) or path.names_slot(key) for key in keys):
        return False
    log = sorted(key for key in keys if key.startswith(path.log_prefix))
    storage.delete(sorted(set(keys).difference(log)))
    storage.delete(log)
    _remove_folders(storage, path.prefix)
    return True


def _purge_consumers(storage: Storage, job: str, incarnations: set[str]) -> None:
    """Delete the logs and outputs of consumer tasks that are named after purged stages."""
    keys, tasks = [], set()
    for info, (path, _, _) in named_here(storage.list(consumers_prefix(job)), parse_consumer_key):
        incarnation, _, subpartition = path.task.rpartition("-k")
        if incarnation in incarnations and subpartition.isdecimal():
            keys.append(info.key)
            tasks.add(path.prefix)
    storage.delete(keys)
    for prefix in sorted(tasks):
        _remove_folders(storage, prefix)


def _remove_folders(storage: Storage, prefix: str) -> None:
    """Remove the empty folders of what is never used again, where the storage has folders."""
    backend = backend_of(storage)
    if isinstance(backend, HasFolders):
        backend.remove_empty_folders(prefix)
