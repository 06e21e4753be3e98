"""The purge of a job log's slots, explored."""

from dataclasses import replace

import pytest

from protocol import floor_model as floors
from protocol import floor_reads_model as reads
from protocol.explorer import explore
from protocol.floor_model import FloorModel, all_over, purged
from protocol.floor_reads_model import FloorReads, FloorReadsModel

MAX_STATES = 800_000
TWO = FloorModel(2, crashes=1)


@pytest.mark.parametrize(("writes", "states"), [(1, 21_281), (2, 82_507)])
def test_slots_go_and_nobody_is_deceived(writes: int, states: int) -> None:
    """Wherever a reader begins and whatever is deleted meanwhile, older drivers are fenced, and
    what an owner won stands; beside a create of a dead driver that lands at any time."""
    model = replace(TWO, writes=writes)
    found = explore(model, max_states=MAX_STATES, wanted=purged, can_always_finish=all_over)
    print(found)
    assert found.holds, found
    assert found.states == states
    assert found.wanted > 50


@pytest.mark.parametrize(
    ("model", "damage", "steps"),
    [
        (replace(TWO, looks_when_it_wins=False), floors.WON_NOTHING, 13),
        (replace(TWO, looks_when_it_reads=False), floors.FENCED_DELETED, 13),
        (replace(TWO, floor_first=False), floors.WON_NOTHING, 11),
        (replace(TWO, one_stands=False), floors.WON_NOTHING, 14),
        (replace(TWO, writes=2, fold_voids=False), floors.FENCED_WROTE, 13),
    ],
    ids=[
        "believes a win",
        "believes an end",
        "deletes before it says so",
        "one floor",
        "what a driver wins before it looks counts",
    ],
)
def test_each_rule_is_needed(model: FloorModel, damage: str, steps: int) -> None:
    """Off, a shortest trace of known length leads to the damage."""
    found = explore(model, max_states=MAX_STATES, only={damage})
    print(found)
    assert damage in found.traces, found
    assert len(found.traces[damage]) == steps, found


def test_a_late_delete_of_a_floor_deceives_nobody() -> None:
    """A driver dies between its look at the floors and the new one; its DELETE lands later."""
    late = FloorModel(2, crashes=0, late_deletes=1)
    found = explore(late, max_states=MAX_STATES, wanted=purged, can_always_finish=all_over)
    print(found)
    assert found.holds, found
    assert found.wanted > 50


@pytest.mark.soak
def test_slots_that_go_below_one_floor_are_missed() -> None:
    """With a late DELETE and three drivers."""
    model = FloorModel(3, crashes=0, late_deletes=1, below_both=False)
    found = explore(model, max_states=MAX_STATES, only={floors.WRONG_VIEW})
    assert len(found.traces[floors.WRONG_VIEW]) == 16, found


READS = FloorReadsModel()


def answered(state: FloorReads) -> bool:
    return state.answer != reads.UNREAD


def test_a_reader_sees_a_floor_or_knows_that_there_is_none() -> None:
    """Whatever owners do between its three reads, and wherever they die."""
    found = explore(READS, max_states=MAX_STATES, wanted=answered, can_always_finish=answered)
    print(found)
    assert found.holds, found
    assert found.wanted > 50


@pytest.mark.parametrize(
    ("model", "damage"),
    [
        (replace(READS, looks_again=False), reads.MISSED),
        (replace(READS, mark_first=False), reads.MISSED),
        (replace(READS, missing_first=False), reads.ALARM),
        (replace(READS, most_looks=0), reads.ALARM),
    ],
    ids=["believes the first look", "marks last", "leaves none standing", "looks once"],
)
def test_each_rule_of_reading_floors_is_needed(model: FloorReadsModel, damage: str) -> None:
    """Off, a trace leads to the damage."""
    found = explore(model, max_states=MAX_STATES, only={damage})
    print(found)
    assert damage in found.traces, found
