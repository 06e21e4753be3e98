"""Acknowledging over a contiguous prefix only, when work completes out of order. Pure.

A consumer that works on several batches at once learns their ends in any order. A position may be
acknowledged once everything before it is done: past a hole it would lose what the hole holds.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from durable_shuffle.serialization.errors import InvalidInputError

T = TypeVar("T")


@dataclass(slots=True)
class ContiguousPrefix(Generic[T]):
    """Tracks pieces of work by the number under which they were started."""

    _started: int = field(default=0, init=False)
    _done: dict[int, T] = field(default_factory=dict, init=False)
    _prefix: int = field(default=0, init=False)

    @property
    def outstanding(self) -> int:
        """Pieces started and not yet part of the prefix."""
        return self._started - self._prefix

    def start(self) -> int:
        """Return the number of the next piece of work; numbers are dense, from 0."""
        self._started += 1
        return self._started - 1

    def done(self, number: int, value: T) -> T | None:
        """Take in that a piece is done; return the value of the newest one of the prefix.

        Args:
            value: what stands for everything up to and with this piece, a position for example.

        Returns:
            None if the prefix did not grow.

        Raises:
            InvalidInputError: never started, or done before; nothing has changed then.
        """
        if not 0 <= number < self._started or number < self._prefix or number in self._done:
            raise InvalidInputError(f"no such piece of work is outstanding: number={number}")
        self._done[number] = value
        found: T | None = None
        while self._prefix in self._done:
            found = self._done.pop(self._prefix)
            self._prefix += 1
        return found
