"""The values of producer_model.py: setup, records, actors and kinds of damage."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal, NamedTuple, TypeAlias

HALF_SEAL_READ: Final = "a reader took half a seal for the whole"
READER_LOST_OBJECT: Final = "a reader misses an object that a won slot or the seal names"
SEGMENT_OVERWRITTEN: Final = "a committed segment holds another attempt's bytes"
NAMED_OBJECT_GONE: Final = "an object that a won slot or the seal names is deleted"
FALSE_WINNER: Final = "an attempt believes that it won, but did not"
FALSE_LOSER: Final = "an attempt believes that it lost, but its COMMIT won"
READERS_MIX: Final = "results of two attempts count at the same time"

SEGMENTS: Final = (0, 1)


class Licence(Enum):
    """What a cleaner takes as leave to delete an object that no log names."""

    LOST_ITS_SLOT = auto()
    """The slot the attempt aims at holds another attempt's record."""
    SLOT_0_TAKEN = auto()
    """Slot 0 holds another attempt's record, wherever this one aims."""
    UNNAMED = auto()
    """No log names it now."""
    CRASHED = auto()
    """The attempt has crashed and its slot is free."""
    PRESUMED_DEAD = auto()
    """Somebody reported the attempt as failed and its slot is free."""


class Repair(Enum):
    """What happens when a committed segment turns bad."""

    NONE = auto()
    SEAL_AGAIN = auto()
    """A repair commits in slot 1, the stage log then names slot 1; readers start again."""
    FOLLOW_NEWEST = auto()
    """Rule 6 off: readers follow the newest COMMIT of the producer log."""


@dataclass(frozen=True, slots=True)
class ProducerSetup:
    """How many actors and faults there are, and which rules hold."""

    attempts: int = 2
    drivers: int = 2
    readers: int = 2
    crashes: int = 1
    timeouts: int = 1
    collections: int = 1
    corruptions: int = 0
    repair: Repair = Repair.NONE
    random_ids: bool = True
    """Rule 1. Off: all attempts but a repair share one id, hence one path."""
    encoded_once: bool = True
    """Rule 2. Off: a repeated COMMIT is built anew and differs in its bytes."""
    compares_ids: bool = True
    """Rule 1. Off: the winner is compared by its bytes."""
    seal_is_created: bool = True
    """Off: the seal is a file that a driver writes in place."""
    licence: Licence = Licence.LOST_ITS_SLOT


class Commit(NamedTuple):
    """A COMMIT record; `author` stands for the data, which differs between any two attempts."""

    attempt_id: int
    author: int
    build: int


class Entry(NamedTuple):
    """What a seal, or a reader of an unsealed log, goes by."""

    attempt_id: int
    author: int
    build: int
    segments: int
    """How many segments it lists: 2, or 1 in a half-written seal."""
    slot: int | None
    """The COMMIT's slot; None when it was read without a seal."""


class Create(NamedTuple):
    """A create request in flight."""

    log: Literal["producer", "stage"]
    slot: int
    record: Commit | Entry


Path: TypeAlias = tuple[int, int]
Objects: TypeAlias = frozenset[tuple[Path, int]]


class Attempt(NamedTuple):
    phase: (
        Literal["idle", "write0", "write1", "written", "waiting", "unknown"]
        | Literal["delete0", "delete1", "won", "lost", "dead"]
    )
    slot: int
    build: int


class Driver(NamedTuple):
    phase: Literal["idle", "knows", "half", "done", "dead"]
    entry: Entry | None


class Reader(NamedTuple):
    phase: Literal["idle", "read0", "read1", "done", "starved"]
    entry: Entry | None
    author: int | None
    """Whose data it has delivered, once done."""
    slot: int
    """The commit slot its result is tagged with."""


class ProducerState(NamedTuple):
    log: tuple[Commit, ...]
    objects: Objects
    net: frozenset[Create]
    attempts: tuple[Attempt, ...]
    seals: tuple[Entry, ...]
    drivers: tuple[Driver, ...]
    readers: tuple[Reader, ...]
    condemned: frozenset[Path] | None
    collections: int
    crashes: int
    timeouts: int
    corruptions: int
    bad: frozenset[Path]
