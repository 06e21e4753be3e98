"""Calls that nobody waits for, and calls that run while the result before them is used."""

import threading
from collections.abc import Callable, Iterator

import pytest

from durable_shuffle.shuffle.base.side_by_side import Behind, one_ahead


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


def test_one_call_runs_ahead_and_no_more() -> None:
    """Results come in their order, an error in place of its result."""
    begun = [threading.Event() for _ in range(4)]
    planned: list[int] = []

    def calls() -> Iterator[Callable[[], int]]:
        for n in range(4):
            planned.append(n)

            def call(n: int = n) -> int:
                begun[n].set()
                if n == 3:
                    raise ValueError("the last one")
                return n

            yield call

    results = one_ahead(calls())
    assert next(results) == 0
    assert begun[1].wait(60)  # while the caller uses the first
    assert planned == [0, 1]
    assert not begun[2].is_set()
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="the last one"):
        next(results)
    assert list(one_ahead([])) == []


def test_who_gives_up_does_not_wait() -> None:
    """The call that runs goes on alone."""
    begun, gate, ended = (threading.Event() for _ in range(3))

    def slow() -> None:
        begun.set()
        gate.wait(60)
        ended.set()

    results = one_ahead([lambda: None, slow, lambda: pytest.fail("nobody asked for it")])
    next(results)
    assert begun.wait(60)
    results.close()
    assert not ended.is_set()
    gate.set()
    assert ended.wait(60)
