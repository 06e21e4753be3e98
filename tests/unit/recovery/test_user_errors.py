"""What user code raises is told from errors of the library, and always has a text."""

from collections.abc import Iterator

import pytest

from durable_shuffle.recovery.job.phases import TaskPhase, TaskReport
from durable_shuffle.recovery.pipeline.task.link import failure_of
from durable_shuffle.recovery.pipeline.task.watch import HungError
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import (
    FencedError,
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.user_code import (
    UserCodeError,
    closing_all,
    guarded,
    text_of,
    user_code,
)


class Wordless(Exception):
    """Cannot say anything."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised_by_user(error: Exception) -> UserCodeError:
    with pytest.raises(UserCodeError) as caught, user_code():
        raise error
    return caught.value


@pytest.mark.requirement("R-ARR-6")
@pytest.mark.parametrize(
    "error",
    [Wordless(), ValueError("bad \udcff name"), ValueError("x" * 5_000_000), ValueError(), 7],
    ids=["wordless", "surrogate", "long", "empty", "number"],
)
def test_every_error_has_a_short_text_that_can_be_stored(error: object) -> None:
    """Whatever it holds, with its notes; a report of it can be encoded."""
    if isinstance(error, Exception):
        error.add_note("and \udcfe" + "y" * 5_000)
        report = TaskReport("t", 1, TaskPhase.FAILED, failure_of(error))
        codec: RecordCodec[TaskReport] = RecordCodec((TaskReport,))
        assert codec.decode(codec.encode(report), name="report") == report
    assert 0 < len(text_of(error)) <= 2_000
    assert text_of(error).encode().decode() == text_of(error)


@pytest.mark.requirement("R-ARR-11")
@pytest.mark.requirement("R-ARR-12")
@pytest.mark.parametrize("kind", [UnavailableError, OutcomeUnknownError, FencedError])
def test_an_error_of_user_code_is_no_outage_and_no_fence(kind: type[Exception]) -> None:
    """The class alone does not say whose error it is: the call that it came out of does."""
    theirs, ours = failure_of(raised_by_user(kind("x"))), failure_of(kind("x"))
    assert not theirs.is_outage
    assert not theirs.secondary
    assert theirs.kind == kind.__name__
    assert theirs.where.startswith("test_user_errors.py:")
    assert ours.is_outage is (kind is not FencedError)


def test_a_kind_of_another_class_is_not_believed() -> None:
    """Only this library's classes have kinds."""

    class Pretends(Exception):
        kind = "unavailable"

    assert not failure_of(Pretends("x")).is_outage
    assert failure_of(HungError("late")).kind == "no_progress"
    assert not failure_of(raised_by_user(InvalidInputError("wrong"))).retry


@pytest.mark.requirement("R-F46-4")
def test_the_first_error_stays_when_closing_fails() -> None:
    """All parts are closed; without an earlier error the first one of closing is raised."""
    closed = []

    def close(name: str) -> None:
        closed.append(name)
        raise OSError(name)

    with (
        pytest.raises(ValueError, match="root") as caught,
        closing_all(lambda: close("a"), lambda: close("b")),
    ):
        raise ValueError("root")
    assert caught.value.__notes__ == [f"closing failed, too: OSError: {n}" for n in "ab"]
    with pytest.raises(OSError, match="a"), closing_all(lambda: close("a"), lambda: close("b")):
        pass
    assert closed == ["a", "b"] * 2


def test_leaving_early_shows_the_error_of_closing() -> None:
    """A reader that stops would see no note."""

    def close() -> None:
        raise OSError("close")

    def rows() -> Iterator[int]:
        with closing_all(close):
            yield from (1, 2)

    reading = rows()
    assert next(reading) == 1
    with pytest.raises(OSError, match="close"):
        reading.close()


def test_an_iterable_of_the_users_raises_as_user_code() -> None:
    """Also in the middle of it."""

    def made() -> Iterator[int]:
        yield 1
        raise UnavailableError("theirs")

    rows = guarded(made())
    assert next(rows) == 1
    with pytest.raises(UserCodeError):
        next(rows)
