"""Drops: end a source or consumer for good in its logs, so that nobody starts it again.

The tasks of a consumer get FINISHED at their current positions, after an OPEN that fences older
attempts; their cursors then hold no data any more. A source, and a consumer whose rows others read,
gets an END.

A consumer at PREPARED is not dropped: its last rows are acknowledged, and only its own sink can
publish them.
"""

from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.plan.updates import PreparedPlan
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.consume.log import Opening, hold, read_resume_set
from durable_shuffle.shuffle.consume.resume_set import InputKey, ResumeSet, cursor
from durable_shuffle.shuffle.log.appender_log import End
from durable_shuffle.shuffle.log.appender_reads import producer_status
from durable_shuffle.shuffle.log.consumer_records import Finished
from durable_shuffle.shuffle.log.job_state import JobState
from durable_shuffle.shuffle.log.layout import ConsumerPath, check_name
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.release.retention import consumer_tasks
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.write.log_producer import LogProducer

_ConsumerLog = tuple[Storage, ConsumerPath, InputKey | None]
"""Where a task logs what it reads, and its input; None: what its log says."""


def check_drop(prepared: PreparedPlan, storage: Storage, state: JobState, part: str) -> None:
    """Refuse to drop a part that never was, or whose last rows are not published.

    Args:
        prepared: the plan that runs.
        state: of the pipeline's job.

    Raises:
        InvalidInputError: says what to do.
    """
    check_name("part", part)
    logs = _consumer_logs(prepared, storage, part)
    known = part in prepared.parts or part in {path.name for path in state.order}
    if not known and not logs:
        raise InvalidInputError(
            f"there is no source or consumer {part!r}, and never was: the pipeline has "
            f"{', '.join(prepared.parts) or 'none'}"
        )
    _check_published(logs)


def _check_published(logs: list[_ConsumerLog]) -> None:
    for storage, path, _ in logs:
        _refuse_prepared(path, read_resume_set(SlotLog(storage, path.log_prefix)))


def _refuse_prepared(path: ConsumerPath, resume: ResumeSet) -> None:
    if resume.ending is not None and not resume.ending.committed:
        raise InvalidInputError(
            f"consumer {path.consumer!r} has prepared its end and not published it yet, and only "
            "its sink can: start it once so that it publishes, then drop it; or leave it out "
            f"by an update, it reads no more: {path.log_prefix!r}"
        )


def _consumer_logs(prepared: PreparedPlan, storage: Storage, part: str) -> list[_ConsumerLog]:
    plan = prepared.plan
    consumer = plan.consumers.get(part)
    if consumer is not None:
        reads = prepared.stage(storage, consumer.reads)
        return [
            (
                reads.storage,
                ConsumerPath(reads.path.job, part, task),
                (reads.path.folder, address.index),
            )
            for task, address in plan.tasks.items()
            if address.owner == part
        ]
    if part in plan.sources:
        return []
    return [(storage, path, None) for path in consumer_tasks(storage, plan.name, part)]


def drop_part(
    prepared: PreparedPlan,
    storage: Storage,
    state: JobState,
    part: str,
    *,
    generation: int,
    ids: IdSource,
) -> None:
    """Write into the logs that a part is over. Repeatable; a part that does not exist is fine.

    Args:
        prepared: the plan that ran, or one that does not mention the part any more.
        state: of the pipeline's job.

    Raises:
        InvalidInputError: a task of a consumer stands at PREPARED; nothing was written for it.
    """
    plan = prepared.plan
    logs = _consumer_logs(prepared, storage, part)
    _check_published(logs)  # before anything is written
    for stored, path, key in logs:
        _finish(stored, path, key, generation, ids)
    if part in plan.consumers or part in plan.sources:
        written = plan.producers_of(part)
        if written is not None:
            name, producers = written
            _end(prepared.stage(storage, name), producers, plan, generation, ids)
        return
    for known in state.order:
        if known.name in (part, f"{part}.out"):
            stage = open_stage(storage, known)
            _end(stage, range(stage.describe.producers), plan, generation, ids)


def _finish(
    storage: Storage, path: ConsumerPath, key: InputKey | None, generation: int, ids: IdSource
) -> None:
    """Finish a task where it is.

    Args:
        key: its input; None: what its log says.
    """

    def as_it_is(resume: ResumeSet) -> Opening:
        _refuse_prepared(path, resume)
        inputs = dict.fromkeys(resume.inputs if key is None else [key])
        cursors = []
        for at in inputs:
            known = resume.inputs.get(at)
            slot, acked = (0, {}) if known is None else (known.stage_slot, known.acked)
            cursors.append(cursor(at, slot, acked))
        return Opening(tuple(cursors), resume.dropped, dropped_exact=resume.dropped_exact)

    held = hold(
        SlotLog(storage, path.log_prefix),
        record_id=ids.new_id(),
        generation=generation,
        consumer=path.consumer,
        task=path.task,
        resume="exact",
        opening=as_it_is,
    )
    if isinstance(held, ResumeSet):
        return  # it has finished before
    state = held.state
    held.write(
        Finished(
            record_id=state.owner,
            epoch=state.epoch,
            whole=held.whole_now(),
            inputs=tuple(cursor(at, s.stage_slot, s.acked) for at, s in state.inputs.items()),
            outputs=state.outputs,
            state=state.state,
            marker_floor=state.marker_floor,
            pending=state.pending,
        )
    )


def _end(
    stage: StageHandle, producers: range, plan: PipelinePlan, generation: int, ids: IdSource
) -> None:
    for producer in producers:
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
