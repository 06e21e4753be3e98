"""Where rows come from: sources that can continue after a position.

A position is a number, text or bytes; the source chooses it. One record holds the position and the
rows that it covers. If a source is asked again with a position, it returns the rows after it, each
row once, in any order that it chooses. A source may collect instead: then its position is the set
of all texts that it gave.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from durable_shuffle.recovery.pipeline.plan.positions import Position, rises

Pulled: TypeAlias = tuple[Any, Position] | None
"""Rows (see `rows.batches_of`) and the position after them; None: nothing new at the moment."""


class Source(Protocol):
    """One per source task and attempt.

    Optional:
        `open()` and `close()`, each called at most once.
        `bounded`: whether the source ends by itself (None or missing: unknown).
        `advances(before, after)`: whether rows with position `after` may follow those with
            `before`. Without it, positions must rise.
        `collects`: True if each position is a new text, and `read` gets the set of all of them.
    """

    def read(self, position: Any, producer: int, producers: int) -> Iterator[Pulled]:
        """Yield what comes after `position`, or from the start if None, until there is no more.

        Args:
            producer: the number of the asking task, from 0 to `producers` exclusive.
        """


@dataclass(frozen=True, slots=True)
class IteratorSource:
    """A source that calls a function, which returns an iterator.

    Args:
        make: called as `make(position, producer)`, with position None at the very start. It
            returns an iterator of (rows, position after them), or of None if nothing is new.
            Positions are all numbers, all texts or all bytes, and each is greater than the one
            before. Its attribute `bounded` says whether it ends by itself.
    """

    make: Callable[[Any, int], Iterable[Pulled]]

    @property
    def bounded(self) -> bool | None:
        """Whether it ends by itself, None if unknown."""
        return getattr(self.make, "bounded", None)

    def read(self, position: Position | None, producer: int, producers: int) -> Iterator[Pulled]:
        return iter(self.make(position, producer))

    def advances(self, before: Position, after: Position) -> bool:
        return rises(before, after)


@dataclass(frozen=True, slots=True)
class StageSource:
    """A stage that another job has stored or still writes. Its consumers read it in place.

    Args:
        job: name of the other job, or of the other pipeline.
        stage: the `name=` that the job stored it under.
        url: where that job stores its data; None: where this pipeline does.
    """

    job: str
    stage: str
    url: str | None = None
