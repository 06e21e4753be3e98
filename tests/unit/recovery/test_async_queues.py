"""Delay queue and output queues, against Flink's queue cases and simple models."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.recovery.calls.elements import (
    DelayQueue,
    Element,
    Marker,
    OrderedQueue,
    OutputQueue,
    Phase,
    UnorderedQueue,
)
from durable_shuffle.serialization.errors import InvalidInputError


class Harness:
    """A queue with elements that the test names by number and markers that it names by text."""

    def __init__(self, queue: OutputQueue, *entries: int | str) -> None:
        self.queue = queue
        self.elements: dict[int, Element] = {}
        for entry in entries:
            self.put(entry)

    def put(self, entry: int | str) -> None:
        """Append an element that is being called, or a marker."""
        if isinstance(entry, str):
            self.queue.put(Marker(entry))
            return
        element = self.elements[entry] = Element(entry, entry, 0.0)
        element.become(Phase.CALLING)
        self.queue.put(element)

    def done(self, *numbers: int) -> list[int | str]:
        """Finish elements in this order, then take out whatever leaves."""
        for number in numbers:
            self.elements[number].become(Phase.DONE)
            self.queue.done(self.elements[number])
        left: list[int | str] = []
        while (entry := self.queue.pop()) is not None:
            left.append(entry.value)
        return left


@pytest.mark.requirement("R-F232-10")
def test_ordered_queue_gives_the_done_prefix() -> None:
    """2 and 4 done: nothing. 1 done: 1, 2, the marker is held back by 3. 3 done: all."""
    h = Harness(OrderedQueue(), 1, 2, 3, "W", 4)
    assert h.done(2, 4) == []
    assert h.done(1) == [1, 2]
    assert h.done(3) == [3, "W", 4]
    assert len(h.queue) == 0


@pytest.mark.requirement("R-F232-10")
def test_unordered_queue_keeps_completion_order_between_markers() -> None:
    """Flink's case: what is done behind a marker waits until everything before it has left."""
    h = Harness(UnorderedQueue(), 1, 2, "W1", 3, 4, "W2", 5, 6)
    assert h.done(3) == []
    assert h.done(2) == [2]
    assert h.done(6, 4) == []
    assert h.done(1) == [1, "W1", 3, 4, "W2", 6]
    assert h.done(5) == [5]
    assert len(h.queue) == 0


@pytest.mark.requirement("R-F232-10")
@pytest.mark.parametrize("queue", [OrderedQueue, UnorderedQueue])
def test_neighbouring_markers_and_markers_alone(queue: type[OutputQueue]) -> None:
    """Markers without elements between them leave in order; then the queue takes elements."""
    h = Harness(queue(), "A", "B")
    assert h.done() == ["A", "B"]
    h.put("C")
    h.put(1)
    h.put("D")
    h.put("E")
    assert h.done() == ["C"]
    assert h.done(1) == [1, "D", "E"]
    assert h.done() == []


@pytest.mark.requirement("R-F232-10")
@given(data=st.data())
def test_queues_against_their_definition(data: st.DataObject) -> None:
    """Whatever is put in and finished in whatever order, output is what the words say."""
    entries = data.draw(st.lists(st.sampled_from(["e", "m"]), max_size=12))
    named = [f"m{i}" if e == "m" else i for i, e in enumerate(entries)]
    numbers = [e for e in named if isinstance(e, int)]
    order = data.draw(st.permutations(numbers))
    ordered, unordered = Harness(OrderedQueue(), *named), Harness(UnorderedQueue(), *named)
    finished: set[int | str] = {e for e in named if isinstance(e, str)}
    seen_ordered, seen_unordered = ordered.done(), unordered.done()
    for step, number in enumerate(order, 1):
        finished.add(number)
        seen_ordered += ordered.done(number)
        seen_unordered += unordered.done(number)
        prefix = next((i for i, e in enumerate(named) if e not in finished), len(named))
        assert seen_ordered == named[:prefix]
        fence = next(
            (i for i, e in enumerate(named) if isinstance(e, str) and i > prefix), len(named)
        )
        allowed = [e for e in named[:fence] if e in finished]
        assert sorted(map(str, seen_unordered)) == sorted(map(str, allowed))
        for i, e in enumerate(named):  # nothing overtakes a marker, in either direction
            if isinstance(e, str) and e in seen_unordered:
                at = seen_unordered.index(e)
                assert set(map(str, seen_unordered[:at])) == set(map(str, named[:i]))
        done_so_far = order[:step]
        for segment in _segments(named):
            inside = [e for e in seen_unordered if e in segment]
            ready = [e for e in done_so_far if e in segment]
            assert inside == ready[: len(inside)] or sorted(inside) == sorted(ready)
    assert len(ordered.queue) == len(unordered.queue) == 0


