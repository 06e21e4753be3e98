"""Whether and when a job starts again, with a clock and a chance of the test's own."""

import bisect
import random

import pytest

from durable_shuffle.recovery.job.restarts import UNLIMITED, RestartBudget, RestartSettings
from durable_shuffle.serialization.errors import InvalidInputError


def half() -> float:
    return 0.5


@pytest.mark.requirement("R-ARR-11")
@pytest.mark.requirement("R-ARR-19")
def test_so_many_restarts_and_not_one_more() -> None:
    """The limit counts restarts; the delays double, up to the cap, less what chance takes off."""
    budget = RestartBudget(
        RestartSettings(max_restarts=6, first_delay_seconds=1, cap_seconds=10, jitter=0.5), half
    )
    delays = [budget.failed(now) for now in range(8)]
    assert delays == [0.75, 1.5, 3.0, 6.0, 7.5, 7.5, None, None]
    assert (budget.used, budget.total) == (6, 6)


@pytest.mark.requirement("R-ARR-11")
def test_ten_thousand_restarts_without_a_limit(seed: int) -> None:
    """Nothing overflows; every delay is in its range; chance is used."""
    settings = RestartSettings(max_restarts=UNLIMITED)
    budget = RestartBudget(settings, random.Random(seed).random)
    delays = [budget.failed(0.0) for _ in range(10_000)]
    assert None not in delays
    late = [delay for delay in delays[20:] if delay is not None]
    assert settings.cap_seconds / 2 < min(late) < max(late) <= settings.cap_seconds
    assert len(set(late)) > 9_000
    assert budget.used == 10_000


@pytest.mark.requirement("R-ARR-11")
def test_a_healthy_interval_forgives() -> None:
    """Running for long enough resets the count; a second less does not."""
    settings = RestartSettings(max_restarts=2, healthy_seconds=100)
    budget = RestartBudget(settings, half)
    now = 0.0
    for _ in range(50):
        assert budget.failed(now) is not None
        budget.running(now + 1)
        budget.running(now + 50)  # said again: it runs since the first time
        now += 101
    assert budget.total == 50
    assert budget.failed(now) is not None
    for left in (1, 0):  # a second short of healthy forgives nothing
        budget.running(now)
        now += 99
        assert (budget.failed(now) is None) == (left == 0)


@pytest.mark.requirement("R-ARR-11")
def test_tasks_that_fail_now_and_then_do_not_add_up(seed: int) -> None:
    """A hundred tasks that each fail about once an hour run for a week; one that always fails,
    among them, does not."""
    chance = random.Random(seed)
    budget = RestartBudget(RestartSettings(), chance.random)
    week, now = 7 * 24 * 3600.0, 0.0
    due = sorted((chance.expovariate(1 / 3600), f"task{n}") for n in range(100))
    while now < week:
        now, task = due.pop(0)
        assert budget.failed(now, task) is not None, (now, seed)
        budget.running(now + 1, task)
        bisect.insort(due, (now + 1 + chance.expovariate(1 / 3600), task))
    assert budget.total > 10_000
    delays = [budget.failed(now + n, "broken") for n in range(30)]
    assert delays.index(None) == 20


@pytest.mark.parametrize("bad", [{"max_restarts": -2}, {"jitter": 2}, {"healthy_seconds": -1}])
def test_bad_settings_are_named(bad: dict[str, float]) -> None:
    """A value out of its range is refused."""
    with pytest.raises(InvalidInputError, match=next(iter(bad))):
        RestartSettings(**bad)  # type: ignore[arg-type]


@pytest.mark.requirement("R-ARR-11")
@pytest.mark.requirement("R-ARR-19")
def test_an_outage_is_waited_out_for_a_bounded_time() -> None:
    """Failures of the storage use up no restarts, and end the job after so many seconds."""
    settings = RestartSettings(
        max_restarts=2, cap_seconds=60, healthy_seconds=100, outage_seconds=1800, jitter=0
    )
    budget = RestartBudget(settings, half)
    assert budget.failed(0, "task") is not None
    now, tries = 10.0, 0
    while (delay := budget.failed(now, "task", outage=True)) is not None:
        now, tries = now + delay, tries + 1
    assert 1800 <= now - 10 <= 1800 + 60
    assert tries > 30
    assert budget.failed(now, "task") is not None, "the task's own budget was not touched"
    assert budget.failed(now, "task") is None

    for healthy, goes_on in ((99, False), (100, True)):
        again = RestartBudget(settings, half)
        assert again.failed(0, outage=True) is not None
        again.running(1750)
        late = again.failed(1750 + healthy, outage=True)
        assert late is not None or not goes_on
        assert (again.failed(1801 + healthy, outage=True) is not None) is goes_on


def test_what_is_said_of_a_restart() -> None:
    """Also of one that is late by now, and where nothing limits it."""
    assert RestartSettings(3).said(2, 0.25) == "restart 2 in 0.2 s (at most 3 in a row)"
    assert RestartSettings(UNLIMITED).said(9, -6.0) == "restart 9 in 0.0 s (as often as needed)"
