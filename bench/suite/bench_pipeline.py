"""How fast is a killed consumer back, what do the producers notice, how fast do 200 tasks start?

Bars: from SIGKILL of a consumer to its first new record at most 2 s, with the default settings, as
a median over rounds; the producers' throughput in the seconds from the kill on at least 0.9 of that
of undisturbed seconds before it, taken in turn; 200 tasks RUNNING within 20 s in the launcher whose
tasks are threads. The stages lie where BENCH_STORAGE says. Under --benchmark-enable the table of
docs/benchmarks.md is written.
"""

import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from document import record
from pipeline_steps_timed import ROWS, Paced, Timed
from places import Place

from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.lines.launcher import Threads
from durable_shuffle.recovery.pipeline.lines.processes import LocalProcesses
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.pipeline.running import RunningPipeline
from durable_shuffle.shuffle.log.appender_log import Append, AppenderOpen
from durable_shuffle.shuffle.log.appender_reads import producer_status
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage

BAR_BACK_SECONDS = 2.0
BAR_THROUGHPUT = 0.9
BAR_START_SECONDS = 20.0
PRODUCERS = 2
BATCHES_PER_SECOND = 50
VICTIM = "see-k0000"
HEAD = ("what", "median", "min", "max", "bar")


class Measured:
    """A pipeline under way, and what can be seen of it from outside."""

    def __init__(self, folder: Path, place: Place) -> None:
        folder.mkdir()
        self.told = folder / "told"
        self.told.touch()
        pipeline = Pipeline("bench", place.url, storage_options=place.options)
        source = IteratorSource(Paced(BATCHES_PER_SECOND))
        stream = pipeline.source("rows", source, schema=ROWS, producers=PRODUCERS, partitions=2)
        stream.consume("see", Timed(str(self.told)))
        self.running: RunningPipeline = pipeline.start()
        _until(lambda: self.running.phase is JobPhase.RUNNING)
        storage = place.storage()
        self.stage: StageHandle = open_stage(storage, read_job(storage, "bench").order[0])
        _until(lambda: self.appended() > 0)

    def appended(self) -> int:
        """Rows that the producers' logs hold."""
        records = [producer_status(self.stage, p) for p in range(PRODUCERS)]
        return sum(
            sum(int(n) for n in r.after.ordinals(2, "bench"))
            for r in records
            if isinstance(r, Append | AppenderOpen)
        )

    def rows_per_second(self, seconds: float) -> float:
        """Throughput of the producers from now on."""
        before, start = self.appended(), time.monotonic()
        time.sleep(seconds)
        return (self.appended() - before) / (time.monotonic() - start)

    def lines(self) -> list[tuple[float, int, int]]:
        """(moment, process, highest row) of each batch that any consumer took."""
        lines = self.told.read_text().splitlines(keepends=True)
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [(float(when), int(pid), int(n)) for when, pid, n in whole]

    def kill(self) -> tuple[float, int, int]:
        """Kill the consumer; return when, which process, and its highest row so far."""
        assert isinstance(self.running.launcher, LocalProcesses)
        pid = self.running.launcher.pid(VICTIM)
        assert pid is not None
        _until(lambda: any(line[1] == pid for line in self.lines()))
        reached = max(n for _, who, n in self.lines() if who == pid)
        moment = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return moment, pid, reached

    def back_seconds(self, killed: tuple[float, int, int]) -> float:
        """Seconds from the kill to the first row that nobody had seen, in the new process."""
        moment, old, reached = killed

        def new() -> float | None:
            assert isinstance(self.running.launcher, LocalProcesses)
            now = self.running.launcher.pid(VICTIM)
            found = [when for when, pid, n in self.lines() if pid == now != old and n > reached]
            return min(found) if found else None

        return float(_until(new)) - moment


def _until(condition: Any) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.01)
    return found


@pytest.mark.timeout(0)
def test_a_killed_consumer(
    benchmark: Any, tmp_path: Path, rounds: int, measuring: bool, place: Place
) -> None:
    """Seconds until its first new record, and what the producers did meanwhile."""
    seconds = 3.0 if measuring else 1.0
    back: list[float] = []
    pairs: list[tuple[float, float]] = []

    def run() -> None:
        for turn in range(rounds):  # each its own: a second kill soon after the first waits longer
            measured = Measured(tmp_path / str(turn), place.new())
            if measuring:
                time.sleep(2)
            try:
                calm = measured.rows_per_second(seconds)
                killed = measured.kill()
                pairs.append((calm, measured.rows_per_second(seconds)))
                back.append(measured.back_seconds(killed))
            finally:
                measured.running.stop("CANCEL")
                measured.running.wait(60)

    benchmark.pedantic(run, rounds=1)
    assert all(calm for calm, _ in pairs)
    ratios = [disturbed / calm for calm, disturbed in pairs]
    ratio = statistics.median(ratios)
    print(
        f"\nback after {statistics.median(back):.2f} s ({min(back):.2f} to {max(back):.2f}), "
        f"producers at {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of "
        f"{statistics.median(calm for calm, _ in pairs):,.0f} rows/s"
    )
    if measuring:
        cells = [f"{f(back):.2f} s" for f in (statistics.median, min, max)]
        bar = f"{BAR_BACK_SECONDS:.0f} s"
        record("pipelines", HEAD, ("kill to first new record", *cells, bar))
        cells = [f"{f(ratios):.3f}" for f in (statistics.median, min, max)]
        rate = "producers meanwhile / undisturbed"
        record("pipelines", HEAD, (rate, *cells, f"{BAR_THROUGHPUT}"))
        assert statistics.median(back) <= BAR_BACK_SECONDS
        assert ratio >= BAR_THROUGHPUT


def _ignore(batch: pa.RecordBatch) -> None:
    """A step without effect."""


def _nothing(position: Any, producer: int) -> Any:
    while True:
        yield None


@pytest.mark.timeout(0)
def test_many_tasks_start(benchmark: Any, rounds: int, measuring: bool, place: Place) -> None:
    """100 sources and 100 consumers, each with real logs, until RUNNING."""
    half = 100 if measuring else 5
    took: list[float] = []

    def run() -> None:
        for turn in range(min(rounds, 3)):
            one = place.new()
            pipeline = Pipeline(f"many{turn}", one.url, storage_options=one.options)
            source = IteratorSource(_nothing)
            stream = pipeline.source("s", source, schema=ROWS, producers=half, partitions=half)
            stream.consume("c", _ignore)
            start = time.monotonic()
            running = pipeline.start(launcher=lambda run_task, _, hear: Threads(run_task, hear))
            _until(lambda running=running: running.phase is JobPhase.RUNNING)  # type: ignore[misc]
            took.append(time.monotonic() - start)
            running.stop("CANCEL")
            running.wait(120)

    benchmark.pedantic(run, rounds=1)
    print(
        f"\n{2 * half} tasks: {statistics.median(took):.2f} s ({min(took):.2f} to {max(took):.2f})"
    )
    if measuring:
        cells = [f"{f(took):.2f} s" for f in (statistics.median, min, max)]
        record("pipelines", HEAD, ("200 tasks RUNNING", *cells, f"{BAR_START_SECONDS:.0f} s"))
        assert statistics.median(took) <= BAR_START_SECONDS
