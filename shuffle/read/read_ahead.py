"""One item ahead: the next one is made, in a thread of its own, while the caller uses the last.

The thread begins with the first item and ends with `stop`. At most one call of `produce` is under
way at any time, so `produce` need not be safe for concurrent use.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Not thread-safe itself.

    Args:
        produce: makes the next item.
        more: says of an item whether another one shall be made before it is asked for.
        threads: False calls `produce` only when asked, in the caller's thread.
    """

    def __init__(
        self, produce: Callable[[], T], more: Callable[[T], bool], *, threads: bool
    ) -> None:
        self._produce, self._more, self._threads = produce, more, threads
        self._pool: ThreadPoolExecutor | None = None
        self._next: Future[T] | None = None

    def next(self) -> T:
        """Return the next item, or raise what `produce` raised, again and again.

        An item is not lost by an interrupt while it is waited for.
        """
        if not self._threads:
            return self._produce()
        self._next = self._next or self._submit()
        item = self._next.result()
        self._next = self._submit() if self._more(item) else None
        return item

    def stop(self) -> None:
        """Forget what is under way and let the thread end."""
        self._next = None
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def _submit(self) -> Future[T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "view-decode")
        return self._pool.submit(self._produce)
