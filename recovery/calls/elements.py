"""The elements of the async operator: their phases, their waits, and the order in which they leave.

    QUEUED -> CALLING(n) -> DONE -> EMITTED
                  |  ^
                  v  |
               WAITING(n)          after a result or exception that is retried

    CALLING, WAITING -> EXPIRED -> DONE     at the deadline, by the timeout handler
    CALLING, EXPIRED -> FAILED              an outcome that ends the operator
    any but the last three -> DROPPED       cancel, suspend, another element's failure

EMITTED, FAILED and DROPPED are the outcomes: every element reaches one of them and never leaves it.
Any other step is a bug in this package and raises at once.

`DelayQueue` is a heap, and a dictionary that says which of its entries count. Adding and removing
costs O(log n), amortised. The heap is rebuilt when most of its entries are dead, so memory stays
within a constant factor of the waiting elements.

A marker is a fence in both directions: nothing from before it leaves after it, and nothing from
after it leaves before it. Markers cut the unordered queue into segments. Only the first segment
releases elements, and it must be empty before the marker after it leaves.
"""

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from durable_shuffle.serialization.errors import InvalidInputError


class Phase(Enum):
    """The phase of an element."""

    QUEUED = "queued"
    CALLING = "calling"
    WAITING = "waiting"
    EXPIRED = "expired"
    DONE = "done"
    EMITTED = "emitted"
    FAILED = "failed"
    DROPPED = "dropped"

    following: tuple["Phase", ...]
    """The phases that may follow."""


OUTCOMES: Final = (Phase.EMITTED, Phase.FAILED, Phase.DROPPED)

_END: tuple[Phase, ...] = (Phase.FAILED, Phase.DROPPED)
Phase.QUEUED.following = (Phase.CALLING, Phase.EXPIRED, Phase.DROPPED)
Phase.CALLING.following = (Phase.DONE, Phase.WAITING, Phase.EXPIRED, *_END)
Phase.WAITING.following = (Phase.CALLING, Phase.EXPIRED, Phase.DROPPED)
Phase.EXPIRED.following = (Phase.DONE, *_END)
Phase.DONE.following = (Phase.EMITTED, Phase.DROPPED)
for _outcome in OUTCOMES:
    _outcome.following = ()


class Element:
    """One input on its way to one outcome. Only the machine that owns it changes it."""

    __slots__ = (
        "attempt", "call", "charged_before", "first_wall_seconds", "last", "ordinal", "phase",
        "result", "segment", "started", "value",
    )  # fmt: skip

    def __init__(self, ordinal: int, value: Any, started: float) -> None:
        self.ordinal = ordinal
        self.value = value
        self.phase = Phase.QUEUED
        self.attempt = 0
        """Number of the newest call, from 1; 0 before the first."""
        self.last = False
        """Whether the current call is the last one."""
        self.started = started
        """Monotonic seconds at which this process took it in."""
        self.charged_before = 0.0
        """Seconds of its time budget that earlier processes used."""
        self.first_wall_seconds: float | None = None
        """Wall time of its first call, if an earlier process made that call."""
        self.result: Any = None
        self.segment: Any = None
        """Used by the output queue."""
        self.call: Any = None
        """The shell's handle of the running call."""

    def become(self, phase: Phase) -> None:
        """Take one step.

        Raises:
            InvalidInputError: there is no such step; the element is unchanged.
        """
        if phase not in self.phase.following:
            raise InvalidInputError(
                f"async element {self.ordinal} cannot go from {self.phase.value} to {phase.value}"
            )
        self.phase = phase

    def __repr__(self) -> str:
        return f"Element({self.ordinal}, {self.phase.value}, attempt={self.attempt})"


K = TypeVar("K", bound=Hashable)

_SMALL = 64
"""Heaps up to this size are not rebuilt."""


class DelayQueue(Generic[K]):
    """Holds each key at most once, with the moment that it waits for. Never asks a clock."""

    def __init__(self) -> None:
        self._when: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._when)

    def __contains__(self, key: K) -> bool:
        return key in self._when

    def add(self, key: K, when: float) -> None:
        """Have `key` wait for `when`; this replaces an earlier wait."""
        self._when[key] = when
        self._added += 1  # equal moments leave as they came; keys are never compared
        heapq.heappush(self._heap, (when, self._added, key))

    def discard(self, key: K) -> None:
        """End the wait of `key`, if there is one."""
        if self._when.pop(key, None) is None:
            return
        if not self._when:
            self._heap.clear()
        elif len(self._heap) > 2 * len(self._when) + _SMALL:
            self._heap = [entry for entry in self._heap if self._when.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def next_when(self) -> float | None:
        """Return the earliest moment that a key waits for, None if no key waits."""
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


@dataclass(frozen=True, slots=True)
class Marker:
    """A control item among the elements: it is never called, and keeps its place."""

    value: Any = None


QueueEntry = Element | Marker


class Output(NamedTuple):
    """The outcome of an input."""

    ordinal: int
    value: Any


def as_output(entry: QueueEntry) -> Output | Marker:
    """Return what a consumer receives for an entry that leaves."""
    return entry if isinstance(entry, Marker) else Output(entry.ordinal, entry.result)


class OrderedQueue:
    """Elements and markers inside the operator, in order; the head leaves once it is done.

    Iteration yields them in the order in which they must be put to get the same queue again.
    """

    def __init__(self) -> None:
        self._entries: deque[QueueEntry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[QueueEntry]:
        return iter(tuple(self._entries))

    def put(self, entry: QueueEntry) -> None:
        """Append."""
        self._entries.append(entry)

    def done(self, element: Element) -> None:
        """Note that the element is DONE; here `pop` checks the phase itself."""

    def pop(self) -> QueueEntry | None:
        """Take out the next entry that may leave, None if there is none."""
        entries = self._entries
        if entries and (entries[0].__class__ is Marker or entries[0].phase is Phase.DONE):  # type: ignore[union-attr]
            return entries.popleft()
        return None

    def clear(self) -> None:
        self._entries.clear()


class _Segment:
    """Elements between two markers."""

    __slots__ = ("done", "open")

    def __init__(self) -> None:
        self.open: dict[int, Element] = {}
        """By ordinal: not done yet."""
        self.done: deque[Element] = deque()
        """In the order in which they became done."""


class UnorderedQueue:
    """As `OrderedQueue`, but elements of the first segment leave in the order they are done."""

    def __init__(self) -> None:
        self._parts: deque[_Segment | Marker] = deque([_Segment()])
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[QueueEntry]:
        for part in tuple(self._parts):
            if isinstance(part, Marker):
                yield part
            else:
                yield from sorted([*part.open.values(), *part.done], key=lambda e: e.ordinal)

    def put(self, entry: QueueEntry) -> None:
        self._size += 1
        if isinstance(entry, Marker):
            self._parts.append(entry)
            return
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Segment):
            last = _Segment()
            self._parts.append(last)
        entry.segment = last
        last.open[entry.ordinal] = entry

    def done(self, element: Element) -> None:
        segment: _Segment = element.segment
        segment.done.append(segment.open.pop(element.ordinal))

    def pop(self) -> QueueEntry | None:
        while self._parts:
            first = self._parts[0]
            if isinstance(first, Marker):
                self._size -= 1
                self._parts.popleft()
                return first
            if first.done:
                self._size -= 1
                return first.done.popleft()
            if first.open or len(self._parts) == 1:
                return None
            self._parts.popleft()
        return None

    def clear(self) -> None:
        self._parts.clear()
        self._size = 0


OutputQueue = OrderedQueue | UnorderedQueue
