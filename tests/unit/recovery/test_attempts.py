"""Attempts under watch: who counts as silent, and who was only not listened to."""

from pathlib import Path
from typing import Any

import pytest
from pipeline_steps import Gated, Numbers
from pipelines import copying

from durable_shuffle.recovery.job.phases import TaskPhase, TaskReport
from durable_shuffle.recovery.pipeline.coordinator.attempts import Attempts
from durable_shuffle.serialization.errors import InvalidInputError

SILENCE = 10.0
TASKS = tuple(f"t{n}" for n in range(5))


class Launched:
    """A launcher that starts nothing."""

    silence_seconds = SILENCE
    slots: int | None = None

    def check(self, run_task: Any) -> None: ...
    def use(self, run_task: Any) -> None: ...
    def start(self, task: str, epoch: int, slot: int) -> None: ...
    def push(self, slot: int, record: bytes) -> None: ...
    def kill(self, task: str, epoch: int) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def attempts() -> Attempts:
    """Five attempts, all heard at 0."""
    found = Attempts(lambda *_: Launched(), lambda _: None)
    found.launcher = Launched()
    found._watch.silence_seconds = SILENCE
    for task in TASKS:
        assert found.launch((task, 1), 0) is None
        assert found.counts(TaskReport(task, 1, TaskPhase.STARTING), 0.0)
    return found


def silent(attempts: Attempts, now: float) -> list[str]:
    return [task for (task, _), _ in attempts.silent(now)]


@pytest.mark.requirement("R-ARR-17")
def test_a_silent_attempt_is_found_once(attempts: Attempts) -> None:
    """The others said something; a late word of the lost one does not count."""
    now = 0.0
    while now < SILENCE + 1:
        now += 0.5
        for task in TASKS[1:]:
            assert attempts.counts(TaskReport(task, 1, None), now)
        found = silent(attempts, now)
        assert found == (["t0"] if now == SILENCE else [])
    assert not attempts.counts(TaskReport("t0", 1, None), now)


@pytest.mark.parametrize("pause", [3.0, 9.0, 10.0, 100.0, 1e6])
def test_a_coordinator_that_was_paused_loses_nobody(attempts: Attempts, pause: float) -> None:
    """Its process was stopped, or its loop was held up; then all say something again."""
    for now in (0.5, 1.0, 1.5):
        assert silent(attempts, now) == []
    now = 1.5 + pause
    assert silent(attempts, now) == [], "what they said meanwhile lies in the pipes"
    assert silent(attempts, now + 0.1) == []
    for task in TASKS:
        assert attempts.counts(TaskReport(task, 1, None), now + 0.2)
    assert silent(attempts, now + 1) == []


def test_a_pause_does_not_hide_a_silent_attempt_for_ever(attempts: Attempts) -> None:
    """It has as long as before to say something."""
    assert silent(attempts, 1.0) == []
    now = 101.0
    assert silent(attempts, now) == []
    found: list[str] = []
    while not found:
        now += 0.5
        found = silent(attempts, now)
    assert 101.0 + SILENCE / 2 <= now <= 101.0 + SILENCE
    assert set(found) == set(TASKS)


def test_executors_that_are_away_refuse_no_update(tmp_path: Path) -> None:
    """Spark replaces executors that were killed; what counts is the most slots there ever were."""

    class Endless(Numbers):
        bounded = False

    plan = copying(tmp_path, Endless(), Gated("", -1)).plan
    launcher = Launched()
    launcher.slots = 1
    attempts = Attempts(lambda *_: launcher, lambda _: None)
    attempts.launcher = launcher
    with pytest.raises(InvalidInputError, match=r"needs 3 slots.* has 1\b"):
        attempts.check(plan)
    launcher.slots = 3
    attempts.check(plan)
    launcher.slots = 0
    attempts.check(plan)
