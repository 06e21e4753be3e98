"""Coordinators that are disturbed: by a start that is refused, by others' claims, by an outage."""

from pathlib import Path
from typing import Any

import pytest
from operated import NAME, make
from pipeline_steps import ROWS, Numbers
from pipelines import copying, epochs, prefix_of_all, published, settings, threads, until

from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.job.restarts import UNLIMITED
from durable_shuffle.recovery.pipeline.commands.requests import Description
from durable_shuffle.recovery.pipeline.coordinator import logs as coordinator_logs
from durable_shuffle.recovery.pipeline.coordinator.claims import JobClaim
from durable_shuffle.recovery.pipeline.coordinator.logs import PipelineLogs
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.pipeline.task import run_task
from durable_shuffle.serialization.errors import FencedError, UnavailableError
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.storage.contract import StorageLayer
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

IDS = RandomIds()
WAIT = 300.0


class FailsWhenTold:
    """A step of this process that fails once for each item of `fail`."""

    stateless = True

    def __init__(self) -> None:
        self.fail: list[int] = []

    def __deepcopy__(self, _: Any) -> "FailsWhenTold":
        return self

    def process(self, batch: Any) -> Any:
        if self.fail:
            self.fail.pop()
            raise OSError("a passing trouble")
        return batch


def _other_partitions(folder: Path) -> Pipeline:
    bad = Pipeline("copying", str(folder / "data"), settings=settings())
    bad.source("numbers", IteratorSource(Numbers(1)), schema=ROWS, partitions=3)
    return bad


def _unsendable(folder: Path) -> Pipeline:
    return copying(folder, Numbers(1), lambda batch: batch)


def _other_input(folder: Path) -> Pipeline:
    pipeline = Pipeline("copying", str(folder / "data"), settings=settings())
    others = pipeline.source("others", IteratorSource(Numbers(1)), schema=ROWS, partitions=2)
    others.consume("copy", FailsWhenTold())
    return pipeline


@pytest.mark.requirement("R-ARR-6")
@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (_other_partitions, "incompatible"),
        (_unsendable, "invalid_input"),
        (_other_input, "incompatible"),
    ],
)
def test_a_start_that_is_refused_disturbs_nobody(tmp_path: Path, bad: Any, kind: str) -> None:
    """The pipeline that runs wins its next restart, too."""
    step = FailsWhenTold()
    running = copying(tmp_path, Numbers(1), step).start(launcher=threads)
    until(lambda: running.phase is JobPhase.RUNNING and published(tmp_path), "rows")
    launcher = {} if bad is _unsendable else {"launcher": threads}
    refused = bad(tmp_path).start(**launcher).wait(WAIT)
    assert refused.phase is JobPhase.FAILED
    assert refused.cause is not None
    assert refused.cause.kind == kind
    assert read_job(LocalStorage(tmp_path / "data"), "copying").generation == 1
    before = epochs(running)
    step.fail.append(1)
    until(lambda: running.phase is JobPhase.RUNNING and epochs(running) != before, "the restart")
    rows = published(tmp_path).total()
    until(lambda: published(tmp_path).total() > rows, "more rows")
    running.stop("DRAIN")
    assert running.wait(WAIT).phase is JobPhase.FINISHED
    assert prefix_of_all(published(tmp_path), 1)


@pytest.mark.requirement("R-ARR-6")
def test_a_coordinator_whose_job_was_claimed_says_so_at_once(tmp_path: Path) -> None:
    """By a command that leads no pipeline, and although no task fails."""
    more = {"commit_seconds": 3600.0, "append_seconds": 3600.0, "request_seconds": 0.05}
    running = copying(tmp_path, Numbers(1), FailsWhenTold(), **more).start(launcher=threads)
    until(lambda: running.phase is JobPhase.RUNNING, "all run")
    JobLog.claim(LocalStorage(tmp_path / "data"), "copying", IDS.new_id())
    result = running.wait(WAIT)
    assert result.phase is JobPhase.FAILED
    assert result.cause is not None
    assert result.cause.kind == "fenced"
    assert "generation 1, newest=generation 2" in result.cause.text


@pytest.mark.requirement("R-ARR-9")
def test_a_restart_takes_nothing_back_from_a_newer_coordinator(tmp_path: Path) -> None:
    """Whenever the older one was paused: before its claim, or while it is on its way."""

    def logs() -> PipelineLogs:
        plan = make(str(tmp_path), tags={"copy": 1}).plan
        given = Description("operated:make", "", "given", "digest")
        return PipelineLogs(plan, given, packages={"operated"}, clock=SystemClock(), ids=IDS)

    old, new = logs(), logs()
    old.claim()
    prepared = new.claim().prepared
    assert prepared is not None
    with pytest.raises(FencedError, match="another coordinator"):
        old.claim()
    new.check()
    assert new.claim().generation == 3
    new.start(prepared, 3, list(prepared.plan.tasks))
    assert read_job(LocalStorage(tmp_path / "data"), NAME).generation == 3


