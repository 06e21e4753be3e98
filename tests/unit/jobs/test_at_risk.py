"""Which exchanges of a query a budget leaves to Spark."""

from datetime import timedelta

import pytest

from durable_shuffle.errors import InvalidInputError
from durable_shuffle.jobs.query.at_risk import AtRisk, risk_from

MIB = 1 << 20


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("nothing", 0),
        ("5 min", 300),
        ("90 s", 90),
        ("1.5h", 5400),
        ("0 s", 0),
        (timedelta(seconds=2.5), 2.5),
    ],
)
def test_budgets(given: str | timedelta, seconds: float) -> None:
    assert risk_from(given) == seconds


@pytest.mark.parametrize("given", ["", "5", "min", "-1 s", "5 years", timedelta(seconds=-1)])
def test_bad_budgets_are_refused(given: str | timedelta) -> None:
    with pytest.raises(InvalidInputError, match="at_risk must be 'nothing', a time"):
        risk_from(given)


def test_without_a_budget_everything_is_stored() -> None:
    assert not AtRisk(0, cores=2, task_bytes=0).allows(0)


def test_the_budget_counts_what_is_at_risk_already() -> None:
    at_risk = AtRisk(12, cores=2, task_bytes=0)
    assert at_risk.task() == 2  # a cold start
    assert at_risk.allows(10)
    at_risk.takes(0, 6)
    assert at_risk.allows(4)
    assert not at_risk.allows(4.1)
    assert at_risk.limit(0) == 10
    at_risk.takes(1, 3)
    assert (at_risk.limit(0), at_risk.limit(1)) == (7, 4)
    at_risk.takes(0, 8)  # it took longer than expected
    assert not at_risk.allows(0)
    assert at_risk.limit(1) == 2
    assert at_risk.limit(7) == -1  # one that no later run needs


def test_the_budget_counts_a_task_under_way() -> None:
    """A task of a stored stage that has not committed is lost, too."""
    at_risk = AtRisk(10, cores=2, task_bytes=60 * MIB)
    assert at_risk.task() == 5
    assert at_risk.allows(5)
    assert not at_risk.allows(5.1)
    at_risk.takes(0, 2)
    assert (at_risk.limit(0), at_risk.limit(1)) == (5, 3)
    assert "5.0 s for a task under way" in at_risk.says(1)
    at_risk.measured(100 * MIB, 1)  # 50 MiB per second and core
    assert at_risk.task() == pytest.approx(3.2)
    assert not AtRisk(2, cores=2, task_bytes=0).allows(0.1)


def test_what_a_sealed_stage_covers_is_not_at_risk() -> None:
    at_risk = AtRisk(10, cores=2, task_bytes=0)
    at_risk.takes(0, 6)
    at_risk.takes(1, 3)
    at_risk.keeps({1})
    assert at_risk.now() == 3
    at_risk.forgets(1)
    assert at_risk.now() == 0


def test_expectations_follow_what_was_measured() -> None:
    at_risk = AtRisk(10, cores=2, task_bytes=0)
    assert at_risk.expected(40 * MIB) == 1
    at_risk.measured(1 * MIB, 0.1)  # too short to say anything
    assert at_risk.expected(40 * MIB) == 1
    at_risk.measured(99 * MIB, 9.9)
    assert at_risk.expected(40 * MIB) == pytest.approx(4)
