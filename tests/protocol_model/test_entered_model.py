"""A STAGE that the job log lost, and ENTERED as its proof, in every order of the actors."""

from dataclasses import replace

import pytest

from protocol import entered_model as entered
from protocol.entered_model import EnteredModel, lost_and_repaired
from protocol.explorer import explore


def test_what_was_entered_is_never_given_up() -> None:
    """With all rules on an overwrite that was reported done keeps its rows, and no reader by name
    gets the old ones."""
    found = explore(EnteredModel(), max_states=10_000, wanted=lost_and_repaired)
    print(found)
    assert found.holds, found
    assert found.wanted > 2


@pytest.mark.parametrize(
    ("rule", "damage"),
    [
        ("notes", entered.OLD_ROWS),
        ("notes_first", entered.OLD_ROWS),
        ("cleaner_looks", entered.ROWS_GONE),
        ("reader_looks", entered.OLD_ROWS),
    ],
)
def test_each_rule_is_needed(rule: str, damage: str) -> None:
    """Off, a trace leads to the damage."""
    found = explore(replace(EnteredModel(), **{rule: False}), max_states=10_000)
    print(found)
    assert damage in found.traces, found
