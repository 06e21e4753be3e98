"""Opening files of a local folder that somebody else may write to, too.

Strategy: nothing is followed and nothing is waited for. A file is opened by its path without
following a link in the last name; then the kernel is asked where the open file stands, which tells
a link in any folder above. Only if that is not the path, the folders are looked at one by one: the
file may have been deleted since, and not every system says where a file stands.

A file that was seen in its place needs no second look while it is the same file: `KnownFiles` keeps
device, inode and time of the last change, which nobody can give to another file. That halves what
a small read costs.

A folder under the name of an object is damage, too: whoever took it for nothing at all would find
a log shorter than it is, and could not create the object either.

Not guaranteed: anything about who can write to the root itself, or to the folders above it.
"""

import errno
import os
import stat
from pathlib import Path

from durable_shuffle.serialization.errors import CorruptDataError

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})
"""What opening a link, a socket or a device without a driver gives."""


KnownFiles = dict[str, tuple[int, int, int]]
"""By key: device, inode and time of the last change of files that stood in their place."""

_MOST_KNOWN = 4096


def open_object(root: str, key: str, known: KnownFiles) -> tuple[int, int]:
    """Return a descriptor of an object for reading and its size; the caller closes it.

    Args:
        known: of this root; files that are found in their place are added.

    Raises:
        CorruptDataError: a link, a folder or another special file; or a folder above it is a link.
        OSError: as `os.open`.
    """
    path = f"{root}/{key}"
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _strange(root, key) from error
        raise
    try:
        return descriptor, _checked_size(descriptor, root, key, known)
    except BaseException:
        os.close(descriptor)
        raise


def open_folder(root: str, folder: str) -> int:
    """Return a descriptor of a folder below the root ("" is the root); the caller closes it.

    Raises:
        CorruptDataError: it is a link, or one above it is.
        OSError: as `os.open`; FileNotFoundError and NotADirectoryError say that nothing is there.
    """
    path = f"{root}/{folder}" if folder else root
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
    except (NotADirectoryError, FileNotFoundError):
        refuse_links(root, folder)
        raise
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _strange(root, folder) from error
        raise
    try:
        _check_place(descriptor, root, folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def refuse_links(root: str, key: str) -> None:
    """Raise CorruptDataError if `key` or a folder between it and the root is a link."""
    at, above = Path(root, key), Path(root)
    while at != above:
        if at.is_symlink():
            raise _strange(root, at.relative_to(above).as_posix())
        at = at.parent


def _checked_size(descriptor: int, root: str, key: str, known: KnownFiles) -> int:
    status = os.fstat(descriptor)
    file = (status.st_dev, status.st_ino, status.st_ctime_ns)
    if known.get(key) == file:
        return status.st_size
    if not stat.S_ISREG(status.st_mode):
        raise _strange(root, key)
    _check_place(descriptor, root, key)
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[key] = file
    return status.st_size


def _check_place(descriptor: int, root: str, key: str) -> None:
    try:
        found = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a Path costs more
    except OSError:  # no such file system here
        found = ""
    if found != (f"{root}/{key}" if key else root):
        refuse_links(root, key)


def _strange(root: str, key: str) -> CorruptDataError:
    return CorruptDataError(
        f"file:{root}: {key} is a link, a folder or a special file: objects are regular files in "
        f"folders below the root; nothing is read, written or deleted through it: remove it, run "
        f"verify"
    )
