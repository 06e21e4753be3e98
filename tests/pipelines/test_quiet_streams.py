"""How many objects a quiet stream makes: tasks of the product, on a clock that does not sleep."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from one_consumer import ROWS, OneConsumer
from task_links import allowed_link

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.recovery.job.phases import JobPhase, TaskPhase
from durable_shuffle.recovery.job.restarts import RestartBudget, RestartSettings
from durable_shuffle.recovery.job.waves import TaskGraph
from durable_shuffle.recovery.pipeline.commands.orders import PassBarrier, StopTasks
from durable_shuffle.recovery.pipeline.coordinator.numbers import Listener
from durable_shuffle.recovery.pipeline.coordinator.reporter import Reporter, StatusLog
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.pipeline.task import source as source_module
from durable_shuffle.recovery.pipeline.task.pace import SMALL_ROWS, Pace
from durable_shuffle.recovery.pipeline.task.source import SourceEnd, SourceRun
from durable_shuffle.shuffle.base.clock import RandomIds

PER_SECOND = 20
HOUR = 3600.0
MOST_PER_DAY = 20_000


@dataclass
class Moments:
    """A clock that jumps from one event to the next."""

    now: float = 0.0
    _events: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)

    def at(self, when: float, event: Callable[[], object]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def sleep(self, seconds: float) -> None:
        until = self.now + max(seconds, 1e-3)
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


def files(folder: Path, pattern: str) -> int:
    return sum(path.is_file() for path in folder.glob(pattern))


def source_objects(one: OneConsumer, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many objects a source task makes in an hour."""
    clock = Moments()

    class Steady:
        """Gives the rows of each second, at that second."""

        def __init__(self, *_: Any) -> None:
            self.given = 0

        def take(self, seconds: float) -> Any:
            if self.given >= HOUR:
                return SourceEnd(None)
            if self.given + 1 > clock.now + seconds:
                clock.now += max(seconds, 1e-3)
                return None
            self.given += 1
            clock.now = max(clock.now, float(self.given))
            return [{"n": n} for n in range(PER_SECOND)], self.given

        def close(self) -> None: ...

    monkeypatch.setattr(source_module, "Puller", Steady)
    link = allowed_link("in-p0000", 1, lambda _: None)
    link.deliver(PassBarrier(("in-p0000",), 1))
    before = files(one.folder, "**/*")
    settings = PipelineSettings()
    nothing = IteratorSource(lambda *_: ())
    SourceRun("in", one.stage, 0, nothing, link, settings, clock, one.ids).run()
    return files(one.folder, "**/*") - before


def consumer_objects(one: OneConsumer) -> int:
    """Return how many objects a consumer task of such a stream makes in an hour."""
    clock = Moments()
    one.clock = clock  # type: ignore[assignment]
    one.settings = PipelineSettings()
    link = allowed_link("use-k0000", 1, lambda _: None)
    link.deliver(PassBarrier(("use-k0000",), 1))
    for n in range(1, int(HOUR / 30)):
        clock.at(30.0 * n, lambda: one.write(30 * PER_SECOND))
    stop = StopTasks(("use-k0000",), 1, StopMode.SUSPEND)
    clock.at(HOUR, lambda: link.deliver(stop))
    one.write(1)
    one.attempt(lambda batch: batch, link=link, epoch=1)
    assert one.published.total() == one.rows
    logs, parts = files(one.folder, "data/*/consumers/*/*/*"), files(one.folder, "out/part-*")
    assert logs > parts > 30
    return logs + 2 * parts  # each file was parked, too


def statuses() -> int:
    """Return how many statuses a coordinator writes in an hour of progress."""
    clock, written = Moments(), []

    class Logs:
        def say(self, status: Any) -> None:
            written.append(status)

    class Companion:
        def submit(self, work: Any, done: Any, failed: Any) -> None:
            done(work())

    graph = TaskGraph(("in-p0000", "use-k0000"), ())
    job = Job(graph, (), RestartBudget(RestartSettings(), lambda: 0.0))
    job.start()
    job.generation_won(1, 0.0)
    job.phase = JobPhase.RUNNING
    for state in job.tasks.values():
        state.phase = TaskPhase.RUNNING
    pipeline = Pipeline("p", "/nowhere")
    stream = pipeline.source("in", IteratorSource(lambda *_: ()), schema=ROWS)
    stream.consume("use", lambda batch: None)
    running: Any = SimpleNamespace(description="given", plan=pipeline.plan)
    reporter = Reporter(clock, RandomIds())
    reporter.reset(("in", "use"))
    logs: Any = Logs()
    companion: Any = Companion()
    log = StatusLog(
        reporter, logs, companion, PipelineSettings().status_seconds, Listener(None, 1.0)
    )
    while clock.now < HOUR:
        clock.now += 0.5
        for state in job.tasks.values():
            state.records += PER_SECOND // 2
        log.turn(clock.now, job, running)
    assert len(written) > HOUR / 60
    return len(written)


def test_a_quiet_stream_makes_few_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source and two consumer tasks at 20 rows a second, with the settings as they come."""
    consumer = consumer_objects(OneConsumer(tmp_path / "consumer"))
    status = statuses()
    source = source_objects(OneConsumer(tmp_path / "source"), monkeypatch)
    releases = 2 * HOUR / PipelineSettings().release_seconds
    day = 24 * (source + 2 * consumer + status + releases)
    assert source > 100
    assert day <= MOST_PER_DAY, (source, consumer, status)


def test_the_pace_of_writes() -> None:
    """Slower while little comes, faster again while much comes, at once after a quiet time."""
    pace, now, gaps = Pace(), 0.0, []
    for rows in [1] * 10 + [SMALL_ROWS] * 10:
        when = pace.due(now, 0.2)
        gaps.append(when - now)
        now = when
        pace.wrote(rows, now, 0.2, 30.0)
    assert gaps[:4] == pytest.approx([0.2, 0.2, 0.4, 0.8])
    assert max(gaps) == pytest.approx(30.0)
    assert gaps[-1] == pytest.approx(0.2)
    pace.wrote(1, now, 0.2, 30.0)
    for _ in range(9):
        pace.wrote(1, now, 0.2, 30.0)
    assert pace.due(now + 1, 0.2) == pytest.approx(now + 30)
    assert pace.due(now + 31, 0.2) == pytest.approx(now + 31.2)
    pace.wrote(1, now, 50.0, 30.0)
    assert pace.due(now, 50.0) == pytest.approx(now + 50), "the shortest time may be longer"
