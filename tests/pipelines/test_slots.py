"""Launchers with fewer slots than there are tasks: whole pipelines, and what is said before."""

import logging
from collections import Counter
from pathlib import Path

import pytest
from pipeline_steps import ROWS, Gated, Numbers
from pipelines import PATIENCE_SECONDS, copying, published, settings, until

from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.lines.launcher import Hear, Launcher, RunAttempt, Threads
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.folder import FolderSource
from durable_shuffle.recovery.pipeline.plan.plan import check_slots
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.serialization.errors import InvalidInputError


class FewThreads(Threads):
    """Refuses to run more at once than it has slots for."""

    def __init__(self, run_task: RunAttempt, hear: Hear, slots: int) -> None:
        super().__init__(run_task, hear)
        self.slots = slots
        self.most = 0

    def start(self, task: str, epoch: int, slot: int) -> None:
        super().start(task, epoch, slot)
        self.most = max(self.most, len(self._links))


@pytest.mark.requirement("R-F46-21")
@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_it_runs_to_its_end_on_few_slots(tmp_path: Path, slots: int) -> None:
    """Two sources and three consumers that read from both: each row once, never more at once."""
    made: list[FewThreads] = []

    def launcher(run_task: RunAttempt, _: PipelineSettings, hear: Hear) -> Launcher:
        made.append(FewThreads(run_task, hear, slots))
        return made[0]

    pipeline = copying(tmp_path, Numbers(2, 100), Gated("", -1), producers=2, partitions=3)
    running = pipeline.start(launcher=launcher)
    assert running.wait(PATIENCE_SECONDS).phase is JobPhase.FINISHED
    assert published(tmp_path) == Counter(range(200))
    assert made[0].most <= slots


def test_slots_that_come_later_are_used(tmp_path: Path) -> None:
    """With one slot and endless sources only a source runs; more slots, and all of it runs."""
    made: list[FewThreads] = []

    def launcher(run_task: RunAttempt, _: PipelineSettings, hear: Hear) -> Launcher:
        made.append(FewThreads(run_task, hear, 1))
        return made[0]

    running = copying(tmp_path, Numbers(1), Gated("", -1)).start(launcher=launcher)
    until(lambda: running.phase is JobPhase.RUNNING, "the source runs")
    assert [phase for phase, _ in running.progress().values()] == ["running", "waiting", "waiting"]
    made[0].slots = 3
    until(lambda: published(tmp_path).total() > 0, "rows")
    running.stop("DRAIN")
    assert running.wait(PATIENCE_SECONDS).phase is JobPhase.FINISHED
    rows = published(tmp_path)
    assert rows == Counter(range(len(rows)))


def endless(tmp_path: Path) -> Pipeline:
    """Two tasks that read a folder for ever, two consumers behind them, and three other tasks."""
    pipeline = Pipeline("many", str(tmp_path), settings=settings())
    folder = FolderSource(str(tmp_path), "json", ROWS)
    files = pipeline.source("files", folder, schema=ROWS, producers=2, partitions=1)
    more = files.through("more", Gated("", -1), schema=ROWS)
    more.consume("last", Gated("", -1), schema=ROWS, sink=FileSink(str(tmp_path / "o"), "json"))
    read = FolderSource(str(tmp_path), "json", ROWS, until="DONE")
    ends = pipeline.source("ends", read, schema=ROWS, partitions=2)
    ends.consume("copy", Gated("", -1), schema=ROWS, sink=FileSink(str(tmp_path / "p"), "json"))
    return pipeline


def test_tasks_that_never_end_need_slots_of_their_own(tmp_path: Path) -> None:
    """Four of them, and one for all the others in turn; the message says so."""
    plan = endless(tmp_path).plan
    assert len(plan.tasks) == 7
    for slots in (None, 5, 6, 7, 100):
        check_slots(plan, slots)
    for slots in (0, 1, 4):
        with pytest.raises(InvalidInputError, match=rf"needs 5 slots.* has {slots}\b"):
            check_slots(plan, slots)


def test_where_nobody_knows_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning with both numbers, unless there are enough."""
    plan = copying(tmp_path, Numbers(1), Gated("", -1)).plan
    with caplog.at_level(logging.WARNING):
        check_slots(plan, 3)
        assert not caplog.records
        check_slots(plan, 2)
    assert "3 tasks and the launcher 2 slots" in caplog.text


def test_a_function_can_say_that_it_never_ends(tmp_path: Path) -> None:
    """By an attribute, as the ready-made stream does."""

    class Endless(Numbers):
        bounded = False

    assert IteratorSource(Numbers()).bounded is None
    plan = copying(tmp_path, Endless(), Gated("", -1)).plan
    with pytest.raises(InvalidInputError, match="needs 3 slots"):
        check_slots(plan, 2)


def test_a_launcher_that_cannot_be_made_ends_the_pipeline(tmp_path: Path) -> None:
    """What was wrong is the cause in its result."""

    def launcher(run_task: RunAttempt, _: PipelineSettings, hear: Hear) -> Launcher:
        raise InvalidInputError("no such cluster")

    result = copying(tmp_path, Numbers(1), Gated("", -1)).run(launcher=launcher)
    assert (result.phase, str(result.cause)) == (JobPhase.FAILED, "invalid_input: no such cluster")
