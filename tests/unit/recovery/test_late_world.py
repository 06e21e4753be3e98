"""Coordinators in a world that is late: every history ends, runs, or says why."""

from collections import Counter

import pytest
from late_world import run_history

SAMPLE, MANY = 30, 10_000


@pytest.mark.requirement("R-ARR-3")
@pytest.mark.requirement("R-ARR-20")
@pytest.mark.requirement("R-MZ-7")
@pytest.mark.requirement("R-MZ-14")
@pytest.mark.parametrize("part", range(SAMPLE))
def test_a_history_ends_runs_or_says_why(seed: int, part: int) -> None:
    """Claims, starts, reports, kills and storage calls are late, lost or doubled, over updates,
    drops, restarts, pauses, outages and stops."""
    run_history(seed * 1000 + part)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_many_histories(seed: int) -> None:
    """Ten thousand, of which all kinds of ends are some."""
    ends = Counter(str(run_history(seed * 100_000 + n).phase) for n in range(MANY))
    assert set(ends) >= {"canceled", "failed", "finished", "suspended"}, ends
