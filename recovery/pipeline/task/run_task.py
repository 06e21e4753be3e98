"""What a task process runs: from a plan and a task's name to its source or consumer."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from durable_shuffle.recovery.job.phases import TaskPhase
from durable_shuffle.recovery.pipeline.plan.plan import ConsumerPlan, PipelinePlan, plan_stage
from durable_shuffle.recovery.pipeline.plan.sinks import Sink, StageSink
from durable_shuffle.recovery.pipeline.task.consumer import ConsumerRun
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.recovery.pipeline.task.source import SourceRun
from durable_shuffle.shuffle.base.clock import Clock, IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.log.layout import StagePath, command_log_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage


@dataclass(frozen=True, slots=True)
class RunTask:
    """Runs tasks of one plan. Can be pickled if the plan can.

    Args:
        paths: of the pipeline's own stages, by name.
    """

    plan: PipelinePlan
    paths: Mapping[str, StagePath]

    def __call__(self, link: TaskLink) -> None:
        """Run one attempt to its end; all of it is reported, the end included."""
        link.say(TaskPhase.STARTING)
        try:
            patience = self.plan.settings.shuffle.storage_call_seconds
            storage = open_storage(self.plan.url, self.plan.storage_options, call_seconds=patience)
            link.follow(SlotLog(storage, command_log_prefix(self.plan.name)))
            link.wait_start()
            run = self._prepared(storage, link)
        except BaseException as error:  # noqa: BLE001 - all of it is reported
            link.failed(error, 0)
            return
        try:
            run.run()
        finally:
            link.over()

    def _prepared(self, storage: Storage, link: TaskLink) -> SourceRun | ConsumerRun:
        plan, clock, ids = self.plan, SystemClock(), RandomIds()
        address = plan.tasks[link.task]
        if address.owner in plan.sources:
            return SourceRun(
                address.owner,
                self._stage(storage, address.owner),
                address.index,
                copy.deepcopy(plan.sources[address.owner].source),
                link,
                plan.settings,
                clock,
                ids,
            )
        return self._consumer(storage, plan.consumers[address.owner], address.index, link)

    def _consumer(
        self, storage: Storage, consumer: ConsumerPlan, index: int, link: TaskLink
    ) -> ConsumerRun:
        plan = self.plan
        clock: Clock = SystemClock()
        ids: IdSource = RandomIds()
        sink: Sink | None = copy.deepcopy(consumer.sink)
        if consumer.writes is not None:
            sink = StageSink(self._stage(storage, consumer.writes), index, plan.settings.shuffle)
        return ConsumerRun(
            pipeline=plan.name,
            name=consumer.name,
            stage=self._stage(storage, consumer.reads),
            subpartition=index,
            step=copy.deepcopy(consumer.step),
            schema=consumer.schema,
            sink=sink,
            is_root=plan.is_root(consumer.name),
            link=link,
            settings=plan.settings,
            clock=clock,
            ids=ids,
        )

    def _stage(self, storage: Storage, name: str) -> StageHandle:
        return plan_stage(self.plan, self.paths, storage, name)
