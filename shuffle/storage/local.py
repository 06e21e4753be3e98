"""Storage in a folder of a local or shared file system, with plain `os` calls.

Strategy: write an object under a hidden name in its final folder, sync it, and give it its real
name by a hard link. Making a hard link fails if the name is taken, and the name appears with the
whole file; this is the exclusive create. A file system without hard links is refused.

Symbolic links and special files below the root are refused (`local_files`). `list` shows them under
their names, so that a reader of the listing learns of them, and `delete` removes them.

It must not overwrite, rename onto, or truncate an object, and must not map one into memory: a bad
sector makes a read fail with an error, but kills a process that touches a mapping.
A process killed while it writes leaves a hidden file behind, which no reader and no listing shows.
"""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import IdSource, RandomIds
from durable_shuffle.shuffle.storage.contract import (
    MOST_BYTES,
    ByteRange,
    Bytes,
    Created,
    Exists,
    ObjectInfo,
    Storage,
    TooLongError,
    backend_of,
    check_key,
    check_prefix,
    check_range,
    check_temporary,
    is_temporary,
    temporary_name,
    too_long,
    too_short,
)
from durable_shuffle.shuffle.storage.errors import Place, storage_errors
from durable_shuffle.shuffle.storage.local_files import (
    KnownFiles,
    not_an_object,
    open_folder,
    open_object,
    refuse_links,
)

_HIDDEN = "."
"""First character of temporary names. No part of a key starts with it."""

_SLOT = re.compile(r"\d{10}")
"""The name of a slot. An empty folder with such a name is not ours."""

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})

_WRITE_BUFFER_BYTES = 256 * 1024
"""Small parts (frame headers) are joined into one write; larger parts are not copied."""


def is_far(storage: Storage) -> bool:
    """Return whether a request takes long: the storage is no folder."""
    return not isinstance(backend_of(storage), LocalStorage)


