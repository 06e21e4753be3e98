"""The operator's state machine: every interleaving gives one outcome per element.

The oracle is `Told`, the requirements in some thirty lines, without queues, timers or phases.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from durable_shuffle.recovery.async_element import Element, Phase
from durable_shuffle.recovery.async_machine import AsyncMachine, Command, Do
from durable_shuffle.recovery.async_settings import AsyncCounts, AsyncSettings
from durable_shuffle.recovery.output_queues import Marker
from durable_shuffle.serialization.errors import AbortedError, InvalidInputError
from durable_shuffle.shuffle.retry import Backoff, RetryPolicy, raised

RETRIES, DELAY, TIMEOUT = 2, 10.0, 35.0
POLICY = RetryPolicy(
    Backoff.fixed(RETRIES, DELAY), on_result=lambda r: r == "bad", on_exception=raised(OSError)
)


def no_chance() -> float:
    """Fails a test that asks for jitter where none is due."""
    raise AssertionError("jitter was asked for")


class World:
    """A shell without a loop: keeps the calls under way, obeys commands, moves the clock."""

    def __init__(self, settings: AsyncSettings, handler: str = "returns") -> None:
        self.machine = AsyncMachine(settings, no_chance)
        self.now = 0.0
        self.handler = handler
        self.elements: list[Element] = []
        self.calls: list[tuple[Element, int]] = []
        self.emitted: list[Any] = []
        self.waited: set[int] = set()

    def submit(self, value: Any) -> Element:
        """Take in an element and note its first call."""
        element = self.machine.submit(value, self.now)
        self.elements.append(element)
        self.calls.append((element, element.attempt))
        return element

    def obey(self, commands: Sequence[Command]) -> None:
        """Carry out commands; stopped calls stay known, so that they can answer late."""
        for what, element in commands:
            if what is Do.CALL:
                self.calls.append((element, element.attempt))
            elif what is Do.EXPIRE:
                self.obey(self.machine.timeout_handled(element, self.handle))

    def handle(self) -> str:
        """The timeout handler; what it raises would be retried if a call raised it."""
        if self.handler == "raises":
            raise TimeoutError("from the handler")
        return "bad" if self.handler == "returns bad" else "handled"

    def tick(self, now: float) -> None:
        """Let the clock reach `now` and the timers fire."""
        self.now = max(self.now, now)
        self.obey(self.machine.tick(self.now))

    def take(self) -> None:
        """Take out whatever leaves."""
        while (entry := self.machine.pop()) is not None:
            assert isinstance(entry, Element)
            self.emitted.append((entry.ordinal, entry.result))


@dataclass
class Told:
    """What the requirements say about one element."""

    running: int = 1
    calls: int = 1
    wake: float | None = None
    outcome: str | None = None
    answered: set[int] = field(default_factory=set)

    def answer(self, attempt: int, kind: str, now: float, *, draining: bool) -> None:
        """Call number `attempt` came to `kind`: "ok", "bad", "retryable" or "fatal"."""
        if self.outcome or self.wake is not None or attempt != self.running:
            return
        if kind in ("bad", "retryable") and self.calls <= RETRIES and not draining:
            self.wake = now + DELAY
        else:
            self.outcome = kind

    def call(self) -> None:
        """The next call begins."""
        self.running, self.calls, self.wake = self.running + 1, self.calls + 1, None


class Oracle:
    """`Told` for all elements, and what ends all of them."""

    def __init__(self, count: int, handler: str) -> None:
        self.elements = [Told() for _ in range(count)]
        self.handler, self.draining, self.ended = handler, False, False

    def settle(self) -> None:
        """A failure drops everything that has not left; nothing has left before the end."""
        if any(e.outcome in ("fatal", "retryable", "handler raised") for e in self.elements):
            self.end()

    def end(self) -> None:
        """Cancel, or the end by a failure."""
        if self.ended:
            return
        self.ended = True
        for element in self.elements:
            if element.outcome not in ("fatal", "retryable", "handler raised"):
                element.outcome = "dropped"
            element.wake = None

    def tick(self, now: float) -> None:
        """Deadlines first; nothing follows a deadline."""
        if now >= TIMEOUT:
            for element in self.elements:
                if element.outcome is None and not self.ended:
                    element.outcome = {
                        "raises": "handler raised", "returns": "handled", "returns bad": "bad",
                    }[self.handler]  # fmt: skip
                    element.wake = None
                    self.settle()
        for element in self.elements:
            if element.wake is not None and element.wake <= now and not self.ended:
                element.call()

    def drain(self) -> None:
        """No more retries; those that wait are called once more."""
        self.draining = True
        for element in self.elements:
            if element.wake is not None and not self.ended:
                element.call()


def play(trace: Sequence[str], count: int, handler: str) -> tuple[World, Oracle]:
    """Run one trace against machine and oracle, then let everything come to its end."""
    world = World(
        AsyncSettings(capacity=count, retry=POLICY, timeout_seconds=TIMEOUT), handler=handler
    )
    oracle = Oracle(count, handler)
    for i in range(count):
        world.submit(i)
    for step in trace:
        verb, _, rest = step.partition(" ")
        if verb == "timer":  # the loop wakes for the next retry
            when = world.machine._waiting.next_when()
            target = world.now if when is None else when
            world.tick(target)
            oracle.tick(world.now)
        elif verb == "timeout":
            world.tick(TIMEOUT)
            oracle.tick(world.now)
        elif verb == "stall":  # time passes, nobody looks
            world.now = TIMEOUT + 1
        elif verb == "finish":
            world.obey(world.machine.drain())
            oracle.drain()
        elif verb == "cancel":
            world.obey(world.machine.stop(AbortedError("cancelled")))
            oracle.end()
        else:
            answer(world, oracle, int(rest), verb)
        check(world, oracle)
    world.obey(world.machine.drain())
    oracle.drain()
    for index in range(len(world.calls)):  # late ones again: a function that answers twice
        answer(world, oracle, index, "ok")
        check(world, oracle)
    world.tick(10 * TIMEOUT)
    oracle.tick(10 * TIMEOUT)
    check(world, oracle)
    world.take()
    return world, oracle


def answer(world: World, oracle: Oracle, index: int, kind: str) -> None:
    """The index-th call of the trace answers, for the first time or again."""
    if index >= len(world.calls):
        return
    element, attempt = world.calls[index]
    oracle.elements[element.ordinal].answer(attempt, kind, world.now, draining=oracle.draining)
    oracle.settle()
    if kind in ("ok", "bad"):
        world.obey(world.machine.completed(element, attempt, kind, world.now))
    else:
        error = OSError("again") if kind == "retryable" else ValueError("fatal")
        world.obey(world.machine.failed(element, attempt, error, world.now))


def check(world: World, oracle: Oracle) -> None:
    """At every moment: the calls made, who waits, and that the waiting are in the queue."""
    assert [e.attempt for e in world.elements] == [t.calls for t in oracle.elements]
    assert len(world.calls) == sum(t.calls for t in oracle.elements)
    waiting = [e for e in world.elements if e.phase is Phase.WAITING]
    assert len(waiting) == sum(t.wake is not None for t in oracle.elements)
    assert set(waiting) == set(world.machine._waiting._when)
    assert world.machine.counts.waiting == len(waiting)


def check_end(world: World, oracle: Oracle) -> None:
    """One outcome per element, never two, never zero; nothing is left behind."""
    emitted = dict(world.emitted)
    assert len(emitted) == len(world.emitted), "an element left twice"
    for element, told in zip(world.elements, oracle.elements, strict=True):
        if told.outcome == "dropped":
            assert element.phase is Phase.DROPPED
            assert element.ordinal not in emitted
        elif told.outcome in ("fatal", "retryable", "handler raised"):
            assert element.phase is Phase.FAILED
            assert element.ordinal not in emitted
        else:
            assert element.phase is Phase.EMITTED
            assert emitted[element.ordinal] == told.outcome
        assert element.attempt == told.calls <= RETRIES + 1
    assert len(world.machine) == world.machine.counts.waiting == 0
    assert world.machine.next_when() is None
    assert len(world.machine._waiting) == len(world.machine._deadlines) == 0


ONE = ["ok 0", "bad 0", "retryable 0", "fatal 0", "bad 1", "ok 1", "retryable 2",
       "timer", "timeout", "stall", "finish", "cancel"]  # fmt: skip
TWO = ["ok 0", "bad 0", "bad 1", "fatal 1", "ok 2", "timer", "timeout", "finish", "cancel"]


def run_all(alphabet: list[str], depth: int, count: int) -> int:
    """Play every trace up to `depth`; return how many there were."""
    played = 0
    for length in range(depth + 1):
        for trace in itertools.product(alphabet, repeat=length):
            if any(a == b == "cancel" for a, b in itertools.pairwise(trace)):
                continue
            for handler in (
                ("returns", "raises", "returns bad") if "timeout" in trace else ("returns",)
            ):
                world, oracle = play(trace, count, handler)
                try:
                    check_end(world, oracle)
                except AssertionError as error:
                    error.add_note(f"trace {trace}, handler {handler}")
                    raise
                played += 1
    return played


@pytest.mark.requirement("R-F232-5", "R-F232-6", "R-F232-7", "R-F232-8", "R-F232-19")
def test_every_interleaving_of_one_element() -> None:
    """Late results, timers, timeouts, stalls, finish and cancel in every order up to four."""
    assert run_all(ONE, 4, 1) > 20_000


@pytest.mark.requirement("R-F232-6", "R-F232-8", "R-F232-17", "R-F232-20")
def test_every_interleaving_of_two_elements() -> None:
    """Two elements at once: one's failure or the drain meets the other in every state."""
    assert run_all(TWO, 4, 2) > 7000