def _segments(named: list[int | str]) -> list[list[int | str]]:
    found: list[list[int | str]] = [[]]
    for entry in named:
        if isinstance(entry, str):
            found.append([])
        else:
            found[-1].append(entry)
    return found


def test_element_refuses_steps_that_do_not_exist() -> None:
    """An illegal step raises, names both phases, and changes nothing."""
    element = Element(7, "x", 0.0)
    legal = {p: set(p.following) for p in Phase}
    for start in Phase:
        for target in Phase:
            element.phase = start
            if target in legal[start]:
                element.become(target)
                assert element.phase is target
            else:
                with pytest.raises(InvalidInputError, match=f"{start.value} to {target.value}"):
                    element.become(target)
                assert element.phase is start
    assert not Phase.EMITTED.following
    assert not Phase.FAILED.following
    assert not Phase.DROPPED.following


@pytest.mark.requirement("R-F232-8")
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 9), st.integers(0, 20)),
            st.tuples(st.just("discard"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("due"), st.just(0), st.integers(0, 20)),
        ),
        max_size=60,
    )
)
def test_delay_queue_is_a_dictionary_of_moments(steps: list[tuple[str, int, int]]) -> None:
    """Length, next moment and what is due are those of a dictionary; nothing stays behind."""
    queue: DelayQueue[int] = DelayQueue()
    model: dict[int, int] = {}
    for step, key, when in steps:
        if step == "add":
            queue.add(key, when)
            model[key] = when
        elif step == "discard":
            queue.discard(key)
            model.pop(key, None)
        else:
            due = queue.pop_due(when)
            assert sorted(due) == sorted(k for k, w in model.items() if w <= when)
            assert [model[k] for k in due] == sorted(model[k] for k in due)
            model = {k: w for k, w in model.items() if w > when}
        assert len(queue) == len(model)
        assert queue.next_when() == min(model.values(), default=None)
        assert all((k in queue) == (k in model) for k in range(10))
    assert sorted(queue.pop_all()) == sorted(model)
    assert len(queue) == 0


@pytest.mark.requirement("R-F232-8")
def test_delay_queue_does_not_keep_what_was_taken_out() -> None:
    """Added and taken out 200,000 times with a thousand waiting: the heap stays near a thousand."""
    queue: DelayQueue[int] = DelayQueue()
    for key in range(1000):
        queue.add(key, 1e9 + key)
    for key in range(1000, 200_000):
        queue.add(key, key)
        queue.discard(key)
        assert len(queue) == 1000
    assert len(queue._heap) < 4000


class Moment(float):
    """A time that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Moment.compared += 1
        return float(self) < float(other)


@pytest.mark.requirement("R-F232-8")
@pytest.mark.parametrize("count", [100, 1000, 30_000])
def test_delay_queue_costs_a_logarithm_of_comparisons(count: int) -> None:
    """Adding, taking out and firing compare at most some multiple of log2(n) per key."""
    moments = random.Random(3).sample(range(10 * count), count)
    Moment.compared = 0
    queue: DelayQueue[int] = DelayQueue()
    for key, when in enumerate(moments):
        queue.add(key, Moment(when))
    for key in range(0, count, 2):
        queue.discard(key)
    assert len(queue.pop_due(10 * count)) == count // 2
    assert 0 < Moment.compared < 4 * count * count.bit_length()
