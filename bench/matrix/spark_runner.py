"""Runs steps in driver processes and lets the faults of the schedule happen.

Strategy: poll the driver's event file and the tasks' lines. At a gate the tasks hold still: once so
many have ended, and Spark has heard of all of them, the fault happens and the gate opens. What was
seen around the fault is kept as evidence; a run without its fault fails the benchmark.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import durable_shuffle
from durable_shuffle.bench.cluster.driver_process import DriverProcess
from durable_shuffle.bench.cluster.faults import (
    choose_executor,
    kill_driver,
    kill_one_executor,
    session_processes,
    signal_session,
)
from durable_shuffle.bench.cluster.local_cluster import QUICK_JVMS, cluster_environment
from durable_shuffle.bench.cluster.store import store_folder
from durable_shuffle.bench.matrix.task_history import attempts_of
from durable_shuffle.bench.peers.damage import truncate_uncommitted
from durable_shuffle.bench.peers.systems import DURABLE, PEERS
from durable_shuffle.bench.workloads import orders
from durable_shuffle.bench.workloads.faults import FAULTS
from durable_shuffle.bench.workloads.step import Step
from durable_shuffle.bench.workloads.task_log import ended, open_gate, read_lines
from durable_shuffle.serialization.errors import DurableShuffleError, UnavailableError
from durable_shuffle.shuffle.base.clock import Clock

_POLL_SECONDS = 0.02
_SILENCE_BOUND_SECONDS = 300.0
_LEAVE_BOUND_SECONDS = 120.0
"""A decommissioned executor has ended its tasks and moved its blocks well within this."""
_ZOMBIE_BOUND_SECONDS = 180.0
"""A driver that was resumed meets a newer one's claim well within this."""

Tell = Callable[[str], None]


@dataclass(slots=True)
class Run:
    """What became of one step."""

    step: Step
    began: float
    """Wall seconds; `ended` likewise."""
    ended: float = 0.0
    seconds: float = 0.0
    total: dict[str, float] | None = None
    fault_at: float | None = None
    """Wall seconds, if the fault happened."""
    evidence: str = ""
    """What was seen of the fault."""
    victims: list[int] = field(default_factory=list)
    leaving: tuple[int, float] | None = None
    """A decommissioned executor that has not ended yet, and since when, in wall seconds."""
    detected: str | None = None
    finished: bool = False
    taken_in: int | None = None
    """Bytes that a service took in meanwhile; None where there is none, or it did not say."""


@dataclass(slots=True)
class Results:
    """What became of all steps."""

    runs: list[Run] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Peer -> why it was given up."""
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """Peer -> Spark's settings that its sessions had beyond those of all."""


class DriverEndedError(UnavailableError):
    """A driver ended by itself. `why` is one line without its log."""

    def __init__(self, why: str, tail: str) -> None:
        super().__init__(f"{why}; {tail}")
        self.why = why


def next_session(left: Sequence[Step]) -> list[Step]:
    """Return the steps that the next driver is started for, in their order.

    Where steps need different kinds of sessions, a session holds steps of one round only: peers
    that cannot share a session still take turns.
    """
    first = left[0]
    alike = [s for s in left if s.session == first.session]
    if len(alike) == len(left):
        return alike
    return [s for s in alike if s.round == first.round]


