"""The storage contract: what durable-shuffle needs from a place that keeps bytes.

Keys are relative and `/`-separated; their parts are letters, digits, `.`, `_`, `=` and `-` and do
not start with a dot (`check_key`). An implementation is bound to one root. All methods are
synchronous and safe to call from several threads. An instance can be pickled, and it works in a
forked process; in each process it opens connections of its own. (`MemoryStorage` is the exception:
it refuses to leave its process.) A backend sends each request once and reports the outcome. Only
`RetryingStorage`, which `open_storage` puts around every backend, tries again.

Every implementation gives these guarantees. `storage-check` tries them on a live backend, except
the fifth:

1. `put_if_absent` is linearizable and all-or-nothing. Among any number of concurrent calls for one
   key, exactly one gets `Created`. No reader ever sees part of the content. All other calls get
   `Exists` with the complete bytes of the winner. The bytes must hold their author's random id:
   after a lost reply the storage reads the object back, and equal bytes mean that this call won.
2. After `put` or `put_if_absent` returned, every reader sees the whole object (read-after-write).
3. A read of a missing object raises `NotFoundError` and never returns empty bytes. This holds for
   ranges of length 0 too.
4. A range that is not wholly inside the object raises `CorruptDataError` (short object) and never
   returns fewer bytes. A range of length 0 at the very end is inside.
5. A write that raised anything but `OutcomeUnknownError` left nothing of its own behind.

Not guaranteed:

- `list` may be incomplete, stale or unsorted. No decision may take a listing as truth.
- A write that raised `OutcomeUnknownError` may still take effect at any later time.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from durable_shuffle.serialization.checksum import Bytes as Bytes  # part of the contract
from durable_shuffle.serialization.control import MAX_CONTROL_BYTES
from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
)

T = TypeVar("T")

MOST_BYTES = MAX_CONTROL_BYTES
"""`read` refuses a longer object unless the caller passes a higher limit."""

MAX_WHOLE_BYTES = 1 << 30
"""Longest object that is read whole, whatever length a record states: an index, a consumer's state.
Segments and outputs have no limit, because they are read in pieces."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [start, start + length) of one object."""

    key: str
    start: int
    """Offset of the first byte, inclusive."""
    length: int
    """Number of bytes, may be 0."""


@dataclass(frozen=True, slots=True)
class Created:
    """This call made the object."""


