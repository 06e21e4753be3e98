"""Coordinators in a world that is late: every history ends, runs, or says why."""

from collections import Counter

import pytest
from late_world import World, run_history

from durable_shuffle.recovery.job.phases import JobPhase

SAMPLE, MANY = 30, 10_000


@pytest.mark.sampled(10)
@pytest.mark.requirement("R-ARR-2", "R-ARR-8", "R-ARR-10", "R-MZ-3", through="product")
@pytest.mark.requirement("R-ARR-3", through="product")
@pytest.mark.requirement("R-ARR-20", through="product")
@pytest.mark.requirement("R-MZ-7", through="product")
@pytest.mark.requirement("R-MZ-14", through="product")
@pytest.mark.parametrize("part", range(SAMPLE))
def test_a_history_ends_runs_or_says_why(seed: int, part: int) -> None:
    """Claims, starts, reports, kills and storage calls are late, lost or doubled, over updates,
    drops, restarts, pauses, outages and stops."""
    run_history(seed * 1000 + part)


@pytest.mark.parametrize("history", [3780611597009])
def test_a_history_that_failed_once(history: int) -> None:
    """A pipeline that rests with a commit that was not published is cancelled then: the result of a
    cancelled one has nothing pending."""
    run_history(history)


@pytest.mark.requirement("R-ARR-11", through="product")
@pytest.mark.parametrize(("minutes", "survives"), [(30, True), (61, False)])
def test_an_outage_of_the_storage(seed: int, minutes: int, survives: bool) -> None:
    """Half an hour is waited out with the settings as they come; an hour and more is the cause."""
    world = World(seed, usual=True)
    if survives:
        assert world.run_through_outage(minutes * 60.0).phase is JobPhase.CANCELED, "as it was told"
        assert world.supervisor.machine.budget.total > 20, "it tried all the time"
    else:
        world.causes.add("unavailable")
        result = world.run_through_outage(minutes * 60.0)
        assert result.phase is JobPhase.FAILED
        assert result.cause is not None
        assert result.cause.kind == "unavailable"


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_many_histories(seed: int) -> None:
    """Ten thousand, of which all kinds of ends are some."""
    ends = Counter(str(run_history(seed * 100_000 + n).phase) for n in range(MANY))
    assert set(ends) >= {"canceled", "failed", "finished", "suspended"}, ends
