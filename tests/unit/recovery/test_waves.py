"""Fewer slots than tasks: who runs when, against a table, and against a simulation of its own."""

import itertools
import random

import pytest

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.machine import Job
from durable_shuffle.recovery.job.phases import (
    ENDS,
    TERMINAL,
    Failure,
    JobAction,
    JobPhase,
    Kill,
    Launch,
    PassBarrier,
    StopTasks,
    TaskPhase,
    TaskReport,
    WinGeneration,
)
from durable_shuffle.recovery.job.restarts import RestartBudget, RestartSettings
from durable_shuffle.recovery.job.starts import JobTimeouts
from durable_shuffle.recovery.job.waves import TaskGraph, Wave, Waves, ranks
from durable_shuffle.serialization.errors import InvalidInputError

# two sources, two consumers that read both, one behind these; names against the order of the data
GRAPH = TaskGraph(
    ("z1", "z2", "m1", "m2", "a"),
    [(s, m) for s in ("z1", "z2") for m in ("m1", "m2")] + [(m, "a") for m in ("m1", "m2")],
)


@pytest.mark.parametrize(
    ("slots", "live", "waiting", "more", "launch", "evict"),
    [
        (None, "", "", "z1 z2 m1 m2 a", "a m1 m2 z1 z2", ""),
        (5, "", "", "z1 z2 m1 m2 a", "a m1 m2 z1 z2", ""),
        (3, "", "", "z1 z2 m1 m2 a", "m1 z1 z2", ""),
        (1, "", "", "z1 z2 m1 m2 a", "z1", ""),
        (0, "", "", "z1 z2 m1 m2 a", "", ""),
        # a slot became free
        (2, "z2", "m1 m2 a", "", "m1", ""),
        (2, "z2 m1", "m2 a", "", "", ""),
        # a consumer that runs keeps its slot against one of its rank
        (2, "z2 m2", "m1 a", "", "", ""),
        (2, "z2 a", "", "m1 m2", "m1", "a"),
        # a source that restarts takes a consumer's slot, and only one
        (2, "m1 m2", "a", "z1", "z1", "m2"),
        (1, "m1", "a", "z1", "z1", "m1"),
        # slots went away: nobody is sent off for nothing
        (1, "m1 m2", "a", "", "", ""),
        (1, "m1 m2", "a", "z1", "z1", "m1 m2"),
        (0, "m1 m2", "a", "z1", "", ""),
    ],
)
def test_who_runs(
    slots: int | None, live: str, waiting: str, more: str, launch: str, evict: str
) -> None:
    """By the order of the data, then who runs already, then by name."""
    waves = Waves(slots)
    waves.waiting |= set(waiting.split())
    expected = Wave(tuple(launch.split()), tuple(evict.split()))
    assert waves.plan(GRAPH, live.split(), more.split()) == expected


def test_ranks() -> None:
    """The longest way counts; a cycle ends up behind everything else."""
    assert ranks(GRAPH) == {"z1": 0, "z2": 0, "m1": 1, "m2": 1, "a": 2}
    edges = [("s", "x"), ("s", "y"), ("x", "y"), ("y", "c"), ("c", "d"), ("d", "c")]
    graph = TaskGraph(tuple("sxycd"), edges)
    assert ranks(graph) == {"s": 0, "x": 1, "y": 2, "c": 3, "d": 3}