class LocalStorage:
    """Objects as files below `root`. See `contract.Storage` for the contract."""

    own_create = True
    """See `exclusive_create.prove_create`."""

    def __init__(self, root: str | os.PathLike[str], *, ids: IdSource | None = None) -> None:
        """Bind to the folder `root`, which the first write creates.

        Relative paths and links in `root` are resolved now, so that a process with another working
        folder uses the same place.
        """
        self._root = Path(root).expanduser().resolve()
        self._folder = str(self._root).rstrip("/")
        self._ids = RandomIds() if ids is None else ids
        self._place = Place(f"file:{self._root}")
        self._synced_folders: set[Path] = set()
        self._known: KnownFiles = {}

    @property
    def description(self) -> str:
        return self._place.root

    @property
    def folder(self) -> str:
        """The absolute path of the root."""
        return str(self._root)

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        check_key(key)
        with storage_errors(self._place, "read", key, write=False):
            descriptor, size_bytes = open_object(self._folder, key, self._known)
            try:
                if size_bytes > most_bytes:
                    raise too_long(self.description, key, size_bytes, most_bytes)
                parts = []
                while size_bytes and (part := os.read(descriptor, size_bytes)):
                    parts.append(part)
                    size_bytes -= len(part)
                return parts[0] if len(parts) == 1 else b"".join(parts)
            finally:
                os.close(descriptor)

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        if key not in self._known or start < 0 or length < 0:  # a known key is valid
            check_range(key, start, length)
        with storage_errors(self._place, "read", key, write=False):
            descriptor, size_bytes = open_object(self._folder, key, self._known)
            try:
                if start + length > size_bytes:
                    raise too_short(self.description, key, size_bytes, start + length)
                view, found = _read_at(descriptor, start, length)
            finally:
                os.close(descriptor)
        if found != length:
            raise CorruptDataError(
                f"{self.description}: object {key} shrank while it was read, expected "
                f"{length} bytes from {start}, found {found}"
            )
        return view

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return [self.read_range(r.key, r.start, r.length) for r in ranges]

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        check_key(key)
        if not self._create(key, parts) and not self._holds(key, parts):
            raise ConflictError(f"{self.description}: object {key} exists already")

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        check_key(key)
        if self._create(key, (data,)):
            return Created()
        return Exists(self._existing(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with storage_errors(self._place, "list", prefix, write=False):
            refuse_links(self._folder, prefix)
            yield from _walk(self._root / prefix, prefix)

    def folders(self, prefix: str) -> tuple[str, ...]:
        """See `contract.folders_of`."""
        check_prefix(prefix)
        with storage_errors(self._place, "list", prefix, write=False):
            refuse_links(self._folder, prefix)
            with suppress(FileNotFoundError), os.scandir(self._root / prefix) as entries:
                found = (e.name for e in entries if e.is_dir(follow_symlinks=False))
                return tuple(sorted(name for name in found if not name.startswith(_HIDDEN)))
        return ()

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        self._unlink(keys)

    def remove_empty_folders(self, prefix: str) -> None:
        """Remove the folders at and below `prefix` that hold nothing.

        Only for prefixes that nobody uses again: a folder that is made again at the same time may
        not be durable. What cannot be removed stays.
        """
        check_prefix(prefix)
        with storage_errors(self._place, "delete", prefix, write=True):
            refuse_links(self._folder, prefix)
            for folder, _, _ in os.walk(self._root / prefix, topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()

    def temporary_files(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the hidden files below `prefix` of writers that are at work or were killed.

        Their keys name no object; pass them to `delete_temporary` only.
        """
        check_prefix(prefix)
        with storage_errors(self._place, "list", prefix, write=False):
            refuse_links(self._folder, prefix)
            yield from _walk(self._root / prefix, prefix, temporary=True)

    def delete_temporary(self, keys: Sequence[str]) -> None:
        """Delete hidden files that `temporary_files` listed; a missing file is fine.

        If its writer is still at work, that write fails and leaves nothing behind.

        Raises:
            InvalidInputError: a key is not the name of a temporary file.
        """
        check_temporary(keys)
        self._unlink(keys)

    def __reduce__(self) -> tuple[type["LocalStorage"], tuple[str]]:
        return LocalStorage, (str(self._root),)

    def _unlink(self, keys: Sequence[str]) -> None:
        """Remove each name relative to its open folder, so that no link redirects the removal."""
        for key in keys:
            folder, _, name = key.rpartition("/")
            with (
                storage_errors(self._place, "delete", key, write=True),
                suppress(FileNotFoundError, NotADirectoryError),
            ):
                descriptor = open_folder(self._folder, folder)
                try:
                    _remove(name, descriptor)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise
                    raise not_an_object(self._folder, key) from error
                finally:
                    os.close(descriptor)

    def _create(self, key: str, parts: Sequence[Bytes]) -> bool:
        """Make the object durable under its name; return False if the name is taken."""
        path = self._root / key
        with storage_errors(self._place, "create", key, write=True):
            self._make_folder(path.parent)
            hidden = path.parent / temporary_name(self._ids.new_id())
            try:
                descriptor = self._open_new(hidden)
                with os.fdopen(descriptor, "wb", buffering=_WRITE_BUFFER_BYTES) as file:
                    for part in parts:
                        file.write(part)
                    file.flush()
                    os.fsync(descriptor)
                created = self._link(hidden, path)
            finally:
                with suppress(OSError):
                    hidden.unlink()
            # Sync even if another writer won: its object must survive a power failure once read.
            self._sync_after_link(path)
        return created

    def _holds(self, key: str, parts: Sequence[Bytes]) -> bool:
        """Return whether the object that blocked a create has this content."""
        wanted = b"".join(parts)
        with suppress(TooLongError):
            return self._existing(key, len(wanted)) == wanted
        return False

    def _existing(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        """Return the content of the object that blocked a create."""
        try:
            return self.read(key, most_bytes)
        except NotFoundError as gone:  # deleted since, or NFS does not show another host's file yet
            raise UnavailableError(f"{gone}; it stood in the way of a create before") from gone

    def _sync_after_link(self, path: Path) -> None:
        try:
            _sync_folder(path.parent)
        except OSError as error:
            # the name exists already, so this must not look like a write that left nothing behind
            raise OutcomeUnknownError(
                f"{self.description}: the folder of {path.name} could not be made durable "
                f"({error.strerror}); read the object back before anything else is done"
            ) from error

    def _open_new(self, hidden: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(hidden, flags, 0o666)
        except FileNotFoundError:  # the folder was removed since we made it
            self._synced_folders.difference_update((hidden.parent, *hidden.parent.parents))
            self._make_folder(hidden.parent)
            return os.open(hidden, flags, 0o666)

    def _link(self, hidden: Path, path: Path) -> bool:
        try:
            path.hardlink_to(hidden)
        except FileExistsError:
            # NFS repeats a request whose reply was lost, so the taken name may be our own link.
            try:
                return os.path.samestat(os.lstat(path), os.lstat(hidden))
            except FileNotFoundError as error:  # NFS caches for a while that a name is absent
                raise OutcomeUnknownError(
                    f"{self.description}: the name {path.name} is taken and cannot be seen; read "
                    f"the object back before anything else is done"
                ) from error
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise InvalidInputError(
                    f"{self.description} has no exclusive create: its file system does not "
                    f"support hard links ({error.strerror}); use another folder or an object store"
                ) from error
            raise
        return True

    def _make_folder(self, folder: Path) -> None:
        """Make `folder` and its parents durably, once per folder and instance."""
        if folder in self._synced_folders:
            return
        if folder != self._root:
            self._make_folder(folder.parent)
        try:
            folder.mkdir(parents=folder == self._root, exist_ok=True)
        except FileExistsError as error:
            raise InvalidInputError(
                f"{self.description}: {folder} is a file, no object can be below it"
            ) from error
        if folder != self._root and folder.is_symlink():
            refuse_links(self._folder, folder.relative_to(self._root).as_posix())
        with suppress(PermissionError):  # the folder above the root may be unreadable to us
            _sync_folder(folder.parent)
        self._synced_folders.add(folder)


def _read_at(descriptor: int, start: int, length: int) -> tuple[memoryview, int]:
    """Return memory of `length` bytes and how many of them were read from the file.

    The memory comes from Arrow's pool, which reuses it uncleared: bytes beyond that count are
    arbitrary.
    """
    view = memoryview(pa.allocate_buffer(length)).cast("B")
    count = 0
    while count < length and (step := os.preadv(descriptor, [view[count:]], start + count)):
        count += step
    return view.toreadonly(), count


def _remove(name: str, folder: int) -> None:
    """Remove a file, a link, or an empty folder that has the name of an object."""
    try:
        os.unlink(name, dir_fd=folder)
    except (IsADirectoryError, PermissionError) as error:  # which one depends on the system
        try:
            os.rmdir(name, dir_fd=folder)
        except NotADirectoryError:
            raise error from None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _walk(folder: Path, prefix: str, *, temporary: bool = False) -> Iterator[ObjectInfo]:
    """Yield the files below `folder`, sorted by name. A folder that vanishes meanwhile is empty.

    Links, special files and empty folders with the name of a slot are listed like objects; reading
    them raises an error that says what they are.

    Args:
        temporary: list the hidden files of writers instead of the objects.
    """
    try:
        with os.scandir(folder) as entries:
            sorted_entries = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in sorted_entries:
        hidden, is_folder = entry.name.startswith(_HIDDEN), entry.is_dir(follow_symlinks=False)
        if hidden:
            regular = entry.is_file(follow_symlinks=False)
            shown = temporary and regular and is_temporary(entry.name)
        elif is_folder:
            yield from _walk(folder / entry.name, f"{prefix}{entry.name}/", temporary=temporary)
            slot = not temporary and _SLOT.fullmatch(entry.name)
            shown = bool(slot) and _is_empty(entry.path)
        else:
            shown = not temporary
        if shown:
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                yield ObjectInfo(prefix + entry.name, status.st_size, status.st_mtime)


def _is_empty(folder: str) -> bool:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return next(entries, None) is None
    return False
