"""Attempts that an update told to end, each before its task starts anew or is gone. Pure."""

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(slots=True)
class Leaving:
    """The tasks that an update replaces or drops."""

    replaced: set[str] = field(default_factory=set)
    """Their attempt is to end before the next one starts."""
    dropped: set[str] = field(default_factory=set)
    """They end for good: they stay here until another update names them."""

    def __contains__(self, task: object) -> bool:
        return task in self.replaced or task in self.dropped

    def come_back(self, named: Collection[str]) -> set[str]:
        """Take in which tasks an update names; return those that were dropped before."""
        back = self.dropped.intersection(named)
        self.dropped -= back
        return back

    def ended(self, task: str) -> bool:
        """An attempt has ended, in whatever way; return whether its task was dropped."""
        self.replaced.discard(task)
        return task in self.dropped

    def under_way(self, live: Collection[str]) -> set[str]:
        """Return the tasks whose attempt has not ended."""
        return self.replaced | self.dropped.intersection(live)
