"""The stream of `enrich_stream` on a real cluster, operated from outside while executors die.

Strategy: a driver process runs the stream as Spark tasks. Four commands reach it from processes of
their own, as from another terminal: update, suspend, resume, drain. The kills are dealt out to
them: the last one of each comes while the command is under way, the others before. A kill waits
until all tasks run and new events are published, so that each one hits a stream that is up. In the
end the files are judged as in `demo.py`.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from durable_shuffle.bench.cluster.faults import end_session, kill_one_executor
from durable_shuffle.bench.cluster.local_cluster import QUICK_JVMS, cluster_environment
from durable_shuffle.bench.enrich_demo.demo import (
    PRODUCERS,
    EnrichDemoOptions,
    hand_in,
    judge,
    published_rows,
)
from durable_shuffle.bench.enrich_demo.driver import FACTORY, result_file
from durable_shuffle.bench.enrich_demo.stream import NAME, SOURCE
from durable_shuffle.recovery.job.phases import JobPhase, JobResult
from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.recovery.pipeline.status import StatusView
from durable_shuffle.serialization.errors import NotFoundError, UnavailableError
from durable_shuffle.shuffle.base.clock import Clock, SystemClock

_COMMANDS = ("update", "suspend", "resume", "drain")
_FASTER = "faster"
_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 300.0
_END_SECONDS = 20.0


class Stream:
    """The stream as its logs and files show it, and the driver process, of which it runs executors.

    Args:
        process: leader of a session of its own.
        folder: of the driver; `data` and `out` are made in it.
        draw: of who is killed.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, draw: random.Random, clock: Clock
    ) -> None:
        self.process, self._folder, self._draw, self._clock = process, folder, draw, clock
        self.data, self.out = str(folder / "data"), folder / "out"
        self.fired = 0
        self._rows = 0

    def status(self) -> StatusView | None:
        """How it is, None if it never said."""
        try:
            return PipelineClient(NAME, self.data).status()
        except NotFoundError:
            return None

    def until(self, condition: Callable[[StatusView], bool], what: str) -> StatusView:
        """Wait until its logs say so."""
        found: list[StatusView] = []

        def look() -> bool:
            status = self.status()
            found[:] = [] if status is None else [status]
            return status is not None and condition(status)

        self._wait(look, what)
        return found[0]

    def until_it_flows(self) -> None:
        """Wait until all tasks run, and then for events that were not published before."""
        self.until(_all_run, "all tasks to run")
        before = max(self._rows, published_rows(self.out))
        self._wait(lambda: published_rows(self.out) > before, "new events in the files")
        self._rows = published_rows(self.out)

    def kill(self) -> int:
        """Kill an executor that is drawn."""
        victim = kill_one_executor(self.process.pid, self._clock, self._draw)
        self.fired += 1
        return victim

    def end(self) -> JobResult:
        """Wait for the driver to end; return what the stream came to."""
        self._wait(lambda: self.process.poll() is not None, "the driver to end", ends=True)
        if not result_file(self._folder).exists():
            raise UnavailableError(f"the driver ended with {self.process.returncode}; {self.log}")
        found = json.loads(result_file(self._folder).read_text())
        return JobResult(JobPhase(found["phase"]))

    @property
    def log(self) -> str:
        """The end of what the driver wrote."""
        return (self._folder / "driver.log").read_text(errors="replace")[-2000:]

    def _wait(self, condition: Callable[[], bool], what: str, *, ends: bool = False) -> None:
        deadline = self._clock.monotonic() + _PATIENCE_SECONDS
        while not condition():
            ended = not ends and self.process.poll() is not None
            if ended or self._clock.monotonic() > deadline:
                raise UnavailableError(f"waited in vain for {what}; {self.log}")
            self._clock.sleep(_LOOK_SECONDS)


def run_enrich_on_spark(
    options: EnrichDemoOptions, console: Console, clock: Clock | None = None
) -> int:
    """Run the demo, print what came of it, and return the exit status: 0 if it passed, else 1."""
    clock = clock or SystemClock()
    console.print(
        f"seed {options.seed}: two executors, {options.kills} kills of them, and from other "
        f"processes: {', '.join(_COMMANDS)}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with _driver(folder, random.Random(options.seed), clock) as stream:
            suspended = operate(stream, options.kills, console)
            result = stream.end()
            status = stream.status()
        assert status is not None
        results = [JobResult(JobPhase(suspended.phase), restarts=len(status.restarts)), result]
        events = sum(part.durable for part in status.parts if part.part == SOURCE)
        figures = judge(options, stream.fired, results, events, stream.out)
    return hand_in(options, figures, console)


def operate(stream: Stream, kills: int, console: Console) -> StatusView:
    """Give all commands, kill so many executors, and return how the stream was when suspended."""
    suspended = None
    for at, command in enumerate(_COMMANDS):
        share = kills // len(_COMMANDS) + (at < kills % len(_COMMANDS))
        _carry_out(stream, command, share, console)
        if command == "suspend":
            suspended = stream.until(lambda s: s.phase == "suspended", "the suspend")
    assert suspended is not None
    return suspended


def _carry_out(stream: Stream, command: str, kills: int, console: Console) -> None:
    """Kill all but one, then give the command and kill the last one meanwhile."""
    for _ in range(0 if command == "resume" else kills - 1):
        stream.until_it_flows()
        console.print(f"  killed executor {stream.kill()}")
    if command != "resume":
        stream.until_it_flows()
    console.print(f"{command} at {published_rows(stream.out)} published events")
    terminal = subprocess.Popen(
        _terminal(command, stream), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if kills and command != "resume":
        console.print(f"  killed executor {stream.kill()}")
    said = terminal.communicate(timeout=2 * _PATIENCE_SECONDS)[0]
    if terminal.returncode:
        raise UnavailableError(f"pipeline {command} ended with {terminal.returncode}: {said}")
    if command == "update":
        stream.until(lambda s: s.version == _FASTER and _all_run(s), "the update")
    for _ in range(kills if command == "resume" else 0):
        stream.until_it_flows()
        console.print(f"  killed executor {stream.kill()}")


def _terminal(command: str, stream: Stream) -> list[str]:
    """What somebody types in another terminal."""
    found = [sys.executable, "-m", "durable_shuffle.jobs.cli", "pipeline", command]
    found += [stream.data, NAME, "--wait", str(_PATIENCE_SECONDS)]
    if command == "update":
        arguments = stream_arguments(Path(stream.data).parent, per_second=3000)
        found += [FACTORY, "--arguments", arguments, "--as", _FASTER]
    return found


def stream_arguments(folder: Path, per_second: int = 2000) -> str:
    """Return the arguments of `enrich_stream` for a driver's folder, as JSON."""
    places = {"url": str(folder / "data"), "out": str(folder / "out")}
    return json.dumps({**places, "producers": PRODUCERS, "per_second": per_second})


def _all_run(status: StatusView) -> bool:
    tasks = [task for part in status.parts for task in part.tasks]
    return status.phase == "running" and all(task.phase == "running" for task in tasks)


@contextmanager
def _driver(folder: Path, draw: random.Random, clock: Clock) -> Iterator[Stream]:
    """Start the driver; nothing of it is left behind."""
    module = "durable_shuffle.bench.enrich_demo.driver"
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(folder), stream_arguments(folder)],
            env=cluster_environment(folder, os.environ, QUICK_JVMS),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    patience = 0.0
    try:
        yield Stream(process, folder, draw, clock)
        patience = _END_SECONDS
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        end_session(process.pid, clock, patience_seconds=patience)
