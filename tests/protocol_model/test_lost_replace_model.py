"""A REPLACE that was lost, and the ABORT of it, in every order of repairs, cleaners and crashes."""

from dataclasses import replace

import pytest

from protocol import lost_replace_model as lost
from protocol.compact_model import READS_MISSING
from protocol.explorer import explore
from protocol.lost_replace_model import (
    LostReplaceModel,
    LostReplaceState,
    Stage,
)

MAX_STATES = 500_000
TWO = LostReplaceModel()
ALONE = LostReplaceModel(Stage(compactors=0, repairers=1, cleanings=0))


def settled(state: LostReplaceState) -> bool:
    """Return whether a REPLACE was lost and settled."""
    return bool(state.settled & state.lost)


@pytest.mark.parametrize(
    ("model", "states"),
    [
        (LostReplaceModel(Stage(compactors=0, repairers=1, cleanings=1)), 362),
        (LostReplaceModel(Stage(compactors=1, repairers=1, cleanings=1)), 19_795),
        (TWO, 42_251),
    ],
    ids=["one repairer", "and a compactor", "two repairers"],
)
def test_an_abort_ends_nothing_that_counts(model: LostReplaceModel, states: int) -> None:
    """With all rules on what counted goes on counting until the storage loses it, and what was
    settled never counts again."""
    found = explore(model, max_states=MAX_STATES, wanted=settled)
    print(found)
    assert found.holds, found
    assert found.states == states
    assert found.wanted > 20


@pytest.mark.parametrize(
    ("model", "damage", "steps"),
    [
        (replace(ALONE, sends_abort=False), lost.COMES_BACK, 7),
        (replace(ALONE, reads_again=False), lost.COMES_BACK, 9),
        (
            replace(ALONE, stage=replace(ALONE.stage, counted_stays=False), reads_again=False),
            lost.ENDED,
            9,
        ),
        (
            replace(ALONE, stage=replace(ALONE.stage, abort_is_fate=False, walks_from_base=False)),
            lost.COMES_BACK,
            8,
        ),
        (
            replace(TWO, stage=replace(TWO.stage, abort_before_delete=False)),
            READS_MISSING,
            6,
        ),
    ],
    ids=[
        "believed lost without ABORT",
        "ABORT goes on behind a REPLACE",
        "ABORT ends what counted",
        "a REPLACE behind its ABORT counts",
        "an unnamed index goes without ABORT",
    ],
)
def test_each_rule_is_needed(model: LostReplaceModel, damage: str, steps: int) -> None:
    """Off, a shortest trace of known length leads to the damage."""
    found = explore(model, max_states=MAX_STATES)
    print(found)
    assert damage in found.traces, found
    assert len(found.traces[damage]) == steps, found


@pytest.mark.parametrize("rule", ["counted_stays", "abort_is_fate"])
def test_a_second_rule_holds_what_the_first_does(rule: str) -> None:
    """Who reads up to the slot that it sends to cannot put ABORT behind what counts, nor a REPLACE
    behind its ABORT."""
    stage = replace(LostReplaceModel().stage, repairers=1, **{rule: False})
    assert explore(LostReplaceModel(stage), max_states=MAX_STATES).holds
