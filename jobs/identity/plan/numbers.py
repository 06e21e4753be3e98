"""Numbers for the ids that a JVM counts: they are given by first appearance within one walk."""

from collections.abc import Iterator
from contextlib import contextmanager

Key = tuple[str, int]
"""Kind of id, and the JVM's number."""


class Numbers:
    """The numbers of one walk."""

    def __init__(self) -> None:
        self._of: dict[Key, int] = {}
        self._count = 0
        self._used: set[Key] = set()
        self._inside: dict[int, set[Key]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._of

    def of(self, key: Key) -> int:
        """Return the number of an id, the next one at its first appearance."""
        self._used.add(key)
        if key not in self._of:
            self._of[key] = self._count
            self._count += 1
        return self._of[key]

    def same(self, one: Key, other: Key) -> tuple[int, int] | None:
        """Give two ids one number; return their numbers if they have different ones already."""
        known = self._of.get(one), self._of.get(other)
        if known[0] is not None and known[1] is not None:
            return None if known[0] == known[1] else (known[0], known[1])
        if known[0] is not None:
            self._of[other] = known[0]
        elif known[1] is not None:
            self._of[one] = known[1]
        return None

    @contextmanager
    def of_its_own(self, plan: int) -> Iterator[None]:
        """Number the ids of a plan anew for a while, if it was visited at another place before.

        Args:
            plan: what distinguishes the plan from others of this walk.
        """
        keys = self._inside.get(plan, set())
        hidden = {key: self._of.pop(key) for key in keys if key in self._of}
        used, self._used = self._used, set()
        yield
        self._inside[plan] = keys | self._used
        self._used |= used
        self._of |= hidden
