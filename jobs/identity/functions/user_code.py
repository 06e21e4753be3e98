"""Checks that a Python worker runs the modules that the driver identified.

The driver sends the SHA-256 of each module's source. The worker compares it with the file of its
own module. That file must not have changed since the worker started, or the worker may still run
the old code. Spark's Python UDFs run in workers without our tasks; there the check is part of the
function's pickled command.
"""

import os
import pickle
import sys
import time
from collections.abc import Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, cast

from durable_shuffle.jobs.identity.functions.module_files import (
    changed_ns,
    sha256_of,
    source_of,
    spec_of,
)
from durable_shuffle.serialization.errors import IncompatibleError
from durable_shuffle.shuffle.base.clock import SystemClock

CHECKED = "durableShuffle.checkUserCode"
"""Spark local property that is set for jobs whose rows are stored."""
_NANOSECONDS = 10**9


def check_modules(expected: Mapping[str, str]) -> None:
    """Refuse to continue if a module of this worker differs from the driver's.

    Args:
        expected: module name -> SHA-256 of its source on the driver. A module that does not exist
            here is ignored; code that needs it fails by itself.

    Raises:
        IncompatibleError: a module differs, has no file, or changed after this worker started.
    """
    for name, digest in expected.items():
        spec = spec_of(name)
        if spec is None or spec.origin is None:
            if name in sys.modules:
                raise IncompatibleError(
                    f"module {name} is loaded in this Python worker without a file, on the driver "
                    "it has one: send the workers the file itself (py-files, archives)"
                )
            continue
        found = _digest_of(name, spec.origin, changed_ns(spec))
        if found != digest:
            raise IncompatibleError(
                f"module {name} differs between the driver and this Python worker: "
                f"file={spec.origin!r} expected=sha256 {digest[:12]} "
                f"found={f'sha256 {found[:12]}' if found else 'no source'}. Send the workers the "
                "driver's files (py-files, archives, the same environment) and run again"
            )
        if name in sys.modules and changed_ns(spec) > _started_ns():
            raise IncompatibleError(
                f"module {name} was changed after this Python worker had started, which may still "
                f"hold the old one: file={spec.origin!r}. Run again; if that does not help, start "
                "a new Spark application"
            )


@cache
def _digest_of(name: str, origin: str, changed: int) -> str | None:
    """Return the SHA-256 of the module's current file; a new `changed` bypasses the cache."""
    del origin, changed
    spec = spec_of(name)
    source = None if spec is None else source_of(spec)
    return None if source is None else sha256_of(source)


def _start_by_kernel() -> int | None:
    """Return when this process started, in ns since 1970; None if the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return int((SystemClock().wall() - seconds) * _NANOSECONDS)


@cache
def _started_ns() -> int:
    """Return when this process started, in ns since 1970.

    If the system does not tell, return the time of the first call.
    """
    by_kernel = _start_by_kernel()
    return int(SystemClock().wall() * _NANOSECONDS) if by_kernel is None else by_kernel


def checked_command(command: bytes, expected: Mapping[str, str]) -> bytes:
    """Return a pickled command that first checks the worker's modules, then yields the function."""
    return pickle.dumps(_Checked(plain_command(command), dict(expected)))


def plain_command(command: bytes) -> bytes:
    """Return the command as PySpark made it."""
    try:
        found = _Peek(BytesIO(command)).load()
    except _NotOursError:
        return command
    return found if isinstance(found, bytes) else command


def opened(command: bytes, expected: dict[str, str]) -> object:
    """Return the function of a checked command, after the check; called by the unpickler."""
    from pyspark import TaskContext
    from pyspark.core.broadcast import Broadcast
    from pyspark.serializers import CPickleSerializer

    _started_ns()
    loads = cast("Any", CPickleSerializer()).loads
    found = loads(command)
    if isinstance(found, Broadcast):  # functions over 1 MB travel as a broadcast
        found = loads(found.value)
    context = TaskContext.get()
    if context is not None and context.getLocalProperty(CHECKED):
        check_modules(expected)
    return found


class _Checked:
    def __init__(self, command: bytes, expected: dict[str, str]) -> None:
        self._parts = (command, expected)

    def __reduce__(self) -> tuple[Any, ...]:
        return opened, self._parts


class _NotOursError(Exception):
    """The command is PySpark's own, without a check."""


class _Peek(pickle.Unpickler):
    """Stops at the first name in a pickle that is not ours, before any other code in it runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != (opened.__module__, opened.__name__):
            raise _NotOursError
        return lambda command, _: command
