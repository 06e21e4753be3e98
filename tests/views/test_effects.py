"""Effects outside the storage: after their record, with a token that tells repeats."""

from collections.abc import Callable

import pytest
from sealed_stage import slots_of

from durable_shuffle.serialization.errors import (
    FencedError,
    InvalidInputError,
)
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.storage.memory import MemoryStorage

Open = Callable[..., View]
Numbers = Callable[..., list[int]]
Forget = Callable[[], None]


def kinds(storage: MemoryStorage) -> list[str]:
    return [kind for kind, _ in slots_of(storage)]


def test_an_effect_happens_after_its_record_and_its_token_is_the_same_at_every_try(
    open_: Open, memory: MemoryStorage, other_process: Forget
) -> None:
    """The handler fails twice, then the process dies, then it works: one token, in all tries."""
    seen: list[tuple[str, bytes, list[str]]] = []
    broken = True

    def handler(token: str, payload: bytes) -> None:
        seen.append((token, payload, kinds(memory)))
        if broken:
            raise RuntimeError("the other side is down")

    view = open_(on_effect=handler)
    with pytest.raises(RuntimeError):
        view.ack(effect=b"one")
    with pytest.raises(RuntimeError):
        view.ack()
    other_process()
    broken = False
    view = open_(on_effect=handler)
    assert len(seen) == 2
    next(iter(view))  # before anything is read
    view.ack()
    view.ack(effect=b"two")
    assert [payload for _, payload, _ in seen] == [b"one"] * 3 + [b"two"]
    assert len({token for token, _, _ in seen[:3]}) == 1
    assert seen[3][0] != seen[0][0]
    assert seen[0][2] == ["OPEN", "ACK"]
    other_process()
    following = open_(on_effect=handler)
    next(iter(following))
    assert seen[4][:2] == seen[3][:2]  # the record that names it as done was never written
    following.ack()
    other_process()
    next(iter(open_()))
    assert len(seen) == 5


@pytest.mark.requirement("R-F46-8")
@pytest.mark.requirement("R-F46-9")
@pytest.mark.parametrize("works_at", [3, 4])
@pytest.mark.parametrize("dies", [False, True])
def test_one_notification_covers_all_pending_commits(
    open_: Open, memory: MemoryStorage, other_process: Forget, works_at: int, dies: bool
) -> None:
    """Three commits are durable and not published; then one call publishes, in order, what it may,
    and the next one the rest. Nothing is published before its record."""
    done: list[tuple[bytes, int]] = []
    refused = {b"1", b"2", b"3"}

    def handler(token: str, payload: bytes) -> None:
        if payload in refused:
            raise RuntimeError("the other side is down")
        done.append((payload, kinds(memory).count("ACK")))

    view = open_(on_effect=handler)
    for commit in (b"1", b"2", b"3"):
        with pytest.raises(RuntimeError):
            view.ack(effect=commit)
    assert [effect.payload for effect in view.task.held.state.pending] == [b"1", b"2", b"3"]
    assert done == []
    refused.clear()
    if works_at == 4:
        refused.add(b"3")
    if dies:
        other_process()
        view = open_(on_effect=handler)
    if works_at == 4:  # what may be published is; the first that may not be stops the others
        with pytest.raises(RuntimeError):
            view.ack(effect=b"4")
        assert [payload for payload, _ in done] == [b"1", b"2"]
        refused.clear()
    view.ack()
    expected = [b"1", b"2", b"3"] + [b"4"] * (works_at == 4)
    assert [payload for payload, _ in done] == expected
    assert all(records >= int(payload) for payload, records in done)
    view.ack()
    assert len(done) == len(expected), "none is published twice"
    assert not view.task.held.state.pending


def test_a_pending_effect_that_nobody_can_perform_stops_the_reader(
    open_: Open, other_process: Forget
) -> None:
    def handler(token: str, payload: bytes) -> None:
        raise RuntimeError

    with pytest.raises(InvalidInputError, match="needs on_effect"):
        open_().ack(effect=b"x")
    with pytest.raises(RuntimeError):
        open_(on_effect=handler).ack(effect=b"x")
    other_process()
    with pytest.raises(InvalidInputError, match="is pending"):
        next(iter(open_()))


def test_an_effect_of_finish_that_fails_is_performed_by_the_next_view(
    open_: Open, numbers: Numbers, memory: MemoryStorage, other_process: Forget
) -> None:
    """FINISHED stands once; calling finish again writes nothing behind it."""
    done: list[bytes] = []

    def fails(token: str, payload: bytes) -> None:
        raise RuntimeError

    view = open_(on_effect=fails)
    numbers(view)
    with pytest.raises(InvalidInputError, match="needs on_effect"):
        open_view_without(open_, numbers).finish(effect=b"x")
    view = open_(on_effect=fails)
    numbers(view)
    with pytest.raises(RuntimeError):
        view.finish(effect=b"last")
    with pytest.raises(InvalidInputError, match="finished"):
        view.finish(effect=b"last")
    assert kinds(memory)[-2:] == ["OPEN", "FINISHED"]
    other_process()
    assert numbers(open_(on_effect=lambda token, payload: done.append(payload))) == []
    assert done == [b"last"]


def open_view_without(open_: Open, numbers: Numbers) -> View:
    """A view at its end with nobody to perform effects."""
    view = open_()
    numbers(view)
    return view


def test_a_fenced_view_performs_no_effect(
    open_: Open, numbers: Numbers, other_process: Forget
) -> None:
    """The record comes first, and it is refused."""
    done: list[bytes] = []
    old = open_(on_effect=lambda token, payload: done.append(payload))
    numbers(old, 3)
    other_process()
    open_()
    with pytest.raises(FencedError):
        old.ack(effect=b"x")
    assert done == []


def test_an_effect_does_not_acknowledge(open_: Open, numbers: Numbers) -> None:
    """It would be performed again inside itself; refused, it is done at the next try."""
    tries: list[str] = []

    def perform(token: str, _: bytes) -> None:
        tries.append(token)
        if len(tries) == 1:
            view.ack()

    view = open_(on_effect=perform)
    numbers(view, 2)
    with pytest.raises(InvalidInputError, match="on_effect must not acknowledge"):
        view.ack(effect=b"x")
    view.ack()
    assert len(tries) == 2
    assert len(set(tries)) == 1
