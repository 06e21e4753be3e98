"""The operator's state machine on traces chosen by hand."""

from typing import Any

import pytest
from async_world import DELAY, POLICY, World, no_chance

from durable_shuffle.recovery.calls.elements import Marker, Phase
from durable_shuffle.recovery.calls.machine import AsyncMachine, Do
from durable_shuffle.recovery.calls.settings import AsyncCounts, AsyncSettings
from durable_shuffle.serialization.errors import AbortedError, InvalidInputError
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy


@pytest.mark.requirement("R-F232-1")
@pytest.mark.parametrize("retries", [0, 1, 4])
def test_calls_of_an_element_that_never_succeeds(retries: int) -> None:
    """max_retries + 1 calls; then the last result stands."""
    policy = RetryPolicy(Backoff.fixed(retries, 1), on_result=lambda _: True)
    world = World(AsyncSettings(capacity=1, retry=policy))
    element = world.submit("x")
    for _ in range(retries + 5):
        index = len(world.calls) - 1
        world.obey(world.machine.completed(element, index + 1, f"try {index + 1}", world.now))
        world.tick(world.now + 1)
    world.take()
    assert world.emitted == [(0, f"try {retries + 1}")]
    assert len(world.calls) == retries + 1


@pytest.mark.requirement("R-F232-2")
def test_interleaved_elements_wait_equally_long() -> None:
    """A second element that starts in between gets the delays of the first: nobody shares them."""
    policy = RetryPolicy(Backoff(3, 1, multiplier=3, cap_seconds=60), on_result=lambda _: True)
    world = World(AsyncSettings(capacity=2, retry=policy))
    started: dict[int, list[float]] = {0: [], 1: []}
    for now in range(40):
        world.tick(float(now))
        if now in (0, 2):
            world.submit(now)
        for element, attempt in world.calls:
            if element.phase is Phase.CALLING and element.attempt == attempt:
                started[element.ordinal].append(now)
                world.obey(world.machine.completed(element, attempt, None, world.now))
    assert started == {0: [0, 1, 4, 13], 1: [2, 3, 6, 15]}


@pytest.mark.requirement("R-F232-9")
def test_waiting_elements_hold_their_places() -> None:
    """Three waiting elements and a marker fill a capacity of four; room comes as they leave."""
    world = World(AsyncSettings(capacity=4, retry=POLICY))
    elements = [world.submit(i) for i in range(3)]
    for element in elements:
        world.obey(world.machine.completed(element, 1, "bad", world.now))
    assert world.machine.counts.waiting == 3
    assert world.machine.has_room
    world.machine.add_marker(Marker("m"))
    assert not world.machine.has_room
    with pytest.raises(InvalidInputError, match="capacity=4"):
        world.machine.submit("one too many", world.now)
    world.tick(DELAY)
    world.obey(world.machine.completed(elements[0], 2, "ok", world.now))
    assert not world.machine.has_room, "a result that nobody took still has its place"
    assert world.machine.pop() is elements[0]
    assert world.machine.has_room


@pytest.mark.requirement("R-F232-11")
def test_cursor_stops_at_the_first_hole() -> None:
    """Of 0 to 5, 0, 1, 4 and 5 leave: the cursor is 2; a restart calls 2 and 3 and no other."""
    world = World(AsyncSettings(capacity=6, mode="unordered"))
    elements = [world.submit(f"input {i}") for i in range(6)]
    for i in (1, 0, 5, 4):
        world.machine.completed(elements[i], 1, i, world.now)
    world.take()
    assert [ordinal for ordinal, _ in world.emitted] == [1, 0, 5, 4]
    assert world.machine.cursor == 2
    snapshot = world.machine.snapshot(world.now, 0.0)
    assert (snapshot.cursor, snapshot.next_ordinal) == (2, 6)

    after = AsyncMachine(AsyncSettings(capacity=6, mode="unordered"), no_chance, snapshot)
    commands = after.admit(0.0, 0.0)
    assert [(what, e.ordinal, e.value) for what, e in commands] == [
        (Do.CALL, 2, "input 2"),
        (Do.CALL, 3, "input 3"),
    ]
    after.completed(commands[1][1], 1, "x", 0.0)
    after.pop()
    assert after.cursor == 2
    after.completed(commands[0][1], 1, "y", 0.0)
    after.pop()
    assert after.cursor == 6
    assert after.submit("new", 0.0).ordinal == 6