class Cluster:
    """A machine, a cluster of some slots that carries out what it says, and nothing else.

    A task reads what its producers write: it finishes when they have, and not before.
    """

    def __init__(self, graph: TaskGraph, slots: int, *, max_restarts: int = -1) -> None:
        settings = RestartSettings(max_restarts, 1, 1, jitter=0, healthy_seconds=1000)
        roots = [t for t in graph.tasks if not any(e[1] == t for e in graph.edges)]
        self.machine = Job(
            graph, roots, RestartBudget(settings, lambda: 0.0), JobTimeouts(60, 3, 50)
        )
        self.graph, self.slots = graph, slots
        self.now = 0.0
        self.generation = 0
        self.running: dict[str, int] = {}
        self.told: dict[str, StopMode] = {}
        self.finished: set[str] = set()
        self.launches: list[str] = []
        self.machine.slots_are(slots, 0.0)
        self.do(self.machine.start())

    def do(self, commands: list[JobAction]) -> None:
        for command in commands:
            if isinstance(command, WinGeneration):
                self.generation += 1
                self.do(self.machine.generation_won(self.generation, self.now))
            elif isinstance(command, Kill):
                if self.running.get(command.task) == command.epoch:
                    del self.running[command.task]
            elif isinstance(command, Launch):
                assert command.task not in self.running, "two attempts at once"
                assert command.task not in self.finished
                self.running[command.task] = command.epoch
                self.launches.append(command.task)
                assert len(self.running) <= self.slots, "more than fit"
                self.say(command.task, TaskPhase.STARTING)
                self.say(command.task, TaskPhase.AT_BARRIER)
            elif isinstance(command, PassBarrier):
                for task in command.tasks:
                    self.say(task, TaskPhase.STARTED)
            elif isinstance(command, StopTasks):
                self.told |= dict.fromkeys(command.tasks, command.mode)

    def say(self, task: str, report: TaskPhase, **more: object) -> None:
        epoch = self.running[task]
        if report in (TaskPhase.FINISHED, TaskPhase.FAILED, TaskPhase.SUSPENDED):
            del self.running[task]
        message = TaskReport(task, epoch, report, **more)  # type: ignore[arg-type]
        self.do(self.machine.said(message, self.now))

    def finish(self, task: str) -> None:
        self.finished.add(task)
        self.say(task, TaskPhase.FINISHED)

    def lose(self, task: str) -> None:
        self.say(task, TaskPhase.FAILED, failure=Failure("lost", "gone"))

    def resize(self, slots: int, draw: random.Random) -> None:
        """Slots come, or go together with whoever ran on them."""
        self.slots = slots
        for task in draw.sample(sorted(self.running), max(0, len(self.running) - slots)):
            self.lose(task)
        self.do(self.machine.slots_are(slots, self.now))

    def update(self, draw: random.Random) -> None:
        """Another description: a task that nobody reads goes, one comes, some are replaced."""
        if self.machine.phase is not JobPhase.RUNNING:
            return
        read = {e[0] for e in self.graph.edges}
        gone = draw.sample([t for t in self.graph.tasks if t not in read], 1)
        stay = [t for t in self.graph.tasks if t not in gone]
        new = f"new-{self.generation}"
        edges = [e for e in self.graph.edges if e[1] not in gone]
        edges += [(t, new) for t in draw.sample(stay, min(1, len(stay)))]
        self.graph = TaskGraph([*stay, new], edges)
        replace = draw.sample(stay, draw.randint(0, len(stay)))
        roots = [t for t in stay if not any(e[1] == t for e in edges)]
        self.do(self.machine.update(self.graph, roots, self.now, replace=replace, drop=gone))

    def obey(self) -> None:
        """Whoever was told to suspend does so."""
        for task in [t for t, mode in self.told.items() if mode is StopMode.SUSPEND]:
            del self.told[task]
            if task in self.running:
                self.say(task, TaskPhase.SUSPENDED)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.machine.tick(self.now))

    def can_finish(self) -> list[str]:
        return sorted(
            task
            for task in self.running
            if self.machine.tasks[task].phase not in TERMINAL
            and {e[0] for e in self.graph.edges if e[1] == task} <= self.finished
        )


def drawn_graph(draw: random.Random) -> TaskGraph:
    """Some layers of tasks, each reading some of those before it."""
    layers = [
        [f"{draw.randrange(100)}-{layer}-{i}" for i in range(draw.randint(1, 4))]
        for layer in range(draw.randint(1, 4))
    ]
    edges = [
        (producer, consumer)
        for before, after in itertools.pairwise(layers)
        for consumer in after
        for producer in draw.sample(before, draw.randint(1, len(before)))
    ]
    return TaskGraph([task for layer in layers for task in layer], edges)


def simulated(graph: TaskGraph, slots: int, done: list[str]) -> list[set[str]]:
    """Who runs at the start and after each end, by the plain rule: the first in order that fit."""
    depth: dict[str, int] = {}
    for task in graph.tasks:  # in the order of their data
        above = [depth[e[0]] for e in graph.edges if e[1] == task]
        depth[task] = 1 + max(above, default=0)
    queue = sorted(graph.tasks, key=lambda task: (depth[task], task))
    running, queue = set(queue[:slots]), queue[slots:]
    seen = [set(running)]
    for task in done:
        running.remove(task)
        if queue:
            running.add(queue.pop(0))
        seen.append(set(running))
    return seen


@pytest.mark.parametrize("part", range(10))
def test_a_job_that_ends_runs_as_simulated(seed: int, part: int) -> None:
    """Any graph, any number of slots from 1, any order of ends: the simulation's tasks, step by
    step, and in the end all have finished. RUNNING is reached with tasks that wait."""
    draw = random.Random(seed * 100 + part)
    for _ in range(20):
        graph, slots = drawn_graph(draw), draw.randint(1, 8)
        cluster = Cluster(graph, slots)
        done: list[str] = []
        seen = [set(cluster.running)]
        while cluster.running:
            assert cluster.machine.phase is JobPhase.RUNNING
            waiting = {t for t, s in cluster.machine.tasks.items() if s.phase is TaskPhase.WAITING}
            assert waiting == set(graph.tasks) - cluster.finished - set(cluster.running)
            done.append(draw.choice(cluster.can_finish()))
            cluster.finish(done[-1])
            seen.append(set(cluster.running))
        assert seen == simulated(graph, slots, done)
        assert cluster.machine.phase is JobPhase.FINISHED
        assert cluster.machine.budget.total == 0


