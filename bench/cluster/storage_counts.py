"""What storage says about a durable job, asked from outside its driver.

It believes listings, so it is for reports and never for decisions.
"""

from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.log.layout import slot_name
from durable_shuffle.shuffle.log.stage import open_stage, require_seal
from durable_shuffle.shuffle.seal.seal import count_reruns
from durable_shuffle.shuffle.storage.contract import Storage


def committed_producers(storage: Storage, job: str) -> int:
    """Return how many producers of all stages of a job have a record in their log."""
    stages = read_job(storage, job).order
    keys = [info.key for stage in stages for info in storage.list(stage.producers_prefix)]
    return sum(key.endswith(f"/{slot_name(0)}") for key in keys)


def reruns(storage: Storage, job: str) -> int:
    """Return how many attempts wrote although a COMMIT existed, over all stages of a job.

    Raises:
        NotReadyError: a stage is not sealed: the job did not finish.
    """
    stages = [open_stage(storage, path) for path in read_job(storage, job).order]
    return sum(count_reruns(stage, require_seal(stage)).attempts for stage in stages)
