"""The error tree. A class says what the caller should do; `kind` is a stable code to match on.

    DurableShuffleError
    |-- FencedError          stop: a newer owner exists
    |-- ConflictError        refresh and try again
    |-- OutcomeUnknownError  read back: the request may or may not have taken effect
    |-- UnavailableError     retry later: storage is slow, throttled or down
    |-- NotReadyError        wait: it does not exist yet
    |-- AbortedError         stop without an alarm: the work was cancelled
    |-- NotFoundError        it is gone, or never existed
    |-- CorruptDataError     stored bytes are not what was written
    |-- InvalidInputError    the call is wrong: change the call
    `-- IncompatibleError    version, schema or fingerprint differ: start fresh or change versions

Messages name the object, the ids, what was expected and what was found. They never hold
credentials. The text of a message is not part of the interface, `kind` is.
"""

from enum import StrEnum
from typing import ClassVar


class ErrorKind(StrEnum):
    """Stable codes, one per class. New codes may be added; existing ones are never changed."""

    FENCED = "fenced"
    CONFLICT = "conflict"
    OUTCOME_UNKNOWN = "outcome_unknown"
    UNAVAILABLE = "unavailable"
    NOT_READY = "not_ready"
    ABORTED = "aborted"
    NOT_FOUND = "not_found"
    CORRUPT_DATA = "corrupt_data"
    INVALID_INPUT = "invalid_input"
    INCOMPATIBLE = "incompatible"


class DurableShuffleError(Exception):
    """Root of all errors that this library raises on purpose."""

    kind: ClassVar[ErrorKind]


class FencedError(DurableShuffleError):
    """A newer owner exists. Stop; do not retry."""

    kind = ErrorKind.FENCED


class ConflictError(DurableShuffleError):
    """Another writer changed the object first. Read again, then try again."""

    kind = ErrorKind.CONFLICT


class OutcomeUnknownError(DurableShuffleError):
    """The reply was lost. Read back before doing anything else."""

    kind = ErrorKind.OUTCOME_UNKNOWN
    retry_after_seconds: float | None = None
    """As in UnavailableError."""


class UnavailableError(DurableShuffleError):
    """The storage cannot serve now. Retrying later can help."""

    kind = ErrorKind.UNAVAILABLE
    retry_after_seconds: float | None = None
    """How long the storage asked to wait, in seconds. None if it did not say; inf if waiting does
    not help until somebody acts, for example frees space."""
    unreadable: bool = False
    """True if the disk cannot read the object. If this persists, the object is damaged."""
    stray: bool = False
    """True if the request was refused without a reason. If this persists, it is not allowed."""


class NotReadyError(DurableShuffleError):
    """The object does not exist yet. Waiting can help."""

    kind = ErrorKind.NOT_READY


class AbortedError(DurableShuffleError):
    """The work was cancelled, before or after it started."""

    kind = ErrorKind.ABORTED


class NotFoundError(DurableShuffleError):
    """The named object is gone or never existed. Missing never means empty."""

    kind = ErrorKind.NOT_FOUND


class CorruptDataError(DurableShuffleError):
    """Stored bytes fail their checks."""

    kind = ErrorKind.CORRUPT_DATA


class InvalidInputError(DurableShuffleError):
    """The call itself is wrong: an argument, a type, an order of calls, a missing permission."""

    kind = ErrorKind.INVALID_INPUT


class IncompatibleError(DurableShuffleError):
    """Both sides are valid but do not match: version, schema, fingerprint, content tag."""

    kind = ErrorKind.INCOMPATIBLE
