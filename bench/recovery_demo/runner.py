"""Starts driver processes, follows what they say, and kills what the steps want killed.

Strategy: poll three conditions, each with a bound: new lines in the event file, COMMITs on storage,
the driver's exit. A kill is sent only between the first and the last task of its phase, and what
was seen just before the signal is kept as evidence. Nothing waits for a time to come.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_shuffle.bench.cluster.driver_process import DriverProcess
from durable_shuffle.bench.cluster.faults import kill_driver, kill_one_executor
from durable_shuffle.bench.cluster.local_cluster import cluster_environment
from durable_shuffle.bench.cluster.storage_counts import committed_producers
from durable_shuffle.bench.recovery_demo.driver import store_folder
from durable_shuffle.bench.recovery_demo.steps import Kill, Outcome, Progress, Step
from durable_shuffle.bench.tpch.data import TpchFiles
from durable_shuffle.bench.tpch.job import PRODUCERS, REDUCERS
from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.storage.open import open_storage

_POLL_SECONDS = 0.02
_SILENCE_BOUND_SECONDS = 180.0
"""A driver that says nothing for so long is taken for stuck."""

Listener = Callable[[Step, Progress, str], None]
"""Called with what is under way, how far, and a note ("starting", "running", "killed", "done")."""


@dataclass(slots=True)
class _Current:
    """The step that the driver is at."""

    step: Step
    start: float
    map_tasks: int = 0
    reduce_tasks: int = 0
    kill: Kill | None = None


class RecoveryRunner:
    """Runs steps below one work folder. Not thread-safe."""

    def __init__(
        self,
        work: Path,
        data: TpchFiles,
        listener: Listener,
        clock: Clock,
        java_options: str = "",
        *,
        executors: bool = True,
    ) -> None:
        self._work, self._data, self._java_options = work, data, java_options
        self._executors = executors
        self._listener, self._clock = listener, clock

    def run(self, steps: Sequence[Step]) -> list[Outcome]:
        """Run all steps in as many driver processes as that takes.

        Raises:
            UnavailableError: a driver ended or fell silent without being killed; the message holds
                the end of its log.
        """
        outcomes: list[Outcome] = []
        sessions = 0
        while len(outcomes) < len(steps):
            session = _Session(self, f"session-{sessions}", steps[len(outcomes) :])
            outcomes += session.run()
            sessions += 1
        return outcomes

    @property
    def work(self) -> Path:
        return self._work

    @property
    def clock(self) -> Clock:
        return self._clock

    def command(self, events: Path, steps: Sequence[Step]) -> list[str]:
        """Return the command line of a driver for these steps."""
        paths = [self._work, self._data.folder, events]
        module = "durable_shuffle.bench.recovery_demo.driver"
        listed = json.dumps([s.to_dict() for s in steps]), json.dumps(self._executors)
        return [sys.executable, "-m", module, *map(str, paths), *listed]

    def environment(self) -> dict[str, str]:
        """Return the environment of a driver."""
        return cluster_environment(self._work, os.environ, self._java_options)

    def tell(self, step: Step, progress: Progress, note: str) -> None:
        self._listener(step, progress, note)


class _Session:
    """One driver process, from its start to its end or death."""

    def __init__(self, runner: RecoveryRunner, name: str, steps: Sequence[Step]) -> None:
        self._runner, self._steps, self._clock = runner, steps, runner.clock
        self._name = name
        self._current: _Current | None = None
        self._outcomes: list[Outcome] = []
        self._driver_killed = False

    def run(self) -> list[Outcome]:
        """Return the outcomes of the steps that this process came to."""
        events, log = (self._runner.work / f"{self._name}.{kind}" for kind in ("jsonl", "log"))
        self._runner.tell(self._steps[0], Progress(0, PRODUCERS, 0, REDUCERS), "starting")
        command = self._runner.command(events, self._steps)
        with DriverProcess(command, self._runner.environment(), events, log, self._clock) as driver:
            while driver.running:
                self._listen(driver)
                if self._kill_if_due(driver):
                    break
                driver.check_alive(_SILENCE_BOUND_SECONDS)
                self._clock.sleep(_POLL_SECONDS)
            self._listen(driver)
        if not self._driver_killed and len(self._outcomes) < len(self._steps):
            status = driver.process.returncode
            raise UnavailableError(f"the driver ended: status={status}; {driver.tail()}")
        return self._outcomes

    def _listen(self, driver: DriverProcess) -> None:
        for event in driver.news():
            self._take_in(event)

    def _take_in(self, event: dict[str, Any]) -> None:
        if event["event"] == "run":
            step = next(s for s in self._steps if s.number == event["step"])
            self._current = _Current(step, self._clock.monotonic())
        elif event["event"] == "progress" and self._current is not None:
            self._current.map_tasks = event["map"]
            self._current.reduce_tasks = event["reduce"]
        elif event["event"] == "done" and self._current is not None:
            step, kill = self._current.step, self._current.kill
            self._outcomes.append(Outcome(step, event["seconds"], event["total"], kill))
            self._runner.tell(step, Progress(PRODUCERS, PRODUCERS, REDUCERS, REDUCERS), "done")
            self._current = None

    def _kill_if_due(self, driver: DriverProcess) -> bool:
        """Kill what the current step wants killed; return True if that was the driver."""
        at = self._current
        if at is None:
            return False
        progress = self._progress(at)
        self._runner.tell(at.step, progress, "running" if at.kill is None else "killed")
        if at.kill is not None or not progress.kill_is_due(at.step.fault):
            return False
        seconds_in = self._clock.monotonic() - at.start
        if at.step.fault == "driver":
            pids = kill_driver(driver.process, self._clock)
        else:
            pids = (kill_one_executor(driver.process.pid, self._clock),)
        self._listen(
            driver
        )  # a run that ended before the process was dead was not hit in its middle
        in_the_middle = self._current is at
        at.kill = Kill(pids, progress, seconds_in, in_the_middle)
        self._runner.tell(at.step, progress, "killed")
        self._driver_killed = at.step.fault == "driver"
        if self._driver_killed and in_the_middle:
            self._outcomes.append(Outcome(at.step, None, None, at.kill))
        return self._driver_killed

    def _progress(self, at: _Current) -> Progress:
        map_done = at.map_tasks
        if at.step.shuffle == "durable":
            map_done = committed_producers(
                open_storage(str(store_folder(self._runner.work))), at.step.job
            )
        return Progress(map_done, PRODUCERS, at.reduce_tasks, REDUCERS)
