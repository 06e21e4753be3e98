"""Records of a stage's log that change nothing of what its readers read.

ENTERED is the proof that the job log once counted the stage. A writer that begins a stage, fills it
and then enters it into the job log appends ENTERED before it reports success and before it deletes
what the stage replaces. If the job log loses the STAGE record the stage looks merely begun: `gc`
must not give it up, readers by name must not get an older one, and `verify --repair` enters it
again. Model: `tests/protocol_model/protocol/entered_model.py`.

SUSPECT is how a reader says that it met damage in a sealed stage. A reader's word is no proof,
since a storage may answer wrongly for a while. So SUSPECT changes nothing for other readers. The
next driver that reads the log checks the stage's data itself; its REPLACE or DAMAGED settles the
matter, a DAMAGED without producers if nothing was found. Model:
`tests/protocol_model/protocol/suspect_model.py`.

UNRECOGNISED keeps later calls from using a stage again. The fingerprint of a stage names what its
rows depend on. If the rows turn out to depend on anything else (an input that changed while it was
read, a file that a function opened), whoever finds out appends UNRECOGNISED to the stage's log: a
driver before SEAL or REPLACE, a producer before its COMMIT. So the record stands before anybody can
count those rows. Model: `tests/protocol_model/protocol/unrecognised_model.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.field_checks import check_id

MOST_CHARS = 500
"""Of what a SUSPECT says."""
_MOST = 8
_MOST_CHARS = 300


@dataclass(frozen=True, slots=True)
class Entered:
    """The job log holds STAGE of this stage, which was begun before."""

    KIND: ClassVar[str] = "ENTERED"
    record_id: str


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
