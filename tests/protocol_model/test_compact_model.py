"""Compaction in every order of crashes, cleaners, releases and late requests."""

import pytest

from durable_shuffle.shuffle.testing.protocol.compact_model import (
    READS_MISSING,
    CompactModel,
    compacted,
)
from durable_shuffle.shuffle.testing.protocol.explorer import explore

MAX_STATES = 500_000


def test_what_a_compact_names_is_there() -> None:
    """With all rules on, readers of a stage that was not released find what the COMPACT names."""
    found = explore(CompactModel(), max_states=MAX_STATES, wanted=compacted)
    print(found)
    assert found.holds, found
    assert found.wanted > 100


@pytest.mark.parametrize(
    ("model", "steps"),
    [
        (CompactModel(abort_before_delete=False), 5),
        (CompactModel(abort_is_fate=False, walks_from_seal=False), 5),
        (CompactModel(unsure_keeps=False), 6),
    ],
    ids=["cleaner deletes unnamed", "aborted COMPACT counts", "no answer, deletes"],
)
def test_each_rule_is_needed(model: CompactModel, steps: int) -> None:
    """Off, a shortest trace of known length leads to a COMPACT without its objects."""
    found = explore(model, max_states=MAX_STATES)
    assert READS_MISSING in found.traces, found
    assert len(found.traces[READS_MISSING]) == steps, found


@pytest.mark.parametrize(
    "model", [CompactModel(abort_is_fate=False), CompactModel(walks_from_seal=False)]
)
def test_either_of_two_rules_is_enough(model: CompactModel) -> None:
    """An ABORT that every compactor meets on its way needs not void anything, and vice versa."""
    assert explore(model, max_states=MAX_STATES).holds
