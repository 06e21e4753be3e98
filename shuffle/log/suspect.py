"""The record by which a reader says that it met damage in a sealed stage.

A reader's word is no proof, since a storage may answer wrongly for a while. So SUSPECT changes
nothing for other readers. The next driver that reads the log checks the stage's data itself; its
REPLACE or DAMAGED settles the matter, a DAMAGED without producers if nothing was found. Model:
`tests/protocol_model/protocol/suspect_model.py`.
"""

from dataclasses import dataclass
from typing import ClassVar

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.field_checks import check_id

MOST_CHARS = 500


@dataclass(frozen=True, slots=True)
class Suspect:
    """Data that an index names was missing or damaged when somebody read it."""

    KIND: ClassVar[str] = "SUSPECT"
    record_id: str
    generation: int
    """Of the SEAL, for people only: a reader has none."""
    index: str
    """The index by which it was read. The record is void if another one counts."""
    why: str
    """The reader's error, for people."""

    def __post_init__(self) -> None:
        check_id("the index of a SUSPECT", self.index)
        if not 1 <= len(self.why) <= MOST_CHARS:
            raise InvalidInputError(f"a SUSPECT must say why in 1 to {MOST_CHARS} characters")
