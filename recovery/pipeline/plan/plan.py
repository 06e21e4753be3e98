"""What a pipeline consists of, as values: stages, sources, consumers, and the tasks that they make.

`check_slots` tells before the start whether a launcher has slots enough for them.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from durable_shuffle.recovery.job.restarts import Edge, RestartGraph
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import Sink
from durable_shuffle.recovery.pipeline.plan.sources import Source, StageSource
from durable_shuffle.serialization.errors import InvalidInputError

StartAt = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Subpartitions between tasks."""

    name: str
    schema: pa.Schema | None
    """None of a stage that is not of this pipeline."""
    keys: tuple[str, ...]
    producers: int
    partitions: int
    elsewhere: StageSource | None = None


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source; it writes the stage of its name."""

    name: str
    source: Source
    version: str = ""
    """Another version makes it a new part, also if everything else is the same."""


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """A consumer, one task per partition of what it reads."""

    name: str
    reads: str
    """Name of a stage."""
    step: Any
    schema: pa.Schema | None
    sink: Sink | None
    writes: str | None = None
    """Name of a stage that gets its rows, in the place of a sink."""
    version: str = ""
    """As of a source."""
    start: StartAt = "earliest"
    """Where it begins that never read."""


@dataclass(frozen=True, slots=True)
class TaskAddress:
    """What a task name stands for."""

    owner: str
    """Name of a source or consumer."""
    index: int
    """Producer or subpartition."""


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """All of it. Can be pickled if its steps can."""

    name: str
    url: str
    storage_options: Mapping[str, object] | None
    settings: PipelineSettings
    stages: Mapping[str, StagePlan] = field(default_factory=dict)
    sources: Mapping[str, SourcePlan] = field(default_factory=dict)
    consumers: Mapping[str, ConsumerPlan] = field(default_factory=dict)
    version: str = ""

    @property
    def tasks(self) -> dict[str, TaskAddress]:
        """Name to address, sources first."""
        found = {}
        for name in self.sources:
            for p in range(self.stages[name].producers):
                found[f"{name}-p{p:04d}"] = TaskAddress(name, p)
        for name, consumer in self.consumers.items():
            for k in range(self.stages[consumer.reads].partitions):
                found[f"{name}-k{k:04d}"] = TaskAddress(name, k)
        return found

    def without(self, part: str) -> "PipelinePlan":
        """Return the plan without a source or consumer; what it wrote stays for its readers."""
        return replace(
            self,
            sources={name: one for name, one in self.sources.items() if name != part},
            consumers={name: one for name, one in self.consumers.items() if name != part},
        )

    @property
    def drained(self) -> frozenset[str]:
        """Tasks whose input is not of this pipeline: a drain begins with them."""
        return frozenset(
            task for task, address in self.tasks.items() if self.is_root(address.owner)
        )

    def is_root(self, owner: str) -> bool:
        """Return whether the source or consumer reads nothing that this pipeline writes."""
        consumer = self.consumers.get(owner)
        return consumer is None or self.stages[consumer.reads].elsewhere is not None

    @property
    def graph(self) -> RestartGraph:
        """Tasks and data. Each task restarts alone: a log producer goes on where its log ends."""
        tasks = self.tasks
        writes = {name: name for name in self.sources}
        writes |= {c.name: c.writes for c in self.consumers.values() if c.writes is not None}
        edges = [
            Edge(producer, reader, "continued")
            for producer, address in tasks.items()
            for reader, at in tasks.items()
            if at.owner in self.consumers
            and writes.get(address.owner) == self.consumers[at.owner].reads
        ]
        return RestartGraph(tuple(tasks), edges)


_log = logging.getLogger(__name__)


def check_slots(plan: PipelinePlan, slots: int | None) -> None:
    """Look before the start whether every task can get a slot at some time.

    Sources that end make room for their consumers. If nobody knows whether they end, a warning is
    logged, and the tasks behind them wait at least until a DRAIN.

    Args:
        slots: how many tasks can run at once; None: any number.

    Raises:
        InvalidInputError: tasks that never end need more; says how many.
    """
    tasks = plan.tasks
    if slots is None or slots >= len(tasks):
        return
    endless = _endless(plan)
    for_ever = sum(address.owner in endless for address in tasks.values())
    needed = for_ever + (for_ever < len(tasks))
    if slots < needed:
        raise InvalidInputError(
            f"pipeline {plan.name!r} needs {needed} slots, {for_ever} of them for tasks that never "
            f"end ({', '.join(sorted(endless))}), and the launcher has {slots}: add some, or make "
            "fewer producers or partitions"
        )
    _log.warning(
        "pipeline %r has %d tasks and the launcher %d slots: sources run first, and tasks that "
        "wait start when others end; with sources that never end that is at a DRAIN only",
        plan.name,
        len(tasks),
        slots,
    )


def _endless(plan: PipelinePlan) -> set[str]:
    """Return the sources that say that they never end, and the consumers behind them."""
    found = {
        name
        for name, source in plan.sources.items()
        if getattr(source.source, "bounded", None) is False
    }
    stages = set(found)
    while True:
        behind = [c for c in plan.consumers.values() if c.reads in stages and c.name not in found]
        if not behind:
            return found
        found |= {consumer.name for consumer in behind}
        stages |= {consumer.writes for consumer in behind if consumer.writes is not None}