@dataclass(frozen=True, slots=True)
class Exists:
    """The object was there before; `existing` is its whole content."""

    existing: bytes


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A listed object: a candidate, never proof."""

    key: str
    size_bytes: int
    modified_wall_seconds: float
    """The storage's own time of the last write, since 1970; for reports, never for decisions.
    0 where the storage does not tell."""


class TooLongError(CorruptDataError):
    """An object is longer than the limit that its reader stated, so it is damaged."""


def too_long(description: str, key: str, size_bytes: int, most_bytes: int) -> TooLongError:
    """Return the error for an object that is longer than it may be."""
    return TooLongError(
        f"{description}: object {key} is too long, expected at most {most_bytes} bytes, found "
        f"{size_bytes}"
    )


def too_short(description: str, key: str, size_bytes: int, needed_bytes: int) -> CorruptDataError:
    """Return the error for an object that ends before the range that was asked for."""
    return CorruptDataError(
        f"{description}: object {key} is too short, expected at least {needed_bytes} bytes, found "
        f"{size_bytes}"
    )


class Storage(Protocol):
    """The operations of a storage. The module's docstring lists the guarantees.

    Methods raise errors of `serialization.errors` only: NotFoundError, CorruptDataError (short or
    too long object), UnavailableError (retry later), OutcomeUnknownError (the reply to a write was
    lost, and reading back did not settle the outcome), ConflictError (`put` of a key that exists
    with other bytes), InvalidInputError (bad key, no permission, wrong options). Every message
    names the root and the key and never holds credentials. A full disk is UnavailableError: the
    data written so far stays valid, and a later run continues.
    """

    @property
    def description(self) -> str:
        """The root for messages to people, without credentials."""

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        """Return the whole object, of at most `most_bytes` bytes.

        A longer object is refused without taking memory for all of it.

        Raises:
            NotFoundError: there is no such object.
            TooLongError: the object is longer than `most_bytes`.
        """

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        """Return exactly the bytes [start, start + length).

        The view has format 'B', is read-only, and stays valid after the object is deleted.

        Raises:
            NotFoundError: there is no such object.
            CorruptDataError: the object ends before `start + length`.
        """

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return one buffer per range, in order; may fetch them in parallel.

        If any range fails, the whole call fails with that range's error. The storage does not merge
        ranges: callers do (`range_plan`).
        """

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        """Create the object from the concatenated parts. It is durable when this returns.

        Use `put` for names that hold a random id, so that nobody else writes them. If the key
        exists with equal bytes, `put` returns as if it had created it: an earlier try of the same
        write succeeded.

        Raises:
            ConflictError: the key exists with other bytes, which stay unchanged.
        """

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        """Create the object, or return the bytes that the key already holds. See guarantee 1.

        `Exists` with equal bytes means the same as `Created`: the caller wrote those bytes.
        """

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`, which ends with '/' or is empty.

        A prefix without objects yields nothing.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects; a missing object is fine. After an error, some may be deleted."""


def put_joined(storage: Storage, key: str, parts: Sequence[Bytes]) -> None:
    """Do what `put` does, by `put_if_absent`."""
    data = b"".join(parts)
    if storage.put_if_absent(key, data) not in (Created(), Exists(data)):
        raise ConflictError(f"{storage.description}: object {key} exists already")


class StorageLayer:
    """Passes every call to another storage through `_call`, which a layer overrides."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def description(self) -> str:
        return self._storage.description

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        return self._call("read", (key,), lambda: self._storage.read(key, most_bytes))

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        return self._call(
            "read_range", (key,), lambda: self._storage.read_range(key, start, length)
        )

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        keys = tuple(r.key for r in ranges)
        return self._call("read_ranges", keys, lambda: self._storage.read_ranges(ranges))

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        self._call("put", (key,), lambda: self._storage.put(key, parts))

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        return self._call("put_if_absent", (key,), lambda: self._storage.put_if_absent(key, data))

    def delete(self, keys: Sequence[str]) -> None:
        self._call("delete", tuple(keys), lambda: self._storage.delete(keys))

    def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
        """Make one call: `verb` names the method, `keys` are the keys or the prefix it is about."""
        return request()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        # collected whole, so that all of the listing is inside the call
        return iter(self._call("list", (prefix,), lambda: tuple(self._storage.list(prefix))))

    def listed_after(self, prefix: str, key: str) -> Iterator[ObjectInfo]:
        """As the function; a layer that changes listings need not change this, too."""
        if type(self).list is not StorageLayer.list:
            return _behind(self.list(prefix), key)
        return iter(
            self._call("list", (prefix,), lambda: tuple(listed_after(self._storage, prefix, key)))
        )

    def folders(self, prefix: str) -> tuple[str, ...]:
        """As `folders_of`; a layer that changes listings need not change this, too."""
        if type(self).list is not StorageLayer.list:
            return _folders_in(self.list(prefix), prefix)
        return self._call("list", (prefix,), lambda: folders_of(self._storage, prefix))


def listed_after(storage: Storage, prefix: str, key: str) -> Iterator[ObjectInfo]:
    """Yield the objects whose key starts with `prefix` and is greater than `key`, by code points.

    A storage with a method `listed_after` need not list the objects before them.
    """
    own: Callable[[str, str], Iterator[ObjectInfo]] | None
    own = getattr(storage, "listed_after", None)
    return _behind(storage.list(prefix), key) if own is None else own(prefix, key)


def _behind(listed: Iterable[ObjectInfo], key: str) -> Iterator[ObjectInfo]:
    return (info for info in listed if info.key > key)


def folders_of(storage: Storage, prefix: str) -> tuple[str, ...]:
    """Return the names that continue `prefix` up to the next '/', sorted. May be incomplete.

    A storage with a method `folders` needs no list of all objects for it. The folders of a storage
    on disks may be empty.
    """
    own: Callable[[str], tuple[str, ...]] | None = getattr(storage, "folders", None)
    return _folders_in(storage.list(prefix), prefix) if own is None else own(prefix)


def _folders_in(listed: Iterable[ObjectInfo], prefix: str) -> tuple[str, ...]:
    names = (info.key.removeprefix(prefix).partition("/") for info in listed)
    return tuple(sorted({name for name, slash, _ in names if slash}))


def backend_of(storage: Storage) -> Storage:
    """Return the storage below all layers, to ask what kind it is; nothing is called on it."""
    while isinstance(storage, StorageLayer):
        storage = storage._storage  # noqa: SLF001 - the layers' own module
    return storage


def identity_of(storage: Storage) -> str:
    """Return what tells this storage from others in one process; not for people.

    Two services may serve the same URL: a backend whose options name the service has a property
    `identity`.
    """
    backend = backend_of(storage)
    return str(getattr(backend, "identity", backend.description))


MAX_KEY_CHARS = 1000
"""S3, GCS and Azure allow 1,024 bytes, and the root needs some of them."""

MAX_PART_CHARS = 255
"""The longest name that ext4, XFS and NFS allow."""

_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._=-]*")


def check_key(key: str) -> str:
    """Return `key` if it names an object below a root.

    Raises:
        InvalidInputError: empty, absolute, too long, with an empty part, a part that starts with a
            dot, or a character other than letters, digits, '.', '_', '=' and '-'.
    """
    if not 0 < len(key) <= MAX_KEY_CHARS:
        raise InvalidInputError(f"a key must be 1 to {MAX_KEY_CHARS} characters, found={key!r}")
    for part in key.split("/"):
        if not _PART.fullmatch(part) or len(part) > MAX_PART_CHARS:
            raise InvalidInputError(
                f"a key is relative, its parts are 1 to {MAX_PART_CHARS} letters, digits, '.', "
                f"'_', '=' or '-' and do not start with a dot; found part={part!r} in key={key!r}"
            )
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it may be listed: empty for the whole root, else a key followed by '/'.

    Raises:
        InvalidInputError: anything else.
    """
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidInputError(f"a prefix ends with '/', found={prefix!r}")
        check_key(prefix[:-1])
    return prefix


_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")


def temporary_name(new_id: str) -> str:
    """Return a name for a file that is being written. No part of a key starts with its dot."""
    return f".{new_id}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether `temporary_name` made this name."""
    return bool(_TEMPORARY.fullmatch(name))


def check_temporary(keys: Sequence[str]) -> None:
    """Refuse keys that do not end in a name of `temporary_name`.

    Raises:
        InvalidInputError: names the key.
    """
    for key in keys:
        folder, _, name = key.rpartition("/")
        check_key(folder)
        if not is_temporary(name):
            raise InvalidInputError(f"not a temporary file: key={key!r}")


def check_range(key: str, start: int, length: int) -> None:
    """Refuse a bad key or a range that no object can have.

    Raises:
        InvalidInputError: the key is bad, or the start or the length is negative.
    """
    check_key(key)
    if start < 0 or length < 0:
        raise InvalidInputError(
            f"{key}: start and length of a range are never negative, found start={start} "
            f"length={length}"
        )
