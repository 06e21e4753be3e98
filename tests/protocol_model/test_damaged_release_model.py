"""A release over a damaged log, in every order of crashes, late requests and other releases."""

from dataclasses import replace

import pytest

from protocol import damaged_release_model as damaged
from protocol.damaged_release_model import (
    DamagedReleaseModel,
    DamagedState,
    Slot,
)
from protocol.explorer import STUCK, Exploration, explore

FOREIGN = DamagedReleaseModel(("DESCRIBE", "FOREIGN"))


def visit(model: DamagedReleaseModel) -> Exploration:
    def both(state: DamagedState) -> bool:
        return not state.data and not state.other_data

    found = explore(
        model,
        max_states=500_000,
        wanted=both,
        can_always_finish=model.all_done,
        excuse=model.nobody_left,
    )
    print(found)
    return found


@pytest.mark.parametrize(
    ("log", "states"),
    [
        (("DESCRIBE", "BAD"), 5_809),
        (("BAD",), 7_428),
        (("BAD", "SEAL"), 4_296),
        (("DESCRIBE", "BAD", "BAD"), 10_832),
        (("DESCRIBE", "lost", "SEAL"), 3_934),
        (("lost", "SEAL"), 4_168),
        (("DESCRIBE", "BAD", "RELEASE"), 1_746),
        (("DESCRIBE", "RELEASE", "BAD"), 1_746),
        (("DESCRIBE", "SEAL"), 1_608),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_data_goes_once_it_was_decided_and_can_always_go(
    log: tuple[Slot, ...], states: int
) -> None:
    """With all rules on nothing goes that nobody gave up, RELEASE stands before anything goes, who
    looks later is told, and the other stage is released whatever happens to this one."""
    found = visit(DamagedReleaseModel(log))
    assert found.holds, found
    assert found.states == states
    assert found.wanted > 200


def test_what_another_version_wrote_stays() -> None:
    """Nobody empties it, its stage stands, and the next one goes."""
    found = visit(FOREIGN)
    assert found.holds, found
    assert found.states == 144
    assert found.wanted == 0


@pytest.mark.soak
def test_three_that_release_hold() -> None:
    """As above, with three at once and two damaged slots."""
    found = visit(DamagedReleaseModel(("DESCRIBE", "BAD", "BAD"), carriers=3))
    assert found.holds, found
    assert found.states == 379_351


@pytest.mark.parametrize(
    ("model", "damage"),
    [
        (DamagedReleaseModel(decided_first=False), damaged.NEEDED_GONE),
        (DamagedReleaseModel(release_first=False), damaged.BEFORE_RELEASE),
        (DamagedReleaseModel(done_is_whole=False), damaged.NOT_TOLD),
        (DamagedReleaseModel(fills=False), STUCK),
        (replace(FOREIGN, refuses_foreign=False), damaged.FOREIGN_GONE),
        (replace(FOREIGN, goes_on=False), STUCK),
    ],
    ids=[
        "damage is reason enough",
        "RELEASE only in damaged slots",
        "CLOSED is enough to be done",
        "damaged slots stay",
        "what is unknown is damage",
        "stops at what it cannot release",
    ],
)
def test_each_rule_is_needed(model: DamagedReleaseModel, damage: str) -> None:
    """Off, a shortest trace leads to the damage, or nobody can finish."""
    found = visit(model)
    assert damage in found.traces, found
