"""Every way a conditional put can end, with a scripted server instead of a real one."""

from collections.abc import Callable

import pytest

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.storage.contract import Created, Exists, TooLongError
from durable_shuffle.shuffle.storage.errors import Place, translated
from durable_shuffle.shuffle.storage.exclusive_create import create_exclusively

MINE = b"mine 5eed"
PLACE = Place("gs://bucket")


class Answer(Exception):
    """A server's answer with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


class Script:
    """A server that gives these answers in turn: None is success; bytes are what is there."""

    def __init__(self, puts: list[Exception | None], reads: list[bytes | Exception]) -> None:
        self.puts, self.reads = puts, reads

    def run(self) -> Created | Exists:
        return create_exclusively(self._put, self._read, self._translate, MINE)

    def _put(self) -> None:
        answer = self.puts.pop(0)
        if answer is not None:
            raise answer

    def _read(self) -> bytes:
        answer = self.reads.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _translate(self, error: Exception) -> DurableShuffleError:
        return translated(error, PLACE, "create", "key", write=True)


GONE = NotFoundError("gone")
LOST: list[Callable[[], Exception]] = [
    lambda: ConnectionResetError(104, "reset"),
    lambda: TimeoutError(),
    lambda: Answer(500),
    lambda: Answer(503),
    lambda: RuntimeError("nobody knows"),
]


@pytest.mark.parametrize(
    ("puts", "reads", "expected"),
    [
        ([None], [], Created()),
        ([Answer(412)], [b"theirs"], Exists(b"theirs")),
        ([FileExistsError("x")], [b""], Exists(b"")),
        ([Answer(412)], [MINE], Created()),
    ],
    ids=["won", "lost", "lost-empty", "own-first-try"],
)
def test_known_ends(
    puts: list[Exception | None], reads: list[bytes | Exception], expected: Created | Exists
) -> None:
    """Won, lost to another, and lost to one's own earlier try."""
    script = Script(list(puts), list(reads))
    assert script.run() == expected
    assert (script.puts, script.reads) == ([], []), "every scripted answer was asked for"


@pytest.mark.requirement("R-F232-21")
@pytest.mark.parametrize("lost", LOST, ids=["reset", "timeout", "500", "503", "unknown"])
def test_lost_reply_is_settled_by_what_is_there(lost: Callable[[], Exception]) -> None:
    """One's own bytes: won. Others: lost. Nothing there, or no answer again: unknown, no retry."""
    assert Script([lost()], [MINE]).run() == Created()
    assert Script([lost()], [b"theirs"]).run() == Exists(b"theirs")
    for reply in (GONE, UnavailableError("down")):
        script = Script([lost()], [reply])
        with pytest.raises(OutcomeUnknownError, match="gs://bucket: cannot create key"):
            script.run()


@pytest.mark.parametrize(
    "unread", [UnavailableError("busy"), InvalidInputError("403"), CorruptDataError("short")]
)
def test_a_refusal_that_cannot_be_read_back_may_be_ours(unread: DurableShuffleError) -> None:
    """The client may have sent twice by itself: what stands there may be our first sending."""
    unread.retry_after_seconds = 7.0  # type: ignore[attr-defined]
    with pytest.raises(OutcomeUnknownError, match=r"cannot create key.*reading back") as caught:
        Script([Answer(412)], [unread]).run()
    assert caught.value.retry_after_seconds == 7.0


def test_what_is_longer_than_ours_can_be_is_damage() -> None:
    """It is no outage: nobody tries again. After a lost reply ours may still appear behind it."""
    with pytest.raises(TooLongError):
        Script([Answer(412)], [TooLongError("long")]).run()
    with pytest.raises(OutcomeUnknownError):
        Script([Answer(500)], [TooLongError("long")]).run()


@pytest.mark.requirement("R-F232-22")
@pytest.mark.parametrize("status", [409, 412], ids=["race", "vanishing"])
def test_turned_away_is_told_and_not_tried_again_here(status: int) -> None:
    """Another create in flight, or what stood in the way is gone: one request, UnavailableError."""
    script = Script([Answer(status), None], [GONE])
    with pytest.raises(UnavailableError):
        script.run()
    assert len(script.puts) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Answer(403), UnavailableError),  # without a code: a stray one, tried again above
        (Answer(404), InvalidInputError),
        (Answer(501), InvalidInputError),
        (Answer(429), UnavailableError),
        (Answer(507), UnavailableError),
        (ConnectionRefusedError(111, "x"), UnavailableError),
        (TypeError("x"), InvalidInputError),
    ],
    ids=repr,
)
def test_refusals_are_not_repeated_nor_read_back(error: Exception, kind: type[Exception]) -> None:
    """What certainly did not happen is one error at once."""
    script = Script([error], [])
    with pytest.raises(kind):
        script.run()
    assert script.puts == []
