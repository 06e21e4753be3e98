"""The values of log_model.py: setup, records, actors and kinds of damage."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from protocol.consumer_values import OnUnknown

FENCED_APPENDED: Final = "a fenced attempt's record won a slot above its successor's OPEN"
NOT_CONTIGUOUS: Final = "the appended records have a gap or a duplicate"
GAP_IN_LOG: Final = "a create aimed beyond the end of the log"
NAMED_OBJECT_GONE: Final = "a segment that a won slot names is deleted"
FALSE_LOSER: Final = "an attempt believes that it is fenced, but its record won"
FALSE_WINNER: Final = "an attempt believes that it won, but did not"
TWO_WRITERS: Final = "two attempts may both append next"
AFTER_END: Final = "a record stands behind END"
NEWEST_FENCED: Final = "the newest attempt was fenced by an older one"
FOLLOWER_MISLED: Final = "a follower delivered what no won slot names"

NO_SLOT: Final = -1


@dataclass(frozen=True, slots=True)
class LogSetup:
    """How many actors and faults there are, and which rules hold."""

    records: int = 3
    attempts: int = 2
    max_batch: int = 2
    """Most records in one APPEND."""
    crashes: int = 1
    timeouts: int = 1
    collections: int = 0
    follower: bool = False

    open_has_id: bool = True
    """Rule 1. Off: two OPENs of one epoch are the same bytes."""
    on_unknown: OnUnknown = OnUnknown.REPEAT
    """Rule 2."""
    collects_unnamed: bool = False
    """Rule 3 off: a cleaner deletes all that no slot names; else only of superseded OPENs."""
    open_copies_state: bool = True
    """Rule 4. Off: an OPEN that lost its slot goes on with the source position it read before."""
    yields_to_generation: bool = True
    """Rule 5. Off: a launched attempt opens over a newer launch's OPEN."""
    wins_open: bool = True
    """Rule 5. Off: an attempt appends from what it reads, without an OPEN."""
    own_slot: bool = True
    """Rule 5. Off: an APPEND aims at the end of the log, whoever wrote there last."""
    end_is_final: bool = True
    """Off: an attempt opens behind an END."""
    follows_log: bool = True
    """Off: a follower takes the segments that it finds."""


class Segment(NamedTuple):
    """Records [start, end) of the source, written by an attempt; their ordinals are the same."""

    author: int
    start: int
    end: int


Kind: TypeAlias = Literal["OPEN", "APPEND", "END"]


class Record(NamedTuple):
    """A record of the producer's log."""

    kind: Kind
    author: int | None
    """None in an OPEN without a random id."""
    epoch: int
    position: int
    """Source position and next ordinal after this record."""
    segment: Segment | None

    def __str__(self) -> str:
        return f"{self.kind}(attempt {self.author}, epoch {self.epoch}, position {self.position})"


class Create(NamedTuple):
    """A create request: in flight, or the one that an attempt is busy with."""

    slot: int
    record: Record


class Attempt(NamedTuple):
    """One try of the producer."""

    phase: (
        Literal["idle", "looking", "open", "written", "waiting", "unknown"]
        | Literal["losing", "fenced", "done", "dead"]
    )
    slot: int
    """Its own last slot, or the one that its OPEN lost."""
    epoch: int
    position: int
    request: Create | None


IDLE: Final = Attempt("idle", NO_SLOT, 0, 0, None)


class LogState(NamedTuple):
    log: tuple[Record, ...]
    objects: frozenset[Segment]
    net: frozenset[Create]
    attempts: tuple[Attempt, ...]
    crashes: int
    timeouts: int
    condemned: frozenset[Segment] | None
    collections: int
    delivered: tuple[Segment, ...]
    """What the follower handed on."""
