"""Turn errors of storage drivers into ours: one function, one context manager.

`error_table.py` says what a driver's error means. This module picks our error class from that
meaning and from whether the request was a write. The message names the object and the root and
holds no credentials.
"""

import math
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.redact import redact
from durable_shuffle.shuffle.storage.error_table import (
    Verdict,
    error_chain,
    judge,
    retry_after,
)

_READ_ERRORS: Mapping[Verdict, type[DurableShuffleError]] = {
    Verdict.MISSING: NotFoundError,
    Verdict.EXISTS: ConflictError,
    Verdict.RACE: UnavailableError,
    Verdict.SHORT: CorruptDataError,
    Verdict.INVALID: InvalidInputError,
    Verdict.FULL: UnavailableError,
    Verdict.REFUSED: UnavailableError,
    Verdict.UNREADABLE: UnavailableError,
    Verdict.LOST: UnavailableError,
}
_WRITE_ERRORS: Mapping[Verdict, type[DurableShuffleError]] = {
    **_READ_ERRORS,
    Verdict.MISSING: InvalidInputError,  # the root itself is not there
    Verdict.UNREADABLE: OutcomeUnknownError,
    Verdict.LOST: OutcomeUnknownError,
}
_HINTS = {
    Verdict.FULL: "no space left, nothing was written: free space and run again",
    Verdict.UNREADABLE: "the disk or its file system reports an error",
    Verdict.LOST: "the reply was lost",
}


@dataclass(frozen=True, slots=True)
class Place:
    """The root that a storage is bound to, in the form that its errors show."""

    root: str
    """Without credentials."""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """The storage options; their secret values are masked in every message."""


def translated(
    error: BaseException, place: Place, action: str, key: str, *, write: bool
) -> DurableShuffleError:
    """Return our error for a driver's error, which becomes the cause if it holds no secret.

    Args:
        action: the verb of the request, for the message and to tell reads.
        key: the object; "" for the root.
        write: whether the request may have changed something: a lost reply is then
            OutcomeUnknownError, else UnavailableError.
    """
    verdict = judge(error)
    kind = (_WRITE_ERRORS if write else _READ_ERRORS)[verdict]
    hint = f"{_HINTS[verdict]}; " if verdict in _HINTS else ""
    text = redact(f"{type(error).__name__}: {error}", place.options)
    ours = kind(f"{place.root}: cannot {action} {key or 'the root'}: {hint}{text}")
    ours.__suppress_context__ = True
    if isinstance(ours, UnavailableError | OutcomeUnknownError):
        ours.retry_after_seconds = math.inf if verdict is Verdict.FULL else retry_after(error)
    if isinstance(ours, UnavailableError):
        ours.unreadable = verdict is Verdict.UNREADABLE and action == "read"
    if not _holds_secret(error, place):
        ours.__cause__ = error
    return ours


@contextmanager
def storage_errors(place: Place, action: str, key: str, *, write: bool) -> Iterator[None]:
    """Run one request and raise any driver error as one of ours.

    Put only the driver's call into the body: a bug of our own there would look like an error of the
    storage. Our errors, MemoryError, and a BaseException that is no Exception (KeyboardInterrupt)
    pass unchanged.
    """
    try:
        yield
    except (DurableShuffleError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - the table knows them all
        ours = translated(error, place, action, key, write=write)
        raise ours from ours.__cause__


def _holds_secret(error: BaseException, place: Place) -> bool:
    for link in error_chain(error):
        text = "".join(traceback.format_exception_only(link))
        if redact(text, place.options) != text:
            return True
    return False