@pytest.mark.soak
@pytest.mark.requirement("R-F232-6")
@pytest.mark.parametrize(("alphabet", "depth", "count"), [(ONE, 5, 1), (TWO, 6, 2)], ids=["1", "2"])
def test_every_longer_interleaving(alphabet: list[str], depth: int, count: int) -> None:
    """The same, longer."""
    assert run_all(alphabet, depth, count) > 200_000


@pytest.mark.requirement("R-F232-6", "R-F232-7")
def test_long_random_interleavings(seed: int) -> None:
    """Three elements and traces of thirty events, by the run's seed."""
    rng = random.Random(seed)
    kinds = ["ok", "bad", "bad", "retryable", "retryable", "fatal"]
    for _ in range(1500):
        trace = [
            rng.choice(["timer", "timer", f"{rng.choice(kinds)} {rng.randrange(9)}"])
            if rng.random() < 0.95
            else rng.choice(["timeout", "stall", "finish", "cancel"])
            for _ in range(30)
        ]
        world, oracle = play(trace, 3, rng.choice(["returns", "raises"]))
        check_end(world, oracle)


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


@pytest.mark.requirement("R-F232-3")
@pytest.mark.parametrize("kind", ["ok", "bad", "retryable", "fatal"])
def test_retries_without_a_predicate_change_nothing(kind: str) -> None:
    """The same events give the same phases, calls and counts as an operator without retries."""
    traces = []
    for policy in (RetryPolicy(), RetryPolicy(Backoff.fixed(5, 1))):
        world = World(AsyncSettings(capacity=2, retry=policy, timeout_seconds=TIMEOUT))
        oracle = Oracle(2, "returns")
        world.submit(0)
        world.submit(1)
        answer(world, oracle, 0, kind)
        world.tick(5)
        answer(world, oracle, 1, "ok")
        world.take()
        traces.append(
            (world.machine.counts, [repr(e) for e in world.elements], world.emitted,
             repr(world.machine.ended))
        )  # fmt: skip
    assert traces[0] == traces[1]
    assert traces[0][0].attempts == 2


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
