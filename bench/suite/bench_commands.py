"""What does it cost to be led, and how fast does a command reach everybody?

Bars: an idle worker sends at most 1 request per second for commands; from the moment at which a
terminal writes a command down, all of 50 local workers have it within 1 s, as a median over rounds.
The workers are processes, as pipelines start them, with their real line and the real coordinator,
and without data: 50 that also read and write would measure the machine. Under --benchmark-enable
the table of docs/benchmarks.md is written.
"""

import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from document import record
from light_worker import LightWorker

from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.recovery.pipeline.commands.emitter import Emitter
from durable_shuffle.recovery.pipeline.commands.requests import ChangeSettings
from durable_shuffle.recovery.pipeline.lines.processes import LocalProcesses
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.pipeline.running import RunningPipeline
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log.layout import command_log_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

BAR_REQUESTS = 1.0
BAR_SECONDS = 1.0
IDS = RandomIds()
HEAD = ("what", "median", "min", "max", "bar")
WITHOUT_A_LINE, WITH_A_LINE = 1.0, 10.0
"""Seconds between looks into the command log, as launchers set them."""


@pytest.mark.timeout(0)
def test_an_idle_worker(benchmark: Any, tmp_path: Path, rounds: int, measuring: bool) -> None:
    """Requests per second of a worker that nobody says anything to, after it was started."""
    seconds, settles = (20.0, 2.0) if measuring else (1.5, 0.1)
    found: dict[float, list[float]] = {WITHOUT_A_LINE: [], WITH_A_LINE: []}

    def idle(folder: Path, poll_seconds: float) -> float:
        counted = CountingStorage(LocalStorage(folder))
        log = SlotLog(counted, command_log_prefix("bench"))
        Emitter(log, "bench", 1, IDS).emit()
        link = TaskLink("task", 1, lambda _: None, poll_seconds=poll_seconds)
        link.follow(log)
        time.sleep(settles)  # what it sends at first, more often, is not idling
        before, start = counted.total, time.monotonic()
        time.sleep(seconds)
        sent = counted.total - before
        passed = time.monotonic() - start
        link.over()
        return sent / passed

    def run() -> None:
        with ThreadPoolExecutor() as pool:  # idle ones do not disturb each other
            for turn in range(min(rounds, 3)):
                folders = [tmp_path / f"{turn}-{poll_seconds}" for poll_seconds in found]
                for rate, rates in zip(pool.map(idle, folders, found), found.values(), strict=True):
                    rates.append(rate)

    benchmark.pedantic(run, rounds=1)
    for poll_seconds, rates in found.items():
        print(f"\nlooks every {poll_seconds:g} s: {statistics.median(rates):.2f} requests/s")
    assert max(found[WITHOUT_A_LINE]) > 0, "it looks at all"
    if measuring:
        for what, rates in (
            ("requests/s of an idle worker without a line", found[WITHOUT_A_LINE]),
            ("requests/s of an idle local worker", found[WITH_A_LINE]),
        ):
            cells = [f"{f(rates):.2f}" for f in (statistics.median, min, max)]
            record("commands", HEAD, (what, *cells, f"{BAR_REQUESTS:.0f}"))
        assert statistics.median(found[WITHOUT_A_LINE]) <= BAR_REQUESTS


@pytest.mark.timeout(0)
def test_a_command_reaches_everybody(
    benchmark: Any, tmp_path: Path, rounds: int, measuring: bool
) -> None:
    """From the moment before it is written down until the last worker has taken it in."""
    workers = 50 if measuring else 5
    took: list[float] = []
    draw = random.Random(7)
    heard = tmp_path / "heard"
    heard.mkdir()
    pipeline = Pipeline("bench", str(tmp_path / "data"))
    schema = pa.schema([("n", pa.int64())])
    pipeline.source("light", IteratorSource(_nothing), schema=schema, producers=workers)
    running: RunningPipeline = pipeline.start(
        launcher=lambda _, settings, hear: LightProcesses(
            LightWorker(str(heard)),
            hear,
            heartbeat_seconds=settings.heartbeat_seconds,
            silence_seconds=600.0,
        )
    )

    def latest(number: int) -> float | None:
        lines = [path.read_text().split("\n")[:-1] for path in heard.iterdir()]
        moments = [float(x.split()[1]) for t in lines for x in t if x.split()[0] == str(number)]
        return max(moments) if len(moments) == workers else None

    def run() -> None:
        _until(lambda: running.phase in (JobPhase.RUNNING, JobPhase.FAILED))
        assert running.phase is JobPhase.RUNNING
        client = PipelineClient("bench", str(tmp_path / "data"))
        for number in range(1, (21 if measuring else 2) + 1):
            time.sleep(draw.uniform(0, 0.5))  # at any moment between two looks
            start = time.monotonic()
            client.append(ChangeSettings(IDS.new_id(), {"commit_rows": number}))
            took.append(float(_until(lambda number=number: latest(number))) - start)  # type: ignore[misc]

    try:
        benchmark.pedantic(run, rounds=1)
    finally:
        running.stop("CANCEL")
        running.wait(300)
    print(
        f"\n{workers} workers: {statistics.median(took):.2f} s ({min(took):.2f} to {max(took):.2f})"
    )
    if measuring:
        cells = [f"{f(took):.2f} s" for f in (statistics.median, min, max)]
        record("commands", HEAD, ("command to all of 50 workers", *cells, f"{BAR_SECONDS:.0f} s"))
        assert statistics.median(took) <= BAR_SECONDS


class LightProcesses(LocalProcesses):
    """Keeps running what it was made with; the coordinator asks for the tasks of the plan."""

    def use(self, run_task: Any) -> None:
        del run_task


def _nothing(position: Any, producer: int) -> Any:
    """Never called: the workers are light."""
    yield None


def _until(condition: Any) -> Any:
    deadline = time.monotonic() + 600
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.01)
    return found
