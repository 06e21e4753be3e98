"""The folder in which a driver keeps the archive of this package while its application runs.

Executors may ask the driver for the file at any time, so it goes with the process. If the process
is killed, the next driver on this machine removes its folder. A lock tells that a folder has an
owner: the kernel gives it up with the process, also in another container that shares the folder
above. It must not touch a folder that holds no lock file.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from durable_shuffle.shuffle.base.clock import SystemClock

_PREFIX = "durable-shuffle-"
_LOCK = "owner"
_YOUNG_SECONDS = 3600.0
"""A folder that was made just now may have no lock yet."""

_mine: dict[int, tuple[Path, int]] = {}
"""Process id -> its folder, and the descriptor that holds the lock."""


def archive_folder() -> Path:
    """Return this process's folder; the first call makes it, and removes those of dead ones."""
    process = os.getpid()
    if process not in _mine:
        remove_left_folders(Path(tempfile.gettempdir()), SystemClock().wall())
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _mine[process] = folder, lock
        atexit.register(_remove, process)
    return _mine[process][0]


def remove_left_folders(above: Path, now: float) -> None:
    """Remove the folders of processes that are gone. Failures are left to the next driver."""
    for folder in above.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if (
                folder.stat().st_uid == os.getuid()
                and folder.stat().st_mtime < now - _YOUNG_SECONDS
            ):
                _remove_unowned(folder)


def _remove_unowned(folder: Path) -> None:
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its owner lives
        shutil.rmtree(folder)
    finally:
        os.close(lock)


def _remove(process: int) -> None:
    if process == os.getpid():  # a forked process ends without its parent
        folder, lock = _mine.pop(process)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
