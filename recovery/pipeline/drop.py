"""Ends a part of a pipeline for good in its logs, so that nobody starts it again.

A consumer's tasks get FINISHED where they are, behind an OPEN that fences whoever still reads: its
cursor holds no data any more. A source, and a consumer whose rows others read, gets an END.
"""

from collections.abc import Mapping

from durable_shuffle.recovery.pipeline.plan import ConsumerPlan, PipelinePlan
from durable_shuffle.recovery.pipeline.stages import stage_of
from durable_shuffle.shuffle.clock import IdSource
from durable_shuffle.shuffle.consumer_log import Opening, hold
from durable_shuffle.shuffle.consumer_records import Finished
from durable_shuffle.shuffle.layout import ConsumerPath, StagePath
from durable_shuffle.shuffle.log_producer import LogProducer
from durable_shuffle.shuffle.log_producer_log import producer_status
from durable_shuffle.shuffle.log_producer_records import End
from durable_shuffle.shuffle.resume_set import ResumeSet, cursor
from durable_shuffle.shuffle.slot_log import SlotLog
from durable_shuffle.shuffle.stage import StageHandle
from durable_shuffle.shuffle.storage import Storage


def drop_part(
    plan: PipelinePlan,
    paths: Mapping[str, StagePath],
    storage: Storage,
    part: str,
    *,
    generation: int,
    ids: IdSource,
) -> None:
    """Have the logs say that a part is over. Repeatable; nothing for a part that there is not."""
    consumer = plan.consumers.get(part)
    if consumer is not None:
        stage = stage_of(plan, paths, storage, consumer.reads)
        for task, address in plan.tasks.items():
            if address.owner == part:
                _finish(stage, consumer, task, address.index, generation, ids)
    written = part if part in plan.sources else consumer.writes if consumer is not None else None
    if written is not None:
        _end(stage_of(plan, paths, storage, written), plan, generation, ids)


def _finish(
    stage: StageHandle, consumer: ConsumerPlan, task: str, k: int, generation: int, ids: IdSource
) -> None:
    key = stage.path.folder, k

    def as_it_is(found: ResumeSet) -> Opening:
        known = found.inputs.get(key)
        slot, acked = (0, {}) if known is None else (known.stage_slot, known.acked)
        return Opening(
            (cursor(key, slot, acked),), found.dropped, dropped_exact=found.dropped_exact
        )

    path = ConsumerPath(stage.path.job, consumer.name, task)
    held = hold(
        SlotLog(stage.storage, path.log_prefix),
        record_id=ids.new_id(),
        generation=generation,
        consumer=consumer.name,
        task=task,
        resume="exact",
        opening=as_it_is,
    )
    if isinstance(held, ResumeSet):
        return  # it has finished before
    found = held.state
    held.write(
        Finished(
            record_id=found.owner,
            epoch=found.epoch,
            whole=held.whole_now(),
            inputs=tuple(cursor(at, s.stage_slot, s.acked) for at, s in found.inputs.items()),
            outputs=found.outputs,
            state=found.state,
            marker_floor=found.marker_floor,
            pending=found.pending,
        )
    )


def _end(stage: StageHandle, plan: PipelinePlan, generation: int, ids: IdSource) -> None:
    for producer in range(stage.describe.producers):
        last = producer_status(stage, producer)
        if isinstance(last, End) and last.mode != "SUSPEND":
            continue
        with LogProducer.open(
            stage,
            producer,
            record_id=ids.new_id(),
            generation=generation,
            settings=plan.settings.shuffle,
        ) as log:
            log.end("DRAIN")
