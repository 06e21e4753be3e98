"""The table of task phases, and who is silent for too long."""

import itertools

import pytest

from durable_shuffle.recovery.liveness import Liveness
from durable_shuffle.recovery.task_phase import (
    TERMINAL,
    TRANSITIONS,
    Report,
    TaskPhase,
    next_phase,
)
from durable_shuffle.serialization.errors import InvalidInputError

LEGAL = """
created    starting              -> starting
starting   at_barrier            -> at_barrier
starting   finished              -> finished
at_barrier started               -> started
started    running               -> running
started    preparing             -> preparing
started    prepared              -> prepared
started    committing            -> committing
started    suspending            -> suspending
started    finished              -> finished
started    suspended             -> suspended
running    preparing             -> preparing
running    prepared              -> prepared
running    committing            -> committing
running    suspending            -> suspending
running    finished              -> finished
running    suspended             -> suspended
preparing  prepared              -> prepared
prepared   committing            -> committing
committing finished              -> finished
suspending suspended             -> suspended
"""


def expected() -> dict[tuple[str, str], str]:
    """The table as written above, with failed and canceled from wherever there is an attempt."""
    found = {}
    for line in LEGAL.split("\n"):
        if line:
            phase, report, _, after = line.split()
            found[phase, report] = after
    for phase in TaskPhase:
        if phase not in {*TERMINAL, "waiting"}:
            found[str(phase), "failed"] = "failed"
            found[str(phase), "canceled"] = "canceled"
            found[str(phase), "alive"] = str(phase)
    return found


@pytest.mark.requirement("R-ARR-3")
@pytest.mark.requirement("R-ARR-20")
def test_every_pair_of_phase_and_report() -> None:
    """Legal pairs go where the table says, all others raise and name the task."""
    table = expected()
    for phase, report in itertools.product(TaskPhase, Report):
        wanted = table.get((str(phase), str(report)))
        if wanted is None:
            with pytest.raises(InvalidInputError, match="'me' cannot say"):
                next_phase(phase, report, task="me")
        else:
            assert str(next_phase(phase, report, task="me")) == wanted
    assert set(TRANSITIONS) == set(TaskPhase)


@pytest.mark.requirement("R-ARR-16")
def test_one_terminal_message_for_everybody() -> None:
    """A silent attempt is reported once; what it says later is a repeat."""
    watch = Liveness(10)
    for task in ("a", "b", "never heard of"):
        watch.launched((task, 1))
    assert watch.next_when() is None
    for task in ("a", "b"):
        assert watch.heard((task, 1), 0, terminal=False)
    assert watch.heard(("a", 1), 6, terminal=False)
    assert watch.next_when() == 10
    assert list(watch.silent(9.9)) == []
    assert list(watch.silent(10)) == [("b", 1)]
    assert list(watch.silent(11)) == []
    assert not watch.heard(("b", 1), 12, terminal=True)
    assert watch.heard(("a", 1), 13, terminal=True)
    assert not watch.heard(("a", 1), 14, terminal=True)
    assert list(watch.silent(1000)) == [], "who has not begun is the start timeout's"
    assert watch.next_when() is None