@pytest.mark.requirement("R-F232-4")
def test_one_deadline_covers_all_attempts() -> None:
    """250 ms with calls of 100 ms each and a retry at once: three calls, then the handler."""
    policy = RetryPolicy(Backoff.fixed(100, 0.0), on_result=lambda _: True)
    world = World(AsyncSettings(capacity=1, retry=policy, timeout_seconds=0.25))
    element = world.submit("x")
    for end in (0.1, 0.2):
        world.tick(end)
        world.obey(world.machine.completed(element, element.attempt, None, world.now))
        world.tick(end)
    assert world.machine.next_when() == 0.25
    world.tick(0.25)
    assert element.attempt == 3
    assert element.phase is Phase.DONE
    world.obey(world.machine.completed(element, 3, None, 0.3))
    world.tick(10)
    world.take()
    assert world.emitted == [(0, "handled")]
    assert (element.attempt, world.machine.counts.late) == (3, 1)


@pytest.mark.requirement("R-F232-24")
def test_counts_of_a_fixed_trace() -> None:
    """Every count has one event in this trace that raises it."""
    world = World(AsyncSettings(capacity=5, mode="unordered", retry=POLICY, timeout_seconds=50))
    good, poor, slow, stuck = (world.submit(name) for name in ("good", "poor", "slow", "stuck"))
    world.machine.completed(good, 1, "ok", 0.0)
    world.machine.completed(good, 1, "ok", 0.0)  # late: it was answered
    for attempt in (1, 2, 3):
        world.obey(world.machine.completed(poor, attempt, "bad", world.now))
        if attempt == 1:
            assert world.machine.counts.waiting == 1
        world.tick(world.now + DELAY)
    world.machine.failed(slow, 1, OSError("once"), world.now)
    world.take()
    assert world.machine.counts == AsyncCounts(
        attempts=6, retries=2, give_ups=1, timeouts=0, late=1, emitted=2, waiting=1
    )
    world.tick(50)  # past the retry of slow as well: a deadline comes first
    assert stuck.phase is slow.phase is Phase.DONE
    world.take()
    assert world.machine.counts == AsyncCounts(
        attempts=6, retries=2, give_ups=1, timeouts=2, late=1, emitted=4, waiting=0
    )


@pytest.mark.requirement("R-F232-20")
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_failure_frees_all_places_before_it_is_seen(mode: Any) -> None:
    """A full operator whose element fails is empty at once, and says why to whoever submits."""
    world = World(AsyncSettings(capacity=3, mode=mode, retry=POLICY))
    elements = [world.submit(i) for i in range(3)]
    world.machine.completed(elements[1], 1, "ok", 0.0)
    world.machine.completed(elements[2], 1, "bad", 0.0)
    cause = ValueError("fatal")
    commands = world.machine.failed(elements[0], 1, cause, 0.0)
    assert commands == []
    assert len(world.machine) == 0
    assert world.machine.ended is cause
    assert [e.phase for e in elements] == [Phase.FAILED, Phase.DROPPED, Phase.DROPPED]
    assert world.machine.pop() is None
    assert world.machine.next_when() is None
    with pytest.raises(AbortedError) as caught:
        world.machine.submit("next", 0.0)
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("error", [None, OSError("first")])
def test_predicate_that_raises_fails_its_element(error: Exception | None) -> None:
    """What the predicate raised is the outcome, once; the answer it judged is kept as context."""

    def broken(_: Any) -> bool:
        raise KeyError("predicate")

    policy = RetryPolicy(Backoff.fixed(3, 1), on_result=broken, on_exception=broken)
    world = World(AsyncSettings(capacity=1, retry=policy))
    element = world.submit("x")
    if error is None:
        world.machine.completed(element, 1, "r", 0.0)
    else:
        world.machine.failed(element, 1, error, 0.0)
    assert element.phase is Phase.FAILED
    assert isinstance(world.machine.ended, KeyError)
    assert world.machine.ended.__context__ is error
    assert world.machine.counts.attempts == 1
