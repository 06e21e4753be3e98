"""What every command does around its own work: shared options, output, errors, exit codes.

`@command` runs a function inside a `Call`. An error becomes one line on standard error, one more
for each of its notes, and an exit code; with `--json` also a document on standard output. All texts
about errors, tracebacks included, pass `redact` first.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from inspect import Signature, signature
from typing import Annotated, Any

import typer

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.clock import Clock, RandomIds, SystemClock
from durable_shuffle.shuffle.base.redact import redact
from durable_shuffle.shuffle.log.layout import preflight_key
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.storage.storage_clock import clock_of, try_and_compare
from durable_shuffle.shuffle.verify.job import JobCopy
from durable_shuffle.shuffle.verify.stage import OnProgress

Url = Annotated[str, typer.Argument(metavar="URL", help="Folder or URL, e.g. s3://bucket/shuffle.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")]
OptionalJob = Annotated[str | None, typer.Argument(metavar="JOB", help="Default: all jobs.")]
_STAGE = "Name, the start of <name>-<fingerprint>, or the whole folder name."
Stage = Annotated[str, typer.Argument(metavar="STAGE", help=_STAGE)]
OptionalStage = Annotated[
    str | None, typer.Argument(metavar="STAGE", help=f"{_STAGE} Default: all stages.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="For the fsspec driver; may be repeated. VALUE is read as JSON where it is JSON.",
    ),
]
StorageOptionsEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Environment variable that holds the options as a JSON object: keeps secrets out of "
        "the list of processes.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]

FAILURE, MISUSE, FENCED = 1, 2, 3
"""Exit codes. FENCED: another coordinator took over, so starting again would fence that one."""

PATIENCE_SECONDS = 15.0
"""How long one call to the storage is retried. It is short because a person waits."""
_ENDS = (typer.Exit, typer.Abort, BrokenPipeError)
"""Exceptions that end a command without an error."""
_TOO_LITTLE_MEMORY = (
    "this process may not take as much memory as the command needs: run it where there is more "
    "(a raised ulimit or container limit), or on less: one partition, fewer rows"
)


class Call:
    """One run of a command. Its parameters are the options that commands share."""

    def __init__(
        self,
        url: Url,
        *,
        as_json: AsJson = False,
        storage_option: StorageOption = None,
        storage_options_env: StorageOptionsEnv = None,
        debug: Debug = False,
    ) -> None:
        self.url, self.as_json, self._debug = url, as_json, debug
        self._pairs, self._env = storage_option or (), storage_options_env

    @cached_property
    def storage(self) -> Storage:
        """The storage that the arguments name."""
        return self.open(self.url)

    def open(self, url: str) -> Storage:
        """Open a storage with the options of this call."""
        return open_storage(url, self.storage_options, call_seconds=PATIENCE_SECONDS)

    def clock(self, job: str, *, writes: bool) -> Clock:
        """Return the clock by which the job's ages are counted: the storage's, as its drivers do.

        Args:
            writes: the command may write. One that only shows asks this machine's clock.
        """
        clock = SystemClock()
        if not writes:
            return clock
        key = preflight_key(job, RandomIds().new_id())
        return clock_of(clock, try_and_compare(self.storage, key, clock))

    @cached_property
    def storage_options(self) -> dict[str, object]:
        """The options for the fsspec driver. They may hold secrets."""
        options = {} if self._env is None else _options_of_environment(self._env)
        return options | dict(_pair(n, text) for n, text in enumerate(self._pairs, 1))

    def emit(self, document: object, text: str) -> None:
        """Write the document with --json, else the text."""
        typer.echo(json.dumps(document, indent=2) if self.as_json else text)

    def note(self, text: str) -> None:
        """Say something that is not the result."""
        typer.echo(text, err=True)

    def warn_of_damage(self, job: JobCopy) -> None:
        """Say that a job's log is damaged: what is shown may not be all."""
        if job.findings:
            self.note(
                f"warning: the log of job {job.job!r} has {len(job.findings)} findings; "
                f"the first: {job.findings[0]}; run `durable-shuffle verify`"
            )

    def fail(self, code: int = FAILURE) -> None:
        """End with an exit code, by default that for findings."""
        raise typer.Exit(code)

    def __enter__(self) -> "Call":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, _ENDS):
            return
        if isinstance(error, DurableShuffleError):
            self._tell(error, error.kind.value, str(error))
        elif isinstance(error, MemoryError):
            self._tell(error, "memory", _TOO_LITTLE_MEMORY)
        else:
            self._tell(error, "internal", f"{type(error).__name__}: {error}")
            if not self._debug:
                self.note("this is a defect of durable-shuffle; --debug shows where")
        raise typer.Exit(MISUSE if isinstance(error, InvalidInputError) else FAILURE) from None

    def _tell(self, error: Exception, kind: str, message: str) -> None:
        if self._debug:
            self.note(self._redacted("".join(traceback.format_exception(error))).rstrip())
        texts = (message, *getattr(error, "__notes__", ()))
        first, *more = (" ".join(self._redacted(text).split()) for text in texts)
        if self.as_json:
            self.emit({"error": {"kind": kind, "message": " ".join([first, *more])}}, "")
        hint = "; run `durable-shuffle verify`" if isinstance(error, CorruptDataError) else ""
        self.note("\n".join([f"error: {kind}: {first}{hint}", *more]))

    def _redacted(self, text: str) -> str:
        try:
            options = self.storage_options
        except InvalidInputError:  # bad options: their texts hold no value of them
            options = {}
        return redact(text, options)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that calls `function` with a `Call`, of which users see the options."""

    def run(**given: Any) -> None:
        with Call(**{name: given.pop(name) for name in signature(Call).parameters}) as call:
            function(call, **given)

    run.__signature__ = signature(Call)  # type: ignore[attr-defined]
    return placed_between(run, function)


def placed_between(run: Callable[..., None], inner: Callable[..., object]) -> Callable[..., None]:
    """Return `run` as Typer shall see it: with the name and text of `inner`, and with its
    parameters but the first between the positional and the named parameters of `run`."""
    outer = [p for p in signature(run).parameters.values() if p.kind is not p.VAR_KEYWORD]
    named = [p for p in outer if p.kind is p.KEYWORD_ONLY]
    own = list(signature(inner).parameters.values())[1:]
    parameters = [*outer[: len(outer) - len(named)], *own, *named]
    run.__name__, run.__doc__ = inner.__name__, inner.__doc__
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


@contextmanager
def progress_bar(label: str) -> Iterator[OnProgress | None]:
    """Show bytes done on standard error if it is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # only where a bar is shown
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Bar(f"{label} ", *columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _pair(number: int, text: str) -> tuple[str, object]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        # the text may be a secret without its key: it is not shown
        raise InvalidInputError(f"--storage-option number {number} is not of the form KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _options_of_environment(name: str) -> dict[str, object]:
    text = os.environ.get(name)
    if text is None:
        raise InvalidInputError(f"--storage-options-env: no such environment variable: {name}")
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise InvalidInputError(f"the environment variable {name} must hold a JSON object")
    return options
