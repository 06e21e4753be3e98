"""The stream of `enrich_stream`, suspended, killed, resumed and drained, and what came of it.

Strategy: run, kill tasks that were drawn with SIGKILL and wait until each is back with new records,
suspend; run again, kill again, drain. Then the files are read with pyarrow alone: every event that
the sources say they made must be there, once, with the country that the service knows.
"""

import json
import os
import random
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console

from durable_shuffle.bench.enrich_demo.stream import SOURCE, country_of, enrich_stream, event
from durable_shuffle.recovery.job.phases import JobResult
from durable_shuffle.recovery.pipeline.lines.processes import LocalProcesses
from durable_shuffle.recovery.pipeline.running import RunningPipeline
from durable_shuffle.serialization.errors import InvalidInputError, UnavailableError
from durable_shuffle.shuffle.base.clock import Clock, SystemClock

PRODUCERS = 2
_LOOK_SECONDS = 0.02
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class EnrichDemoOptions:
    """What to run."""

    kills: int
    seed: int
    json_file: Path | None = None
    work: Path | None = None
    """Where data and files are kept; None: in a temporary folder."""

    def __post_init__(self) -> None:
        if self.kills < 0:
            raise InvalidInputError(f"kills must be at least 0, found={self.kills}")


@dataclass(frozen=True, slots=True)
class EnrichFigures:
    """What is printed and judged."""

    seed: int
    kills_wanted: int
    kills_fired: int
    ends: tuple[str, ...]
    """What each run came to, up to a suspend or the end."""
    restarts: int
    events: int
    """That the sources stored."""
    published: int
    files: int
    lost: int
    """Events in no file."""
    doubled: int
    """Events in the files that should not be there, or not again, or with a wrong country."""

    @property
    def passed(self) -> bool:
        """True if all kills fired, all runs ended as asked, and every event is there once."""
        fired = self.kills_fired == self.kills_wanted
        ended = self.ends == ("suspended", "finished")
        return fired and ended and self.events > 0 and not (self.lost or self.doubled)

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return {"passed": self.passed, **asdict(self)}


def run_enrich_demo(
    options: EnrichDemoOptions, console: Console, clock: Clock | None = None
) -> int:
    """Run the demo, print what came of it, and return the exit status: 0 if it passed, else 1."""
    clock = clock or SystemClock()
    console.print(f"seed {options.seed}: {options.kills} kills, a suspend, a resume, a drain")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        out = folder / "out"
        draw = random.Random(options.seed)
        fired, results, events = 0, [], 0
        for mode, kills in (("SUSPEND", options.kills // 2), ("DRAIN", -(-options.kills // 2))):
            running = enrich_stream(str(folder / "data"), str(out), producers=PRODUCERS).start()
            fired += _killed(running, kills, draw, console, clock)
            _wait_for_rows(out, running, clock)
            console.print(f"{mode.lower()} at {published_rows(out)} published events")
            running.stop(mode)
            results.append(running.wait(_PATIENCE_SECONDS))
            events = _stored(running)
            console.print(f"  {results[-1].phase}")
        figures = judge(options, fired, results, events, out)
    return hand_in(options, figures, console)


def hand_in(options: EnrichDemoOptions, figures: EnrichFigures, console: Console) -> int:
    """Print the verdict, write the figures, and return the exit status."""
    _print(console, figures)
    if options.json_file is not None:
        options.json_file.write_text(json.dumps(figures.to_dict(), indent=2) + "\n")
    return 0 if figures.passed else 1


def judge(
    options: EnrichDemoOptions, fired: int, results: list[JobResult], events: int, out: Path
) -> EnrichFigures:
    """Compare the files with what the events are known to be, event by event.

    Args:
        events: that the sources stored, in sum; each producer's are gapless from its first.
    """
    found: Counter[tuple[int, int, str, str]] = Counter()
    files = sorted(out.glob("part-*.parquet"))
    for path in files:
        columns = pq.read_table(path).to_pydict()
        found.update(zip(*columns.values(), strict=True))
    expected = Counter(_expected(found, events))
    return EnrichFigures(
        seed=options.seed,
        kills_wanted=options.kills,
        kills_fired=fired,
        ends=tuple(str(result.phase) for result in results),
        restarts=sum(result.restarts for result in results),
        events=events,
        published=found.total(),
        files=len(files),
        lost=(expected - found).total() + max(0, events - expected.total()),
        doubled=(found - expected).total(),
    )


def _expected(
    found: Counter[tuple[int, int, str, str]], events: int
) -> list[tuple[int, int, str, str]]:
    """Return the events of each producer up to its last one in the files, at most so many."""
    numbers: list[int] = []
    for producer in range(PRODUCERS):
        last = max((row[0] for row in found if row[0] % PRODUCERS == producer), default=-1)
        numbers += range(producer, last + 1, PRODUCERS)
    known = (event(number) for number in numbers[: max(events, 0)])
    return [(e["event"], e["user"], e["page"], country_of(e["user"])) for e in known]


def _killed(
    running: RunningPipeline, kills: int, draw: random.Random, console: Console, clock: Clock
) -> int:
    """Kill so many tasks that were drawn, one after the other; each must come back first."""
    for _ in range(kills):
        _wait_for(
            lambda: all(phase == "running" for phase, _ in running.progress().values()),
            running,
            "all tasks to run",
            clock,
        )
        victim = draw.choice(sorted(running.progress()))
        reached = running.progress()[victim][1]
        assert isinstance(running.launcher, LocalProcesses)
        pid = running.launcher.pid(victim)
        if pid is None:
            raise UnavailableError(f"task {victim} is gone before it was killed")
        os.kill(pid, signal.SIGKILL)
        console.print(f"  killed {victim} at {reached} records")
        _wait_for(
            lambda: _is_back(running, victim, pid, reached),  # noqa: B023 - called at once
            running,
            f"new records of {victim}",
            clock,
        )
    return kills


def _is_back(running: RunningPipeline, task: str, pid: int, reached: int) -> bool:
    phase, records = running.progress()[task]
    assert isinstance(running.launcher, LocalProcesses)
    return phase == "running" and running.launcher.pid(task) != pid and records > reached


def _stored(running: RunningPipeline) -> int:
    """Return how many events the sources stored, by their last word."""
    return sum(n for task, (_, n) in running.progress().items() if task.startswith(SOURCE))


def published_rows(out: Path) -> int:
    """Return how many rows are in the files that are published so far."""
    return sum(pq.read_metadata(path).num_rows for path in out.glob("part-*.parquet"))


def _wait_for_rows(out: Path, running: RunningPipeline, clock: Clock) -> None:
    before = published_rows(out)
    _wait_for(lambda: published_rows(out) > before, running, "new events in the files", clock)


def _wait_for(
    condition: Callable[[], bool], running: RunningPipeline, what: str, clock: Clock
) -> None:
    deadline = clock.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if clock.monotonic() > deadline or running.ended:
            raise UnavailableError(f"waited in vain for {what}: the pipeline is {running.phase}")
        clock.sleep(_LOOK_SECONDS)


def _print(console: Console, figures: EnrichFigures) -> None:
    verdict = "passed" if figures.passed else "FAILED"
    console.print(
        f"{verdict}: {figures.kills_fired} of {figures.kills_wanted} kills fired, "
        f"{figures.restarts} restarts, {figures.events} events, {figures.published} published in "
        f"{figures.files} files, {figures.lost} lost, {figures.doubled} doubled"
    )
