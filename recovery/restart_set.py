"""Which tasks restart when some have failed. Pure.

Strategy: tasks that exchange volatile data form a region and restart together. Durable data is a
boundary, with two exceptions: an input that is missing or damaged needs its producer again, and
a producer that runs again may write other data than before, so whoever read of it restarts, too. A
log producer never does that: it goes on where its log ends. After the region strategy of Flink
(`RestartPipelinedRegionFailoverStrategy`) with re-connectable results as boundaries.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from durable_shuffle.serialization.errors import InvalidInputError

EdgeKind = Literal["volatile", "rewritten", "continued"]
"""What a consumer gets from a producer that restarts: nothing but a new stream ("volatile"); a
durable result that may differ ("rewritten"); the same durable records and then more ("continued",
also of a producer whose data is sealed)."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Data goes from one task to another."""

    producer: str
    consumer: str
    kind: EdgeKind


class RestartGraph:
    """Tasks and the data between them.

    Raises:
        InvalidInputError: an edge names a task that there is not.
    """

    def __init__(self, tasks: Collection[str], edges: Iterable[Edge]) -> None:
        self.tasks = tuple(tasks)
        self.edges = tuple(edges)
        strangers = {e.producer for e in self.edges} | {e.consumer for e in self.edges}
        if strangers - set(self.tasks):
            raise InvalidInputError(f"no such task: {sorted(strangers - set(self.tasks))[0]!r}")
        self._region = _regions(self.tasks, self.edges)

    def region(self, task: str) -> frozenset[str]:
        """Return the tasks that restart whenever this one does, itself included."""
        if task not in self._region:
            raise InvalidInputError(f"no such task: {task!r}")
        return self._region[task]

    def restart_set(
        self, failed: Iterable[str], lost_outputs_of: Collection[str] = ()
    ) -> frozenset[str]:
        """Return the tasks to restart.

        Args:
            failed: tasks that failed, or asked for something that is gone.
            lost_outputs_of: producers whose durable output is missing or damaged.
        """
        found: set[str] = set()
        waiting = list(failed)
        while waiting:  # ends: every region is taken once
            region = self.region(waiting.pop())
            if region <= found:
                continue
            found |= region
            for edge in self.edges:
                if edge.consumer in region and edge.producer in lost_outputs_of:
                    waiting.append(edge.producer)
                if edge.producer in region and edge.kind != "continued":
                    waiting.append(edge.consumer)
        return frozenset(found)


def _regions(tasks: Iterable[str], edges: Iterable[Edge]) -> Mapping[str, frozenset[str]]:
    region = {task: frozenset((task,)) for task in tasks}
    for edge in edges:
        if edge.kind == "volatile":
            joined = region[edge.producer] | region[edge.consumer]
            region.update(dict.fromkeys(joined, joined))
    return region
