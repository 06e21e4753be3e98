"""Sees what user functions open outside of their arguments: files, folders, libraries, services.

Strategy: one audit hook per process (Python can install hooks, not remove them), which looks away
unless a `Watch` is active. An event counts if a user function caused it: on the stack, the nearest
frame of this library is not one of its own I/O. In other threads, code that is not installed has to
be on the stack: storage libraries have threads, too. So nothing is switched per row or per batch.
Python pays about 1 µs for each event that it raises; code that is known to raise many (`id()`,
`copy.deepcopy`) is better not watched.

Not counted: what an import reads, as the values that modules hold count; code, and all files of
Python's own folders, which versions identify; rules of time zones, which count where code asks for
them; what is only written, and what the same process has created; the files of Spark and of this
library; what methods of an object with `durable_identity()` open, which stands for it.

Not seen: what native code opens by itself, without Python (Arrow's C++ readers, DuckDB). For such
names see `jobs/identity/functions/outside_reads.py`. Nor what runs in another process, which counts
as a whole, or what an installed package reads in a thread of its own.
"""

import os
import sys
import sysconfig
import threading
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from durable_shuffle.shuffle.base.redact import redact

_PACKAGE = "durable_shuffle."
_OWN = (
    "durable_shuffle.shuffle.storage.",
    "durable_shuffle.shuffle.rows.external_sort",
    "durable_shuffle.jobs.deploy.",
    "durable_shuffle.jobs.identity.",
)
"""Modules of this library that open files by themselves, not for a function that they call."""
_CARRIER = "pyspark."
"""Opens broadcast variables and spill files for user functions."""
_IMPORT, _LOADS = "importlib._bootstrap", "_find_and_load"
"""The function of the import system below which modules are found and run."""
_CODE = (".py", ".pyc", ".pyi", ".so", ".pyd", ".dylib", ".egg", ".whl")
_NOTHING = ("/dev/null", "/dev/stdout", "/dev/stderr")
_MOST = 8
_UNNAMED = getattr(os, "O_TMPFILE", 0) or -1
_lock = threading.Lock()
_active: list["Watch"] = []


class Watch:
    """What was opened outside since it began."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self.made: set[str] = set()
        """Files and folders that this process has created."""
        self.thread = threading.get_ident()

    def event(self, name: str, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
        """Note an event if a user function caused it."""
        if len(self.found) < _MOST:
            text = _EVENTS[name](self, arguments)
            if text is not None and self._is_users(frame):
                self.found.setdefault(redact(text))

    def _is_users(self, frame: FrameType | None) -> bool:
        """Return whether the event on this stack is a user function's doing."""
        users = threading.get_ident() == self.thread
        inner = True
        while frame is not None:
            name = str(frame.f_globals.get("__name__", ""))
            if frame.f_code.co_name == _LOADS and name.startswith(_IMPORT):
                return False
            if name.startswith(_PACKAGE):
                return not name.startswith(_OWN)
            if _is_vouched_for(frame):
                return False
            if name.partition(".")[0] not in sys.stdlib_module_names:
                if inner and name.startswith(_CARRIER):
                    return False
                inner = False
                users = users or not frame.f_code.co_filename.startswith(_folders())
            frame = frame.f_back
        return users


def _is_vouched_for(frame: FrameType) -> bool:
    """Return whether this is a method of an object that gives its identity itself."""
    code = frame.f_code
    if not code.co_argcount:
        return False
    bases = type(frame.f_locals.get(code.co_varnames[0])).__mro__
    if not any("durable_identity" in vars(base) for base in bases):
        return False
    return any(getattr(vars(base).get(code.co_name), "__code__", None) is code for base in bases)


@contextmanager
def watching() -> Iterator[Watch]:
    """Watch what user functions open while the block runs, in this thread and those they start."""
    watch = begin_watch()
    try:
        yield watch
    finally:
        end_watch(watch)


def begin_watch() -> Watch:
    """Begin a watch that lasts until `end_watch`."""
    _install()
    watch = Watch()
    with _lock:
        _active.append(watch)
    return watch


def end_watch(watch: Watch) -> None:
    """End a watch; a second call does nothing."""
    with _lock:
        if watch in _active:
            _active.remove(watch)


@cache
def _install() -> None:
    known = frozenset(_EVENTS)

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        if name in known:  # nothing else here: some events come by the million
            _tell(name, arguments, sys._getframe(1))  # noqa: SLF001

    sys.addaudithook(hook)


