"""An appender's log whose old slots go, explored."""

from dataclasses import replace

import pytest

from protocol import trim_model as trims
from protocol.explorer import explore
from protocol.trim_model import TrimModel, all_over, all_read, trimmed

MAX_STATES = 200_000
WITH_A_CRASH = TrimModel(appends=1)


@pytest.mark.parametrize(
    ("model", "states"), [(WITH_A_CRASH, 14_061), (TrimModel(crashes=0), 8_299)]
)
def test_slots_go_and_nobody_is_deceived(model: TrimModel, states: int) -> None:
    """An attempt that was given up meets the OPEN behind its last record, whatever went before."""
    found = explore(model, max_states=MAX_STATES, wanted=trimmed, can_always_finish=all_over)
    print(found)
    assert found.holds, found
    assert found.states == states
    assert found.wanted > 50


@pytest.mark.parametrize(
    ("model", "steps"),
    [
        (replace(WITH_A_CRASH, opens_stay=False), 10),
        (replace(WITH_A_CRASH, looks_behind_its_open=False), 11),
        (replace(WITH_A_CRASH, floor_first=False), 10),
    ],
    ids=["an OPEN goes", "believes its OPEN", "goes before the floor stands"],
)
def test_each_rule_is_needed(model: TrimModel, steps: int) -> None:
    """Off, a shortest trace of known length leads to a record that nobody reads."""
    found = explore(model, max_states=MAX_STATES, only={trims.WON_NOTHING})
    print(found)
    assert trims.WON_NOTHING in found.traces, found
    assert len(found.traces[trims.WON_NOTHING]) == steps, found


READ = TrimModel(appends=1, crashes=0, follows=True)


def test_a_reader_that_looks_at_the_floor_always_comes_to_the_end() -> None:
    """It may have paused while slots went; it never takes rows that do not count."""
    found = explore(READ, max_states=MAX_STATES, wanted=trimmed, can_always_finish=all_read)
    print(found)
    assert found.holds, found
    assert found.states == 13_883


def test_a_reader_that_does_not_look_waits_for_ever() -> None:
    found = explore(
        replace(READ, reader_looks=False),
        max_states=MAX_STATES,
        wanted=trimmed,
        can_always_finish=all_read,
    )
    print(found)
    assert not found.holds, found
