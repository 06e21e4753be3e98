"""Drivers with wrong clocks agree on the time, which is the storage's."""

import logging

import pytest
from small_stage import ManualClock

from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.storage_clock import (
    StorageClock,
    clock_of,
    put_and_compare,
    seconds_ahead,
)

NOW = 1_700_000_000.0
HALF_A_DAY = 43_200.0


@pytest.mark.parametrize("wrong", [HALF_A_DAY, -HALF_A_DAY])
def test_a_wrong_clock_gives_way_to_the_storages(
    wrong: float, caplog: pytest.LogCaptureFixture
) -> None:
    """In both directions; a warning says so, and nothing is left of the probe but its object."""
    storage = MemoryStorage()
    storage._clock = ManualClock(NOW, [])
    clock = ManualClock(NOW + wrong, [])
    ahead = put_and_compare(storage, "job/preflight/x", b"x", clock)
    with caplog.at_level(logging.WARNING):
        found = clock_of(clock, ahead)
    assert isinstance(found, StorageClock)
    assert abs(found.wall() - NOW) < 1
    assert ("ahead of" if wrong > 0 else "behind") in caplog.text


@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        (NOW, NOW + 1, NOW + 30),
        (NOW, NOW + 1, NOW - 30),
        (NOW, NOW + 500, NOW + 250),  # a slow request
        (NOW, NOW + 1, 0.0),  # a storage that does not tell
    ],
)
def test_what_is_close_or_not_known_changes_nothing(
    before: float, after: float, written: float
) -> None:
    """The machine's clock stands."""
    assert seconds_ahead(before, after, written) == 0.0
    clock = ManualClock(NOW, [])
    assert clock_of(clock, 0.0) is clock
