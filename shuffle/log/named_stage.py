"""From a URL and names to a stage, for readers that do not run Spark."""

from collections.abc import Mapping

from durable_shuffle.serialization.errors import NotFoundError
from durable_shuffle.shuffle.log.job_log import newest_named, read_job
from durable_shuffle.shuffle.log.layout import check_name, job_log_prefix
from durable_shuffle.shuffle.log.lost_stages import lost_stage
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
    SlotLog(storage, job_log_prefix(job)).whole_end()  # refuses a log with a hole
    known = {*order, *state.released, *state.begun}
    if lost := lost_stage(storage, job, known, lambda path: path.name == name):
        raise lost
    if not state.generation:
        raise NotFoundError(f"no job {job!r} below {storage.description}: none has claimed it")
    names = ", ".join(sorted({path.name for path in order})) or "none"
    raise NotFoundError(
        f"job {job!r} on {storage.description} has no stage named {name!r}; stored: {names}"
    )
