"""Releasing one stage of a claimed job: the job log first, then the stage.

The order matters: a driver that plans to reuse a stage wins a slot of the job log too, so one of
the two learns of the other before anything is deleted. It must not run without a claim.
"""

from durable_shuffle.shuffle.cleanup import Freed, release_stage
from durable_shuffle.shuffle.clock import IdSource
from durable_shuffle.shuffle.job_log import JobLog
from durable_shuffle.shuffle.layout import StagePath
from durable_shuffle.shuffle.records import StageReleased
from durable_shuffle.shuffle.stage import open_stage, read_state
from durable_shuffle.shuffle.storage import Storage


def release_stage_of(log: JobLog, storage: Storage, path: StagePath, ids: IdSource) -> Freed:
    """Win the job log's slot for the release, then give the space back.

    Raises:
        FencedError: a newer driver claimed the job; nothing was deleted.
    """
    cause = f"released by generation {log.generation}"
    log.append(
        StageReleased(
            ids.new_id(), log.generation, path.name, path.fingerprint, path.incarnation, cause
        )
    )
    return _release(log, storage, path, ids, cause)


def finish_releases(log: JobLog, storage: Storage, ids: IdSource) -> list[Freed]:
    """Finish the releases that an earlier driver decided and did not carry out to the end."""
    return [
        _release(log, storage, path, ids, f"release finished by generation {log.generation}")
        for path in log.state.released
        if not read_state(open_stage(storage, path)).closed
    ]


def _release(log: JobLog, storage: Storage, path: StagePath, ids: IdSource, cause: str) -> Freed:
    stage = open_stage(storage, path)
    producers = stage.describe.producers
    return release_stage(stage, ids, generation=log.generation, producers=producers, cause=cause)
