"""What every command does around its own work: storage options, output, errors, exit codes.

Strategy: a command runs inside `with Call(...) as call`; what it raises becomes one line on
standard error, one more for each note that the error carries (with `--json` also a document on
standard output) and an exit code. Whatever is written about an error passes `redact` first,
tracebacks too.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType

import typer

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.redact import redact
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.verify.job import JobCopy
from durable_shuffle.shuffle.verify.stage import Progress

FAILURE, MISUSE = 1, 2

PATIENCE_SECONDS = 15.0
"""How long one call to the storage is tried again: somebody waits for the answer."""


_TOO_LITTLE_MEMORY = (
    "this process may not take as much memory as the command needs: run it where there is more "
    "(a raised ulimit or container limit), or on less: one partition, fewer rows"
)


class Call:
    """One run of a command."""

    def __init__(
        self,
        url: str = "",
        storage_option: Sequence[str] | None = None,
        storage_options_env: str | None = None,
        *,
        as_json: bool,
        debug: bool,
    ) -> None:
        self._url, self._pairs, self._env = url, storage_option or (), storage_options_env
        self._debug = debug
        self.as_json = as_json

    @cached_property
    def storage(self) -> Storage:
        """The storage that the arguments name."""
        return open_storage(self._url, self._options, call_seconds=PATIENCE_SECONDS)

    @property
    def storage_options(self) -> dict[str, object]:
        """The options for the fsspec driver. They may hold secrets."""
        return self._options

    @cached_property
    def _options(self) -> dict[str, object]:
        options = {} if self._env is None else _options_of_environment(self._env)
        return options | dict(_pair(n, text) for n, text in enumerate(self._pairs, 1))

    def emit(self, document: object, text: str) -> None:
        """Write the one or the other, as asked for."""
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

    def fail(self) -> None:
        """End with the exit code for findings."""
        raise typer.Exit(FAILURE)

    def __enter__(self) -> "Call":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, DurableShuffleError):
            self._tell(error, error.kind.value, str(error))
            raise typer.Exit(MISUSE if isinstance(error, InvalidInputError) else FAILURE) from None
        if isinstance(error, MemoryError):
            self._tell(error, "memory", _TOO_LITTLE_MEMORY)
            raise typer.Exit(FAILURE) from None
        ours = isinstance(error, typer.Exit | typer.Abort | BrokenPipeError)
        if isinstance(error, Exception) and not ours:
            self._tell(error, "internal", f"{type(error).__name__}: {error}")
            if not self._debug:
                self.note("this is a defect of durable-shuffle; --debug shows where")
            raise typer.Exit(FAILURE) from None

    def _tell(self, error: Exception, kind: str, message: str) -> None:
        if self._debug:
            self.note(self._redacted("".join(traceback.format_exception(error))).rstrip())
        lines = [
            " ".join(self._redacted(text).split())
            for text in (message, *getattr(error, "__notes__", ()))
        ]
        if self.as_json:
            self.emit({"error": {"kind": kind, "message": " ".join(lines)}}, "")
        hint = "; run `durable-shuffle verify`" if isinstance(error, CorruptDataError) else ""
        self.note("\n".join([f"error: {kind}: {lines[0]}{hint}", *lines[1:]]))

    def _redacted(self, text: str) -> str:
        try:
            options = self._options
        except InvalidInputError:  # bad options: their texts hold no value of them
            options = {}
        return redact(text, options)


@contextmanager
def progress_bar(label: str) -> Iterator[Progress | None]:
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
