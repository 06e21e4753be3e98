"""What a task says over the storage: in order, once, whatever fails; silence is noticed."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pipelines import until

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import Failure, TaskPhase, TaskReport
from durable_shuffle.recovery.pipeline.lines.storage_line import (
    ENTRIES,
    LineSettings,
    ReportEntry,
    ReportReader,
    ReportWriter,
    StorageLine,
)
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.serialization.control import bound
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    FencedError,
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

JOB, TASK, EPOCH = "job", "copy-k0000", 3
LINE, ME, OTHER = "a" * 32, "b" * 32, "c" * 32
SETTINGS = LineSettings()


def slot(number: int) -> str:
    return f"{JOB}/reports/{LINE}/{number:010d}"


def said(phase: TaskPhase | None, records: int = 0, **more: Any) -> TaskReport:
    return TaskReport(TASK, EPOCH, phase, records=records, **more)


def writer_on(storage: Any, nonce: str = ME) -> ReportWriter:
    return ReportWriter(storage, JOB, LINE, nonce, SETTINGS)


def reader_on(storage: Any) -> ReportReader:
    return ReportReader(storage, JOB, LINE, TASK, EPOCH)


class Flaky:
    """A storage whose writes fail at random, half of them after they took effect."""

    def __init__(self, backend: MemoryStorage, draw: random.Random) -> None:
        self._backend, self._draw = backend, draw
        self.fired = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def put_if_absent(self, key: str, data: bytes) -> Any:
        fate = self._draw.random()
        if fate < 0.2:
            self.fired += 1
            raise UnavailableError("no")
        found = self._backend.put_if_absent(key, data)
        if fate < 0.4:
            self.fired += 1
            raise OutcomeUnknownError("who knows")
        return found


def insist(call: Callable[[], None]) -> None:
    while True:
        try:
            return call()
        except (OutcomeUnknownError, UnavailableError):
            continue


@pytest.mark.parametrize("part", range(5))
def test_everything_once_and_in_order(seed: int, part: int) -> None:
    """Entries of any size, a reader that reads and deletes at any time, writes that fail: the list
    that was said, without heartbeats, which may be dropped but not doubled."""
    draw = random.Random(seed * 10 + part)
    fired = 0
    for _ in range(20):
        backend = MemoryStorage()
        flaky = Flaky(backend, draw)
        writer, reader = writer_on(flaky), reader_on(backend)
        insist(lambda w=writer: w.open(0.0))
        told: list[TaskReport] = []
        heard: list[TaskReport] = []
        for number in range(draw.randrange(60)):
            kind = draw.choice([None, TaskPhase.STARTING, TaskPhase.FAILED])
            failure = Failure("ValueError", "no") if kind is TaskPhase.FAILED else None
            told.append(said(kind, number, failure=failure))
            writer.say(told[-1])
            if draw.random() < 0.5:
                try:
                    writer.flush(float(number))
                except DurableShuffleError:
                    assert writer.has_more
            if draw.random() < 0.3:
                heard += reader.read(to_end=draw.random() < 0.5)
                reader.forget()
        insist(lambda w=writer: w.flush(100.0))
        while more := reader.read(to_end=True):
            heard += more
        beats = [r for r in heard if r.is_heartbeat]
        assert len(set(beats)) == len(beats)
        assert set(beats) <= set(told)
        assert [r for r in heard if not r.is_heartbeat] == [r for r in told if not r.is_heartbeat]
        reader.forget(all_of_it=True)
        assert list(backend.list("")) == []
        fired += flaky.fired
    assert fired > 20, "no fault fired"


def test_a_torn_entry_is_refused_and_nothing_behind_it_is_believed() -> None:
    """Cut at every byte, and with every byte changed: what stands before it was given."""
    whole = bound(ENTRIES.encode(ReportEntry(LINE, ME, 1, (said(TaskPhase.FINISHED),))), slot(1))
    broken = [whole[:cut] for cut in range(len(whole))]
    broken += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    for data in broken:
        storage = MemoryStorage()
        writer, reader = writer_on(storage), reader_on(storage)
        writer.say(said(TaskPhase.STARTING))
        writer.flush(0.0)
        storage.put(slot(1), [data])
        behind = ENTRIES.encode(ReportEntry(LINE, ME, 2, (said(TaskPhase.FINISHED),)))
        storage.put(slot(2), [bound(behind, slot(2))])
        assert reader.read(to_end=True) == [said(TaskPhase.STARTING)]
        for _ in range(2):
            with pytest.raises(DurableShuffleError, match="0000000001"):
                reader.read(to_end=True)


@pytest.mark.parametrize(
    "entry",
    [
        ReportEntry(LINE, ME, 0, (said(TaskPhase.FINISHED),)),
        ReportEntry(LINE, ME, 2, (said(TaskPhase.FINISHED),)),
        ReportEntry(LINE, OTHER, 1, (said(TaskPhase.FINISHED),)),
        ReportEntry(OTHER, ME, 1, (said(TaskPhase.FINISHED),)),
        ReportEntry(LINE, ME, 1, (TaskReport(TASK, EPOCH - 1, TaskPhase.FINISHED),)),
        ReportEntry(LINE, ME, 1, (said(None), TaskReport("another", EPOCH, TaskPhase.FINISHED))),
    ],
    ids=["doubled", "moved", "another writer", "another line", "another epoch", "another task"],
)
def test_an_entry_that_is_not_this_attempts(entry: ReportEntry) -> None:
    """Intact and in its place, but not what this attempt wrote there."""
    storage = MemoryStorage()
    writer, reader = writer_on(storage), reader_on(storage)
    writer.open(0.0)
    storage.put(slot(1), [bound(ENTRIES.encode(entry), slot(1))])
    with pytest.raises(CorruptDataError, match=r"not what the task .* wrote"):
        reader.read(to_end=True)


def test_a_missing_entry_hides_all_behind_it() -> None:
    """Not an error: it looks like a task that says nothing, which is noticed in time."""
    storage = MemoryStorage()
    writer, reader = writer_on(storage), reader_on(storage)
    for number, report in enumerate((TaskPhase.STARTING, TaskPhase.AT_BARRIER, TaskPhase.STARTED)):
        writer.say(said(report))
        writer.flush(float(number))
    storage.delete([slot(1)])
    assert reader.read(to_end=True) == [said(TaskPhase.STARTING)]
    assert reader.read(to_end=True) == []


def test_of_two_tries_at_an_attempt_one_begins() -> None:
    """The second one is refused before it says a word, and never gets anything in."""
    storage = MemoryStorage()
    first, second, reader = writer_on(storage), writer_on(storage, OTHER), reader_on(storage)
    first.open(0.0)
    for _ in range(2):
        with pytest.raises(FencedError, match="another try"):
            second.open(0.0)
    first.say(said(TaskPhase.STARTING))
    first.flush(1.0)
    assert reader.read(to_end=True) == [said(TaskPhase.STARTING)]


@pytest.mark.parametrize("reads_until", [0.0, 100.0, 1000.0])
def test_a_writer_notices_that_nobody_reads(reads_until: float) -> None:
    """Not while somebody does; else within three times the silence. And what idling costs: with
    the looks into the command log at most one request per second, both ends counted."""
    storage = CountingStorage(MemoryStorage())
    writer, reader = writer_on(storage), reader_on(storage)
    writer.open(0.0)
    now, reads = 0.0, True
    while reads and now < 1000.0:
        now += SETTINGS.heartbeat_seconds
        writer.say(said(None))
        writer.flush(now)
        reads = writer.is_read(now)
        if now < reads_until:
            reader.read()
            reader.forget()
    if reads_until < 1000.0:
        assert reads_until <= now <= reads_until + 3 * SETTINGS.silence_seconds
    else:
        assert reads
        requests = storage.total / now + 1 / SETTINGS.command_seconds
        assert requests <= 1.0


def test_settings_that_would_end_healthy_tasks() -> None:
    """A silence must hold some heartbeats."""
    with pytest.raises(InvalidInputError, match="silence_seconds"):
        LineSettings(heartbeat_seconds=10, silence_seconds=30)
    with pytest.raises(InvalidInputError, match="command_seconds"):
        LineSettings(command_seconds=0)


# -- the line as a whole: a task in this thread, its pump, and the storage

QUICK = LineSettings(0.01, 0.2, 0.01, 0.01)


def line_on(storage: Any, settings: LineSettings = QUICK, nonce: str = ME) -> StorageLine:
    writer = ReportWriter(storage, JOB, LINE, nonce, settings)
    return StorageLine(TASK, EPOCH, 0, writer, settings, SystemClock())


def hear_all(storage: Any) -> list[TaskPhase]:
    reader = reader_on(storage)
    found: list[TaskPhase] = []
    while more := reader.read(to_end=True):
        found += [report.phase for report in more if report.phase is not None]
    return found


@pytest.mark.requirement("R-ARR-16")
def test_the_last_word_is_written_before_the_line_ends(seed: int) -> None:
    """Also on a storage whose writes fail."""
    flaky = Flaky(MemoryStorage(), random.Random(seed))

    def task(link: TaskLink) -> None:
        for report in (
            TaskPhase.STARTING,
            TaskPhase.AT_BARRIER,
            TaskPhase.STARTED,
            TaskPhase.FINISHED,
        ):
            link.say(report)

    while True:
        line = line_on(flaky, LineSettings(10, 60))
        line.run(task)
        if heard := hear_all(flaky):
            break
        assert flaky.fired, "it did not begin, and nothing had failed"
    assert heard == [
        TaskPhase.STARTING,
        TaskPhase.AT_BARRIER,
        TaskPhase.STARTED,
        TaskPhase.FINISHED,
    ]


@pytest.mark.parametrize("why", ["nobody reads", "nothing can be written"])
def test_a_task_that_nobody_hears_is_told_to_end(why: str) -> None:
    """It is cancelled, whatever it does, by the line alone."""
    storage = MemoryStorage()
    broken = threading.Event()

    class Breaks:
        def __getattr__(self, name: str) -> Any:
            return getattr(storage, name)

        def put_if_absent(self, key: str, data: bytes) -> Any:
            if broken.is_set():
                raise UnavailableError("no")
            return storage.put_if_absent(key, data)

    ended: list[StopMode | None] = []

    def task(link: TaskLink) -> None:
        if why == "nothing can be written":
            broken.set()
        until(lambda: link.stop is not None, "the line is lost")
        ended.append(link.stop)

    line_on(Breaks()).run(task)
    assert ended == [StopMode.CANCEL]


def test_a_second_try_does_nothing() -> None:
    """The task is not run again under the same epoch."""
    storage = MemoryStorage()
    ran: list[str] = []
    line_on(storage).run(lambda _: ran.append("first"))
    line_on(storage, nonce=OTHER).run(lambda _: ran.append("second"))
    assert ran == ["first"]
