"""Snapshots of the job log and the purge of released stages, explored."""

from dataclasses import replace

import pytest

from protocol import snapshot_model as snap
from protocol.explorer import explore
from protocol.snapshot_model import SnapshotModel, SnapshotState, all_over

MAX_STATES = 800_000
DRIVERS = SnapshotModel(("reuser", "releaser"))
PURGE = SnapshotModel(("writer", "releaser", "purger"))


def read_from_snapshot(state: SnapshotState) -> bool:
    """Return whether all came to an end and snapshots were there."""
    return bool(state.snapshots) and all_over(state)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("model", "states"),
    [
        (DRIVERS, 4_017),
        (SnapshotModel(("reuser", "releaser", "writer"), crashes=0), 54_402),
        (PURGE, 109_748),
    ],
    ids=["drivers", "with a writer", "purge"],
)
def test_a_snapshot_decides_nothing(model: SnapshotModel, states: int) -> None:
    """Wherever a reader begins, it believes what the log says, and older drivers are fenced."""
    found = explore(
        model, max_states=MAX_STATES, wanted=read_from_snapshot, can_always_finish=all_over
    )
    print(found)
    assert found.holds, found
    assert found.states == states
    assert found.wanted > 50


@pytest.mark.parametrize(
    ("model", "damage", "steps"),
    [
        (replace(DRIVERS, settled_only=False), snap.WRONG_VIEW, 5),
        (replace(DRIVERS, names_slot=False), snap.WRONG_VIEW, 4),
        (replace(DRIVERS, obeys_fence=False), snap.FENCED_WROTE, 8),
        (replace(DRIVERS, keeps_slots=False), snap.WON_NOTHING, 5),
        (replace(PURGE, keeps_released=False), snap.WRONG_VIEW, 7),
        (replace(PURGE, waits=False), snap.COUNTS_AGAIN, 11),
    ],
    ids=[
        "counts what is in flight",
        "does not say which slots it replaces",
        "fenced goes on",
        "slots below it are deleted",
        "forgets what was released",
        "purges too early",
    ],
)
def test_each_rule_is_needed(model: SnapshotModel, damage: str, steps: int) -> None:
    """Off, a shortest trace of known length leads to the damage."""
    found = explore(model, max_states=MAX_STATES, only={damage})
    print(found)
    assert damage in found.traces, found
    assert len(found.traces[damage]) == steps, found
