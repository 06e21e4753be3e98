"""Starts the chaos driver, kills its executors and itself by a plan, starts it again.

Strategy: poll the event file; time counts only while a query runs, so that starting Spark is
neither disturbed nor charged. The gap before the next kill of an executor counts only while all
executors are there and have done something since the kill before: a slow machine must not turn
into one on which nothing can run at all. A kill is sent between the first and the last event of a
query, and counted only if the victim was alive before and dead after while the query had not ended.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from durable_shuffle.bench.chaos.plan import ChaosPlan, Shuffle
from durable_shuffle.bench.cluster.driver_process import DriverProcess
from durable_shuffle.bench.cluster.faults import kill_driver, kill_one_executor
from durable_shuffle.bench.cluster.local_cluster import EXECUTORS, QUICK_JVMS, cluster_environment
from durable_shuffle.bench.tpch.data import PARTS
from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base.clock import Clock

_POLL_SECONDS = 0.02
_SILENCE_BOUND_SECONDS = 240.0
_TASKS_BETWEEN = 3
"""Finished since the kill before."""

Tell = Callable[[str], None]


class ChaosRun:
    """One pass over the plan's queries with one kind of shuffle. Use once.

    Args:
        kills: False for the calm pass: same processes, no faults.
        tasks: query -> tasks that it took in the calm pass; those of reading its largest table if
            not known.
        tell: gets a line for people now and then.
    """

    def __init__(
        self,
        work: Path,
        data: Path,
        plan: ChaosPlan,
        shuffle: Shuffle,
        *,
        kills: bool,
        tasks: Mapping[str, int],
        tell: Tell,
        clock: Clock,
    ) -> None:
        self._work, self._data, self._plan, self._shuffle = work, data, plan, shuffle
        self._known_tasks = tasks
        self._tell, self._clock = tell, clock
        self.job = f"{shuffle}-{'kills' if kills else 'calm'}"
        self._gaps = plan.gaps() if kills else iter(())
        self._driver_dies_at = self._moments(plan.driver_dies_at(), 2) if kills else {}
        self._executor_dies_at = self._moments(plan.executor_dies_at(), 1) if kills else {}
        self._next_gap = next(self._gaps, float("inf"))
        self._since_kill = 0.0
        self.seconds = 0.0
        self.executor_kills = 0
        self.driver_kills = 0
        self.totals: list[dict[str, float]] = []
        """Report of each driver when it was last heard of."""
        self.tasks: dict[str, int] = {}
        """Query -> tasks that it took in the driver that finished it."""
        self._left = list(plan.queries)

    def _moments(self, shares: Mapping[str, float], least: int) -> dict[str, int]:
        """Return query -> number of finished tasks of it."""
        return {
            query: max(least, int(share * self._known_tasks.get(query, PARTS)))
            for query, share in shares.items()
        }

    def run(self) -> None:
        """Return when every query has given its rows.

        Raises:
            UnavailableError: a driver ended by itself or fell silent; holds the end of its log.
        """
        number = 0
        while self._left:
            self._session(f"{self.job}-{number}")
            number += 1

    def _session(self, name: str) -> None:
        events, log = self._work / f"{name}.jsonl", self._work / f"{name}.log"
        self.totals.append({})
        module = "durable_shuffle.bench.chaos.driver"
        paths = map(str, (self._work, self._data, events))
        command = [sys.executable, "-m", module, *paths, self._shuffle, self.job, *self._left]
        environment = cluster_environment(self._work, os.environ, QUICK_JVMS)
        killed = False
        with DriverProcess(command, environment, events, log, self._clock) as driver:
            follower = _Follower(driver, self._clock)
            while driver.running and not killed:
                self._take_in(follower.news())
                killed = self._kill_if_due(driver.process, follower)
                driver.check_alive(_SILENCE_BOUND_SECONDS)
                self._clock.sleep(_POLL_SECONDS)
            self._take_in(follower.news())
        if not killed and self._left:
            status = driver.process.returncode
            raise UnavailableError(f"the driver ended: status={status}; {driver.tail()}")

    def _take_in(self, news: list[dict[str, Any]]) -> None:
        for event in news:
            if event["event"] == "done":
                self.seconds += event["seconds"]
                self.totals[-1] = event["total"]
                self.tasks[event["query"]] = event["tasks"]
                self._left.remove(event["query"])
                self._tell(f"{self.job}: {event['query']} {event['seconds']:.1f} s")
            elif event["event"] == "failed":
                self._tell(f"{self.job}: {event['query']} asked again: {event['error'][:200]}")

    def _kill_if_due(self, process: subprocess.Popen[bytes], follower: "_Follower") -> bool:
        """Kill what is due; return True if that was the driver."""
        query = follower.query
        if query is None:
            return False
        after = self._executor_dies_at.get(query)
        if after is not None and follower.tasks >= after:
            del self._executor_dies_at[query]
            self._kill_executor(process, follower, query)
            return False
        after = self._driver_dies_at.get(query)
        if after is not None and follower.tasks >= after:
            seconds_in = follower.seconds_in
            kill_driver(process, self._clock)
            self._take_in(follower.news())
            if query in self._left:
                self.driver_kills += 1
                self.seconds += seconds_in
                self._tell(f"{self.job}: driver killed in {query}")
            del self._driver_dies_at[query]
            return True
        passed = follower.took()
        if follower.moved < _TASKS_BETWEEN or follower.executors < EXECUTORS:
            return False
        self._since_kill += passed
        if self._since_kill < self._next_gap:
            return False
        self._kill_executor(process, follower, query)
        self._since_kill, self._next_gap = 0.0, next(self._gaps, float("inf"))
        return False

    def _kill_executor(
        self, process: subprocess.Popen[bytes], follower: "_Follower", query: str
    ) -> None:
        kill_one_executor(process.pid, self._clock)
        follower.moved = 0
        self._take_in(follower.news())
        if query in self._left:
            self.executor_kills += 1
            self._tell(f"{self.job}: executor killed in {query}")


class _Follower:
    """What the driver says of its queries."""

    def __init__(self, driver: DriverProcess, clock: Clock) -> None:
        self._driver, self._clock = driver, clock
        self._tick = self._started = clock.monotonic()
        self.query: str | None = None
        self.tasks = 0
        self.moved = 0
        """Times that a task was seen to finish, since whoever uses it set it to 0."""
        self.executors = EXECUTORS
        """Registered when last heard of."""
        self._last = 0

    @property
    def seconds_in(self) -> float:
        """Since the query that runs began."""
        return self._clock.monotonic() - self._started

    def took(self) -> float:
        """Seconds of the running query since this was called last."""
        now = self._clock.monotonic()
        passed, self._tick = now - self._tick, now
        return passed

    def news(self) -> list[dict[str, Any]]:
        """Return the new events."""
        found = self._driver.news()
        for event in found:
            if event["event"] == "start":
                self.query, self.tasks, self._last = event["query"], 0, 0
                self._started = self._tick = self._clock.monotonic()
            elif event["event"] == "progress" and event["query"] == self.query:
                self.tasks = max(self.tasks, event["tasks"])
                self.moved += max(0, event["tasks"] - self._last)
                self._last = event["tasks"]
                self.executors = event["executors"]
            elif event["event"] == "done":
                self.query = None
        return found
