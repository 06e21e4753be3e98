"""The end of a consumer in every order of crashes and late requests."""

import pytest

from protocol.ending_model import (
    COMMITTED_TOO_EARLY,
    PREPARED_TWICE,
    STALE_STATE,
    EndingModel,
    ended,
    none_left,
)
from protocol.explorer import explore

MAX_STATES = 500_000


@pytest.mark.requirement("R-F46-5")
@pytest.mark.requirement("R-F46-17")
@pytest.mark.requirement("R-F46-19")
def test_the_end_is_prepared_and_committed_once() -> None:
    """With all rules on nothing breaks, and the end can always be reached by who is left."""
    found = explore(
        EndingModel(),
        max_states=MAX_STATES,
        wanted=ended,
        can_always_finish=ended,
        excuse=none_left,
    )
    assert found.holds, found
    assert found.wanted > 0


@pytest.mark.parametrize(
    ("model", "damage"),
    [
        (EndingModel(open_copies_ending=False), PREPARED_TWICE),
        (EndingModel(effect_before_committed=False), COMMITTED_TOO_EARLY),
        (EndingModel(snapshot_before_prepared=False), STALE_STATE),
    ],
)
def test_each_rule_is_needed(model: EndingModel, damage: str) -> None:
    """Off, something breaks."""
    found = explore(model, max_states=MAX_STATES)
    assert damage in found.traces, found
