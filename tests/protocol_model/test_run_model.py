"""The rules by which runs of a streaming query share a log: on, all holds; off, damage follows."""

from dataclasses import replace

import pytest

from durable_shuffle.shuffle.testing.protocol import run_model as runs
from durable_shuffle.shuffle.testing.protocol.explorer import Exploration, explore
from durable_shuffle.shuffle.testing.protocol.run_model import RunModel, RunSetup

PLAIN = RunSetup()
CRASHES = RunSetup(crashes=2)
CLEANED = RunSetup(collections=1)

OFF = {
    "a batch that is there is appended again": (
        replace(PLAIN, drops_known_batch=False),
        runs.DOUBLED,
    ),
    "a run that was followed is forgotten": (replace(PLAIN, remembers_past=False), runs.REOPENED),
    "a lost APPEND is sent to the end": (
        replace(PLAIN, stops_when_passed=False),
        runs.FENCED_APPENDED,
    ),
    "an unanswered APPEND's segment goes": (
        replace(PLAIN, keeps_sent=False),
        runs.NAMED_OBJECT_GONE,
    ),
    "a cleaner takes what no record names": (
        replace(CLEANED, collects_unnamed=True),
        runs.NAMED_OBJECT_GONE,
    ),
}


def visit(setup: RunSetup) -> Exploration:
    return explore(
        RunModel(setup),
        max_states=600_000,
        wanted=runs.all_done,
        can_always_finish=runs.all_done,
        excuse=runs.none_left,
    )


@pytest.mark.requirement("R-F135-28")
@pytest.mark.parametrize("setup", [PLAIN, CRASHES, CLEANED])
def test_runs_hold_and_can_always_finish(setup: RunSetup) -> None:
    """Every batch stands once and in order, whoever dies; and can, while a run is left."""
    result = visit(setup)
    print(result)
    assert result.holds
    assert result.wanted > 0


@pytest.mark.parametrize("twins", [1, 2, 3])
def test_nobody_is_excused_without_faults(twins: int) -> None:
    """Runs that are alive at once cannot bring each other to a halt."""
    result = visit(RunSetup(runs=twins, crashes=0, timeouts=0))
    print(result)
    assert result.holds
    assert result.excused == 0


@pytest.mark.soak
def test_three_runs_hold() -> None:
    """As above, with a third run."""
    result = visit(RunSetup(runs=3))
    print(result)
    assert result.holds
    assert result.wanted > 0


@pytest.mark.parametrize("name", OFF)
def test_a_rule_off_gives_a_trace(name: str) -> None:
    """Without the rule the damage is reached."""
    setup, damage = OFF[name]
    result = visit(setup)
    print(name, result)
    assert damage in result.traces
