"""The command log: one order for everybody, one emitter, nothing passed over."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipelines import until

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import TaskPhase, TaskReport
from durable_shuffle.recovery.pipeline.commands.emitter import Emitter
from durable_shuffle.recovery.pipeline.commands.orders import (
    ApplySettings,
    InternalCommand,
    PassBarrier,
    SlotOrder,
    StartTasks,
    StopTasks,
    decode_slot,
    encode_slot,
)
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.serialization.control import encode_control
from durable_shuffle.serialization.errors import (
    AbortedError,
    CorruptDataError,
    DurableShuffleError,
    FencedError,
    IncompatibleError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.contract import StorageLayer
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

IDS = RandomIds()
TASK = "count-k0000"


def log() -> SlotLog:
    return SlotLog(MemoryStorage(), "job/commands/")


def emitter(at: SlotLog, generation: int = 1, name: str = "a") -> Emitter:
    return Emitter(at, name, generation, IDS)


def link(slot: int = 0, poll_seconds: float | None = None) -> TaskLink:
    return TaskLink(TASK, 1, lambda _: None, slot=slot, poll_seconds=poll_seconds)


class Noting(TaskLink):
    """Remembers what it was told, in the order in which it was told."""

    def __init__(self) -> None:
        super().__init__(TASK, 1, lambda _: None)
        self.told: list[InternalCommand] = []

    def _obey(self, command: InternalCommand) -> None:
        self.told.append(command)
        super()._obey(command)


@pytest.mark.requirement("R-MZ-3")
@given(count=st.integers(1, 30), seed=st.integers(0, 2**32), workers=st.integers(1, 4))
def test_every_worker_obeys_the_same_sequence(count: int, seed: int, workers: int) -> None:
    """Slots arrive in any order and any number of times; each worker obeys each once, in order."""
    rng = random.Random(seed)
    writes = emitter(log())
    said = [ApplySettings({"commit_rows": n}) for n in range(1, count + 1)]
    slots, left = [], list(said)
    while left:
        taken = [left.pop(0) for _ in range(min(len(left), rng.randint(1, 3)))]
        slots.append(writes.emit(*taken))
    for _ in range(workers):
        worker = Noting()
        arriving = [slot for slot in slots for _ in range(rng.randint(1, 3))]
        rng.shuffle(arriving)
        for slot, record in arriving:
            worker.push(slot, record)
            assert worker.told == said[: len(worker.told)], "a gap is held"
        assert worker.told == said
        assert worker.settings == {"commit_rows": count}


@pytest.mark.requirement("R-MZ-3")
def test_the_numbers_of_an_emitter_have_no_holes() -> None:
    """A log that lost a record, or whose emitter goes on behind its successor, is found out."""

    def step(coordinator: str, generation: int, number: int) -> bytes:
        return encode_slot(
            (),
            record_id=IDS.new_id(),
            coordinator=coordinator,
            generation=generation,
            number=number,
        )

    def take(*steps: bytes) -> None:
        order = SlotOrder(7)
        for n, data in enumerate(steps, 7):
            list(order.take(n, decode_slot(data, name="x")))

    take(step("a", 1, 0), step("a", 1, 1), step("a", 3, 2), step("b", 4, 0), step("b", 4, 1))
    with pytest.raises(CorruptDataError, match=r"slot 8 .* expected number=1"):
        take(step("a", 1, 0), step("a", 1, 2))
    with pytest.raises(CorruptDataError, match="generation 2 or higher"):
        take(step("a", 2, 0), step("a", 1, 1))
    with pytest.raises(CorruptDataError, match="another coordinator begins with number=0"):
        take(step("a", 1, 0), step("b", 2, 1))
    with pytest.raises(CorruptDataError, match="a generation above 2"):
        take(step("b", 2, 0), step("a", 1, 0))


def test_the_older_of_two_emitters_is_fenced_for_good() -> None:
    """The newer passes what the older wrote before, and is the last to write."""
    at = log()
    old = emitter(at, 1, "old")
    new = emitter(at, 2, "new")
    assert old.emit(ApplySettings({}))[0] == 0
    assert new.emit(ApplySettings({}))[0] == 1
    for _ in range(2):
        with pytest.raises(FencedError, match="mine=generation 1, newest=generation 2"):
            old.emit(ApplySettings({}))
    new.check()
    with pytest.raises(FencedError):
        old.check()
    assert at.find_end() == 2


@pytest.mark.parametrize("garbage", [b"", b"rubbish", b"\x89DSC" + bytes(40)], ids=len)
def test_garbage_is_refused_and_not_passed(garbage: bytes) -> None:
    """By the emitter whose slot it takes, and by the worker that reads it; both name the slot."""
    at = log()
    writes = emitter(at)
    at.append(0, garbage)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="job/commands/0000000000"):
            writes.emit(ApplySettings({}))
    worker = link()
    worker.push(0, garbage)
    with pytest.raises(CorruptDataError, match="slot 0 of the command log"):
        worker.check()
    assert worker.stop is StopMode.CANCEL, "whatever it waits for"
    reports: list[TaskReport] = []
    failing = TaskLink(TASK, 1, reports.append)
    failing.push(0, garbage)
    with pytest.raises(DurableShuffleError) as caught:
        failing.check()
    failing.failed(caught.value, 0)
    assert reports[0].phase is TaskPhase.FAILED
    assert reports[0].failure is not None
    assert (reports[0].failure.kind, reports[0].failure.retry) == ("corrupt_data", False)


def test_a_command_of_a_later_version_is_refused() -> None:
    """Intact, and not known here."""
    unknown = encode_control("MAKE_TEA", {})
    fields = {"record_id": IDS.new_id(), "coordinator": "a", "generation": 1, "number": 0}
    record = encode_control("COMMANDS", {**fields, "commands": [unknown]})
    worker = link()
    worker.push(0, record)
    with pytest.raises(IncompatibleError, match="MAKE_TEA"):
        worker.check()


def test_a_worker_without_a_line_reads_the_log() -> None:
    """Everything from its slot on, until its attempt is over."""
    at = log()
    writes = emitter(at)
    writes.emit(StopTasks((TASK,), 1, StopMode.CANCEL))  # not for it: before its slot
    worker = link(slot=1, poll_seconds=0.05)
    worker.follow(at)
    writes.emit(StartTasks((TASK,), 1))
    assert worker.wait_start() == StartTasks((TASK,), 1)
    worker.check_writes()
    writes.emit(PassBarrier((TASK,), 1))
    worker.pass_barrier()
    writes.emit(StopTasks((TASK,), 1, StopMode.SUSPEND))
    until(lambda: worker.stop is not None, "the stop")
    assert worker.stop is StopMode.SUSPEND
    worker.over()


def test_what_was_not_pushed_is_read() -> None:
    """A worker whose line lost a slot finds it in the log at once, however rarely it looks."""
    at = CountingStorage(MemoryStorage())
    commands = SlotLog(at, "job/commands/")
    writes = emitter(commands)
    worker = link(poll_seconds=3600)
    worker.follow(commands)
    writes.emit(StartTasks((TASK,), 1))
    worker.push(*writes.emit(PassBarrier((TASK,), 1)))
    worker.pass_barrier()
    assert worker.wait_start().tasks == (TASK,)
    worker.over()


@pytest.mark.requirement("R-MZ-19")
def test_a_worker_is_read_only_until_it_is_allowed_to_write() -> None:
    """By the START of its own epoch that names it, and by nothing else."""
    worker = link()
    worker.deliver(StartTasks((TASK,), 2))
    worker.deliver(StartTasks(("another",), 1))
    worker.deliver(PassBarrier((TASK,), 1))
    with pytest.raises(FencedError, match="read-only"):
        worker.check_writes()
    worker.deliver(StartTasks((TASK,), 1))
    worker.check_writes()


def test_another_coordinator_ends_the_attempt() -> None:
    """Whoever started it does not lead any more."""
    at = log()
    worker = link()
    worker.push(*emitter(at, 1, "a").emit(StartTasks((TASK,), 1)))
    worker.push(*emitter(at, 2, "b").emit())
    with pytest.raises(AbortedError, match="another coordinator leads"):
        worker.check()


class Breaks(StorageLayer):
    """Loses what `lose` says of the next creates: the request, or its reply."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage())
        self.lose: list[str] = []

    def _call(self, verb: str, keys: tuple[str, ...], request: Any) -> Any:
        what = self.lose.pop(0) if self.lose and verb == "put_if_absent" else ""
        if what == "request":
            raise UnavailableError("nobody answers")
        answer = request()
        if what == "reply":
            raise OutcomeUnknownError("the reply was lost")
        return answer


