"""What a coordinator looks up before tasks start for the first time: done work, start positions.

Done once, by the companion; the answer travels inside the START command, so that all tasks of a
consumer begin at the same moment of what they read, however late each of them comes up.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from durable_shuffle.recovery.pipeline.plan import PipelinePlan, Start
from durable_shuffle.recovery.pipeline.stages import stage_of
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.consumer_log import read_resume_set
from durable_shuffle.shuffle.layout import ConsumerPath, StagePath
from durable_shuffle.shuffle.log_producer_log import appender_log, producer_status, whole_tail
from durable_shuffle.shuffle.log_producer_records import End, LogProducerRecord
from durable_shuffle.shuffle.position import ProducerPosition, pack_positions
from durable_shuffle.shuffle.records import Closed
from durable_shuffle.shuffle.release_upto import unpack_upto
from durable_shuffle.shuffle.slot_log import SlotLog
from durable_shuffle.shuffle.stage import StageHandle, read_state
from durable_shuffle.shuffle.storage import Storage

_THREADS = 16


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What stands of tasks that this coordinator has not started yet."""

    finished: frozenset[str] = frozenset()
    """Tasks whose logs say that all is done: they need not start."""
    positions: Mapping[str, bytes] = field(default_factory=dict)
    """Task -> where it begins, of those that never did and do not begin at the first record."""


def first_look(
    plan: PipelinePlan, paths: Mapping[str, StagePath], storage: Storage, tasks: Collection[str]
) -> FirstLook:
    """Look tasks up.

    Raises:
        CorruptDataError, IncompatibleError: a log cannot be read; nothing is guessed.
    """
    stages: dict[str, StageHandle] = {}
    for task in tasks:
        owner = plan.tasks[task].owner
        name = owner if owner in plan.sources else plan.consumers[owner].reads
        if name not in stages:
            stages[name] = stage_of(plan, paths, storage, name)

    def state(task: str) -> tuple[bool, bool]:
        """Whether it has finished, whether it never began."""
        address = plan.tasks[task]
        if address.owner in plan.sources:
            last = producer_status(stages[address.owner], address.index)
            return isinstance(last, End) and last.mode != "SUSPEND", False
        stage = stages[plan.consumers[address.owner].reads]
        path = ConsumerPath(stage.path.job, address.owner, task)
        found = read_resume_set(SlotLog(stage.storage, path.log_prefix))
        return found.finished, not found.epoch

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


def start_vector(stage: StageHandle, start: Start) -> dict[int, tuple[int, LogProducerRecord]]:
    """Return per producer the slot and the record behind which a new consumer begins.

    A producer that is missing: at its first record. Never below what was released.
    """
    if stage.describe.writing != "log":
        return {}
    found: dict[int, tuple[int, LogProducerRecord]] = {}
    released = unpack_upto(read_state(stage).upto, stage.describe.producers)
    for producer in range(stage.describe.producers):
        log = stage.producer_log(producer)
        if start == "latest":
            tail = whole_tail(log)
            if tail.last is not None:
                found[producer] = tail.next_slot - 1, tail.last
        elif released[producer]:
            slot = released[producer] - 1
            record = appender_log(log).record(slot)
            if record is None:
                raise CorruptDataError(f"a slot lost its record: key={log.key(slot)!r}")
            found[producer] = slot, record
    return found


def _column(
    stage: StageHandle, vector: Mapping[int, tuple[int, LogProducerRecord]], k: int
) -> dict[int, ProducerPosition]:
    """Return where the task of one subpartition begins."""
    found: dict[int, ProducerPosition] = {}
    for producer in stage.producers_of(k, stage.describe.producers):
        if producer not in vector:
            continue
        slot, record = vector[producer]
        writes = stage.subpartitions_of(producer)
        name = stage.producer_log(producer).key(slot)
        if isinstance(record, Closed):
            raise CorruptDataError(f"a log was closed before its producer ended: {name!r}")
        ordinals = record.progress.ordinals(len(writes), name)
        next_ordinal = int(ordinals[int(writes.searchsorted(k))])
        found[producer] = ProducerPosition(next_ordinal, slot=slot)
    return {p: at for p, at in found.items() if at.next_ordinal}
