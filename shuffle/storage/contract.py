"""The storage contract: what durable-shuffle needs from a place that keeps bytes.

Keys are relative and `/`-separated; their parts are letters, digits, `.`, `_`, `=` and `-` and do
not start with a dot (`keys.py`). An implementation is bound to one root. All methods are
synchronous and safe to call from several threads. An instance can be pickled, and works in a forked
process; either way it serves that process with connections of its own. (`MemoryStorage` is the
exception: it refuses to leave its process.) A backend sends each request once and says what became
of it; `RetryingStorage`, around every backend that `open_storage` opens, is what tries again.

Guarantees that every implementation gives and `storage-check` proves on a live backend:

1. `put_if_absent` is linearizable and all-or-nothing: of any number of concurrent calls for one
   key exactly one gets `Created`; no reader ever sees part of the content; everybody else gets
   `Exists` with the complete bytes of the winner. The bytes must hold their author's random id:
   a storage that lost a reply reads back, and equal bytes then mean that this call won.
2. After `put` or `put_if_absent` returned, every reader sees the whole object (read-after-write).
3. A read of a missing object raises `NotFoundError`, never returns empty bytes; this holds for
   ranges of length 0 too.
4. A range outside the object raises `CorruptDataError` (short object), never returns less. Length
   0 at the very end is inside.
5. A write that raised anything but `OutcomeUnknownError` left nothing of its own behind.

Not guaranteed: that `list` is complete, fresh or sorted; nothing may take a listing as truth. That
a write cut off by `OutcomeUnknownError` stays absent: it may land at any later time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from durable_shuffle.serialization.control import MAX_CONTROL_BYTES
from durable_shuffle.serialization.errors import CorruptDataError

Bytes: TypeAlias = bytes | bytearray | memoryview

MOST_BYTES = MAX_CONTROL_BYTES
"""No longer object is read as a whole unless the caller says how long it may be."""


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
    """An object is longer than any that is written under its key."""


def too_long(description: str, key: str, found: int, most_bytes: int) -> TooLongError:
    """Return the error for an object that is longer than it may be."""
    return TooLongError(
        f"{description}: object {key} is too long, expected at most {most_bytes} bytes, found "
        f"{found}"
    )


class Storage(Protocol):
    """See the module's guarantees. Errors are those of `serialization.errors` only:

    NotFoundError, CorruptDataError (short object), UnavailableError (retry later),
    OutcomeUnknownError (a write whose reply was lost and that could not be settled),
    ConflictError (`put` of a key that exists), InvalidInputError (bad key, no permission, wrong
    options), all naming root and key and never holding credentials. A full disk is
    UnavailableError: the data so far stays valid, and a later run goes on.
    """

    @property
    def description(self) -> str:
        """The root as a person may see it, without credentials."""

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        """Return the whole object. Its length is checked before memory is taken.

        Raises:
            CorruptDataError: it is longer than `most_bytes`; see `too_long`.
        """

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        """Return exactly the bytes [start, start + length).

        The view is of format 'B', read-only, and stays valid for as long as it lives, also after a
        delete.
        """

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return one buffer per range, in order; may fetch them in parallel.

        Fails as a whole with the error of one bad range. Ranges are not merged: callers plan that.
        """

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        """Create the object from the concatenated parts; durable when this returns.

        For objects whose names nobody else can use (they hold a random id). Fails with
        ConflictError, without touching the object, if the key exists with other bytes. Equal bytes
        are this very write: its first reply was lost, or the caller sent it again.
        """

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        """Create the object, or return what is there. See guarantee 1.

        `Exists` with equal bytes says the same as `Created`: they are the caller's own.
        """

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix` (a key up to and with a `/`, or '').

        A prefix without objects yields nothing.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects; a missing one is fine. An error may leave some of them deleted."""
