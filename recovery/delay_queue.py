"""Keys that wait for a moment each: a heap, and a dictionary that says which of its entries count.

Adding and taking out cost O(log n), amortised; taking out leaves a dead entry in the heap, and the
heap is rebuilt when most of it is dead, so memory stays within a constant factor of what waits.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SMALL = 64
"""Heaps up to this size are not worth rebuilding."""


class DelayQueue(Generic[K]):
    """Holds each key at most once, with the moment it waits for. Asks no clock."""

    def __init__(self) -> None:
        self._when: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._when)

    def __contains__(self, key: K) -> bool:
        return key in self._when

    def add(self, key: K, when: float) -> None:
        """Have `key` wait for `when`, whatever it waited for before."""
        self._when[key] = when
        self._added += 1  # equal moments come out as they went in, and keys are never compared
        heapq.heappush(self._heap, (when, self._added, key))

    def discard(self, key: K) -> None:
        """Have `key` wait no more; fine if it did not."""
        if self._when.pop(key, None) is None:
            return
        if not self._when:
            self._heap.clear()
        elif len(self._heap) > 2 * len(self._when) + _SMALL:
            self._heap = [entry for entry in self._heap if self._when.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def next_when(self) -> float | None:
        """Return the earliest moment that somebody waits for, None if nobody waits."""
        heap, live = self._heap, self._when
        while heap:
            when, _, key = heap[0]
            if live.get(key) == when:
                return when
            heapq.heappop(heap)
        return None

    def pop_due(self, now: float) -> list[K]:
        """Take out and return the keys whose moment is at or before `now`, earliest first."""
        due: list[K] = []
        while (when := self.next_when()) is not None and when <= now:
            key = heapq.heappop(self._heap)[2]
            del self._when[key]
            due.append(key)
        return due

    def pop_all(self) -> list[K]:
        """Take out and return all keys, earliest first."""
        return self.pop_due(float("inf"))
