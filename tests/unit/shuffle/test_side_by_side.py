"""Calls that nobody waits for."""

import threading

from durable_shuffle.shuffle.base.side_by_side import Behind


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
