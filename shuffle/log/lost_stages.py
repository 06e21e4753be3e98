"""Stages that are stored and that the job log does not name: its record of them was lost.

A driver enters a stage into the job log before any producer writes, so a stage folder that holds
more than its DESCRIBE proves a record of the job log. This module only looks;
`repair/job_log.py` repairs.
"""

from collections.abc import Callable, Collection

from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.log.job_log import JobState
from durable_shuffle.shuffle.log.layout import StagePath, parse_stage_folder
from durable_shuffle.shuffle.storage.contract import Storage

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
