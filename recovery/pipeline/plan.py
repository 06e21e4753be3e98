"""What a pipeline consists of, as values: stages, sources, consumers, and what tasks they make."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from durable_shuffle.recovery.pipeline.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.sinks import Sink
from durable_shuffle.recovery.pipeline.sources import Source, StageSource
from durable_shuffle.recovery.restart_set import Edge, RestartGraph

Start = Literal["earliest", "latest"]


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
    """Another one makes it a new part, whatever else is the same."""


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
    start: Start = "earliest"
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
        """Who restarts with whom: nobody, since a log producer goes on where its log ends."""
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
