"""The code of a task process: finds the source or consumer of a task in a plan, and runs it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from durable_shuffle.recovery.job.phases import TaskPhase
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan, plan_stage
from durable_shuffle.recovery.pipeline.plan.sinks import Sink, StageSink
from durable_shuffle.recovery.pipeline.task.consumer import ConsumerRun
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.recovery.pipeline.task.source import SourceRun
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.log.layout import StagePath, command_log_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage


@dataclass(frozen=True, slots=True)
class RunTask:
    """Runs tasks of one plan. Can be pickled if the plan can.

    Args:
        paths: locations of the pipeline's own stages, by name.
    """

    plan: PipelinePlan
    paths: Mapping[str, StagePath]

    def __call__(self, link: TaskLink) -> None:
        """Run one attempt to its end and report everything, including the end."""
        link.say(TaskPhase.STARTING)
        try:
            patience = self.plan.settings.shuffle.storage_call_seconds
            storage = open_storage(self.plan.url, self.plan.storage_options, call_seconds=patience)
            link.follow(SlotLog(storage, command_log_prefix(self.plan.name)))
            link.wait_start()
            run = self._prepared(storage, link)
        except BaseException as error:  # noqa: BLE001 - all errors are reported
            link.failed(error, 0)
            return
        try:
            run.run()
        finally:
            link.over()

    def _prepared(self, storage: Storage, link: TaskLink) -> SourceRun | ConsumerRun:
        plan, settings, clock, ids = self.plan, self.plan.settings, SystemClock(), RandomIds()
        name, index = plan.tasks[link.task].owner, plan.tasks[link.task].index

        def stage(name: str) -> StageHandle:
            return plan_stage(plan, self.paths, storage, name)

        if name in plan.sources:
            part = plan.sources[name]
            source, share = copy.deepcopy(part.source), (index, part.producers)
            producer = part.first + index
            return SourceRun(
                name, stage(part.stage), producer, source, link, settings, clock, ids, share
            )
        consumer = plan.consumers[name]
        sink: Sink | None = copy.deepcopy(consumer.sink)
        if consumer.writes is not None:
            producer = consumer.first + index
            sink = StageSink(stage(consumer.writes), producer, settings.shuffle)
        return ConsumerRun(
            pipeline=plan.name,
            name=name,
            stage=stage(consumer.reads),
            subpartition=index,
            step=copy.deepcopy(consumer.step),
            schema=consumer.schema,
            sink=sink,
            dead_letters=copy.deepcopy(consumer.dead_letters),
            is_root=plan.is_root(name),
            link=link,
            settings=settings,
            clock=clock,
            ids=ids,
        )
