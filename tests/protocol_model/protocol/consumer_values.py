"""The values of consumer_model.py: setup, records, actors and kinds of damage."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal, NamedTuple, TypeAlias

ZOMBIE_COMMITTED: Final = "an acknowledgement won a slot above a successor's OPEN"
CURSOR_WENT_BACK: Final = "the cursor went back"
GAP_IN_LOG: Final = "a create aimed beyond the end of the log"
OUTPUT_NOT_CONTIGUOUS: Final = "visible output has a gap or a duplicate"
NAMED_OBJECT_GONE: Final = "an object that a won slot names is deleted"
PUBLISHED_TWICE: Final = "a record was published twice"
TWO_VIEWS: Final = "two views may both acknowledge next"
FALSE_LOSER: Final = "an attempt believes that it is fenced, but its record won"
FALSE_WINNER: Final = "an attempt believes that it won, but did not"
NOT_EXACTLY_ONCE: Final = "finished, but the visible output is not each record once"
EFFECT_LOST: Final = "finished, but the effect of a won ACK was never performed"
EFFECT_WITHOUT_SLOT: Final = "an effect was performed that no won slot names"
EFFECT_TWICE: Final = "a receiver that remembers one token applied an effect twice"
NOBODY_FINISHES: Final = "all have ended and the newest OPEN's attempt stopped as fenced"
NEWEST_FENCED: Final = "the newest attempt was fenced by an older one"

DATA_DAMAGE: Final = frozenset(
    {CURSOR_WENT_BACK, OUTPUT_NOT_CONTIGUOUS, NOT_EXACTLY_ONCE, NAMED_OBJECT_GONE}
)
"""What a user would see in the data, whatever the attempts believe."""

NO_SLOT: Final = -1


class OnUnknown(Enum):
    """What an attempt does when the answer to a create never came."""

    REPEAT = auto()
    """Rule 2: send the same bytes again; what the slot holds is compared with them."""
    REPEAT_BLINDLY = auto()
    """Send again, and take a refusal for a loss without looking at the winner."""
    ASSUME_WON = auto()
    REBUILD = auto()
    """Find the slot free and build another ACK for it."""
    DELETE_OUTPUT = auto()
    """Find the slot free, give up and delete the output that the ACK names."""


class Release(Enum):
    """Whether and how a consumer's view is released."""

    NONE = auto()
    BY_VIEW = auto()
    """In the view's own next slot, like an ACK."""
    BY_NAME = auto()
    """Whatever view the consumer has now, wherever its log stands."""


class Receiver(Enum):
    """What the receiver of effect tokens remembers."""

    ALL_TOKENS = auto()
    LAST_TOKEN = auto()


@dataclass(frozen=True, slots=True)
class ConsumerSetup:
    """How many actors and faults there are, and which rules hold."""

    records: int = 3
    attempts: int = 2
    max_batch: int = 2
    """Most records in one ACK."""
    crashes: int = 1
    timeouts: int = 1
    collections: int = 0
    effects: bool = False
    """Each ACK carries a token of an effect outside the storage."""
    release: Release = Release.NONE
    receiver: Receiver = Receiver.ALL_TOKENS

    open_has_id: bool = True
    """Rule 1. Off: two OPENs of one epoch are the same bytes."""
    loser_follows_epoch: bool = False
    """Rule 1 off: an ACK that lost goes on if the newest record has its own epoch."""
    on_unknown: OnUnknown = OnUnknown.REPEAT
    """Rule 2."""
    collects_unnamed: bool = False
    """Rule 3 off: a cleaner deletes all that no slot names; else only of superseded epochs."""
    open_copies_pending: bool = True
    """Rule 4. Off: OPEN copies positions alone; a successor looks at the last record."""
    yields_to_generation: bool = True
    """Rule 5. Off: a launched attempt goes on looking for a slot under a newer launch's OPEN."""
    wins_open: bool = True
    """Rule 5. Off: a view starts from what it reads, without an OPEN."""
    shares_open: bool = False
    """Rule 5 off: somebody else won the OPEN and two tries of a task read by it."""
    trusts_hint: bool = False
    """Off by design: a hint object tells the end of the log and is believed."""
    one_record: bool = True
    """Off: output is published first and acknowledged in a second step."""


class Output(NamedTuple):
    """Records [start, end) written by an attempt."""

    author: int
    start: int
    end: int


Kind: TypeAlias = Literal["OPEN", "ACK", "RELEASE"]


class Record(NamedTuple):
    """A record of the consumer log."""

    kind: Kind
    author: int | None
    """None in an OPEN without a random id."""
    epoch: int
    cursor: int
    outputs: tuple[Output, ...]
    pending: int | None
    """The token of an effect that may not have been performed yet."""

    def __str__(self) -> str:
        return f"{self.kind}(attempt {self.author}, epoch {self.epoch}, cursor {self.cursor})"


class Create(NamedTuple):
    """A create request: in flight, or the one that an attempt is busy with."""

    slot: int
    record: Record


class Attempt(NamedTuple):
    """One try of the consumer task."""

    phase: (
        Literal["idle", "looking", "hinted", "reading", "published", "effect"]
        | Literal["waiting", "unknown", "done", "fenced", "released", "dead"]
    )
    slot: int
    """Its own last slot; when hinted, the slot to aim at; when fenced, the slot that it lost."""
    epoch: int
    cursor: int
    request: Create | None
    token: int | None
    """The effect to perform next."""


IDLE: Final = Attempt("idle", NO_SLOT, 0, 0, None, None)


class ConsumerState(NamedTuple):
    log: tuple[Record, ...]
    objects: frozenset[Output]
    net: frozenset[Create]
    attempts: tuple[Attempt, ...]
    crashes: int
    timeouts: int
    hint: int
    """The slot that the hint object names; -1 before there is one."""
    condemned: frozenset[Output] | None
    collections: int
    performed: frozenset[int]
    """Tokens whose effect the receiver has applied."""
    last_token: int | None
    """The token that a forgetful receiver remembers."""
    published: tuple[tuple[int, int], ...]
    """Output ranges that became visible without a slot."""
