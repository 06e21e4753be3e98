"""Tasks that start beside the first records of their stage, explored."""

from dataclasses import replace

import pytest

from protocol import awaited_model as awaited
from protocol.awaited_model import AwaitedModel, may_end, stored
from protocol.explorer import explore

MODEL = AwaitedModel()


def test_nothing_is_stored_before_the_records_stand() -> None:
    """Whenever the driver dies, and whatever lands later."""
    found = explore(MODEL, max_states=10_000, wanted=stored, can_always_finish=may_end)
    print(found)
    assert found.holds, found
    assert found.wanted


@pytest.mark.parametrize(
    ("model", "damage"),
    [
        (replace(MODEL, looks_for=frozenset()), awaited.UNNAMED),
        (replace(MODEL, looks_for=frozenset({"SEAL"})), awaited.UNNAMED),
        (replace(MODEL, looks_for=frozenset({"STAGE"})), awaited.UNSEALED),
        (replace(MODEL, describes_first=False), awaited.UNDESCRIBED),
    ],
    ids=["does not look", "STAGE", "SEAL", "DESCRIBE and STAGE at once"],
)
def test_each_rule_is_needed(model: AwaitedModel, damage: str) -> None:
    found = explore(model, max_states=10_000, only={damage})
    assert damage in found.traces, found
