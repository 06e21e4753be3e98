"""A pipeline as a value: stages, sources, consumers, and their tasks.

`own_stage` creates a stage on the storage once; every later run finds it again. `check_slots`
checks before the start whether a launcher has enough slots for all tasks.
"""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from durable_shuffle.recovery.job.waves import TaskGraph
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import Sink
from durable_shuffle.recovery.pipeline.plan.sources import Source, StageSource
from durable_shuffle.serialization.arrow_schemas import schema_to_bytes
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.job_state import JobState
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.named_stage import named_stage
from durable_shuffle.shuffle.log.records import Describe, StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, describe_stage, open_stage
from durable_shuffle.shuffle.storage.contract import Storage

StartAt = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Subpartitions between tasks."""

    name: str
    schema: pa.Schema | None
    """None for a stage of another job."""
    keys: tuple[str, ...]
    producers: int
    partitions: int
    elsewhere: StageSource | None = None
    readers: tuple[str, ...] = ()
    """Consumers outside this pipeline that its rows are kept for."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source."""

    name: str
    source: Source
    version: str = ""
    """A different version makes it a different part, even if everything else is equal."""
    producers: int = 1
    writes: str = ""
    """Name of the stage that it writes; "": the one of its own name."""
    first: int = 0
    """Number of its first producer there: others may write the stage, too."""

    @property
    def stage(self) -> str:
        """Name of the stage that it writes."""
        return self.writes or self.name


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
    """Name of a stage that receives its rows, instead of a sink."""
    version: str = ""
    """As for a source."""
    start: StartAt = "earliest"
    """Where a new consumer begins."""
    first: int = 0
    """Number of its first producer in the stage that it writes."""
    dead_letters: Sink | None = None
    """Where rows go that the step cannot take; None: they are failures."""


@dataclass(frozen=True, slots=True)
class TaskAddress:
    """The part and the index that a task name stands for."""

    owner: str
    """Name of a source or consumer."""
    index: int
    """Number among the producers of a source, or subpartition."""


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A whole pipeline. Can be pickled if its steps can."""

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
        """Task name to address, sources first."""
        addresses = {}
        for name, source in self.sources.items():
            for p in range(source.producers):
                addresses[f"{name}-p{p:04d}"] = TaskAddress(name, p)
        for name, consumer in self.consumers.items():
            for k in range(self.stages[consumer.reads].partitions):
                addresses[f"{name}-k{k:04d}"] = TaskAddress(name, k)
        return addresses

    def without(self, part: str) -> "PipelinePlan":
        """Return the plan without a source or consumer; its stages stay for their readers."""
        return replace(
            self,
            sources={name: p for name, p in self.sources.items() if name != part},
            consumers={name: p for name, p in self.consumers.items() if name != part},
        )

    @property
    def drained(self) -> frozenset[str]:
        """Tasks whose input is not from this pipeline: a drain begins with them."""
        return frozenset(
            task for task, address in self.tasks.items() if self.is_root(address.owner)
        )

    def producers_of(self, owner: str) -> tuple[str, range] | None:
        """Return the stage that a source or consumer writes and its producers there, None if it
        writes none."""
        if (source := self.sources.get(owner)) is not None:
            return source.stage, range(source.first, source.first + source.producers)
        consumer = self.consumers[owner]
        if consumer.writes is None:
            return None
        count = self.stages[consumer.reads].partitions
        return consumer.writes, range(consumer.first, consumer.first + count)

    def is_root(self, owner: str) -> bool:
        """Return whether the source or consumer reads nothing that this pipeline writes."""
        consumer = self.consumers.get(owner)
        return consumer is None or self.stages[consumer.reads].elsewhere is not None

    @property
    def graph(self) -> TaskGraph:
        """Tasks and data. A task restarts alone: a log producer continues where its log ends."""
        tasks = self.tasks
        writes = {name: source.stage for name, source in self.sources.items()}
        writes |= {c.name: c.writes for c in self.consumers.values() if c.writes is not None}
        edges = [
            (producer, reader)
            for producer, address in tasks.items()
            for reader, at in tasks.items()
            if at.owner in self.consumers
            and writes.get(address.owner) == self.consumers[at.owner].reads
        ]
        return TaskGraph(tuple(tasks), edges)


_log = logging.getLogger(__name__)


def check_slots(plan: PipelinePlan, slots: int | None) -> None:
    """Check before the start that every task will get a slot.

    Sources that end free their slots for their consumers. If it is unknown whether they end, a
    warning is logged, and the tasks after them wait at least until a DRAIN.

    Args:
        slots: how many tasks can run at once; None: any number.

    Raises:
        InvalidInputError: tasks that never end need more slots; the message says how many.
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
    """Return the sources that declare that they never end, and the consumers after them."""
    endless = {
        name
        for name, source in plan.sources.items()
        if getattr(source.source, "bounded", None) is False
    }
    stages = {plan.sources[name].stage for name in endless}
    while True:
        behind = [c for c in plan.consumers.values() if c.reads in stages and c.name not in endless]
        if not behind:
            return endless
        endless |= {consumer.name for consumer in behind}
        stages |= {consumer.writes for consumer in behind if consumer.writes is not None}


