"""Reports the status of a pipeline: only changes, at a limited rate. Pure.

Only requested parts are reported, and their frontiers only move forwards. A task that restarts goes
back; the reporter sees this but does not report it. After a reconnect everything is reported again,
in full. A drop is reported at once, and then forgotten.

Lag: samples remember how many records existed at which time. A consumer that has reached record n
is as late as the oldest sample with more than n records. Older samples are thinned out; the result
is exact enough for people.
"""

import logging
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.recovery.job.phases import STARTED_ONCE, TERMINAL, TaskPhase, TaskReport
from durable_shuffle.recovery.pipeline.coordinator.inbox import Companion
from durable_shuffle.recovery.pipeline.coordinator.logs import PipelineLogs
from durable_shuffle.recovery.pipeline.coordinator.numbers import (
    Listener,
    PartNumbers,
    PipelineNumbers,
)
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.plan.updates import PreparedPlan
from durable_shuffle.recovery.pipeline.status import (
    RESTARTS_KEPT,
    WHOLE_EVERY,
    Behind,
    Reached,
    Restarted,
    Status,
    TaskStatus,
)
from durable_shuffle.serialization.errors import FencedError
from durable_shuffle.shuffle.base.clock import Clock, IdSource


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far one part is."""

    records: int = -1
    """Records processed; -1: not known yet."""
    final: bool = False
    """No more records will come."""


class Frontiers:
    """The frontiers of one pipeline."""

    def __init__(self) -> None:
        self._seen: dict[str, Frontier] = {}
        """The highest of each part so far."""
        self._reported: dict[str, Frontier] = {}
        """The requested parts, with the last reported frontier of each."""
        self._dropped: list[str] = []

    def ask(self, parts: Collection[str]) -> None:
        """Report these parts from now on."""
        for part in parts:
            self._reported.setdefault(part, Frontier())

    def seen(self, part: str, frontier: Frontier) -> None:
        """Take in the current frontier of a part, which may be behind its earlier one."""
        before = self._seen.get(part, Frontier())
        self._seen[part] = Frontier(max(before.records, frontier.records), frontier.final)

    def highest(self, part: str, records: int) -> int:
        """Return how far a part ever was, if it is at `records` now."""
        return max(records, self._seen.get(part, Frontier()).records)

    def drop(self, part: str) -> bool:
        """Have the next report say that a part is dropped. Return False if nobody asked for it."""
        if self._reported.pop(part, None) is None:
            return False
        self._dropped.append(part)
        return True

    def reset(self, parts: Collection[str]) -> None:
        """Report only these parts from now on, in full again, and not behind what was reported."""
        self._reported = {part: Frontier() for part in parts}
        self._dropped = []

    def report(self) -> tuple[Mapping[str, Frontier], tuple[str, ...]]:
        """Return the frontiers that have advanced since the last report, and the dropped parts."""
        advanced: dict[str, Frontier] = {}
        for part, said in self._reported.items():
            seen = self._seen.get(part)
            if seen is None or said.final:
                continue
            if seen != said:
                advanced[part] = self._reported[part] = seen
        dropped, self._dropped = tuple(self._dropped), []
        return advanced, dropped

    @property
    def dropped(self) -> int:
        """How many dropped parts the next report names."""
        return len(self._dropped)

    @property
    def asked(self) -> Collection[str]:
        """The parts that are reported."""
        return self._reported.keys()


_SAMPLES = 512


class Produced:
    """How much one stage held at which time. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, records: int, now: float) -> None:
        """Record how many records there are now."""
        if self._samples and records <= self._samples[-1][1]:
            return
        if len(self._samples) >= _SAMPLES:  # drop every second sample; the oldest one stays
            self._samples = deque(list(self._samples)[::2])
        self._samples.append((now, records))

    def lag(self, consumed: int, now: float) -> tuple[int, float]:
        """Return how many records a consumer is behind, and for how many seconds."""
        if not self._samples or self._samples[-1][1] <= consumed:
            return 0, 0.0
        since = next(when for when, records in self._samples if records > consumed)
        return self._samples[-1][1] - consumed, max(0.0, now - since)


