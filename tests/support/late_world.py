"""A coordinator of the product in a world that is late: virtual time, chance, and no threads.

The supervisor, its control, its machine, its logs and its emitter are the product's, on a storage
in memory. The world around them answers late, twice, in another order, or never: storage calls,
starts of attempts, their reports, kills and closes. Meanwhile a client asks for updates that leave
parts out and bring them back, for restarts, drops, settings, pauses. Attempts follow the command
log.

`run_history(seed)` runs one history and checks it at every turn of the control loop: no task has
two attempts, what runs is whole, progress never goes back. A history ends, runs, or says why.
"""

import heapq
import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from late_checks import Checks
from late_tasks import HEARTBEAT, NAME, PARTS, SILENCE, SOURCE, Attempt, Launcher

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import (
    Failure,
    JobResult,
)
from durable_shuffle.recovery.job.restarts import UNLIMITED
from durable_shuffle.recovery.pipeline.commands import requests
from durable_shuffle.recovery.pipeline.coordinator import logs as logs_module
from durable_shuffle.recovery.pipeline.coordinator import supervisor as supervisor_module
from durable_shuffle.recovery.pipeline.coordinator.claims import JobClaim
from durable_shuffle.recovery.pipeline.coordinator.inbox import Event, _outcome
from durable_shuffle.recovery.pipeline.coordinator.supervisor import Supervisor
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.serialization.errors import OutcomeUnknownError, UnavailableError
from durable_shuffle.shuffle.log.layout import (
    command_log_prefix,
    request_log_prefix,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.typed_log import Tail, TypedLog
from durable_shuffle.shuffle.storage.contract import StorageLayer
from durable_shuffle.shuffle.storage.memory import MemoryStorage

ROWS = pa.schema([("n", pa.int64())])
START_SECONDS, STOP_SECONDS = 30.0, 20.0
CALM_SECONDS = 400.0
"""Without faults: long enough for every timeout and every delay of a restart."""
TROUBLED_SECONDS = 120.0
MOST_TURNS = 20_000
"""Far more than a history needs; with less, the control loop does not wait where it should."""
_BADLY = "the world had it fail"


def make_rows(position: Any, producer: int) -> Iterator[Any]:
    """Return the rows of a source that nobody reads."""
    return iter(())


def nothing(batch: Any) -> None:
    """Take a batch: a step that nobody calls."""


def plan_for(parts: dict[str, str], settings: PipelineSettings) -> PipelinePlan:
    """Return the plan of a source of two tasks and the named consumers, each with its version."""
    pipeline = Pipeline(NAME, "memory", settings=settings)
    stream = pipeline.source(
        SOURCE, IteratorSource(make_rows), schema=ROWS, producers=2, partitions=1
    )
    for part, version in parts.items():
        stream.consume(part, nothing, version=version)
    return pipeline.plan


class LateStorage(StorageLayer):
    """Answers nothing during an outage; a create may have been made all the same."""

    def __init__(self, world: "World") -> None:
        super().__init__(MemoryStorage())
        self._world = world

    def _call(self, verb: str, keys: tuple[str, ...], request: Any) -> Any:
        world = self._world
        if world.now < world.down_until:
            if verb == "put_if_absent" and world.chance.random() < 0.3:
                request()
                raise OutcomeUnknownError("the reply was lost")
            raise UnavailableError("nobody answers")
        return request()


@dataclass
class World:
    """Everything around one coordinator. It is its clock, its ids, its inbox and its companion."""

    seed: int
    usual: bool = False
    """Whether restarts are as a user gets them."""
    now: float = 0.0
    down_until: float = 0.0
    calm: bool = False
    rival: bool = False
    stopped: StopMode | None = None
    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    causes: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    _events: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    _number: int = 0
    _inbox: deque[Event] = field(default_factory=deque)
    _work: deque[Any] = field(default_factory=deque)
    _working: bool = False
    _versions: int = 0
    _turns: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.storage = LateStorage(self)
        self._checks = Checks(self)
        most: Any = self.chance.choice([UNLIMITED, UNLIMITED, UNLIMITED, 3])
        self.settings = PipelineSettings(
            **({} if self.usual else {"max_restarts": most, "longest_restart_seconds": 5.0}),
            release_seconds=20.0,
            start_seconds=START_SECONDS,
            stop_seconds=STOP_SECONDS,
            request_seconds=3.0,
            status_seconds=4.0,
            complaint_seconds=3.0,
            heartbeat_seconds=HEARTBEAT,
            silence_seconds=SILENCE,
        )
        self.commands = SlotLog(self.storage, command_log_prefix(NAME))
        parts = dict.fromkeys(PARTS, "0")
        given = requests.Description("", "", "given")
        with ExitStack() as stack:
            stack.enter_context(patch.object(supervisor_module, "Inbox", lambda: self))
            stack.enter_context(patch.object(supervisor_module, "Companion", lambda _: self))
            self.supervisor = Supervisor(
                plan_for(parts, self.settings),
                lambda *_: Launcher(self, _[2]),
                given=given,
                packages=("world",),
                serve=True,
                clock=self,
                ids=self,
                jitter=self.chance.random,
            )

    # -- clock and ids

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")

    def new_id(self) -> str:
        return f"{self.chance.getrandbits(128):032x}"

    # -- inbox

    def put(self, event: Event) -> None:
        self._inbox.append(event)

    def take(self, timeout_seconds: float) -> list[Event]:
        self._checks.at_a_turn()
        self._turns += 1
        assert self._turns < MOST_TURNS, f"the loop spins: {self.about()}"
        until = self.now + timeout_seconds
        while not self._inbox and self._events and self._events[0][0] <= until:
            when, _, event = heapq.heappop(self._events)
            self.now = max(self.now, when)
            event()
        if not self._inbox:
            self.now = max(self.now, until)
        events = list(self._inbox)
        self._inbox.clear()
        return events

    # -- companion

    def submit(self, work: Any, done: Any, failed: Any) -> None:
        self._work.append((work, done, failed))
        if not self._working:
            self._working = True
            self.later(self._work_on, 0.01, 0.2, 3.0)

    def close(self, timeout_seconds: float) -> None:
        while self._work:
            _outcome(*self._work.popleft())

    def _work_on(self) -> None:
        if self._work:
            self.put(_outcome(*self._work.popleft()))
        self._working = bool(self._work)
        if self._working:
            self.later(self._work_on, 0.01, 0.2, 3.0)

    # -- what happens

    def later(self, event: Callable[[], object], *delays: float) -> None:
        """Have `event` happen after one of the delays, mostly the first."""
        delay = delays[0] if self.calm or self.chance.random() < 0.6 else self.chance.choice(delays)
        self.at(self.now + delay * self.chance.uniform(0.5, 1.5), event)

    def at(self, when: float, event: Callable[[], object]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def bad(self, probability: float) -> bool:
        return not self.calm and self.chance.random() < probability

    def failed(self, what: str) -> Failure:
        """Note that a task fails by the world's will."""
        self.causes.add(what)
        return Failure(what, _BADLY)

    def run(self) -> JobResult:
        for _ in range(self.chance.randrange(12)):
            self.at(self.chance.uniform(0, TROUBLED_SECONDS), self._trouble)
        for _ in range(self.chance.randrange(12)):
            self.at(self.chance.uniform(1, TROUBLED_SECONDS), self._ask)
        self.at(TROUBLED_SECONDS, self._calm_down)
        self.at(TROUBLED_SECONDS + CALM_SECONDS, self._judge)
        return self._supervised()

    def run_through_outage(self, seconds: float) -> JobResult:
        """Have nothing happen but an outage, under which all tasks fall."""

        def begin() -> None:
            self.counts["outage"] += 1
            self.down_until = self.now + seconds
            for attempt in self.attempts.values():
                attempt.fails(Failure("unavailable", "nobody answers"))

        self.calm = True
        self.at(60.0, begin)
        self.at(60.0 + seconds + CALM_SECONDS, self._judge)
        return self._supervised()

    def _supervised(self) -> JobResult:
        with ExitStack() as stack:
            stack.enter_context(patch.object(supervisor_module, "_LONGEST_WAIT_SECONDS", 2.0))
            stack.enter_context(
                patch.object(logs_module, "open_storage", lambda *_, **__: self.storage)
            )
            stack.enter_context(patch.object(logs_module, "plan_of", self._plan_of))
            result = self.supervisor.run()
        self.down_until = 0.0
        self._checks.at_the_end(result)
        return result

    def _plan_of(self, description: requests.Description, **_: Any) -> Any:
        parts = json.loads(description.arguments)
        return plan_for(parts, self.settings), lambda: None

    def _trouble(self) -> None:
        kind = self.chance.choice(["outage", "pause", "fall", "fall", "fall", "stop", "claim"])
        self.counts[kind] += 1
        if kind == "outage":
            self.down_until = self.now + self.chance.choice([1.0, 10.0, 60.0])
            self.causes |= {"unavailable", "outcome_unknown"}
        elif kind == "pause":  # the coordinator's process is stopped; the others run on
            self.now += self.chance.choice([1.0, 20.0, 100.0])
        elif kind == "fall":
            live = [a for a in self.attempts.values() if a.lives]
            if live:
                self.chance.choice(live).fall()
        elif kind == "stop" and self.chance.random() < 0.3:
            self._stop(self.chance.choice([StopMode.DRAIN, StopMode.SUSPEND, StopMode.CANCEL]))
        elif kind == "claim" and self.chance.random() < 0.1 and self.now >= self.down_until:
            self.rival = True
            self.causes.add("fenced")
            JobClaim(self.storage, NAME, self.new_id()).win()

    def _stop(self, mode: StopMode) -> None:
        def stop() -> None:
            try:
                self.supervisor._stop_by_owner(mode)
            except Exception as error:  # noqa: BLE001 - refused: another stop came first
                self.counts[f"refused: {type(error).__name__}"] += 1
            else:
                self.stopped = mode

        self.put(stop)

    def _ask(self) -> None:
        """Have a client ask for something."""
        if self.now < self.down_until:
            return
        kind = self.chance.choice(["run"] * 6 + ["restart", "configure", "drop", "suspend", "list"])
        part, ident = self.chance.choice(PARTS), self.new_id()
        self.counts[kind] += 1
        if kind in ("run", "list"):
            self._versions += 1
            named = self.chance.sample(PARTS, self.chance.randint(0, len(PARTS)))
            versions = {p: str(self.chance.choice([0, 0, self._versions])) for p in sorted(named)}
            text = json.dumps(versions)
            description = requests.Description("world:make", text, f"v{self._versions}")
            run = requests.RunThis(ident, description)
            listed = requests.Reconcile(self.new_id(), (requests.REQUESTS.encode(run),))
            self._append(run if kind == "run" else listed)
        elif kind == "restart":
            self._append(requests.RestartPart(ident, part, "asked for"))
        elif kind == "configure":
            self._append(requests.ChangeSettings(ident, {"commit_rows": self._number + 1}))
        elif kind == "drop" and self.chance.random() < 0.3:
            self._append(requests.DropPart(ident, part))
        elif kind == "suspend":
            self._append(requests.StopIt(ident, StopMode.SUSPEND))
            resume = requests.ResumeIt(self.new_id())
            self.at(self.now + self.chance.uniform(1, 60), lambda: self._append_up(resume))

    def _append_up(self, command: requests.ExternalCommand) -> None:
        if self.now < self.down_until:
            self.at(self.down_until + 1, lambda: self._append_up(command))
        else:
            self._append(command)

    def _append(self, command: requests.ExternalCommand) -> None:
        slots = SlotLog(self.storage, request_log_prefix(NAME))
        if self.commands.read(0) is None:
            return  # no pipeline yet
        log = TypedLog(slots, requests.REQUESTS, Tail[requests.ExternalCommand].followed_by)
        log.decide(Tail(slots.find_end(), None), lambda _: command)

    def _calm_down(self) -> None:
        self.calm, self.down_until = True, 0.0

    def _judge(self) -> None:
        """Nothing happened for long: all that is described runs. Then end it."""
        self._checks.at_rest()
        self._stop(StopMode.CANCEL)
        self.at(self.now + CALM_SECONDS, self._never)

    def _never(self) -> None:
        raise AssertionError(f"it does not end: {self.about()}")

    def about(self, task: str = "") -> str:
        """Return where everything is, for messages."""
        job = self.supervisor.machine
        states = {name: (str(s.phase), s.epoch, s.told) for name, s in job.tasks.items()}
        return (
            f"seed={self.seed} {task} now={self.now:.2f} phase={job.phase} mode={job.mode} "
            f"cause={job.cause} restart_at={job.restart_at} tasks={states} "
            f"lives={[key for key, a in self.attempts.items() if a.lives]} {dict(self.counts)}"
        )


def run_history(seed: int) -> JobResult:
    """Run one history; an AssertionError names the seed."""
    world = World(seed)
    try:
        return world.run()
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}: {world.about()}") from error