class SparkRunner:
    """Runs steps below one work folder. Not thread-safe.

    Args:
        tell: gets a line for people now and then.
    """

    def __init__(self, work: Path, clock: Clock, tell: Tell) -> None:
        self._work, self._clock, self._tell = work, clock, tell
        self._sessions = 0

    def run(self, steps: Sequence[Step]) -> Results:
        """Run all steps in as many driver processes as that takes.

        A peer that fails is given up: its steps that are left are not run, those of others are.

        Raises:
            UnavailableError: this project's own driver ended or fell silent without being killed;
                the message holds the end of its log.
        """
        results = Results()
        left = list(steps)
        while left:
            session, done = next_session(left), list[Run]()
            try:
                self._session(session, done, results)
            except DurableShuffleError as error:
                hurt = [run.step for run in done if not run.finished]
                failed = hurt[-1] if hurt else session[min(len(done), len(session) - 1)]
                if failed.peer == DURABLE:
                    raise
                why = error.why if isinstance(error, DriverEndedError) else _one_line(str(error))
                results.failed[failed.peer] = why
                self._tell(f"{failed.title}: {failed.peer} is given up: {why}")
            results.runs += done
            over = {run.step.number for run in done}
            gone = results.failed
            left = [s for s in left if s.number not in over and s.peer not in gone]
        return results

    def start(self, steps: Sequence[Step]) -> DriverProcess:
        """Start a driver for these steps."""
        name = f"session-{self._sessions}"
        self._sessions += 1
        events, log = self._work / f"{name}.jsonl", self._work / f"{name}.log"
        listed = json.dumps([s.to_dict() for s in steps])
        peer = PEERS[steps[0].peer]
        python = peer.python(os.environ)
        command = self.command(python, events, listed, peer.driver)
        environment = cluster_environment(self._work, os.environ, QUICK_JVMS)
        if python != sys.executable:
            environment["PYTHONPATH"] = str(self._this_package_alone())
        return DriverProcess(command, environment, events, log, self._clock)

    def command(self, python: str, events: Path, listed: str, module: str) -> list[str]:
        """Return the command of a driver for a list of steps."""
        return [python, "-m", module, str(self._work), str(events), listed]

    def _session(self, steps: Sequence[Step], runs: list[Run], results: Results) -> None:
        """Run steps until they are done or the driver was killed; add what became of them."""
        by_number = {s.number: s for s in steps}
        tasks, failure = 0, ""
        taken_in = PEERS[steps[0].peer].taken_in or (lambda _: None)
        before = None
        with self.start(steps) as driver:
            while True:
                running = driver.running  # before the news, so that none are missed
                for event in driver.news():
                    if event["event"] == "ready":
                        for step in steps:
                            results.settings[step.peer] = event.get("settings", {})
                    elif event["event"] == "failed":
                        failure = event["error"]
                    elif event["event"] == "run":
                        runs.append(Run(by_number[event["step"]], event["at"]))
                        tasks, before = 0, taken_in(os.environ)
                    elif event["event"] == "progress":
                        tasks = event["tasks"]
                    elif event["event"] == "done":
                        self._done(runs[-1], event)
                        runs[-1].taken_in = _rise(before, taken_in(os.environ))
                if not running:
                    break
                if runs and not runs[-1].finished and self._fault(runs[-1], driver, tasks):
                    runs[-1].taken_in = _rise(before, taken_in(os.environ))
                    if runs[-1].step.fault == "F8":
                        self._beside_a_zombie(runs, driver, by_number, results)
                    return
                driver.check_alive(_SILENCE_BOUND_SECONDS)
                self._clock.sleep(_POLL_SECONDS)
            if len(runs) < len(steps) or not runs[-1].finished:
                why = failure or f"the driver ended: status={driver.process.returncode}"
                raise DriverEndedError(why, driver.tail())

    def _done(self, run: Run, event: dict[str, Any]) -> None:
        run.ended, run.seconds, run.total = event["at"], event["seconds"], event["total"]
        run.detected, run.finished = event["detected"], True
        taken = orders.taken(run.step.folder(self._work))
        if run.step.fault in ("F3", "F6", "F9", "F10") and taken is not None:
            run.fault_at = run.fault_at or _modified(run.step.folder(self._work) / orders.TAKEN)
            run.evidence = taken
        self._tell(f"{run.step.title}: {run.seconds:.1f} s")

    def _fault(self, run: Run, driver: DriverProcess, tasks: int) -> bool:
        """Let the fault happen if it is due; return True if it took the driver."""
        step, folder = run.step, run.step.folder(self._work)
        if step.fault == "F5" and run.fault_at is None:
            key = orders.taken(folder)
            if key is not None:
                cut = truncate_uncommitted(store_folder(self._work) / step.job, key, step.draw)
                if cut is not None:
                    run.fault_at, run.evidence = self._clock.wall(), cut
            return False
        if run.leaving is not None:
            self._await_leave(run, driver)
            return False
        if step.gate is None or run.fault_at is not None:
            return False
        phase, after = step.gate
        every = sum(x["event"] == "end" for x in read_lines(folder))
        if ended(folder, phase) < after or tasks < every:
            return False
        last = max(x["at"] for x in read_lines(folder) if x["event"] == "end")
        in_at = (
            f"{ended(folder, phase)} of {self._total(step, phase)} {phase} tasks had ended, "
            f"the last {self._clock.wall() - last:.1f} s before"
        )
        if step.fault == "F11":
            leaving = choose_executor(driver.process.pid, random.Random(step.draw))
            run.leaving, run.evidence = (leaving, self._clock.wall()), in_at
            os.kill(leaving, signal.SIGPWR)
            open_gate(folder, leaving)  # it ends after its tasks
            return False
        if step.fault == "F8":
            run.victims = signal_session(driver.process.pid, signal.SIGSTOP)
        elif FAULTS[step.fault].second_run:
            jvm = PEERS[step.peer].on_spark
            run.victims = list(kill_driver(driver.process, self._clock, jvm=jvm))
        else:
            victim = self._killed_worker(step, driver)
            if victim is None:
                return False
            run.victims = [victim]
        run.fault_at, run.evidence = self._clock.wall(), in_at
        open_gate(folder)
        if not FAULTS[step.fault].second_run:
            return False
        run.ended, run.seconds = run.fault_at, run.fault_at - run.began
        done = "stopped" if step.fault == "F8" else "killed"
        self._tell(f"{step.title}: driver {done} after {run.seconds:.1f} s")
        return True

    def _killed_worker(self, step: Step, driver: DriverProcess) -> int | None:
        """Kill a process that does tasks; None if none has one under way just now."""
        draw, session = random.Random(step.draw), driver.process.pid
        mark = PEERS[step.peer].worker
        if mark is not None:
            return kill_one_executor(session, self._clock, draw, mark)
        attempts = attempts_of(read_lines(step.folder(self._work)))
        busy = {a.host for a in attempts if not a.ended} & set(session_processes(session))
        if not busy:
            return None
        return kill_one_executor(session, self._clock, draw, among=busy)

    def _this_package_alone(self) -> Path:
        """Return a folder from which another Python imports this package, and nothing else."""
        folder = self._work / "python-path"
        folder.mkdir(exist_ok=True)
        link = folder / durable_shuffle.__name__
        if not link.is_symlink():
            link.symlink_to(Path(durable_shuffle.__file__).parent)
        return folder

    def _await_leave(self, run: Run, driver: DriverProcess) -> None:
        """Open the gate for all once the decommissioned executor has ended.

        Raises:
            UnavailableError: it does not end.
        """
        assert run.leaving is not None
        victim, since = run.leaving
        took = self._clock.wall() - since
        if victim not in session_processes(driver.process.pid):
            run.victims, run.fault_at, run.leaving = [victim], since, None
            run.evidence += f"; the executor ended by itself after {took:.1f} s"
            open_gate(run.step.folder(self._work))
        elif took > _LEAVE_BOUND_SECONDS:
            raise UnavailableError(f"a decommissioned executor did not end within {took:.0f} s")

    def _beside_a_zombie(
        self,
        runs: list[Run],
        zombie: DriverProcess,
        by_number: Mapping[int, Step],
        results: Results,
    ) -> None:
        """Do the job with another driver, then let the stopped one go on until it is refused."""
        run, second = runs[-1], list[Run]()
        self._session([by_number[run.step.number + 1]], second, results)
        signal_session(zombie.process.pid, signal.SIGCONT)
        fault_at, run.fault_at = run.fault_at, None
        deadline = self._clock.monotonic() + _ZOMBIE_BOUND_SECONDS
        while run.fault_at is None and self._clock.monotonic() < deadline:
            running = zombie.running
            for event in zombie.news():
                if event["event"] == "fenced":
                    run.fault_at = fault_at
                    run.evidence += f"; resumed, and refused: {event['error']}"
            if not running:
                break
            self._clock.sleep(_POLL_SECONDS)
        runs += second

    @staticmethod
    def _total(step: Step, phase: str) -> int:
        return step.maps if phase == "map" else step.reduces


def _rise(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _one_line(text: str) -> str:
    return text.partition("\n")[0][:300]


def _modified(path: Path) -> float:
    return path.stat().st_mtime