class Interrupted(StorageLayer):
    """Lets somebody else act before the next create."""

    def __init__(self, storage: Any, act: Any) -> None:
        super().__init__(storage)
        self.act = act

    def _call(self, verb: str, keys: tuple[str, ...], request: Any) -> Any:
        act, self.act = (self.act, None) if verb == "put_if_absent" else (None, self.act)
        if act is not None:
            act()
        return request()


@pytest.mark.requirement("R-ARR-9")
def test_a_claim_that_comes_in_between_fences_the_older_one() -> None:
    """The older one's record is on its way when the newer one wins."""
    storage = MemoryStorage()
    newer = JobClaim(storage, "job", "newer")
    layer = Interrupted(storage, None)
    older = JobClaim(layer, "job", "older")
    assert older.win() == 1
    layer.act = newer.win
    with pytest.raises(FencedError):
        older.win()
    newer.check()
    assert newer.win() == 3
    assert read_job(storage, "job").owner == "newer"


@pytest.mark.requirement("R-ARR-9")
def test_a_restart_costs_one_append_however_many_there_were() -> None:
    """One append at the own end of the job log, a look at the floors of the log, which has none,
    and now and then a snapshot."""
    storage = CountingStorage(MemoryStorage())
    claim = JobClaim(storage, "job", "one")
    costs = []
    for generation in range(1, 1000):
        storage.counts.clear()
        assert claim.win() == generation
        costs.append(storage.total)
    assert max(costs) <= 10
    assert sorted(costs)[800] == 1 + 3


class Unplugged(StorageLayer):
    """Answers nothing while `down`; `kept` counts what was asked meanwhile."""

    down = False
    kept = 0

    def _call(self, verb: str, keys: tuple[str, ...], request: Any) -> Any:
        if Unplugged.down:
            Unplugged.kept += 1
            raise UnavailableError(f"nobody answers: {verb} {keys[:1]}")
        return request()


@pytest.mark.requirement("R-ARR-11")
def test_an_outage_ends_and_the_pipeline_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tasks fall, no generation can be won, requests go unheard; then every row once."""

    def opened(*arguments: Any, **more: Any) -> StorageLayer:
        return Unplugged(open_storage(*arguments, **more))

    monkeypatch.setattr(Unplugged, "down", False)
    monkeypatch.setattr(coordinator_logs, "open_storage", opened)
    monkeypatch.setattr(run_task, "open_storage", opened)
    restarts: dict[str, Any] = {
        "max_restarts": UNLIMITED,
        "first_restart_seconds": 0.01,
        "longest_restart_seconds": 0.05,
    }
    pipeline = copying(tmp_path, Numbers(1), FailsWhenTold(), **restarts)
    running = pipeline.start(launcher=threads)
    until(lambda: running.phase is JobPhase.RUNNING and published(tmp_path), "rows")
    budget = running._supervisor.machine.budget
    for _ in range(2):
        before = budget.total
        Unplugged.down = True
        until(lambda before=before: budget.total >= before + 10, "restarts that do not succeed")
        assert running.phase in (JobPhase.RECOVERING, JobPhase.SCHEDULING)
        Unplugged.down = False
        until(lambda: running.phase is JobPhase.RUNNING, "all run again")
        rows = published(tmp_path).total()
        until(lambda rows=rows: published(tmp_path).total() > rows, "more rows")
    running.stop("DRAIN")
    assert running.wait(WAIT).phase is JobPhase.FINISHED
    assert prefix_of_all(published(tmp_path), 1)


@pytest.mark.requirement("R-ARR-11")
def test_an_outage_that_lasts_ends_with_its_own_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for as long as the settings allow, and then no longer."""

    def opened(*arguments: Any, **more: Any) -> StorageLayer:
        return Unplugged(open_storage(*arguments, **more))

    monkeypatch.setattr(Unplugged, "down", False)
    monkeypatch.setattr(coordinator_logs, "open_storage", opened)
    monkeypatch.setattr(run_task, "open_storage", opened)
    restarts: dict[str, Any] = {
        "first_restart_seconds": 0.01,
        "longest_restart_seconds": 0.02,
        "healthy_seconds": 0.1,
        "outage_seconds": 0.3,
    }
    pipeline = copying(tmp_path, Numbers(1), FailsWhenTold(), **restarts)
    running = pipeline.start(launcher=threads)
    until(lambda: running.phase is JobPhase.RUNNING and published(tmp_path), "rows")
    Unplugged.down = True
    result = running.wait(WAIT)
    assert result.phase is JobPhase.FAILED
    assert result.cause is not None
    assert result.cause.kind == "unavailable"
    assert result.restarts >= 5
    Unplugged.down = False
    again = copying(tmp_path, Numbers(1), FailsWhenTold()).start(launcher=threads)
    until(lambda: again.phase is JobPhase.RUNNING, "a later run goes on")
    again.stop("DRAIN")
    assert again.wait(WAIT).phase is JobPhase.FINISHED
    assert prefix_of_all(published(tmp_path), 1)
