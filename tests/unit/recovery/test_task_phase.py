"""The table of task phases, and who is silent for too long."""

import itertools

import pytest

from durable_shuffle.recovery.job.phases import (
    TERMINAL,
    TRANSITIONS,
    TaskPhase,
    check_reached,
)
from durable_shuffle.recovery.job.restarts import Liveness
from durable_shuffle.serialization.errors import InvalidInputError

LEGAL = """
created    starting
starting   at_barrier
starting   finished
at_barrier started
started    running
started    preparing
started    prepared
started    committing
started    suspending
started    finished
started    suspended
running    preparing
running    prepared
running    committing
running    suspending
running    finished
running    suspended
preparing  prepared
prepared   committing
committing finished
suspending suspended
"""


def expected() -> set[tuple[str, str]]:
    """The table as written above, with failed and canceled from wherever there is an attempt."""
    found = {(line.split()[0], line.split()[1]) for line in LEGAL.split("\n") if line}
    living = [phase for phase in TaskPhase if phase not in {*TERMINAL, "waiting"}]
    return found | {(str(p), end) for p in living for end in ("failed", "canceled")}


@pytest.mark.requirement("R-ARR-3")
@pytest.mark.requirement("R-ARR-20")
def test_every_pair_of_phases() -> None:
    """Legal pairs go where the table says, all others raise and name the task."""
    table = expected()
    for before, after in itertools.product(TaskPhase, TaskPhase):
        if (before, after) in table:
            check_reached(before, after, task="me")
        else:
            with pytest.raises(InvalidInputError, match="'me' cannot say"):
                check_reached(before, after, task="me")
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
    assert watch.repeats == 2
    assert list(watch.silent(1000)) == [], "who has not begun is the start timeout's"
    assert watch.next_when() is None
