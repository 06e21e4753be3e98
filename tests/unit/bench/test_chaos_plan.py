"""The chaos run's schedule and verdict: each check can fail."""

from dataclasses import replace
from itertools import islice

import pytest

from durable_shuffle.bench.chaos.plan import (
    ChaosOutcome,
    ChaosPlan,
    chaos_failures,
    lost_per_kill,
)

PLAN = ChaosPlan(5, ("a", "b", "c", "d", "e"), 6.0)
GOOD = ChaosOutcome(
    shuffle="durable",
    kills_wanted=True,
    right=5,
    wrong=(),
    executor_kills=9,
    executor_kills_wanted=5,
    driver_kills=3,
    driver_kills_wanted=3,
    map_tasks_run=70,
    map_tasks_reused=11,
    map_tasks_rerun=0,
    map_tasks=0,
    seconds=100.0,
)


def test_one_seed_is_one_schedule() -> None:
    """Equal seeds give equal kills, other seeds others; gaps stay near what was asked for."""
    assert list(islice(PLAN.gaps(), 20)) == list(islice(PLAN.gaps(), 20))
    assert PLAN.driver_dies_at() == PLAN.driver_dies_at()
    other = replace(PLAN, seed=6)
    assert list(islice(other.gaps(), 20)) != list(islice(PLAN.gaps(), 20))
    assert all(4.2 <= gap <= 7.8 for gap in islice(PLAN.gaps(), 100))
    assert len(PLAN.driver_dies_at()) == 3
    assert set(PLAN.driver_dies_at()) <= set(PLAN.queries)


def test_one_executor_per_query() -> None:
    """Without a clock each query loses one executor, and the driver after it."""
    each = replace(PLAN, every_seconds=None, driver_kills=5)
    assert list(each.gaps()) == []
    executors, drivers = each.executor_dies_at(), each.driver_dies_at()
    assert set(executors) == set(drivers) == set(each.queries)
    assert all(0 < executors[query] < drivers[query] < 1 for query in each.queries)
    assert PLAN.executor_dies_at() == {}


def test_all_good_has_no_failures() -> None:
    """A run as promised, with its calm twin."""
    calm = replace(GOOD, kills_wanted=False, executor_kills=0, driver_kills=0, seconds=40.0)
    assert chaos_failures([calm, GOOD], 5) == []
    assert lost_per_kill(calm, GOOD) == 5.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"right": 4, "wrong": ("b",)}, "wrong: b"),
        ({"right": 4}, "4 of 5 right"),
        ({"driver_kills": 2}, "did not fire"),
        ({"executor_kills": 4}, "did not fire"),
        ({"map_tasks_rerun": 1}, "ran again"),
        ({"map_tasks_run": 0}, "nothing was tested"),
        ({"kills_wanted": False}, "calm run"),
    ],
)
def test_each_check_can_fail(change: dict[str, object], words: str) -> None:
    """One thing wrong is one failure that says it."""
    (failure,) = chaos_failures([replace(GOOD, **change)], 5)
    assert words in failure


def test_nothing_is_no_success() -> None:
    """A run without passes has failed."""
    assert chaos_failures([], 5) == ["nothing ran"]
