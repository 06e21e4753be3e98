"""What a driver does with a stage that was released, decided without Spark."""

from pathlib import Path
from typing import Any, cast

import pytest
from stored_job import stored_stage

from durable_shuffle.jobs.stages.identity import StageIdentity
from durable_shuffle.jobs.stages.store import StageStore
from durable_shuffle.recovery.resume import Fresh, Reuse, ReusePolicy
from durable_shuffle.serialization.errors import IncompatibleError, NotFoundError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.release.stages import release_stage, release_stage_of
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

FINGERPRINT = "f" * 32
IDENTITY = StageIdentity(FINGERPRINT, {"plan": FINGERPRINT}, (), ())


class Named:
    """Work that was never begun: a stage that is reused needs no more than its name."""

    name = "orders"


def store_of(storage: LocalStorage, log: JobLog, policy: ReusePolicy = "auto") -> StageStore:
    """A store whose engine must not be asked."""
    return StageStore(
        storage=CountingStorage(storage),
        task_storage=storage,
        log=log,
        policy=policy,
        settings=Settings(),
        clock=SystemClock(),
        ids=RandomIds(),
        engine=cast("Any", None),
    )


def test_a_stage_whose_own_log_says_released_is_not_reused(tmp_path: Path) -> None:
    """Also if the job log does not say so: a fresh stage is made, `require` refuses."""
    storage, ids = LocalStorage(tmp_path), RandomIds()
    log = JobLog.claim(storage, "job", ids.new_id())
    stage = stored_stage(log, storage, job="job", name="orders", fingerprint=FINGERPRINT)
    work = cast("Any", Named())
    assert isinstance(store_of(storage, log).look(work, IDENTITY), Reuse)
    release_stage(stage, ids, generation=1, producers=3, cause="the test")
    decision = store_of(storage, log).look(work, IDENTITY)
    assert isinstance(decision, Fresh)
    assert decision.why == "the stored stage was released: the test"
    with pytest.raises(IncompatibleError, match="released"):
        store_of(storage, log, "require").ensure(work, IDENTITY)


def test_a_stage_released_by_another_thread_is_refused(tmp_path: Path) -> None:
    """The release comes between the decision to reuse the stage and its entry in the job log."""
    storage, ids = LocalStorage(tmp_path), RandomIds()
    log = JobLog.claim(storage, "job", ids.new_id())
    stage = stored_stage(log, storage, job="job", name="orders", fingerprint=FINGERPRINT)
    store = store_of(storage, log)
    real, released = store._decide, []

    def decide_then_release(*arguments: Any, **named: Any) -> Any:
        decision = real(*arguments, **named)
        released.append(release_stage_of(log, storage, stage.path, ids))
        return decision

    store._decide = decide_then_release  # type: ignore[method-assign]
    with pytest.raises(NotFoundError, match="released and cannot be used again"):
        store.ensure(cast("Any", Named()), IDENTITY)
    assert released
    assert (log.state.order, log.state.released) == ((), (stage.path,))
