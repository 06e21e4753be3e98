"""Open files in a local folder that others may write to as well.

Strategy: follow no link and never block. A file is opened by its path without following a link in
the last name. Then the kernel is asked for the path of the open file; another path than expected
reveals a link in a folder above. In that case the folders are checked one by one, because the file
may have been deleted since, and not every system can tell a file's path.

A file that was checked once is not checked again while it is the same file. `KnownFiles` keeps its
device, inode and time of the last change, which nobody can give to another file. This halves the
cost of a small read.

A folder under the name of an object is damage too. If it counted as absent, its log would look
shorter than it is, and the object could not be created either.

Not guaranteed: protection against anyone who can write to the root folder itself or above it.
"""

import errno
import os
import stat
from pathlib import Path

from durable_shuffle.serialization.errors import CorruptDataError

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})
"""The errors of opening a link, a socket, or a device without a driver."""


KnownFiles = dict[str, tuple[int, int, int]]
"""By key: device, inode and time of the last change (ns) of files that passed the check."""

_MOST_KNOWN = 4096


def open_object(root: str, key: str, known: KnownFiles) -> tuple[int, int]:
    """Return a descriptor for reading an object, and its size in bytes. The caller closes it.

    Args:
        known: the files of this root that passed the check before; new ones are added.

    Raises:
        CorruptDataError: the key names a link, a folder or a special file, or a folder above it is
            a link.
        OSError: as from `os.open`.
    """
    path = f"{root}/{key}"
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise not_an_object(root, key) from error
        raise
    try:
        return descriptor, _checked_size(descriptor, root, key, known)
    except BaseException:
        os.close(descriptor)
        raise


def open_folder(root: str, folder: str) -> int:
    """Return a descriptor of a folder below the root ("" is the root). The caller closes it.

    Raises:
        CorruptDataError: the folder or one above it is a link.
        OSError: as from `os.open`; FileNotFoundError and NotADirectoryError mean that there is no
            such folder.
    """
    path = f"{root}/{folder}" if folder else root
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
    except (NotADirectoryError, FileNotFoundError):
        refuse_links(root, folder)
        raise
    except OSError as error:
        if error.errno in _NO_FILE:
            raise not_an_object(root, folder) from error
        raise
    try:
        _check_place(descriptor, root, folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def refuse_links(root: str, key: str) -> None:
    """Raise CorruptDataError if `key` or a folder between it and the root is a link."""
    path, above = Path(root, key), Path(root)
    while path != above:
        if path.is_symlink():
            raise not_an_object(root, path.relative_to(above).as_posix())
        path = path.parent


def _checked_size(descriptor: int, root: str, key: str, known: KnownFiles) -> int:
    status = os.fstat(descriptor)
    file = (status.st_dev, status.st_ino, status.st_ctime_ns)
    if known.get(key) == file:
        return status.st_size
    if not stat.S_ISREG(status.st_mode):
        raise not_an_object(root, key)
    _check_place(descriptor, root, key)
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[key] = file
    return status.st_size


def _check_place(descriptor: int, root: str, key: str) -> None:
    try:
        actual = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a Path costs more
    except OSError:  # this system has no /proc
        actual = ""
    if actual != (f"{root}/{key}" if key else root):
        refuse_links(root, key)


def not_an_object(root: str, key: str) -> CorruptDataError:
    """Return the error for something other than an object that has an object's name."""
    return CorruptDataError(
        f"file:{root}: {key} is a link, a folder or a special file: objects are regular files in "
        f"folders below the root; nothing is read, written or deleted through it: remove it, run "
        f"verify"
    )
