"""From names to a stage, for readers that do not run Spark; and stages that the job log lost.

A driver enters a stage into the job log before any producer writes, so a stage folder that holds
more than its DESCRIBE proves a record of the job log. So does ENTERED in the log of a stage that
was begun before. `repair/job_log.py` enters it again; until then nobody gets an older stage of its
name.
"""

import threading
from collections.abc import Callable, Mapping

from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.log.appender_log import Append
from durable_shuffle.shuffle.log.appender_reads import kept_records
from durable_shuffle.shuffle.log.job_floor import newest_floor
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.log.job_state import JobState
from durable_shuffle.shuffle.log.layout import (
    StagePath,
    check_name,
    job_log_prefix,
    parse_stage_folder,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import (
    StageHandle,
    StageState,
    open_stage,
    read_state,
    stage_log,
)
from durable_shuffle.shuffle.log.stage_notes import Entered
from durable_shuffle.shuffle.storage.contract import Storage, folders_of
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
    path = state.newest_named(name)
    lost = unnamed_stages(storage, state, lambda path: path.name == name)
    if path is not None:
        stage = open_stage(storage, path)
        for other in lost:
            _refuse_newer(stage, other, begun=other in state.begun)
        return stage
    floor = newest_floor(storage, job)
    first = floor.next_slot if floor else 0
    SlotLog(storage, job_log_prefix(job)).whole_end(first)  # refuses a log with a hole
    if lost:
        raise _lost(lost[0])
    if not state.generation:
        raise NotFoundError(f"no job {job!r} below {storage.description}: none has claimed it")
    names = ", ".join(sorted({path.name for path in state.order})) or "none"
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


def stage_folders(storage: Storage, job: str) -> list[StagePath]:
    """Return the stages that have a folder, by one listing of folders."""
    paths = (parse_stage_folder(job, folder) for folder in folders_of(storage, f"{job}/"))
    return [path for path in paths if path is not None]


def unnamed_stages(
    storage: Storage, state: JobState, match: Callable[[StagePath], bool]
) -> list[StagePath]:
    """Return the stages that the job log counted and does not name: it lost their records.

    Args:
        state: of the job log; read again if it does not name a stage that is stored.
        match: picks the stages that matter to the caller.
    """
    known = known_stages(state)
    listed = (path for path in stage_folders(storage, state.job) if match(path))
    lost = [path for path in listed if path not in known and _is_written(storage, path)]
    lost += [path for path in state.begun if match(path) and was_entered(storage, path)]
    if not lost:
        return []
    now = read_job(storage, state.job)  # newer than what was listed: names all that is whole
    known = known_stages(now)
    return [path for path in lost if path not in known or path in now.begun]


def known_stages(state: JobState) -> set[StagePath]:
    """Return the stages that a job log names."""
    return {*state.order, *state.released, *state.begun}


def was_entered(storage: Storage, path: StagePath) -> bool:
    """Return whether the stage's own log says that the job log counted it."""
    try:
        stage = open_stage(storage, path)
        return read_state(stage).entered
    except (CorruptDataError, NotFoundError):
        return False  # not described yet, or a finding of that stage


def note_entered(stage: StageHandle, record_id: str) -> None:
    """Append ENTERED to the log of a stage that was begun and is entered now. Safe to repeat.

    Call it before success is reported and before the stage that it replaces goes.
    """

    def unless_noted(state: StageState) -> Entered | None:
        return None if state.entered or state.over else Entered(record_id)

    stage_log(stage).decide(read_state(stage), unless_noted)


def is_empty(stage: StageHandle) -> bool:
    """Return whether a stage that is written by appending has not a single append."""
    if stage.describe.writing != "log":
        return False
    state = read_state(stage)
    logs = (kept_records(stage, p, state) for p in range(stage.describe.producers))
    return not any(isinstance(record, Append) for log in logs for _, record in log)


def _is_written(storage: Storage, path: StagePath) -> bool:
    return any(True for name in _WRITTEN for _ in storage.list(path.prefix + name))


def _refuse_newer(stage: StageHandle, other: StagePath, *, begun: bool) -> None:
    """Refuse the newest stage of its name if one that the log lost is newer."""
    try:
        lost = open_stage(stage.storage, other)
    except NotFoundError:
        return  # left behind by a late writer
    age, found = (
        (described.generation, described.created_wall_seconds)
        for described in (stage.describe, lost.describe)
    )
    if begun or (found >= age and not is_empty(lost)):
        raise CorruptDataError(
            f"the log of job {other.job!r} lost its end: the newest stage {other.name!r} that it "
            f"names is {stage.path.prefix!r}, and {other.prefix!r} is newer; verify --repair "
            "enters it again"
        )


def _lost(path: StagePath) -> NotFoundError:
    return NotFoundError(
        f"the log of job {path.job!r} lost its end: it does not name stage {path.name!r}, whose "
        f"data stands at {path.prefix!r}; verify --repair enters the stage again"
    )


def lost_stage(
    storage: Storage, job: str, match: Callable[[StagePath], bool]
) -> NotFoundError | None:
    """Return what to raise if a stage that the job log does not name is stored all the same."""
    lost = unnamed_stages(storage, read_job(storage, job), match)
    return _lost(lost[0]) if lost else None


class LostRecords:
    """Refuses to compute a stage again that is stored and that the job log does not name.

    The job's folders are listed once, at the first stage that is not in the log. Thread-safe.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._folders: list[StagePath] | None = None

    def refuse(self, state: JobState, name: str, fingerprint: str) -> None:
        """Refuse to begin this stage if it is stored.

        Raises:
            CorruptDataError: names the stage and what to do.
        """
        with self._lock:
            if self._folders is None:
                self._folders = stage_folders(self._storage, state.job)
        known = known_stages(state)
        lost = [
            path
            for path in self._folders
            if (path.name, path.fingerprint) == (name, fingerprint)
            and path not in known
            and _is_written(self._storage, path)
        ]
        if lost:  # unless another driver has entered it since `state` was read
            known = known_stages(read_job(self._storage, state.job))
        for path in lost:
            if path not in known:
                raise CorruptDataError(
                    f"the log of job {state.job!r} ends before what the storage holds: it does not "
                    f"name {path.prefix!r} on {self._storage.description}, which is this very "
                    "stage; `durable-shuffle verify URL JOB --repair` enters it again, "
                    'lost_records="ignore" computes it anew'
                )
