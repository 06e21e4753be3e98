"""What a user asked of a `DurableShuffle`: it can be run, or explained."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from durable_shuffle.jobs.stages.explanation import Explanation

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Request(Generic[R]):
    """A call whose arguments are checked. Nothing has been read or written for it."""

    runs: Callable[..., R]
    """Takes `progress`."""
    explain: Callable[[], Explanation]
    """Says what `run` would do."""

    def run(self, *, progress: bool = False) -> R:
        """Store what is missing, and return what the user gets; show bars meanwhile if asked."""
        return self.runs(progress=progress)
