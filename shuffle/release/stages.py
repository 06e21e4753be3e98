"""Release stages of a claimed job: first in the job log, then in the stage.

The order matters: a driver that plans to reuse a stage must win a slot of the job log too, so one
of the two learns of the other before anything is deleted. It must not run without a claim.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    IncompatibleError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import StageReleased
from durable_shuffle.shuffle.log.stage import open_stage, read_state
from durable_shuffle.shuffle.release.cleanup import Freed, release_stage
from durable_shuffle.shuffle.release.damaged import (
    refuse_foreign,
    release_damaged,
    release_done,
)
from durable_shuffle.shuffle.release.registry import progress_in
from durable_shuffle.shuffle.release.retention import (
    AttemptFailed,
    Cause,
    Keep,
    ReleasedByUser,
    judge_consumed,
)
from durable_shuffle.shuffle.release.upto import all_ended
from durable_shuffle.shuffle.storage.contract import Storage


def release_stage_of(
    log: JobLog, storage: Storage, path: StagePath, ids: IdSource, cause: Cause | None = None
) -> Freed:
    """Append RELEASED to the job log unless it is there, then delete the stage's data.

    Args:
        cause: written to both logs; by default, that the user asked for the release.

    Raises:
        FencedError: a newer driver claimed the job; nothing was deleted.
        IncompatibleError: another version wrote the stage; nothing was decided.
    """
    because = str(cause or ReleasedByUser(log.generation))
    if path not in log.state.released:
        refuse_foreign(storage, path)
        log.append(
            StageReleased(
                ids.new_id(),
                log.generation,
                path.name,
                path.fingerprint,
                path.incarnation,
                because,
            )
        )
    return _release(log, storage, path, ids, because)


def give_up_stage(log: JobLog, path: StagePath, ids: IdSource) -> bool:
    """Decide that a begun stage never counts, so that `finish_release` can delete its data.

    Return False if the stage is not merely begun any more: it counts by now, or was given up.

    Raises:
        FencedError: a newer driver claimed the job; nothing was deleted.
    """
    because = str(AttemptFailed(f"never finished, given up by generation {log.generation}"))
    record = StageReleased(
        ids.new_id(), log.generation, path.name, path.fingerprint, path.incarnation, because
    )
    return log.append(record, unless=lambda state: path not in state.begun)


def release_consumed(log: JobLog, storage: Storage, path: StagePath, ids: IdSource) -> Freed | Keep:
    """Release a stage if all consumers of its declared, closed set have finished.

    Returns:
        What was deleted, or why the stage stays.

    Raises:
        FencedError: a newer driver claimed the job; nothing was deleted.
        CorruptDataError, IncompatibleError: a consumer's log cannot be read; nothing is guessed.
    """
    stage = open_stage(storage, path)
    state = read_state(stage)
    if state.release is not None:
        return Keep(f"it was released: {state.release.cause}")
    progress = progress_in(stage, state.register.consumers if state.register else ())
    judged = judge_consumed(
        state.register,
        progress,
        partitions=stage.describe.partitions,
        written=all_ended(stage) if stage.describe.writing == "log" else state.seal is not None,
    )
    if isinstance(judged, Keep):
        return judged
    return release_stage_of(log, storage, path, ids, judged)


def finish_release(log: JobLog, storage: Storage, path: StagePath, ids: IdSource) -> Freed:
    """Complete a release that the job log has decided. Safe to repeat."""
    return _release(log, storage, path, ids, f"release finished by generation {log.generation}")


def finish_releases(
    log: JobLog, storage: Storage, ids: IdSource, failed: list[DurableShuffleError] | None = None
) -> list[Freed]:
    """Complete the releases that an earlier driver decided but did not complete.

    Args:
        failed: receives the errors of damaged stages. Without it, the first error is raised after
            all other stages are done.
    """
    mine: list[DurableShuffleError] = []
    freed = []
    for path in log.state.released:
        with skipping_damaged(mine if failed is None else failed):
            if not release_done(storage, path):
                freed.append(finish_release(log, storage, path, ids))
    raise_first(mine)
    return freed


@contextmanager
def skipping_damaged(failed: list[DurableShuffleError]) -> Iterator[None]:
    """Run the body for one of several stages; if it is damaged, add the error to `failed`."""
    try:
        yield
    except (CorruptDataError, IncompatibleError, NotFoundError) as error:
        failed.append(error)


def raise_first(failed: list[DurableShuffleError]) -> None:
    """Raise the first of the errors, if any. Call this after all other stages are done."""
    if failed:
        failed[0].add_note(
            f"{len(failed)} damaged stages were left as they are, all others are done; "
            "`durable-shuffle verify` names what is damaged"
        )
        raise failed[0]


def _release(log: JobLog, storage: Storage, path: StagePath, ids: IdSource, cause: str) -> Freed:
    generation = log.generation
    try:
        stage = open_stage(storage, path)
        producers = stage.describe.producers
        return release_stage(stage, ids, generation=generation, producers=producers, cause=cause)
    except (CorruptDataError, NotFoundError):  # a log is damaged: do all steps again
        return release_damaged(storage, path, ids, generation=generation, cause=cause)
