"""The error tree. A class says what the caller should do; `kind` is a stable code to match on.

    DurableShuffleError
    |-- FencedError          stop: a newer owner exists
    |-- ConflictError        refresh and try again
    |-- OutcomeUnknownError  read back: the request may or may not have taken effect
    |-- UnavailableError     retry later: storage is slow, throttled or down
    |-- NotReadyError        wait: it does not exist yet
    |-- AbortedError         give up quietly: somebody asked us to stop
    |-- NotFoundError        it is gone, or never was
    |-- CorruptDataError     stored bytes are not what was written
    |-- InvalidInputError    you misused us: change the call
    `-- IncompatibleError    version, schema or fingerprint differ: start fresh or change versions

Messages name the object, the ids, what was expected and what was found. They never hold
credentials. The text of a message is not part of the interface, `kind` is.
"""

from enum import StrEnum
from typing import ClassVar


class ErrorKind(StrEnum):
    """Stable codes, one per class; new ones are added, none is renamed or removed."""

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
    """Somebody else changed it first. Read again, then try again."""

    kind = ErrorKind.CONFLICT


class OutcomeUnknownError(DurableShuffleError):
    """The reply was lost. Read back before doing anything else."""

    kind = ErrorKind.OUTCOME_UNKNOWN
    retry_after_seconds: float | None = None
    """As for UnavailableError."""


class UnavailableError(DurableShuffleError):
    """The storage cannot serve now. Retrying later can help."""

    kind = ErrorKind.UNAVAILABLE
    retry_after_seconds: float | None = None
    """Not before this time has passed, as the storage asked; inf: only once somebody has done
    something about it, such as freeing space. None: it did not say."""
    unreadable: bool = False
    """The disk under it cannot read the object. If it stays so, the object is damaged."""


class NotReadyError(DurableShuffleError):
    """It does not exist yet. Waiting can help."""

    kind = ErrorKind.NOT_READY


class AbortedError(DurableShuffleError):
    """The work was cancelled or its start was called off."""

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
    """Both sides are well formed but do not fit: version, schema, fingerprint, content tag."""

    kind = ErrorKind.INCOMPATIBLE
