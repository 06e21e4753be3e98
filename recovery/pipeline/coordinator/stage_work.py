"""The coordinator's work in the logs of stages and consumers: look up, release.

`first_look` finds out, before tasks start for the first time, which tasks are complete and where
the others begin. START holds the answer, so all tasks of a consumer begin at the same moment.

`allow_release` deletes the consumed part of a stage as far as an operator allowed, never more.
`release_consumed` does so for all stages of a pipeline, from time to time. Only the coordinator
does it, and it looks up where new consumers begin: so they begin behind what it has released.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from durable_shuffle.recovery.pipeline.commands.requests import AllowRelease
from durable_shuffle.recovery.pipeline.plan.plan import (
    PipelinePlan,
    StartAt,
    stored_stage,
)
from durable_shuffle.recovery.pipeline.plan.positions import slots_needed
from durable_shuffle.recovery.pipeline.plan.updates import PreparedPlan
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.log.appender_log import AppenderRecord, End, appender_log
from durable_shuffle.shuffle.log.appender_reads import position_in, producer_status, whole_tail
from durable_shuffle.shuffle.log.job_state import JobState
from durable_shuffle.shuffle.log.layout import ConsumerPath, consumers_prefix
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, read_state
from durable_shuffle.shuffle.read.position import ProducerPosition, pack_positions
from durable_shuffle.shuffle.release.retention import register_consumers
from durable_shuffle.shuffle.release.stages import Freed
from durable_shuffle.shuffle.release.upto import release_upto
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.job import listed_consumers

_THREADS = 16


@dataclass(frozen=True, slots=True)
class FirstLook:
    """The logged state of tasks that this coordinator has not started yet."""

    finished: frozenset[str] = frozenset()
    """Tasks that need not start, because their logs say that they are complete."""
    positions: Mapping[str, bytes] = field(default_factory=dict)
    """Task -> where it begins, for tasks that never began and do not begin at the first record."""


def first_look(prepared: PreparedPlan, storage: Storage, tasks: Collection[str]) -> FirstLook:
    """Look tasks up.

    Raises:
        CorruptDataError, IncompatibleError: a log cannot be read.
    """
    plan = prepared.plan
    stages: dict[str, StageHandle] = {}
    for task in tasks:
        owner = plan.tasks[task].owner
        source = plan.sources.get(owner)
        name = plan.consumers[owner].reads if source is None else source.stage
        if name not in stages:
            stages[name] = prepared.stage(storage, name)

    def state(task: str) -> tuple[bool, bool]:
        """Return whether the task has finished, and whether it never began."""
        address = plan.tasks[task]
        source = plan.sources.get(address.owner)
        if source is not None:
            last = producer_status(stages[source.stage], source.first + address.index)
            return isinstance(last, End) and last.mode != "SUSPEND", False
        stage = stages[plan.consumers[address.owner].reads]
        path = ConsumerPath(stage.path.job, address.owner, task)
        resume = read_resume_set(SlotLog(stage.storage, path.log_prefix))
        return resume.finished, not resume.epoch

    with ThreadPoolExecutor(_THREADS) as pool:
        states = dict(zip(tasks, pool.map(state, tasks), strict=True))
    finished = frozenset(task for task, (done, _) in states.items() if done)
    positions: dict[str, bytes] = {}
    for owner in {plan.tasks[task].owner for task, (_, new) in states.items() if new}:
        consumer = plan.consumers[owner]
        stage = stages[consumer.reads]
        vector = start_vector(stage, consumer.start)
        for task, (_, new) in states.items():
            if new and plan.tasks[task].owner == owner and vector:
                positions[task] = pack_positions(_column(stage, vector, plan.tasks[task].index))
    return FirstLook(finished, positions)


def check_stored(
    plan: PipelinePlan, state: JobState, storage: Storage, parts: Collection[str]
) -> None:
    """Refuse a plan that does not fit what is stored. Writes nothing.

    Args:
        state: of the pipeline's job.
        parts: of these, consumers must read what they read when they last ran, if they ever did.

    Raises:
        IncompatibleError: names the first stage or consumer that does not fit.
    """
    folders: dict[str, str] = {}
    for stage in plan.stages.values():
        if stage.elsewhere is None:
            path = stored_stage(state, stage)
            folders[stage.name] = "" if path is None else path.folder
    consumers = {
        name: consumer
        for name, consumer in plan.consumers.items()
        if name in parts and consumer.reads in folders
    }
    tasks = [task for task, address in plan.tasks.items() if address.owner in consumers]

    def other_input(task: str) -> str:
        name = plan.tasks[task].owner
        log = SlotLog(storage, ConsumerPath(plan.name, name, task).log_prefix)
        mine = folders[consumers[name].reads]
        return next((f for f, _ in read_resume_set(log).inputs if f != mine), "")

    with ThreadPoolExecutor(_THREADS) as pool:
        for task, other in zip(tasks, pool.map(other_input, tasks), strict=True):
            if other:
                consumer = consumers[plan.tasks[task].owner]
                raise IncompatibleError(
                    f"consumer {consumer.name!r} has read stage {other!r} before and would read "
                    f"{consumer.reads!r}: give it another name, or put its input back"
                )


def start_vector(stage: StageHandle, start: StartAt) -> dict[int, tuple[int, AppenderRecord]]:
    """Return, for each producer, the slot and the record after which a new consumer begins.

    If a producer is not in the result, the consumer begins at that producer's first record. It
    never begins below released data.
    """
    if stage.describe.writing != "log":
        return {}
    begins: dict[int, tuple[int, AppenderRecord]] = {}
    released = read_state(stage).released_below(stage.describe.producers)
    for producer in range(stage.describe.producers):
        log = stage.producer_log(producer)
        if start == "latest":
            tail = whole_tail(stage, producer)
            if tail.last is not None:
                begins[producer] = tail.next_slot - 1, tail.last
        elif released[producer]:
            slot = released[producer] - 1
            record = appender_log(log).record(slot)
            if record is None:
                raise CorruptDataError(f"a slot lost its record: key={log.key(slot)!r}")
            begins[producer] = slot, record
    return begins


def _column(
    stage: StageHandle, vector: Mapping[int, tuple[int, AppenderRecord]], k: int
) -> dict[int, ProducerPosition]:
    """Return where the task of one subpartition begins."""
    positions: dict[int, ProducerPosition] = {}
    for producer in stage.producers_of(k, stage.describe.producers):
        if producer not in vector:
            continue
        slot, record = vector[producer]
        writes = stage.subpartitions_of(producer)
        name = stage.producer_log(producer).key(slot)
        if isinstance(record, Closed):
            raise CorruptDataError(f"a log was closed before its producer ended: {name!r}")
        ordinals = record.after.ordinals(len(writes), name)
        next_ordinal = int(ordinals[int(writes.searchsorted(k))])
        positions[producer] = ProducerPosition(next_ordinal, slot=slot)
    return {p: position for p, position in positions.items() if position.next_ordinal}


def allow_release(
    prepared: PreparedPlan,
    storage: Storage,
    command: AllowRelease,
    *,
    generation: int,
    ids: IdSource,
) -> str:
    """Register the stage's consumers, then release the data that all of them have committed.

    Raises:
        InvalidInputError: the pipeline does not write this stage, or it has no such producer.
    """
    plan = prepared.plan
    known = plan.stages.get(command.stage)
    if known is None or known.elsewhere is not None:
        raise InvalidInputError(
            f"pipeline {plan.name!r} writes no stage {command.stage!r}; it writes "
            f"{', '.join(n for n, s in plan.stages.items() if s.elsewhere is None)}"
        )
    asked = {_producer(text, known.producers): upto for text, upto in command.upto.items()}
    stage = prepared.stage(storage, command.stage)
    freed = _release(stage, _readers(plan, command.stage), asked or None, generation, ids)
    return f"{freed.objects} segments, {freed.data_bytes} bytes"


def release_consumed(
    prepared: PreparedPlan, storage: Storage, *, generation: int, ids: IdSource
) -> Freed:
    """Delete what all consumers have committed, of each stage that the pipeline writes and reads.

    A stage that no consumer of the plan reads keeps its data. Consumers that the plan does not
    name, but that have begun to read, hold data back until they are dropped.
    """
    freed = Freed(0, 0)
    for name, path in prepared.paths.items():
        readers = _readers(prepared.plan, name)
        if readers:
            freed += _release(open_stage(storage, path), readers, None, generation, ids)
    return freed


def _readers(plan: PipelinePlan, stage: str) -> set[str]:
    ours = {name for name, consumer in plan.consumers.items() if consumer.reads == stage}
    return ours | set(plan.stages[stage].readers)


def _release(
    stage: StageHandle,
    readers: set[str],
    asked: Mapping[int, int] | None,
    generation: int,
    ids: IdSource,
) -> Freed:
    names = readers | _others(stage)
    register_consumers(stage, names, ids=ids, generation=generation, grows=True)
    return release_upto(stage, asked, ids=ids, generation=generation, needed=_needed_slots)


def _needed_slots(stage: StageHandle, producer: int, position: bytes) -> set[int]:
    slots = stage.producer_log(producer)
    return slots_needed(position, partial(position_in, slots), name=f"log {slots.prefix!r}")


def _producer(text: str, producers: int) -> int:
    if not text.isdecimal() or len(text) > len(str(producers)) or int(text) >= producers:
        raise InvalidInputError(f"no such producer: found={text!r:.100} producers={producers}")
    return int(text)


def _others(stage: StageHandle) -> set[str]:
    """Return the consumers of other pipelines that have begun to read the stage."""
    keys = (info.key for info in stage.storage.list(consumers_prefix(stage.path.job)))
    names: set[str] = set()
    for path in listed_consumers(keys):
        state = read_resume_set(SlotLog(stage.storage, path.log_prefix))
        if any(folder == stage.path.folder for folder, _ in state.inputs):
            names.add(path.consumer)
    return names
