"""Pipelines whose tasks are Spark tasks, on a real cluster: killed, cancelled, stopped, resumed.

One cluster serves all tests of the file. Published files are read without our code and compared
with the expected numbers. Tests reach a moment by gates, which are files.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pipeline_steps import Gated, NumbersUntilEnd
from pipelines import copying, published
from rich.console import Console

from durable_shuffle.bench.cluster.faults import kill_driver, session_processes
from durable_shuffle.bench.cluster.local_cluster import cluster_environment
from durable_shuffle.bench.enrich_demo.on_spark import Stream, operate, stream_arguments
from durable_shuffle.bench.enrich_demo.stream import country_of
from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.shuffle.base.clock import SystemClock

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).parents[2]
HANG_SECONDS = 300.0


class Driver:
    """The program `pipeline_driver`."""

    def __init__(self, programs: Any, work: Path) -> None:
        self._programs = programs
        path = f"{REPOSITORY / 'src'}:{REPOSITORY / 'tests/support'}"
        environment = cluster_environment(work, {**os.environ, "PYTHONPATH": path})
        environment["PYTHONPATH"] = path
        self.process = programs.start("pipeline_driver", work, env=environment)
        assert programs.answer(self.process) == {"ready": True}

    def ask(self, do: str, **more: object) -> dict[str, Any]:
        self._programs.tell(self.process, json.dumps({"do": do, **more}))
        answer: dict[str, Any] = self._programs.answer(self.process)
        return answer

    def start(self, folder: Path, partitions: int = 2) -> None:
        folder.mkdir(exist_ok=True)
        self.until_complete()
        self.ask("start", folder=str(folder), partitions=partitions)

    def until_complete(self) -> None:
        """Wait for executors that replace the killed ones."""
        until(lambda: self.ask("slots") == {"slots": 4}, "all executors")

    def until(self, condition: Callable[[dict[str, Any]], Any], what: str) -> Any:
        return until(lambda: condition(self.ask("state")), what)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition; the limit only ends a test that has failed."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)
    return found


def at_gate(folder: Path) -> int:
    """Return the Python worker that waits at row 100."""
    return int(until(lambda: list(folder.glob("row-*")), "somebody at the gate")[0].read_text())


def is_running(state: dict[str, Any]) -> bool:
    return state["phase"] == "running"


def all_once(folder: Path) -> bool:
    """Whether the files hold each number of both sources exactly once."""
    made = [int((folder / f"made-{producer}").read_text()) for producer in (0, 1)]
    model = {2 * i + producer: 1 for producer, count in enumerate(made) for i in range(count)}
    return len(model) > 0 and dict(published(folder)) == model


@pytest.fixture(scope="module")
def driver(programs: Any, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """The cluster for this file."""
    return Driver(programs, tmp_path_factory.mktemp("cluster"))


@pytest.mark.soak
@pytest.mark.requirement("R-ARR-16")
@pytest.mark.requirement("R-F46-11")
def test_executors_are_killed_while_it_is_operated_from_outside(
    driver: Driver, tmp_path: Path, seed: int
) -> None:
    """Processes with the command line update, suspend, resume and drain the enrichment job, while
    executors are SIGKILLed; at the end every event is in the files once."""
    stream = Stream(driver.process, tmp_path, random.Random(seed), SystemClock())
    driver.until_complete()
    driver.ask("start_enrich", arguments=stream_arguments(tmp_path))
    suspended = operate(stream, 2, Console())
    assert suspended.phase == "suspended"
    assert stream.fired == 2
    ended = driver.ask("wait")
    status = stream.status()
    assert ended["phase"] == "finished", (ended, status)
    assert status is not None
    assert (status.phase, status.version) == ("finished", "faster")
    assert any("ExecutorLost" in one.cause for one in status.restarts)
    check_events(tmp_path / "out")


@pytest.mark.soak
def test_the_demo(tmp_path: Path, seed: int) -> None:
    """The demo as users start it, on its own cluster: exit status, figures, and files."""
    figures, work = tmp_path / "figures.json", tmp_path / "work"
    options = ["--kills", "8", "--seed", str(seed), "--json", str(figures), "--work", str(work)]
    command = [sys.executable, "-m", "durable_shuffle.jobs.cli", "demo", "enrich", "--spark"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert (found["passed"], found["kills_fired"]) == (True, 8)
    assert found["ends"] == ["suspended", "finished"]
    assert check_events(work / "out") == found["events"]


def check_events(out: Path) -> int:
    """Compare the files with the expected events; return how many there are."""
    rows = [row for p in out.glob("part-*.parquet") for row in pq.read_table(p).to_pylist()]
    assert len(rows) > 0
    for producer in (0, 1):
        ours = sorted(row["event"] for row in rows if row["event"] % 2 == producer)
        assert ours == list(range(producer, 2 * len(ours), 2))
    assert all(row["user"] == row["event"] * 7919 % 1000 for row in rows)
    assert all(row["country"] == country_of(row["user"]) for row in rows)
    return len(rows)


@pytest.mark.soak
@pytest.mark.requirement("R-F135-26")
def test_a_python_worker_is_killed(driver: Driver, tmp_path: Path) -> None:
    """Its task restarts alone, and each row is published once."""
    folder = tmp_path / "worker"
    driver.start(folder)
    worker = at_gate(folder)
    before = driver.ask("state")["epochs"]
    os.kill(worker, signal.SIGKILL)
    (folder / "go").touch()
    after = driver.until(lambda s: s["epochs"] != before and s["epochs"], "a restart")
    assert sum(after[task] != before[task] for task in before) == 1
    until(lambda: 100 in published(folder), "the row of the gate")
    (folder / "end").touch()
    assert driver.ask("wait") == {"phase": "finished", "restarts": 1, "repeats": 0}
    assert all_once(folder)


@pytest.mark.soak
@pytest.mark.requirement("R-F46-21")
@pytest.mark.requirement("R-ARR-16")
def test_fewer_slots_than_tasks(driver: Driver, tmp_path: Path) -> None:
    """Six tasks on four slots: sources run first, waiting tasks say so, and in the end all have
    finished with every row once. If all Spark jobs are cancelled, tasks only restart."""
    folder = tmp_path / "slots"
    folder.mkdir()
    (folder / "go").touch()
    driver.start(folder, partitions=4)
    state = driver.until(lambda s: is_running(s) and s, "running")
    waiting = {task for task, (phase, _) in state["tasks"].items() if phase == "waiting"}
    assert len(waiting) >= 2
    assert all(task.startswith("copy") for task in waiting)
    before = state["epochs"]
    driver.ask("cancel_all")
    driver.until(
        lambda s: (
            is_running(s) and all(e != before[t] for t, e in s["epochs"].items() if before[t])
        ),
        "restarts",
    )
    (folder / "end").touch()
    result = driver.ask("wait")
    assert (result["phase"], result["repeats"]) == ("finished", 0)
    assert all_once(folder)


def test_what_cannot_run_says_so(driver: Driver, tmp_path: Path) -> None:
    """A step that cannot be pickled, and a root that executors do not share."""
    found = driver.ask("bad_input", folder=str(tmp_path / "bad"))
    assert "cannot be sent to workers" in found["a lock"]
    assert "executors do not share" in found["not shared"]


@pytest.mark.requirement("R-ARR-5")
def test_a_driver_is_killed_and_the_pipeline_goes_on_without_spark(
    driver: Driver, tmp_path: Path
) -> None:
    """Workers end by themselves; local processes continue where the logs end."""
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "go").touch()
    driver.start(folder)
    until(lambda: published(folder).total() > 100, "rows")
    kill_driver(driver.process, SystemClock())
    reached = published(folder)
    running = copying(
        folder, NumbersUntilEnd(2, str(folder)), Gated(str(folder), -1), producers=2
    ).start()
    until(lambda: published(folder).total() > reached.total(), "more rows")
    (folder / "end").touch()
    assert running.wait(HANG_SECONDS).phase is JobPhase.FINISHED
    assert all_once(folder)
    until(lambda: not session_processes(driver.process.pid), "all processes of Spark to end")
    assert reached <= Counter(published(folder))