@pytest.mark.requirement("R-MZ-3")
def test_steps_that_an_outage_kept_back_are_written_in_order(seed: int) -> None:
    """Each once, whether its request or its reply was lost, in the slots that follow each other."""
    chance = random.Random(seed)
    for _ in range(50):
        storage = Breaks()
        slots = SlotLog(storage, "job/commands/")
        one = emitter(slots)
        lost = 0
        for n in range(20):
            if chance.random() < 0.4:
                storage.lose = [chance.choice(["request", "reply"])]
            if n == 10:
                one.lead(2)
            try:
                slot, record = one.emit(ApplySettings({"commit_rows": n}))
            except (OutcomeUnknownError, UnavailableError):
                lost += 1
            else:
                (command,) = decode_slot(record, name="x").commands
                assert (slot, command) == (n, ApplySettings({"commit_rows": n}))
        one.check()
        reader = Noting()
        for slot, record in slots.read_from():
            reader.push(slot, record)
        assert reader.told == [ApplySettings({"commit_rows": n}) for n in range(20)], (seed, lost)


def test_a_step_that_was_kept_back_does_not_outlive_a_successor() -> None:
    """It is not written behind the records of another coordinator."""
    storage = Breaks()
    slots = SlotLog(storage, "job/commands/")
    old, new = emitter(slots), emitter(slots, 2, "b")
    storage.lose = ["request"]
    with pytest.raises(UnavailableError):
        old.emit(StopTasks((TASK,), 1, StopMode.DRAIN))
    new.emit(ApplySettings({}))
    for _ in range(2):
        with pytest.raises(FencedError):
            old.check()
    assert len(list(slots.read_from())) == 1
