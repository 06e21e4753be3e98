"""`durable-shuffle run`: start a program again until it ends.

What follows an attempt is decided in `recovery/program.py`. Here are the processes, the signals
and the waiting.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from durable_shuffle.jobs.cli.call import Call, Debug, StorageOption, StorageOptionsEnv
from durable_shuffle.jobs.cli.class_archive import ClassArchive
from durable_shuffle.jobs.cli.program import PROGRAMS, setting_in, through_wrapper
from durable_shuffle.jobs.inspect.job_look import changes, look
from durable_shuffle.jobs.outcome import VARIABLE, told
from durable_shuffle.recovery.program import (
    SUPERSEDED,
    Again,
    Attempt,
    JobLook,
    Stop,
    gained,
    next_step,
    superseded,
)
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.base.clock import Clock, SystemClock, system_jitter
from durable_shuffle.shuffle.base.retry import Backoff, Jitter
from durable_shuffle.shuffle.storage.contract import Storage

_PASSED_ON = tuple(
    signal.Signals[name]
    for name in ("SIGTERM", "SIGINT", "SIGHUP")
    if name in signal.Signals.__members__  # Windows lacks one
)
_NOT_EXECUTABLE, _NOT_FOUND, _SIGNALLED = 126, 127, 128
_MULTIPLIER, _JITTER = 2.0, 0.5


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="spark-submit, python, or a .py file.")
    ],
    *,
    url: Annotated[
        str | None,
        typer.Option(help="Where the job's data is; default: as --conf or the program says."),
    ] = None,
    job: Annotated[
        str | None, typer.Option(help="Name of the job; default: as --conf or the program says.")
    ] = None,
    transparent: Annotated[
        bool,
        typer.Option(
            "--transparent", help="Make collect, toPandas, toArrow, count and writes durable."
        ),
    ] = False,
    max_retries: Annotated[
        int, typer.Option(help="Retries in a row that may store nothing new.")
    ] = 3,
    first_delay: Annotated[float, typer.Option(help="Seconds before the first retry.")] = 5.0,
    longest_delay: Annotated[float, typer.Option(help="Longest wait, in seconds.")] = 300.0,
    class_archive: Annotated[
        Path | None,
        typer.Option(help="File of Java classes: the first driver writes it, later ones use it."),
    ] = None,
    storage_option: StorageOption = None,
    storage_options_env: StorageOptionsEnv = None,
    debug: Debug = False,
) -> None:
    """Start a program, and restart it after a failure, until it succeeds.

    It goes on as long as attempts store something new of the job, and gives up after --max-retries
    that store nothing new. It shows what is stored between attempts. SIGTERM, SIGINT and SIGHUP are
    passed on to the program, which is then not started again.

    It knows which error ended a Python driver on its own host. With spark-submit in cluster mode it
    sees only exit codes; give --url and --job to let it see progress.

    With --transparent, the actions of an unchanged program run as in a `transparent()` block. The
    job is then named after the program's file by default. A file of SQL statements, NAME.sql, is a
    program, too: rows of its queries go to standard output, as with spark-sql.

    With --class-archive, the first driver that ends writes the Java classes that it loaded into a
    file. Later drivers on this host load them from there, in less time. Delete the file after an
    upgrade of Java or Spark, or if it moves.

    \b
    Exit codes:
      0      the program ended with 0
      1      gave up: the last attempts stored nothing new
      2      misuse of this command
      3      a newer driver has the job: do not start this one again
      4      an error that another attempt would repeat: wrong input, a missing module
      128+n  signal n was passed on

    \b
    Examples:
      durable-shuffle run -- spark-submit --master yarn nightly.py 2026-11-23
      durable-shuffle run --max-retries 10 python nightly.py
      durable-shuffle run --transparent --url s3://bucket/shuffle nightly.py
      durable-shuffle run --transparent --url s3://bucket/shuffle nightly.sql
    """
    options = {"storage_option": storage_option, "storage_options_env": storage_options_env}
    with Call(url or "", debug=debug, **options) as call:  # type: ignore[arg-type]
        if command[0].endswith(PROGRAMS if transparent else ".py"):
            command = [sys.executable, *command]
        url = url or setting_in(command, "url")
        job = job or setting_in(command, "job")
        if transparent:
            command, job = through_wrapper(command, url, job, storage_options_env)
        backoff = Backoff(max_retries, first_delay, _MULTIPLIER, longest_delay, _JITTER)
        clock, environment = SystemClock(), dict(os.environ)
        archive = ClassArchive(class_archive) if class_archive else None
        if archive is not None:
            environment = archive.environment(environment)
        runner = Runner(clock, system_jitter(), backoff, call.open, call.note, environment)
        stop = runner.run(command, Place(url, job))
        submitted = Path(command[0]).name.startswith("spark-submit")
        written = archive is None or stop.exit_code or archive.wait(clock, submitted=submitted)
        if archive is not None and not written:
            call.note(
                f"durable-shuffle run: no class archive was written: {archive.file}; the driver "
                "must run on this host, and Java must have its own archive (lib/server/classes.jsa)"
            )
        if stop.exit_code:
            call.note(f"durable-shuffle run: stopped: {stop.why}")
            call.fail(stop.exit_code)


class Place(NamedTuple):
    """Which job a program runs, as far as that is known."""

    url: str | None
    job: str | None
    driver: str = ""
    """Id under which the last attempt claimed the job, "" if unknown."""


@dataclass
class Runner:
    """Starts one program again and again."""

    clock: Clock
    jitter: Jitter
    backoff: Backoff
    open: Callable[[str], Storage]
    note: Callable[[str], None]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def run(self, command: Sequence[str], place: Place) -> Stop:
        """Return why it is not started any more."""
        with (
            PassedOn() as signals,
            tempfile.TemporaryDirectory(prefix="durable-shuffle-") as folder,
        ):
            fruitless, seen = 0, self._look(place, None)
            if (early := signals.came()) > 0:
                return Stop(_SIGNALLED + early, "a signal came before the first attempt")
            for number in count(1):
                file = Path(folder, f"attempt-{number}")
                begun = self.clock.monotonic()
                code = signals.run(command, {**self.environment, VARIABLE: str(file)})
                seconds = self.clock.monotonic() - begun
                facts = told(file.read_text() if file.exists() else "")
                place = _place(place, facts)
                now = self._look(place, seen)
                attempt = Attempt(
                    code,
                    str(facts.get("kind", "")),
                    _types(facts.get("types")),
                    passed_on=signals.last,
                    gained=gained(seen, now),
                    superseded=superseded(place.driver, now),
                )
                step = next_step(attempt, fruitless, self.backoff, self.jitter)
                self._show(number, attempt, seconds, seen, now, step)
                if isinstance(step, Stop):
                    return step
                fruitless, seen = step.fruitless, now or seen
                signals.wait(self.clock, step.delay_seconds)
                if signals.last:
                    return Stop(_SIGNALLED + signals.last, "a signal came between two attempts")
                if superseded(place.driver, self._look(place, seen)):
                    return SUPERSEDED
        raise AssertionError("counting does not end")

    def _look(self, place: Place, before: JobLook | None) -> JobLook | None:
        """Return what is stored, None if that cannot be seen."""
        if place.url is None or place.job is None:
            return None
        try:
            return look(self.open(place.url), place.job, before)
        except DurableShuffleError as error:
            self.note(f"durable-shuffle run: progress is not known: {error}")
            return None

    def _show(
        self,
        number: int,
        attempt: Attempt,
        seconds: float,
        before: JobLook | None,
        now: JobLook | None,
        step: Again | Stop,
    ) -> None:
        how = f"attempt {number} {_ended(attempt)} after {seconds:.0f} s"
        stored = "" if now is None else f"; {changes(before, now)}"
        then = f"; again in {step.delay_seconds:.1f} s" if isinstance(step, Again) else ""
        self.note(f"durable-shuffle run: {how}{stored}{then}")


class PassedOn:
    """Passes signals on to the program that runs, and ends the wait between two.

    The program is the leader of a session of its own, so a Ctrl-C in the terminal reaches it once.
    A signal that was ignored before stays ignored.
    """

    def __init__(self) -> None:
        self.last = 0
        """The newest signal that came, 0 if none has."""
        self._due: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting = False
        self._before: dict[int, object] = {}

    def came(self) -> int:
        """Return the newest signal that came, 0 if none has."""
        return self.last

    def __enter__(self) -> "PassedOn":
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Return the program's exit code; negative if a signal killed it."""
        try:
            process = subprocess.Popen(command, env=environment, start_new_session=True)
        except FileNotFoundError:
            return _NOT_FOUND
        except OSError:
            return _NOT_EXECUTABLE
        self._process = process
        self._deliver()
        try:
            return process.wait()
        finally:
            self._process = None

    def wait(self, clock: Clock, seconds: float) -> None:
        """Wait, until a signal comes."""
        self._waiting = True
        with suppress(_Woken):
            if not self.last:
                clock.sleep(seconds)
        self._waiting = False

    def _take(self, number: int, _: object) -> None:
        self.last = number
        self._due.append(number)
        self._deliver()
        if self._waiting:
            raise _Woken

    def _deliver(self) -> None:
        while self._process is not None and self._due:
            self._process.send_signal(self._due.pop(0))


class _Woken(Exception):
    """A signal came while nothing ran."""


def _place(place: Place, facts: Mapping[str, object]) -> Place:
    """Return what is known after an attempt; options of the command count before the program."""
    url, job, driver = (str(facts.get(name, "")) for name in ("url", "job", "driver"))
    other = place.job is not None and job != place.job
    return Place(place.url or url or None, place.job or job or None, "" if other else driver)


def _types(found: object) -> tuple[str, ...]:
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _ended(attempt: Attempt) -> str:
    if attempt.exit_code < 0:
        return f"was killed by {signal.Signals(-attempt.exit_code).name}"
    error = f" ({attempt.types[0]})" if attempt.types else ""
    return f"ended with exit code {attempt.exit_code}{error}"