@pytest.mark.parametrize("part", range(10))
def test_no_deadlock_whatever_is_lost(seed: int, part: int) -> None:
    """Tasks, slots and descriptions that come and go: as soon as that stops, all finish."""
    draw = random.Random(seed * 100 + part + 50)
    for _ in range(20):
        cluster = Cluster(drawn_graph(draw), draw.randint(1, 4))
        for _ in range(draw.randrange(40)):
            event = draw.random()
            if cluster.machine.phase in ENDS:
                break
            if event < 0.4 and (ready := cluster.can_finish()):
                cluster.finish(draw.choice(ready))
            elif event < 0.6 and cluster.running:
                cluster.lose(draw.choice(sorted(cluster.running)))
            elif event < 0.75:
                cluster.resize(draw.randint(0, 4), draw)
            elif event < 0.8:
                cluster.update(draw)
            elif event < 0.9:
                cluster.obey()
            else:
                cluster.tick(1)
        if cluster.machine.phase not in ENDS:
            cluster.resize(max(1, cluster.slots), draw)
        for _ in range(100):
            if cluster.machine.phase in ENDS:
                break
            cluster.obey()
            for task in cluster.can_finish()[:1]:
                cluster.finish(task)
            cluster.tick(1)
        assert cluster.machine.phase is JobPhase.FINISHED, cluster.machine.tasks
        assert cluster.finished >= set(cluster.graph.tasks)


def test_a_drain_with_tasks_that_wait() -> None:
    """The sources end, then those that waited run and end: it has finished, nothing is left out."""
    cluster = Cluster(GRAPH, 2)
    assert set(cluster.running) == {"z1", "z2"}
    cluster.do(cluster.machine.stop(StopMode.DRAIN, 0.0))
    assert cluster.told == {"z1": StopMode.DRAIN, "z2": StopMode.DRAIN}
    assert cluster.machine.phase is JobPhase.STOPPING
    for task in ("z1", "z2", "m1", "m2", "a"):
        cluster.finish(task)
    assert cluster.machine.phase is JobPhase.FINISHED


@pytest.mark.parametrize(
    ("mode", "end"),
    [(StopMode.SUSPEND, JobPhase.SUSPENDED), (StopMode.CANCEL, JobPhase.CANCELED)],
)
def test_a_stop_does_not_wait_for_slots(mode: StopMode, end: JobPhase) -> None:
    """Who waits is not started any more."""
    cluster = Cluster(GRAPH, 2)
    cluster.do(cluster.machine.stop(mode, 0.0))
    cluster.say("z1", TaskPhase.SUSPENDED)
    cluster.say("z2", TaskPhase.SUSPENDED)
    assert cluster.machine.phase is end
    assert cluster.launches == ["z1", "z2"]


def test_no_slot_at_all_is_said_within_a_bound() -> None:
    """Also if slots were there before; a slot that comes in time makes it go on."""
    cluster = Cluster(GRAPH, 1)
    cluster.resize(0, random.Random(0))
    for _ in range(3):
        cluster.tick(1)
    assert cluster.machine.next_when() == cluster.now - 2 + 60
    cluster.resize(1, random.Random(0))
    assert set(cluster.running) == {"z1"}
    assert cluster.machine.phase is JobPhase.RUNNING
    cluster.resize(0, random.Random(0))
    for _ in range(70):
        cluster.tick(1)
    result = cluster.machine.result
    assert result is not None
    assert result.phase is JobPhase.FAILED


def test_a_job_that_never_gets_a_slot() -> None:
    """The cause says so."""
    cluster = Cluster(GRAPH, 0)
    assert cluster.machine.phase is JobPhase.SCHEDULING
    cluster.tick(59)
    assert cluster.machine.phase is JobPhase.SCHEDULING
    cluster.tick(1)
    result = cluster.machine.result
    assert result is not None
    assert result.cause is not None
    assert (result.phase, result.cause.kind) == (JobPhase.FAILED, "no_slots")


def test_a_stranger_in_the_graph_is_refused() -> None:
    """An edge names only tasks that there are."""
    with pytest.raises(InvalidInputError, match="v9"):
        TaskGraph(["v1", "v2"], [("v1", "v2"), ("v9", "v1")])
