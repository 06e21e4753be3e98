"""Calls that nobody waits for, and calls that run while the result before them is used."""

import threading
from collections.abc import Callable, Iterator

import pytest

from durable_shuffle.shuffle.base.side_by_side import (
    Behind,
    OneBeside,
    ahead,
    each_at_once,
    side_by_side,
)


def test_calls_to_a_storage_that_is_near_come_one_after_the_other() -> None:
    """In the caller's thread. None is made behind one that fails."""
    told = list[tuple[int, int]]()

    def call(n: int) -> int:
        told.append((n, threading.get_ident()))
        if n == 3:
            raise ValueError("the third")
        return 10 * n

    assert side_by_side(lambda: call(1), lambda: call(2), far=False) == (10, 20)
    assert each_at_once(call, [1, 2], far=False) == [10, 20]
    here = threading.get_ident()
    assert told == 2 * [(1, here), (2, here)]
    with pytest.raises(ValueError, match="third"):
        side_by_side(lambda: call(3), lambda: call(4), far=False)
    with pytest.raises(ValueError, match="third"):
        each_at_once(call, [3, 4], far=False)
    assert told[4:] == 2 * [(3, here)]


def test_calls_behind_run_in_their_order_and_fail_alone() -> None:
    """The caller goes on meanwhile."""
    gate, told = threading.Event(), list[int]()
    behind = Behind()

    def fails() -> None:
        gate.wait(60)
        told.append(1)
        raise ValueError

    behind(fails)
    behind(lambda: told.append(2))
    assert not told
    gate.set()
    behind.wait()
    assert told == [1, 2]
    Behind().wait()


@pytest.mark.parametrize(
    ("most_bytes", "at_once", "begin"), [(30, 9, 3), (99, 2, 2), (5, 9, 1), (99, 9, 4)]
)
def test_calls_run_ahead_within_their_bounds(most_bytes: int, at_once: int, begin: int) -> None:
    """Results come in their order, an error in place of its result."""
    gate, begun = threading.Event(), [threading.Event() for _ in range(4)]
    planned: list[int] = []

    def calls() -> Iterator[tuple[int, Callable[[], int]]]:
        for n in range(4):
            planned.append(n)

            def call(n: int = n) -> int:
                begun[n].set()
                gate.wait(60)
                if n == 3:
                    raise ValueError("the last one")
                return n

            yield 10, call

    results = ahead(calls(), most_bytes=most_bytes, at_once=at_once)
    taken: list[int] = []
    reader = threading.Thread(target=lambda: taken.append(next(results)))
    reader.start()
    for event in begun[:begin]:
        assert event.wait(60)
    assert not any(event.is_set() for event in begun[begin:])
    gate.set()
    reader.join()
    assert taken == [0]
    assert len(planned) == min(4, begin + 1)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="the last one"):
        next(results)
    assert list(ahead([], most_bytes=1, at_once=1)) == []


def test_one_call_beside_another_and_its_error_once() -> None:
    """The second one waits for the first."""
    gate, told, beside = threading.Event(), list[int](), OneBeside()

    def first() -> None:
        gate.wait(60)
        told.append(1)
        raise ValueError("the first")

    beside(first)
    assert not told
    gate.set()
    with pytest.raises(ValueError, match="the first"):
        beside(lambda: told.append(2))
    beside(lambda: told.append(3))
    beside.wait()
    beside.wait()
    assert told == [1, 3]


def test_who_gives_up_does_not_wait() -> None:
    """The call that runs goes on alone."""
    begun, gate, ended = (threading.Event() for _ in range(3))

    def slow() -> None:
        begun.set()
        gate.wait(60)
        ended.set()

    calls = [(1, lambda: None), (1, slow), (1, lambda: pytest.fail("nobody asked for it"))]
    results = ahead(calls, most_bytes=9, at_once=2)
    next(results)
    assert begun.wait(60)
    results.close()
    assert not ended.is_set()
    gate.set()
    assert ended.wait(60)