def _tell(name: str, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
    """Tell the watches of an event; never raise, or what caused the event would fail."""
    me = threading.get_ident()
    watches = tuple(_active)
    for watch in [one for one in watches if one.thread == me] or watches:
        try:
            watch.event(name, arguments, frame)
        except Exception:  # noqa: BLE001 - arguments are the user's objects
            watch.found.setdefault(f"what an event {name} stands for")


def _opened(watch: Watch, arguments: tuple[Any, ...]) -> str | None:
    """Return the path of an opened file, unless its content does not come from outside."""
    path, mode, flags = arguments
    place = _place(path)
    if place is None or flags & _UNNAMED == _UNNAMED:
        return None
    writes = isinstance(mode, str) and mode[:1] != "r" and "+" not in mode
    created = flags & os.O_CREAT and flags & os.O_EXCL and not os.path.lexists(place)
    emptied = flags & os.O_TRUNC or (isinstance(mode, str) and mode[:1] == "w")
    if (created or emptied) and not Path(place).is_dir():
        watch.made.add(place)
    if writes or flags & os.O_ACCMODE == os.O_WRONLY or Path(place).is_dir():
        return None  # a folder is opened to be passed on, or for an unnamed file in it
    return None if place in watch.made or _is_known(place) else place


def _listed(watch: Watch, arguments: tuple[Any, ...]) -> str | None:
    place = _place("." if not arguments or arguments[0] is None else arguments[0])
    return None if place is None or place in watch.made or _is_known(place) else place


def _made(watch: Watch, arguments: tuple[Any, ...]) -> str | None:
    place = _place(arguments[0])
    if place is not None and not os.path.lexists(place):
        watch.made.add(place)
    return None


def _library(watch: Watch, arguments: tuple[Any, ...]) -> str | None:
    del watch
    name = arguments[0] if arguments else None
    if name is None:  # the process itself
        return None
    text = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else str(name)
    known = os.sep in text and _is_known(_absolute(text))
    return None if known else f"the library {text}"


def _database(watch: Watch, arguments: tuple[Any, ...]) -> str | None:
    if arguments[0] in (":memory:", b":memory:", ""):
        return None
    place = _place(arguments[0])
    return None if place is None or place in watch.made else place


def _names(what: str, at: int) -> Callable[[Watch, tuple[Any, ...]], str]:
    """Return what makes a text of one argument of an event."""

    def text(watch: Watch, arguments: tuple[Any, ...]) -> str:
        del watch
        value = arguments[at] if len(arguments) > at else ""
        if isinstance(value, bytes):
            value = os.fsdecode(value)
        if isinstance(value, str) and "://" not in value:
            value = value.rpartition("@")[2]  # a host may come with a user and a password
        return f"{what} {value}".strip()

    return text


_EVENTS: Mapping[str, Callable[[Watch, tuple[Any, ...]], str | None]] = {
    "open": _opened,
    "os.listdir": _listed,
    "os.scandir": _listed,
    "os.mkdir": _made,
    "ctypes.dlopen": _library,
    "sqlite3.connect": _database,
    "subprocess.Popen": _names("the program", 0),
    "os.system": _names("a command", 9),
    "os.exec": _names("the program", 0),
    "os.posix_spawn": _names("the program", 0),
    "os.spawn": _names("the program", 1),
    "os.fork": _names("another process", 0),
    "os.forkpty": _names("another process", 0),
    "socket.connect": _names("the service", 1),
    "socket.sendto": _names("the service", 1),
    "socket.getaddrinfo": _names("the host", 0),
    "socket.gethostbyname": _names("the host", 0),
    "socket.gethostbyaddr": _names("the host", 0),
    "socket.gethostname": _names("the name of this host", 9),
    "urllib.Request": _names("the address", 0),
}
"""Audit event -> what makes a text of its arguments; None if the event does not count."""


def _place(path: object) -> str | None:
    """Return an absolute path; None for a file descriptor, whose opening was an event."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    return _absolute(os.fsdecode(path))


def _absolute(path: str) -> str:
    return os.path.normpath(Path(path).absolute())


def _is_known(place: str) -> bool:
    """Return whether the identity of code stands for the content of this file or folder."""
    if place in _NOTHING or place.startswith(_folders()) or place in sys.path:
        return True
    return place.endswith(_CODE) and place.startswith(
        tuple(_absolute(entry) + os.sep for entry in sys.path)
    )


@cache
def _folders() -> tuple[str, ...]:
    """Return Python's own folders, those of installed packages and those of zones."""
    paths = sysconfig.get_paths()
    known = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    sites = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    both = {*known, *sites, *zoneinfo.TZPATH}
    both |= {os.path.realpath(path) for path in both}
    return tuple(_absolute(path) + os.sep for path in sorted(both))
