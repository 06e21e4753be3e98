"""All errors that this library raises on purpose. Catch `DurableShuffleError` for any of them."""

from durable_shuffle.serialization.errors import (
    AbortedError,
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    ErrorKind,
    FencedError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    NotReadyError,
    OutcomeUnknownError,
    UnavailableError,
)

__all__ = [
    "AbortedError",
    "ConflictError",
    "CorruptDataError",
    "DurableShuffleError",
    "ErrorKind",
    "FencedError",
    "IncompatibleError",
    "InvalidInputError",
    "NotFoundError",
    "NotReadyError",
    "OutcomeUnknownError",
    "UnavailableError",
]
