"""In which order elements leave: as they came, or as they are done between two markers.

A marker is a fence both ways: nothing that came before it leaves after it, and nothing that came
after it leaves before it. The unordered queue is cut into segments by markers; only the first
segment gives anything away, and it must be empty before the marker behind it leaves.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from durable_shuffle.recovery.async_element import Element, Phase


@dataclass(frozen=True, slots=True)
class Marker:
    """A control item among the elements: it is never called and keeps its place."""

    value: Any = None


Entry = Element | Marker


class Output(NamedTuple):
    """What an input came to."""

    ordinal: int
    value: Any


def as_output(entry: Entry) -> Output | Marker:
    """Return what a consumer gets for an entry that leaves."""
    return entry if isinstance(entry, Marker) else Output(entry.ordinal, entry.result)


class OutputQueue(Protocol):
    """Elements and markers that were taken in and have not left."""

    def __len__(self) -> int:
        """Elements and markers, done or not."""

    def __iter__(self) -> Iterator[Entry]:
        """Yield them so that taking them in again in this order gives the same queue."""

    def put(self, entry: Entry) -> None:
        """Append."""

    def done(self, element: Element) -> None:
        """Take note that the element's phase is DONE."""

    def pop(self) -> Entry | None:
        """Take out what may leave now, None if nothing may."""

    def clear(self) -> None:
        """Forget everything."""


class OrderedQueue:
    """Gives away its head, once that is done."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries))

    def put(self, entry: Entry) -> None:
        self._entries.append(entry)

    def done(self, element: Element) -> None:
        pass  # the head's phase is looked at when somebody asks

    def pop(self) -> Entry | None:
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
    """Gives away what is done in its first segment."""

    def __init__(self) -> None:
        self._parts: deque[_Segment | Marker] = deque([_Segment()])
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        for part in tuple(self._parts):
            if isinstance(part, Marker):
                yield part
            else:
                yield from sorted([*part.open.values(), *part.done], key=lambda e: e.ordinal)

    def put(self, entry: Entry) -> None:
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

    def pop(self) -> Entry | None:
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
