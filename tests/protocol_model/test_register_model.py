"""A consumer registers while a stage is released, in every order."""

from dataclasses import replace

import pytest

from protocol import register_model as register
from protocol.explorer import explore
from protocol.register_model import RegisterModel, kept


def test_what_a_consumer_was_told_holds() -> None:
    """With all rules on no stage is released as unused behind a consumer's back."""
    found = explore(RegisterModel(), max_states=10_000, wanted=kept)
    print(found)
    assert found.holds, found
    assert found.wanted > 1


@pytest.mark.parametrize(
    ("rule", "damage"),
    [
        ("asks_job_log", register.TOLD_TOO_LATE),
        ("use_comes_last", register.RELEASED_BEHIND),
        ("vetoed_by_use", register.RELEASED_BEHIND),
    ],
)
def test_each_rule_is_needed(rule: str, damage: str) -> None:
    """Off, a trace leads to the damage."""
    found = explore(replace(RegisterModel(), **{rule: False}), max_states=10_000)
    print(found)
    assert damage in found.traces, found
