"""Compaction and repair in every order of crashes, cleaners, releases and late requests."""

import pytest

from protocol.compact_model import (
    FALSE_SUCCESS,
    READER_STARVED,
    READS_MISSING,
    UNDOES_REPAIR,
    CompactModel,
    compacted,
)
from protocol.explorer import explore

MAX_STATES = 500_000

ONE_EACH = CompactModel(compactors=1, repairers=1)
TWO_REPAIRS = CompactModel(compactors=0, repairers=2)


@pytest.mark.parametrize(
    ("model", "states"),
    [
        (CompactModel(), 6_410),
        (ONE_EACH, 7_082),
        (TWO_REPAIRS, 7_240),
        pytest.param(
            CompactModel(compactors=1, repairers=2, cleanings=1),
            134_128,
            marks=[pytest.mark.soak, pytest.mark.timeout(3600)],
        ),
        pytest.param(
            CompactModel(compactors=2, repairers=1, cleanings=1),
            100_147,
            marks=[pytest.mark.soak, pytest.mark.timeout(3600)],
        ),
    ],
    ids=["two compactors", "one of each", "two repairers", "1 and 2", "2 and 1"],
)
def test_what_an_index_names_is_there_and_nothing_undoes_a_repair(
    model: CompactModel, states: int
) -> None:
    """With all rules on, readers of a stage that was not released find what their index names, and
    no index names data that was replaced."""
    found = explore(model, max_states=MAX_STATES, wanted=compacted)
    print(found)
    assert found.holds, found
    assert found.states == states
    assert found.wanted > 100


@pytest.mark.parametrize(
    ("model", "damage", "steps"),
    [
        (CompactModel(abort_before_delete=False), READS_MISSING, 6),
        (CompactModel(abort_is_fate=False, walks_from_base=False), READS_MISSING, 6),
        (CompactModel(unsure_keeps=False), READS_MISSING, 7),
        (
            CompactModel(1, 1, base_counts=False, stops_at_replace=False),
            UNDOES_REPAIR,
            11,
        ),
        (CompactModel(1, 1, stops_at_replace=False), FALSE_SUCCESS, 11),
        (CompactModel(1, 1, other_compact_is_no_fate=False), READS_MISSING, 12),
        (CompactModel(1, 1, superseded_stays=False), READER_STARVED, 11),
        (CompactModel(0, 2, base_counts=False, stops_at_replace=False), UNDOES_REPAIR, 11),
    ],
    ids=[
        "cleaner deletes unnamed",
        "aborted COMPACT counts",
        "no answer, deletes",
        "COMPACT of old data counts",
        "void COMPACT is believed",
        "COMPACT aborts a REPLACE",
        "superseded goes",
        "REPLACE of old data counts",
    ],
)
def test_each_rule_is_needed(model: CompactModel, damage: str, steps: int) -> None:
    """Off, a shortest trace of known length leads to the damage."""
    found = explore(model, max_states=MAX_STATES)
    assert damage in found.traces, found
    assert len(found.traces[damage]) == steps, found


@pytest.mark.parametrize(
    "model",
    [
        CompactModel(abort_is_fate=False),
        CompactModel(1, 1, base_counts=False),
        CompactModel(0, 2, base_counts=False),
    ],
)
def test_a_second_rule_holds_what_the_first_does(model: CompactModel) -> None:
    """What an author that reads all slots meets on its way needs not void its record as well."""
    assert explore(model, max_states=MAX_STATES).holds
