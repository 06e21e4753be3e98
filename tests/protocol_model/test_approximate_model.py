"""Approximate resume: with its rules nothing comes twice and all that is dropped is counted."""

from dataclasses import replace

import pytest

from protocol.approximate_model import (
    DELIVERED_TWICE,
    DROPPED_UNCOUNTED,
    ApproximateModel,
    ApproximateSetup,
    ApproximateState,
)
from protocol.explorer import explore

SETUP = ApproximateSetup(records=2)
LARGE = ApproximateSetup()
THREE = ApproximateSetup(records=2, attempts=3, crashes=0, chunk=1)


def all_delivered_by_two(state: ApproximateState) -> bool:
    """Every record came, and two views had a part in it."""
    opens = [r.acked for r in state.log if r.kind == "OPEN"]
    return all(state.delivered) and len(opens) > 1 and 0 < opens[-1] < len(state.delivered)


@pytest.mark.requirement("R-F135-16")
@pytest.mark.requirement("R-F135-17")
@pytest.mark.parametrize(
    "setup", [SETUP, *(pytest.param(s, marks=pytest.mark.soak) for s in (THREE, LARGE))]
)
def test_with_all_rules_nothing_comes_twice_and_all_that_is_dropped_is_counted(
    setup: ApproximateSetup,
) -> None:
    """Every interleaving of crashes, late creates, full records and releases."""
    found = explore(ApproximateModel(setup), max_states=500_000, wanted=all_delivered_by_two)
    print(found)
    assert found.holds
    assert found.wanted


@pytest.mark.parametrize(
    ("off", "damage"),
    [
        (replace(SETUP, reserves_first=False), DELIVERED_TWICE),
        (replace(LARGE, full_keeps_reserved=False), DELIVERED_TWICE),
        (replace(SETUP, starts_at_reserved=False), DELIVERED_TWICE),
        (replace(THREE, released_by_owner=False), DROPPED_UNCOUNTED),
    ],
    ids=["reserves_first", "full_keeps_reserved", "starts_at_reserved", "released_by_owner"],
)
def test_without_a_rule_something_breaks(off: ApproximateSetup, damage: str) -> None:
    """Each switch gives a shortest trace."""
    found = explore(ApproximateModel(off), max_states=500_000)
    print(found)
    assert damage in found.traces
