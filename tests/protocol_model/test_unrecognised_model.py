"""UNRECOGNISED in every order of two drivers, their attempts and a crash."""

import pytest

from protocol import unrecognised_model as model
from protocol.explorer import Exploration, explore
from protocol.unrecognised_model import UnrecognisedModel, UnrecognisedState


def visit(setup: UnrecognisedModel) -> Exploration:
    def sealed(state: UnrecognisedState) -> bool:
        return "SEAL" in state.log and state.committed == "outside"

    return explore(setup, max_states=100_000, wanted=sealed)


def test_no_later_call_uses_rows_that_depend_on_more_than_the_fingerprint_names() -> None:
    """With all rules on, such rows are sealed for those that computed them, and for nobody else."""
    found = visit(UnrecognisedModel())
    print(found)
    assert found.holds, found
    assert found.states == 2_159
    assert found.wanted > 20


@pytest.mark.parametrize(
    ("setup", "damage"),
    [
        (UnrecognisedModel(notes_first=False), model.GOES_ON),
        (UnrecognisedModel(notes_first=False, claims=False), model.USED_AGAIN),
        (UnrecognisedModel(reads_again=False), model.GOES_ON),
        (UnrecognisedModel(reads_again=False, claims=False), model.USED_AGAIN),
        (UnrecognisedModel(looks=False), model.GOES_ON),
    ],
    ids=[
        "COMMIT comes first",
        "COMMIT comes first, one driver",
        "a lost slot is left",
        "a lost slot is left, one driver",
        "goes on without looking",
    ],
)
def test_each_rule_is_needed(setup: UnrecognisedModel, damage: str) -> None:
    """Off, a shortest trace leads to the damage."""
    found = visit(setup)
    assert damage in found.traces, found
