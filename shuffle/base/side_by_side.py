"""Runs calls side by side, so that requests that do not depend on each other cost one round trip.

It must not be used for calls whose order the protocol needs. A storage in a folder answers before
a thread has started, and Python's threads then wait for each other: there, `far=False` runs the
calls one after the other.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

Later = Callable[[Callable[[], None]], None]
"""Runs a call now, or behind the caller."""


@overload
def side_by_side(
    one: Callable[[], A], two: Callable[[], B], /, *, far: bool = True
) -> tuple[A, B]: ...
@overload
def side_by_side(
    one: Callable[[], A], two: Callable[[], B], three: Callable[[], C], /, *, far: bool = True
) -> tuple[A, B, C]: ...
@overload
def side_by_side(
    one: Callable[[], A],
    two: Callable[[], B],
    three: Callable[[], C],
    four: Callable[[], D],
    /,
    *,
    far: bool = True,
) -> tuple[A, B, C, D]: ...
def side_by_side(*calls: Callable[[], Any], far: bool = True) -> tuple[Any, ...]:
    """Return what the calls give, in their order. All have ended then.

    Args:
        far: False runs them one after the other, up to the first that raises.

    Raises:
        Exception: that of the first call, in this order, that raised one.
    """
    if not far:
        return tuple(call() for call in calls)
    with ThreadPoolExecutor(len(calls) - 1) as pool:  # the last one runs here
        others = [pool.submit(call) for call in calls[:-1]]
        try:
            last = calls[-1]()
        except Exception:
            for other in others:
                other.result()  # the error of an earlier call goes first
            raise
    return (*(other.result() for other in others), last)


def each_at_once(call: Callable[[A], B], arguments: Sequence[A], *, far: bool = True) -> list[B]:
    """Return what the call gives for each argument, in their order. All have ended then.

    Args:
        far: False makes the calls one after the other, up to the first that raises.

    Raises:
        Exception: that of the first argument that raised one.
    """
    if len(arguments) < 2 or not far:
        return [call(argument) for argument in arguments]
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(call, arguments))


def ahead(
    calls: Iterable[tuple[int, Callable[[], A]]], *, most_bytes: int, at_once: int
) -> Iterator[A]:
    """Yield what the calls give, in their order. The next ones run while a result is used.

    Those that run when the iteration is given up go on, and nobody learns how they ended.

    Args:
        calls: each with the bytes that it gives. They may be planned before the first one ends.
        most_bytes: that are held or under way, the result in use included; one call may give more.
        at_once: how many calls are under way at most.

    Raises:
        Exception: that of a call, in place of what it gives.
    """
    pool = ThreadPoolExecutor(at_once)
    waiting: deque[tuple[int, Future[A]]] = deque()
    held = 0
    try:
        for size, call in calls:
            while waiting and (held + size > most_bytes or len(waiting) == at_once):
                taken, future = waiting.popleft()
                yield future.result()
                held -= taken
            waiting.append((size, pool.submit(call)))
            held += size
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class OneBeside:
    """Runs one call beside its caller; the next one waits for its end."""

    def __init__(self) -> None:
        self._running: Future[object] | None = None

    def __call__(self, call: Callable[[], object]) -> None:
        """Start the call.

        Raises:
            Exception: see `wait`.
        """
        self.wait()
        pool = ThreadPoolExecutor(1)
        self._running = pool.submit(call)
        pool.shutdown(wait=False)

    def wait(self) -> None:
        """Return when nothing runs.

        Raises:
            Exception: that of the call that was running, once.
        """
        running, self._running = self._running, None
        if running is not None:
            running.result()


@contextmanager
def beside(call: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Run the call beside the block, and give the block what waits for its end.

    It has ended when the block has.

    Raises:
        Exception: that of the call, where the block waits for it, at the latest at its end.
    """
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)

        def wait() -> None:
            running.result()

        yield wait
        wait()


def at_once(call: Callable[[], None]) -> None:
    """Run the call now. This is a `Later`."""
    call()


class Behind:
    """Runs calls that nobody waits for, one after the other. This is a `Later`.

    They do not hold up the end of the process, which may come before theirs.
    """

    def __init__(self) -> None:
        self._newest: threading.Thread | None = None

    def __call__(self, call: Callable[[], None]) -> None:
        """Run the call soon; its error is nobody's. At the end of the process it runs now."""
        before = self._newest

        def run() -> None:
            if before is not None:
                before.join()
            with suppress(Exception):
                call()

        thread = threading.Thread(target=run, name="behind", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter starts no thread any more
            run()
        else:
            self._newest = thread

    def wait(self) -> None:
        """Return when all that was given has run."""
        if self._newest is not None:
            self._newest.join()
