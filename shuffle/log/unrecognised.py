"""The record that keeps later calls from using a stage again.

The fingerprint of a stage names what its rows depend on. If the rows turn out to depend on anything
else (an input that changed while it was read, a file that a function opened), whoever finds out
appends UNRECOGNISED to the stage's log: a driver before SEAL or REPLACE, a producer before its
COMMIT. So the record stands before anybody can count those rows. Model:
`tests/protocol_model/protocol/unrecognised_model.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from durable_shuffle.serialization.errors import InvalidInputError

_MOST = 8
_MOST_CHARS = 300


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """The rows depend on something that the fingerprint does not name."""

    KIND: ClassVar[str] = "UNRECOGNISED"
    record_id: str
    generation: int
    why: tuple[str, ...]
    """What it is, for people."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.why) <= _MOST or max(map(len, self.why)) > _MOST_CHARS:
            raise InvalidInputError(
                f"an UNRECOGNISED must have 1 to {_MOST} reasons of up to {_MOST_CHARS} characters"
            )


def bounded(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return as many of the reasons as a record may hold, each storable as text."""
    texts = (reason.encode(errors="backslashreplace").decode() for reason in reasons)
    return tuple(dict.fromkeys(text[:_MOST_CHARS] for text in texts))[:_MOST]
