"""From names to a stage, for readers that do not run Spark; and stages that the job log lost.

A driver enters a stage into the job log before any producer writes, so a stage folder that holds
more than its DESCRIBE proves a record of the job log. `repair/job_log.py` enters it again.
"""

from collections.abc import Callable, Collection, Mapping

from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.log.job_floor import newest_floor
from durable_shuffle.shuffle.log.job_log import newest_named, read_job
from durable_shuffle.shuffle.log.job_state import JobState
from durable_shuffle.shuffle.log.layout import (
    StagePath,
    check_name,
    job_log_prefix,
    parse_stage_folder,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage


def named_stage(
    url: str, job: str, name: str, *, storage_options: Mapping[str, object] | None = None
) -> StageHandle:
    """Return the newest stored stage of a job with this label. Claims nothing.

    Args:
        url: where the job's `DurableShuffle` keeps its data.
        name: the `name=` of the stage, "repartition" or "durable" where none was given.

    Raises:
        NotFoundError: there is no such stage; names those that there are, or says that the job's
            log lost the record.
        CorruptDataError: the job's log is damaged.
        InvalidInputError: a bad name or URL.
    """
    check_name("job", job)
    return stage_named(open_storage(url, storage_options), job, name)


def stage_named(storage: Storage, job: str, name: str) -> StageHandle:
    """As `named_stage`, on an open storage."""
    state = read_job(storage, job)
    order = state.order
    path = newest_named(state, name)
    if path is not None:
        return open_stage(storage, path)
    floor = newest_floor(storage, job)
    first = floor.next_slot if floor else 0
    SlotLog(storage, job_log_prefix(job)).whole_end(first)  # refuses a log with a hole
    known = {*order, *state.released, *state.begun}
    if lost := lost_stage(storage, job, known, lambda path: path.name == name):
        raise lost
    if not state.generation:
        raise NotFoundError(f"no job {job!r} below {storage.description}: none has claimed it")
    names = ", ".join(sorted({path.name for path in order})) or "none"
    raise NotFoundError(
        f"job {job!r} on {storage.description} has no stage named {name!r}; stored: {names}"
    )


_WRITTEN = ("producers/", "index/", "segments/")


def written_stages(storage: Storage, job: str) -> list[StagePath]:
    """Return the stages of which more than a DESCRIBE is stored, by one listing of the job."""
    found: dict[StagePath, None] = {}
    for info in storage.list(f"{job}/"):
        _, folder, name = [*info.key.split("/", 2), "", ""][:3]
        path = parse_stage_folder(job, folder)
        if path is not None and name.startswith(_WRITTEN):
            found[path] = None
    return list(found)


def lost_stage(
    storage: Storage, job: str, known: Collection[StagePath], match: Callable[[StagePath], bool]
) -> NotFoundError | None:
    """Return what to raise if a stage that the job log does not name is stored all the same."""
    for path in written_stages(storage, job):
        if match(path) and path not in known:
            return NotFoundError(
                f"the log of job {job!r} lost its end: it does not name stage {path.name!r}, whose "
                f"data stands at {path.prefix!r}; verify --repair enters the stage again"
            )
    return None


def refuse_lost_record(
    storage: Storage, state: JobState, written: Collection[StagePath], name: str, fingerprint: str
) -> None:
    """Refuse to compute a stage again that is stored and that the job log does not name.

    Args:
        written: see `written_stages`.

    Raises:
        CorruptDataError: names the stage and what to do.
    """
    known = {*state.order, *state.released, *state.begun}
    for path in written:
        if (path.name, path.fingerprint) == (name, fingerprint) and path not in known:
            raise CorruptDataError(
                f"the log of job {state.job!r} ends before what the storage holds: it does not "
                f"name {path.prefix!r} on {storage.description}, which is this very stage; "
                "`durable-shuffle verify URL JOB --repair` enters it again, "
                'lost_records="ignore" computes it anew'
            )
