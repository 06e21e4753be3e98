"""How much of a job is stored: one look at its storage, and what changed between two looks."""

from durable_shuffle.jobs.text import plural
from durable_shuffle.recovery.program import JobLook, StoredPart
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage, read_state
from durable_shuffle.shuffle.storage.contract import Storage


def look(storage: Storage, job: str, before: JobLook | None = None) -> JobLook:
    """Read a job's log, and of each stage its log or a listing of its producers.

    Stages that `before` saw sealed are not read again. A stage that cannot be read counts as empty.

    Raises:
        DurableShuffleError: the job's log cannot be read.
    """
    state = read_job(storage, job)
    known = before.stages if before is not None else {}
    parts = {}
    for path in state.live:
        old = known.get(path.folder)
        sealed = old is not None and old.sealed
        parts[path.folder] = old if old is not None and sealed else _part(storage, path)
    return JobLook(state.owner, state.ended, parts)


def _part(storage: Storage, path: StagePath) -> StoredPart:
    try:
        stage = open_stage(storage, path)
        seal = read_state(stage).seal
        if seal is not None:
            return StoredPart(path.name, seal.producers, seal.producers, sealed=True)
        done = sum(1 for _ in storage.list(path.producers_prefix))
    except DurableShuffleError:
        return StoredPart(path.name, 0, None, sealed=False)
    total = None if stage.describe.writing == "log" else stage.describe.producers
    return StoredPart(path.name, done, total, sealed=False)


def changes(before: JobLook | None, after: JobLook) -> str:
    """Return one line for people: what is stored, and what of it is new."""
    old = before.stages if before is not None else {}
    sealed = {folder for folder, part in after.stages.items() if part.sealed}
    new = sealed - {folder for folder, part in old.items() if part.sealed}
    line = f"{plural(len(sealed), 'stage')} stored"
    if before is not None and new:
        line += f", {len(new)} of them new"
    for part in after.stages.values():
        if not part.sealed:
            of = "" if part.total is None else f" of {part.total}"
            line += f"; {part.name}: {part.done}{of} map tasks stored"
    return line