ALIVE_SECONDS = 30.0
"""A status is written at least this often, to show that a coordinator leads."""


@dataclass(slots=True)
class Reporter:
    """The reporter of one coordinator."""

    clock: Clock
    ids: IdSource
    frontiers: Frontiers = field(default_factory=Frontiers)
    _produced: dict[str, Produced] = field(default_factory=dict)
    _restarts: list[Restarted] = field(default_factory=list)
    """Not reported yet."""
    _told: deque[Restarted] = field(default_factory=lambda: deque(maxlen=RESTARTS_KEPT))
    """Reported; a complete record repeats them."""
    _gone: list[str] = field(default_factory=list)
    """Dropped parts that the listener knows of."""
    _last: Status | None = None
    _last_at: float = 0.0
    _number: int = 0
    """Records since the last complete one."""

    def fell(self, report: TaskReport) -> None:
        """Take in that a task failed and will be started again."""
        cause = str(report.failure) if report.failure is not None else ""
        self._restarts.append(Restarted(report.task, report.epoch, cause, self.clock.wall()))

    def reset(self, parts: Collection[str]) -> None:
        """Report everything again to a new listener, except parts that were dropped before."""
        self.frontiers.reset(parts)
        self._gone.clear()
        self._number = 0

    @property
    def news(self) -> tuple[bool, int, int]:
        """Changes whenever there is something to say besides progress."""
        return self._number == 0, len(self._restarts), self.frontiers.dropped

    def not_said(self) -> None:
        """Take in that the last status was not written: the next one reports everything."""
        self._number = 0

    def status(self, machine: Job, plan: PipelinePlan, version: str) -> Status | None:
        """Return the status to write now, None if nothing has changed."""
        whole = self._number == 0
        for part, frontier in _seen(machine, plan).items():
            self.frontiers.seen(part, frontier)
        reached, dropped = self.frontiers.report()
        asked = self.frontiers.asked
        self._gone = [p for p in (*self._gone, *dropped) if p not in asked]
        if whole:
            self.frontiers.reset(asked)
            (reached, _), dropped = self.frontiers.report(), tuple(self._gone)
        tasks = tuple(
            TaskStatus(name, str(state.phase), state.epoch)
            for name, state in machine.tasks.items()
            if name in plan.tasks
        )
        restarts, self._restarts = tuple(self._restarts), []
        self._told += restarts
        if whole:
            restarts = tuple(self._told)
        status = Status(
            record_id=self.ids.new_id(),
            generation=machine.generation,
            whole=whole,
            phase=str(machine.phase),
            version=version,
            wall_seconds=self.clock.wall(),
            tasks=tasks,
            reached=tuple(Reached(p, f.records, f.final) for p, f in reached.items()),
            dropped=dropped,
            behind=self._behind(machine, plan),
            restarts=restarts,
        )
        before = self._last
        now = self.clock.monotonic()
        news = whole or bool(reached or dropped or restarts) or now - self._last_at >= ALIVE_SECONDS
        if before is not None and not news:
            news = (before.phase, before.tasks, before.version) != (status.phase, tasks, version)
        if not news:
            return None
        self._last, self._last_at = status, now
        self._number = (self._number + 1) % WHOLE_EVERY
        same = before is not None and before.tasks == tasks and not whole
        return replace(status, tasks=()) if same else status

    def numbers(self, machine: Job, plan: PipelinePlan) -> PipelineNumbers:
        """Return progress and lag as they are now."""
        behind = {lag.part: lag for lag in self._behind(machine, plan)}
        parts = []
        for part, frontier in _seen(machine, plan).items():
            states = [machine.tasks[t] for t, at in plan.tasks.items() if at.owner == part]
            lag = behind.get(part)
            parts.append(
                PartNumbers(
                    part,
                    len(states),
                    sum(s.phase in STARTED_ONCE - TERMINAL for s in states),
                    self.frontiers.highest(part, frontier.records),
                    None if lag is None else lag.records,
                    None if lag is None else lag.seconds,
                )
            )
        phase, restarts = str(machine.phase), machine.budget.total
        return PipelineNumbers(plan.name, phase, machine.generation, restarts, tuple(parts))

    def _behind(self, machine: Job, plan: PipelinePlan) -> tuple[Behind, ...]:
        """Return how far consumers lag behind those sources of this pipeline that they read."""
        now = self.clock.monotonic()
        records = {part: f.records for part, f in _seen(machine, plan).items()}
        stages: dict[str, int] = {}
        for name in plan.sources.keys() & records.keys():  # none of a part that is not started yet
            stage = plan.sources[name].stage
            stages[stage] = stages.get(stage, 0) + records[name]
        for stage, made in stages.items():
            self._produced.setdefault(stage, Produced()).sample(made, now)
        return tuple(
            Behind(name, *self._produced[consumer.reads].lag(records[name], now))
            for name, consumer in plan.consumers.items()
            if consumer.reads in self._produced and name in records
        )


