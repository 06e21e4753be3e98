"""Which tasks have slots, when there are fewer slots than tasks. Pure.

Tasks that have not finished get slots in the order of their data, sources first. The others wait,
and each free slot goes to the next. That is possible since data between tasks is durable. A task
that runs keeps its slot, unless a task before it in that order has none: otherwise a source that
lost its slot would wait for a consumer that waits for the source.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from durable_shuffle.serialization.errors import InvalidInputError


class TaskGraph:
    """Tasks and the data between them, all of it durable: a task that fails restarts alone.

    Args:
        edges: (producer, consumer).

    Raises:
        InvalidInputError: an edge names an unknown task.
    """

    def __init__(self, tasks: Collection[str], edges: Iterable[tuple[str, str]] = ()) -> None:
        self.tasks = tuple(tasks)
        self.edges = tuple(edges)
        strangers = {task for edge in self.edges for task in edge} - set(self.tasks)
        if strangers:
            raise InvalidInputError(f"no such task: {min(strangers)!r}")


@dataclass(frozen=True, slots=True)
class Wave:
    """What to do now, all of it together."""

    launch: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    """Tasks that run and have to give their slot to one that comes before them."""


@dataclass(slots=True)
class Waves:
    """The slots of one job and the tasks that wait for one."""

    slots: int | None = None
    """How many tasks can run at once; None: as many as there are."""
    waiting: set[str] = field(default_factory=set, init=False)

    def plan(self, graph: TaskGraph, live: Collection[str], more: Collection[str] = ()) -> Wave:
        """Return which waiting tasks and which of `more` start now, and which tasks make room."""
        idle = self.waiting | set(more)
        if self.slots is None:
            return Wave(tuple(sorted(idle)))
        rank = ranks(graph)  # a task that is not in it is about to end
        order = sorted({*live, *idle}, key=lambda task: (rank.get(task, -1), task in idle, task))
        chosen = order[: self.slots]
        launch = [task for task in chosen if task in idle]
        over = len(live) + len(launch) - self.slots
        behind = [task for task in order[self.slots :] if task not in idle]
        evict = behind[max(0, len(behind) - over) :] if launch and over > 0 else []
        return Wave(tuple(sorted(launch)), tuple(sorted(evict)))


def ranks(graph: TaskGraph) -> Mapping[str, int]:
    """Return how far each task is from the sources: 0, or one more than its furthest producer.

    Tasks of a cycle, and behind one, share the highest rank.
    """
    producers: dict[str, set[str]] = {task: set() for task in graph.tasks}
    for producer, consumer in graph.edges:
        producers[consumer].add(producer)
    rank_of: dict[str, int] = {}
    rank = 0
    while ready := [t for t, of in producers.items() if t not in rank_of and of <= rank_of.keys()]:
        rank_of |= dict.fromkeys(ready, rank)
        rank += 1
    return rank_of | dict.fromkeys(producers.keys() - rank_of.keys(), rank)
