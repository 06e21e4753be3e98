"""What follows an attempt at a program: the whole table, and what counts as progress."""

import signal

import pytest

from durable_shuffle.recovery.program import (
    Again,
    Attempt,
    JobLook,
    Stop,
    StoredPart,
    gained,
    next_step,
    superseded,
)
from durable_shuffle.shuffle.base.retry import Backoff

BACKOFF = Backoff(2, 5.0, 2.0, 60.0)


def step(attempt: Attempt, fruitless: int = 0) -> Again | Stop:
    """The decision, without jitter."""
    return next_step(attempt, fruitless, BACKOFF, lambda: 0.0)


@pytest.mark.requirement("R-ARR-12")
@pytest.mark.parametrize(
    ("attempt", "code"),
    [
        (Attempt(0), 0),
        (Attempt(0, passed_on=signal.SIGTERM), 0),
        (Attempt(-15, passed_on=signal.SIGTERM), 143),
        (Attempt(1, "fenced", passed_on=signal.SIGINT), 130),
        (Attempt(1, "fenced", gained=True), 3),
        (Attempt(3), 3),
        (Attempt(-9, superseded=True, gained=True), 3),
        (Attempt(1, "invalid_input"), 4),
        (Attempt(1, "incompatible"), 4),
        (Attempt(1, "corrupt_data"), 4),
        (Attempt(1, "aborted"), 4),
        (Attempt(1, "", ("ModuleNotFoundError", "ImportError", "Exception")), 4),
        (Attempt(1, "", ("AnalysisException", "PySparkException")), 4),
        (Attempt(1, "", ("ParseException", "AnalysisException")), 4),
        (Attempt(2), 4),
        (Attempt(126), 4),
        (Attempt(127), 4),
    ],
)
def test_what_ends_it(attempt: Attempt, code: int) -> None:
    """These are never followed by another attempt, whatever was stored."""
    found = step(attempt)
    assert isinstance(found, Stop)
    assert found.exit_code == code


@pytest.mark.parametrize(
    "attempt",
    [
        Attempt(1),
        Attempt(-9),
        Attempt(2, "", ("OSError", "Exception")),  # the program's own code 2
        Attempt(3, "", ("ValueError", "Exception")),  # and 3
        Attempt(3, superseded=False),  # the storage says that nobody else has the job
        *(
            Attempt(1, kind)
            for kind in ("unavailable", "outcome_unknown", "conflict", "not_ready", "not_found")
        ),
    ],
)
def test_what_is_tried_again(attempt: Attempt) -> None:
    """Kills, outages and errors that nobody knows."""
    assert step(attempt) == Again(5.0, 1)


@pytest.mark.requirement("R-ARR-19")
def test_attempts_that_store_nothing_are_counted_and_others_are_not() -> None:
    """With two retries the third fruitless attempt is the last; progress begins the count anew."""
    killed = Attempt(-9, gained=False)
    assert step(killed, 0) == Again(5.0, 1)
    assert step(killed, 1) == Again(10.0, 2)
    last = step(killed, 2)
    assert isinstance(last, Stop)
    assert (last.exit_code, last.why) == (1, "3 attempts in a row stored nothing new")
    assert step(Attempt(-9, gained=True), 2) == Again(5.0, 0)
    unknown = step(Attempt(-9), 2)
    assert isinstance(unknown, Stop)
    assert unknown.why.startswith("3 attempts in a row failed; --url and --job")


def test_without_retries_only_progress_goes_on() -> None:
    """0 retries may store nothing new; an attempt that stored something is none of them."""
    none = Backoff(0)
    assert isinstance(next_step(Attempt(1), 0, none, lambda: 0.0), Stop)
    assert next_step(Attempt(1, gained=True), 0, none, lambda: 0.0) == Again(0.0, 0)


def looked(owner: str = "a", *, ended: bool = False, **stages: StoredPart) -> JobLook:
    """A look at a job."""
    return JobLook(owner, ended, stages)


def test_what_counts_as_progress() -> None:
    """A further producer, or a seal; not a release, and not what nobody saw before."""
    half, more = StoredPart("s", 3, 8, sealed=False), StoredPart("s", 4, 8, sealed=False)
    whole, sealed = StoredPart("s", 8, 8, sealed=False), StoredPart("s", 8, 8, sealed=True)
    assert gained(looked(), looked(s=half))
    assert gained(looked(s=half), looked(s=more))
    assert gained(looked(s=whole), looked(s=sealed))
    assert not gained(looked(s=half), looked(s=half))
    assert not gained(looked(s=sealed), looked())
    assert not gained(looked(), looked(s=StoredPart("s", 0, 8, sealed=False)))
    assert gained(None, looked(s=half)) is None
    assert gained(looked(s=half), None) is None


def test_who_holds_the_job() -> None:
    """Another driver that has not ended; what is not known is no reason to stop."""
    assert superseded("a", looked("b"))
    assert not superseded("a", looked("a"))
    assert not superseded("a", looked("b", ended=True))
    assert superseded("", looked("b")) is None
    assert superseded("a", None) is None
