"""What is reported of parts, when restarts come, how far behind somebody is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.recovery.pipeline.coordinator.complaints import RestartRequests
from durable_shuffle.recovery.pipeline.coordinator.reporter import Frontier, Frontiers, Produced


@pytest.mark.requirement("R-MZ-6")
def test_only_what_was_asked_for_is_reported() -> None:
    """Seen before it was asked for: nothing; then all of it."""
    frontiers = Frontiers()
    frontiers.seen("a", Frontier(5))
    assert frontiers.report() == ({}, ())
    frontiers.ask(["b"])
    assert frontiers.report() == ({}, ())
    frontiers.ask(["a"])
    assert frontiers.report() == ({"a": Frontier(5)}, ())
    frontiers.ask(["a"])
    assert frontiers.report() == ({}, ()), "asked again is not new"


@pytest.mark.requirement("R-MZ-7")
@given(st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.booleans()), max_size=30))
def test_reports_only_go_forwards(moves: list[tuple[int, bool, bool]]) -> None:
    """A task that starts anew comes from behind; what is said never goes back, nor in full."""
    frontiers = Frontiers()
    frontiers.ask(["a"])
    said: list[Frontier] = []
    highest, again = -1, 0
    for records, report, whole in moves:
        highest = max(highest, records)
        frontiers.seen("a", Frontier(records))
        if whole:
            again += 1
            frontiers.reset(["a"])
        if report:
            found, _ = frontiers.report()
            said += found.values()
    assert all(a.records <= b.records for a, b in itertools.pairwise(said))
    assert sum(a == b for a, b in itertools.pairwise(said)) <= again
    assert all(one.records <= highest for one in said)


@pytest.mark.requirement("R-MZ-8")
def test_after_a_reset_everything_kept_is_said_again() -> None:
    """In full, once; of what the new listener does not know, nothing."""
    frontiers = Frontiers()
    frontiers.ask(["a", "b"])
    frontiers.seen("a", Frontier(7))
    frontiers.seen("b", Frontier(9, final=True))
    frontiers.report()
    frontiers.seen("a", Frontier(3))  # starts anew
    frontiers.reset(["a"])
    assert frontiers.report() == ({"a": Frontier(7)}, ())
    assert frontiers.report() == ({}, ())
    assert set(frontiers.asked) == {"a"}


@pytest.mark.requirement("R-MZ-12")
def test_a_drop_is_said_at_the_command_and_once() -> None:
    """Not when its tasks have ended; not to somebody who came after it; not of a stranger."""
    frontiers = Frontiers()
    frontiers.ask(["a", "b"])
    frontiers.seen("a", Frontier(7))
    assert frontiers.drop("a")
    assert not frontiers.drop("a")
    assert not frontiers.drop("stranger")
    frontiers.seen("a", Frontier(8))  # its tasks have not ended yet
    assert frontiers.report() == ({}, ("a",))
    assert frontiers.report() == ({}, ())
    assert frontiers.drop("b")
    frontiers.reset(["c"])  # a reconnect between the drop and the end of its tasks
    frontiers.seen("b", Frontier(9))
    assert frontiers.report() == ({}, ())


@pytest.mark.requirement("R-MZ-21")
def test_what_is_over_is_said_once_and_stays() -> None:
    frontiers = Frontiers()
    frontiers.ask(["a"])
    frontiers.seen("a", Frontier(0, final=True))
    assert frontiers.report() == ({"a": Frontier(0, final=True)}, ())
    frontiers.seen("a", Frontier(0))
    assert frontiers.report() == ({}, ())


@pytest.mark.requirement("R-MZ-15")
def test_ten_complaints_are_one_restart_after_the_delay() -> None:
    """Whoever complains of the epoch before, after it was replaced, is not heard."""
    requests = RestartRequests(30.0)
    for n in range(10):
        assert requests.complain("a", 4, f"cause {n}", now=100.0 + n)
    assert requests.next_when() == 130.0
    assert requests.due(129.9, ["a"]) == []
    assert requests.due(130.0, ["a"]) == [("a", "cause 0")]
    assert requests.due(1000.0, ["a"]) == []
    requests.restarted("a", 5)
    assert not requests.complain("a", 4, "late", now=131.0)
    assert requests.complain("a", 5, "again", now=131.0)
    assert requests.due(161.0, ["a"]) == [("a", "again")]


@pytest.mark.requirement("R-MZ-14")
@pytest.mark.parametrize("drop_first", [True, False])
def test_what_was_dropped_is_not_restarted(*, drop_first: bool) -> None:
    """In both orders of the drop and the complaint."""
    requests = RestartRequests(1.0)
    if drop_first:
        requests.forget("a")
        requests.complain("a", 1, "late", now=0.0)
    else:
        requests.complain("a", 1, "early", now=0.0)
        requests.forget("a")
    assert requests.due(100.0, ["b"]) == []
    assert requests.next_when() is None


def test_lag_is_the_age_of_the_oldest_record_that_was_not_read() -> None:
    """Against a straight count, also when samples were thinned out."""
    produced = Produced()
    assert produced.lag(0, 0.0) == (0, 0.0)
    for second in range(5000):
        produced.sample((second + 1) * 10, float(second))
    assert produced.lag(50_000, 5000.0) == (0, 0.0)
    records, seconds = produced.lag(49_000, 5000.0)
    assert records == 1000
    assert seconds == pytest.approx(100.0, abs=25.0)
    assert produced.lag(0, 5000.0)[1] == pytest.approx(5000.0, abs=25.0)