def own_stage(
    storage: Storage,
    log: JobLog,
    plan: StagePlan,
    *,
    settings: Settings,
    ids: IdSource,
    clock: Clock,
) -> StagePath:
    """Return the location of the stage; create the stage if this pipeline never had it.

    Raises:
        IncompatibleError: the stage has other columns, keys or counts than the pipeline now, so
            its data does not fit.
        InvalidInputError: a key is not a column.
    """
    assert plan.schema is not None
    missing = [key for key in plan.keys if key not in plan.schema.names]
    if missing:
        raise InvalidInputError(f"stage {plan.name!r} has no column {missing[0]!r} for its key")
    stored = stored_stage(log.state, plan)
    if stored is not None:
        return stored
    path = StagePath(log.state.job, plan.name, _fingerprint(plan), ids.new_id())
    describe = Describe(
        record_id=ids.new_id(),
        generation=log.generation,
        name=path.name,
        fingerprint=path.fingerprint,
        incarnation=path.incarnation,
        schema=schema_to_bytes(plan.schema),
        codec="arrow",
        compression=settings.compression,
        columns=tuple(plan.schema.names),
        producers=plan.producers,
        partitions=plan.partitions,
        writing="log",
        partitioner="hash" if plan.keys else "round_robin",
        keys=tuple(plan.schema.names.index(key) for key in plan.keys),
        components={},
        splits="",
        planning={},
        created_wall_seconds=clock.wall(),
    )
    describe_stage(storage, path, describe)
    log.append(
        StageUse(ids.new_id(), log.generation, path.name, path.fingerprint, path.incarnation)
    )
    return path


def stored_stage(state: JobState, plan: StagePlan) -> StagePath | None:
    """Return the location of the stage, None if this pipeline never had it.

    Raises:
        IncompatibleError: as for `own_stage`.
    """
    for path in state.order:
        if path.name == plan.name:
            if path.fingerprint != _fingerprint(plan):
                raise IncompatibleError(
                    f"stage {plan.name!r} of pipeline {path.job!r} was made with other columns, "
                    "keys, producers or partitions: give the pipeline another name, or put them "
                    f"back: {path.prefix!r}"
                )
            return path
    return None


def _fingerprint(plan: StagePlan) -> str:
    assert plan.schema is not None
    shape = repr((plan.schema.to_string(), plan.keys, plan.producers, plan.partitions))
    return hashlib.sha256(shape.encode()).hexdigest()[:32]


def plan_stage(
    plan: PipelinePlan, paths: Mapping[str, StagePath], storage: Storage, name: str
) -> StageHandle:
    """Return a stage of a plan, either the pipeline's own or another job's.

    Args:
        paths: of the pipeline's own stages, by name.
    """
    elsewhere = plan.stages[name].elsewhere
    if elsewhere is None:
        return open_stage(storage, paths[name])
    url = elsewhere.url or plan.url
    return named_stage(url, elsewhere.job, elsewhere.stage, storage_options=plan.storage_options)
