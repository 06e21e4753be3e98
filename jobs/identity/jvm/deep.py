"""Lets code that follows a plan go as deep as the plan does.

A loop of 300 `withColumn` calls makes a plan of 300 levels, and each level takes several calls of
Python's. Such calls need no room on the stack of the thread, but Python counts them.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ENOUGH = 200_000
_lock = threading.Lock()
_inside = 0
_before = 0


@contextmanager
def deep_plans() -> Iterator[None]:
    """Raise Python's limit meanwhile, in all threads, since it has but one; as a decorator, too."""
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_ENOUGH, _before))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                sys.setrecursionlimit(_before)
