"""The user's modules: workers must run those that the driver identified.

The driver sends the SHA-256 of each module's source. The worker compares it with the file of its
own module. That file must not have changed since the worker started, or the worker may still run
the old code. Spark's Python UDFs run in workers without our tasks; there the check is part of the
function's pickled command, and so is a watch on what the function opens outside (`told`).

Spark reuses Python workers that have the same environment variables, and a worker keeps a module as
it was first imported. So when a module changes, or a value that it computed at import, `note_code`
sets an environment variable for all later functions, and counts it up at each further change. Spark
then starts workers that import the modules again.
"""

import hashlib
import importlib.util
import os
import pickle
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from durable_shuffle.serialization.errors import IncompatibleError
from durable_shuffle.shuffle.base.clock import SystemClock

if TYPE_CHECKING:  # not needed in workers
    from durable_shuffle.jobs.identity.functions.identity import FunctionIdentity

CHECKED = "durableShuffle.checkUserCode"
"""Spark local property that is set for jobs whose rows are stored."""
_NANOSECONDS = 10**9
VARIABLE = "DURABLE_SHUFFLE_CODE"
_MILLISECOND = 10**6
_LOCK = threading.Lock()


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
        actual = _digest_of(name, spec.origin, changed_ns(spec))
        if actual != digest:
            raise IncompatibleError(
                f"module {name} differs between the driver and this Python worker: "
                f"file={spec.origin!r} expected=sha256 {digest[:12]} "
                f"found={f'sha256 {actual[:12]}' if actual else 'no source'}. Send the workers the "
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


def checked_command(
    command: bytes, expected: Mapping[str, str], ear: int | None, code: Sequence[str]
) -> bytes:
    """Return a pickled command that first checks the worker's modules, then yields the function.

    Args:
        ear: as for `told.listen`, and so is `code`; None to look away.
    """
    return pickle.dumps(_Checked((plain_command(command), dict(expected), ear, tuple(code))))


def plain_command(command: bytes) -> bytes:
    """Return the command as PySpark made it."""
    try:
        plain = _Peek(BytesIO(command)).load()
    except _NotOursError:
        return command
    return plain if isinstance(plain, bytes) else command


def opened(
    command: bytes, expected: dict[str, str], ear: int | None = None, code: Sequence[str] = ()
) -> object:
    """Return the function of a checked command, after the check; called by the unpickler."""
    from pyspark import TaskContext
    from pyspark.serializers import CPickleSerializer

    from durable_shuffle.jobs.identity.functions.told import listen
    from durable_shuffle.jobs.spark_versions import broadcasts

    _started_ns()
    loads = cast("Any", CPickleSerializer()).loads
    function = loads(command)
    if isinstance(function, broadcasts.Broadcast):  # functions over 1 MB travel as a broadcast
        function = loads(function.value)
    context = TaskContext.get()
    if context is not None and context.getLocalProperty(CHECKED):
        check_modules(expected)
    if context is not None and ear is not None:
        listen(ear, code)
    return function


class _Checked:
    def __init__(self, parts: tuple[bytes, dict[str, str], int | None, tuple[str, ...]]) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return opened, self._parts


class _NotOursError(Exception):
    """The command is PySpark's own, without a check."""


class _Peek(pickle.Unpickler):
    """Stops at the first name in a pickle that is not ours, before any other code in it runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != (opened.__module__, opened.__name__):
            raise _NotOursError
        return lambda command, *_: command


def spec_of(name: str) -> ModuleSpec | None:
    """Return the module's spec without importing it or its parents; None if there is no module."""
    loaded = getattr(sys.modules.get(name), "__spec__", None)
    if isinstance(loaded, ModuleSpec):
        return loaded
    parent, _, _ = name.rpartition(".")
    try:
        if not parent:
            return importlib.util.find_spec(name)
        above = spec_of(parent)
        if above is None or above.submodule_search_locations is None:
            return None
        return PathFinder.find_spec(name, list(above.submodule_search_locations))
    except (ImportError, ValueError):
        return None


def source_of(spec: ModuleSpec) -> bytes | None:
    """Return the content of the module's file (source, bytecode or extension), or None."""
    if spec.origin is None:
        return None
    try:
        return Path(spec.origin).read_bytes()
    except OSError:
        get_data = getattr(spec.loader, "get_data", None)  # a module inside a zip file
    try:
        content = get_data(spec.origin) if get_data is not None else None
    except OSError:
        return None
    return content if isinstance(content, bytes) else None


def changed_ns(spec: ModuleSpec) -> int:
    """Return when the module's file, or the archive that holds it, last changed, in ns since 1970.

    This is the inode change time (ctime), because copying and unpacking can set the modification
    time back. 0 if there is no such file.
    """
    if spec.origin is None:
        return 0
    path = Path(spec.origin)
    for place in (path, *path.parents):
        if place.is_file():
            return place.stat().st_ctime_ns
    return 0


def sha256_of(source: bytes) -> str:
    """Return the SHA-256 as 64 hex digits."""
    return hashlib.sha256(source).hexdigest()


class _Seen:
    """The user's code as this application last saw it."""

    def __init__(self) -> None:
        self.state: dict[str, object] = {}
        self.changes = 0


@cache
def _seen(application: str) -> _Seen:
    del application  # the cache key
    return _Seen()


def environment_of(variables: Mapping[str, str]) -> str:
    """Return the variables that Spark sends to workers as one str, without our own variable."""
    return repr(sorted((name, value) for name, value in variables.items() if name != VARIABLE))


def note_code(context: Any, identity: "FunctionIdentity") -> None:
    """Compare code with its last use in this application; if it changed, get new workers.

    Args:
        context: the SparkContext; functions that are made later take over its `environment`.
    """
    started = context.startTime * _MILLISECOND
    with _LOCK:
        seen = _seen(str(context.applicationId))
        changed = False
        for name, digest in identity.modules.items():
            spec = spec_of(name)
            now = (digest, 0 if spec is None else changed_ns(spec))
            # if a file is younger than the application, workers may have imported an older state
            changed |= seen.state.get(name, now) != now
            changed |= name not in seen.state and now[1] > started
            seen.state[name] = now
        for name, value in identity.values.items():
            changed |= seen.state.get(f"{name} value", value) != value
            seen.state[f"{name} value"] = value
        if changed:
            seen.changes += 1
            context.environment[VARIABLE] = str(seen.changes)
