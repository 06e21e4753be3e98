"""SUSPECT in every order of two readers, two drivers, lost data and a storage that lags."""

import pytest

from protocol import suspect_model as model
from protocol.explorer import Exploration, explore
from protocol.suspect_model import SuspectModel, SuspectState


def visit(setup: SuspectModel) -> Exploration:
    def healed(state: SuspectState) -> bool:
        return state.ran == "needed" and not state.lost

    return explore(setup, max_states=400_000, wanted=healed)


def test_the_next_run_heals_what_a_reader_met_and_runs_nothing_without_need() -> None:
    """With all rules on, also if the storage has denied for a while what is there."""
    found = visit(SuspectModel())
    print(found)
    assert found.holds, found
    assert found.wanted > 1_000


@pytest.mark.parametrize(
    ("setup", "damage"),
    [
        (SuspectModel(checks=False), model.NEEDLESS),
        (SuspectModel(looks_again=False), model.NEEDLESS),
        (SuspectModel(notes_again=False, registers=True), model.UNHEALED),
        (SuspectModel(settles=False), model.IN_VAIN),
        (SuspectModel(by_index=False), model.IN_VAIN),
    ],
    ids=[
        "the reader's word is taken",
        "the first answer is believed",
        "a lost slot is left",
        "nothing found, nothing said",
        "a SUSPECT outlives its index",
    ],
)
def test_each_rule_is_needed(setup: SuspectModel, damage: str) -> None:
    """Off, a shortest trace leads to the damage."""
    found = visit(setup)
    assert damage in found.traces, found