def _seen(machine: Job, plan: PipelinePlan) -> Mapping[str, Frontier]:
    records: dict[str, int] = {}
    final: dict[str, bool] = {}
    for task, address in plan.tasks.items():
        state = machine.tasks.get(task)
        if state is not None:
            records[address.owner] = records.get(address.owner, 0) + state.records
            over = state.phase is TaskPhase.FINISHED
            final[address.owner] = final.get(address.owner, True) and over
    return {part: Frontier(count, final[part]) for part, count in records.items()}


_log = logging.getLogger(__name__)


class StatusLog:
    """The status log of one coordinator. Used by the control loop's thread.

    Args:
        every_seconds: the shortest time between two statuses.
        listener: is told the numbers of each turn.
    """

    def __init__(
        self,
        reporter: Reporter,
        logs: PipelineLogs,
        companion: Companion,
        every_seconds: float,
        listener: Listener,
    ) -> None:
        self._reporter, self._logs, self._companion = reporter, logs, companion
        self._listener = listener
        self._every_seconds = self._pause_seconds = every_seconds
        self._next_at = self._quiet_until = 0.0
        self._known: object = None
        self._writing = False

    def turn(self, now: float, job: Job, running: PreparedPlan) -> None:
        """Say what is due."""
        self._listener.turn(now, lambda: self._reporter.numbers(job, running.plan))
        if self._is_due(now, job, running):
            self.write(job, running)

    def close(self, job: Job, running: PreparedPlan | None, timeout_seconds: float) -> None:
        """Say how it ended."""
        last = None
        if running is not None:
            last = self._reporter.numbers(job, running.plan)
            self.write(job, running)
        self._listener.close(last, timeout_seconds)

    def _is_due(self, now: float, job: Job, running: PreparedPlan) -> bool:
        """Return whether a status is due. While there is only progress to tell, they come rarely:
        the pause doubles up to `ALIVE_SECONDS`."""
        if self._writing or now < self._next_at:
            return False
        self._next_at = now + self._every_seconds
        tasks = tuple((task, state.phase, state.epoch) for task, state in job.tasks.items())
        known = job.phase, tasks, str(running.description), self._reporter.news
        if known != self._known:
            self._known, self._pause_seconds = known, self._every_seconds
        elif now < self._quiet_until:
            return False
        self._quiet_until = now + self._pause_seconds
        longest = max(ALIVE_SECONDS, self._every_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, longest)
        return True

    def write(self, job: Job, running: PreparedPlan) -> None:
        """Have the companion write a status, if something has changed."""
        status = self._reporter.status(job, running.plan, str(running.description))
        if status is None:
            return
        self._writing = True
        self._companion.submit(lambda: self._logs.say(status), self._written, self._failed)

    def _written(self, _: object) -> None:
        self._writing = False

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, FencedError):  # a FencedError ends the coordinator anyway
            _log.warning("cannot say how the pipeline is: %s", error)
        self._writing = isinstance(error, FencedError)
        self._reporter.not_said()
