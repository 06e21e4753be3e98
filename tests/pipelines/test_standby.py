"""A second instance stands by, and takes over; progress and lag as numbers."""

import threading
from pathlib import Path
from typing import Any

import pytest
from pipeline_steps import Numbers, same
from pipelines import copying, prefix_of_all, published, threads, until

from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.coordinator.claims import JobClaim
from durable_shuffle.recovery.pipeline.coordinator.numbers import Listener, PipelineNumbers
from durable_shuffle.recovery.pipeline.coordinator.standby import Signs, Watch
from durable_shuffle.recovery.pipeline.running import RunningPipeline
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.storage.local import LocalStorage

WAIT = 300.0
QUICK: dict[str, Any] = {"status_seconds": 0.05, "takeover_seconds": 0.5}


def standing_by(folder: Path, upto: int | None = None, **more: Any) -> RunningPipeline:
    pipeline = copying(folder, Numbers(1, upto), same, **(QUICK | more))
    return pipeline.start(launcher=threads, standby=True)


def test_a_second_instance_takes_over_when_the_first_one_ends(tmp_path: Path) -> None:
    """Not before, whatever its patience; a third one can be told to leave."""
    first = copying(tmp_path, Numbers(1), same, **QUICK).start(launcher=threads)
    until(lambda: published(tmp_path), "rows")
    second = standing_by(tmp_path, takeover_seconds=60.0)
    third = standing_by(tmp_path, takeover_seconds=60.0)
    rows = published(tmp_path).total()
    until(lambda: published(tmp_path).total() > rows, "the first one goes on")
    assert second.phase is third.phase is JobPhase.IDLE
    third.stop("SUSPEND")
    assert third.wait(WAIT).phase is JobPhase.SUSPENDED
    assert read_job(LocalStorage(tmp_path / "data"), "copying").generation == 1
    first.stop("SUSPEND")
    assert first.wait(WAIT).phase is JobPhase.SUSPENDED
    until(lambda: second.phase is JobPhase.RUNNING, "the second one runs")
    rows = published(tmp_path).total()
    until(lambda: published(tmp_path).total() > rows, "more rows")
    fourth = standing_by(tmp_path, takeover_seconds=60.0)
    until(lambda: fourth.phase is JobPhase.IDLE, "the fourth one looks")
    second.stop("DRAIN")
    assert second.wait(WAIT).phase is JobPhase.FINISHED
    assert fourth.wait(WAIT).phase is JobPhase.FINISHED, "there is nothing to take over"
    assert prefix_of_all(published(tmp_path), 1)


def test_a_leader_without_a_sign_of_life_is_replaced(tmp_path: Path) -> None:
    """It claimed the job and died."""
    storage = LocalStorage(tmp_path / "data")
    JobClaim(storage, "copying", RandomIds().new_id()).win()
    running = standing_by(tmp_path, 50)
    assert running.wait(WAIT).phase is JobPhase.FINISHED
    assert published(tmp_path).total() == 50
    assert read_job(storage, "copying").generation > 1


@pytest.mark.parametrize("alive", [True, False])
def test_signs_of_life(alive: bool) -> None:
    """A leader that writes a status within the patience leads for ever; by the own clock alone."""
    watch = Watch(90.0)
    for n in range(100):
        leads = watch.may_lead(Signs(1, ended=False, status=n if alive else 0), 30.0 * n)
        assert leads is (not alive and n >= 3)
    assert watch.may_lead(Signs(1, ended=True, status=100), 3001.0)
    assert Watch(90.0).may_lead(Signs(0, ended=False, status=0), 0.0), "there never was one"


def test_numbers_for_monitoring(tmp_path: Path) -> None:
    """A function is told of them; one that fails or hangs disturbs nobody."""
    told: list[PipelineNumbers] = []

    def hears(numbers: PipelineNumbers) -> None:
        told.append(numbers)
        raise ValueError("cannot send it")

    def running() -> set[int]:
        return {part.running for numbers in list(told) for part in numbers.parts}

    pipeline = copying(tmp_path, Numbers(1), same, status_seconds=0.01)
    run = pipeline.start(launcher=threads, on_numbers=hears)
    until(lambda: running() >= {1, 2}, "a source and two subtasks run")
    run.stop("DRAIN")
    assert run.wait(WAIT).phase is JobPhase.FINISHED
    last = told[-1]
    assert (last.name, last.phase, last.restarts) == ("copying", "finished", 0)
    parts = {part.part: part for part in last.parts}
    assert parts["numbers"].records == parts["copy"].records == published(tmp_path).total() > 0
    assert parts["numbers"].lag_records is None
    assert parts["copy"].lag_records == 0
    assert {part.running for part in last.parts} == {0}


def test_the_last_numbers_are_told_whatever_waits() -> None:
    """The function is busy and other numbers wait when the pipeline ends."""
    told: list[str] = []
    busy, go_on = threading.Event(), threading.Event()

    def hears(numbers: PipelineNumbers) -> None:
        busy.set()
        assert go_on.wait(WAIT)
        told.append(numbers.phase)

    def numbers(phase: str) -> PipelineNumbers:
        return PipelineNumbers("copying", phase, 1, 0, ())

    listener = Listener(hears, 1.0)
    listener.turn(1.0, lambda: numbers("told"))
    assert busy.wait(WAIT)
    listener.turn(2.0, lambda: numbers("waits"))
    listener.turn(3.0, lambda: numbers("left out"))
    closing = threading.Thread(target=listener.close, args=(numbers("last"), WAIT))
    closing.start()
    go_on.set()
    closing.join(WAIT)
    assert told == ["told", "waits", "last"]
