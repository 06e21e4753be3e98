"""The operator's state machine: every interleaving gives one outcome per element.

The oracle is `Told`, the requirements in some thirty lines, without queues, timers or phases.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from async_world import DELAY, POLICY, RETRIES, TIMEOUT, World

from durable_shuffle.recovery.calls.elements import Phase
from durable_shuffle.recovery.calls.settings import AsyncSettings
from durable_shuffle.serialization.errors import AbortedError
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy


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
