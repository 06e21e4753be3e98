"""What a coordinator says of its pipeline, and what that adds up to for whoever reads it later."""

from itertools import pairwise

import pytest
from operated import make
from small_stage import ManualClock

from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.recovery.job.phases import Failure, TaskPhase, TaskReport
from durable_shuffle.recovery.job.restarts import RestartBudget, RestartSettings
from durable_shuffle.recovery.pipeline.coordinator.reporter import ALIVE_SECONDS, Reporter
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.status import (
    RESTARTS_KEPT,
    WHOLE_EVERY,
    Status,
    added_up,
)
from durable_shuffle.shuffle.base.clock import RandomIds

PLAN: PipelinePlan = make("/nowhere", {"copy": 1, "goes": 1}).plan


class Told:
    """A reporter, a machine whose tasks move on, and everything that was said."""

    def __init__(self) -> None:
        self.clock = ManualClock(0.0, [])
        self.reporter = Reporter(self.clock, RandomIds())
        budget = RestartBudget(RestartSettings(), lambda: 0.0)
        self.machine = Job(PLAN.graph, PLAN.drained, budget)
        self.said: list[Status] = []

    def say(self, records: int) -> None:
        self.machine.tasks["numbers-p0000"].records = records
        found = self.reporter.status(self.machine, PLAN, "v1")
        if found is not None:
            self.said.append(found)

    @property
    def whole(self) -> list[int]:
        return [n for n, status in enumerate(self.said) if status.whole]


def test_whoever_reads_from_the_last_whole_record_knows_all() -> None:
    """At any time: phases, how far, what was dropped, the newest restarts with their causes."""
    told = Told()
    told.reporter.reset(["numbers", "copy", "goes"])
    for n in range(3 * WHOLE_EVERY):
        if n == 2:
            told.reporter.frontiers.drop("goes")
        if n in (3, 4):
            failure = Failure("ValueError", f"broken {n}")
            told.reporter.fell(TaskReport("copy-k0000", n, TaskPhase.FAILED, failure))
        told.say(n)
        start = max(told.whole)
        found = added_up(told.said[start:])
        assert {one.part: one.records for one in found.reached}["numbers"] == n
        assert found.dropped == (("goes",) if n >= 2 else ())
        assert [one.epoch for one in found.restarts] == [e for e in (3, 4) if n >= e]
        assert len(found.tasks) == len(PLAN.tasks)
    assert all(b - a == WHOLE_EVERY for a, b in pairwise(told.whole))
    assert len(told.whole) == 3
    assert "ValueError: broken 3" in found.restarts[0].cause


def test_restarts_are_kept_up_to_a_number() -> None:
    told = Told()
    for n in range(100):
        told.reporter.fell(TaskReport("copy-k0000", n, TaskPhase.FAILED, Failure("x", "y")))
        told.say(n)
    found = added_up(told.said[max(told.whole) :])
    assert [one.epoch for one in found.restarts] == list(range(100 - RESTARTS_KEPT, 100))


@pytest.mark.requirement("R-MZ-7")
def test_a_restart_never_moves_reported_progress_back() -> None:
    """Also where a record says everything again; the machine is the one that restarts the task."""
    told = Told()
    told.reporter.reset(["numbers", "copy", "goes"])
    machine, reached = told.machine, []
    machine.start()
    machine.generation_won(1, 0.0)
    for n in range(3 * WHOLE_EVERY):
        if n % 10 == 9:  # from behind
            task = "numbers-p0000"
            epoch = machine.tasks[task].epoch
            failed = TaskReport(task, epoch, TaskPhase.FAILED, Failure("ValueError", "broken"))
            machine.said(failed, 1000.0 * n)
            machine.tick(1000.0 * n + 100)
            machine.generation_won(machine.generation + 1, 1000.0 * n + 100)
            machine.tasks[task].records -= 20
        told.say(machine.tasks["numbers-p0000"].records + 7)
        for status in told.said[-1:]:
            reached += [one.records for one in status.reached if one.part == "numbers"]
    assert len(told.whole) >= 3
    assert reached == sorted(reached)


@pytest.mark.requirement("R-MZ-12")
def test_a_part_that_comes_back_is_not_called_dropped() -> None:
    """By no later record that says everything."""
    told = Told()
    told.reporter.reset(["numbers", "copy", "goes"])
    told.say(1)
    told.reporter.frontiers.drop("goes")
    told.say(2)
    assert told.said[-1].dropped == ("goes",)
    told.reporter.frontiers.ask(["goes"])
    for n in range(WHOLE_EVERY):
        told.say(n + 3)
    assert told.said[-1].whole or len(told.whole) > 1
    found = added_up(told.said[max(told.whole) :])
    assert found.dropped == ()
    assert "goes" in {one.part for one in found.reached}


@pytest.mark.requirement("R-MZ-12")
def test_who_comes_later_is_not_told_of_what_he_never_knew() -> None:
    """A drop before a reconnect is no news behind it; nothing new is not said."""
    told = Told()
    told.reporter.reset(["numbers", "copy", "goes"])
    told.reporter.frontiers.drop("goes")
    told.say(1)
    assert told.said[-1].dropped == ("goes",)
    before = len(told.said)
    told.say(1)
    assert len(told.said) == before, "nothing is new"
    told.reporter.reset(["numbers", "copy"])
    told.say(1)
    assert told.said[-1].whole
    assert told.said[-1].dropped == ()
    assert {one.part for one in told.said[-1].reached} == {"numbers", "copy"}
    told.reporter.not_said()
    told.say(1)
    assert told.said[-1].whole, "what does not stand is said again"


def test_without_news_it_is_said_again_that_somebody_leads() -> None:
    """Once in each interval, and not before."""
    told = Told()
    told.reporter.reset(["numbers", "copy", "goes"])
    told.say(7)
    for _ in range(5):
        told.clock.sleep(ALIVE_SECONDS - 1)
        told.say(7)
        told.clock.sleep(1)
        told.say(7)
    assert len(told.said) == 6
