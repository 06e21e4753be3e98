"""The values of batch_model.py: setup, records, actors and kinds of damage.

One batch producer and its stage log. An attempt's data is a small number, its content: equal
numbers stand for equal bytes, so that a repair can be made to write the same data or other data.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal, NamedTuple, TypeAlias

COUNTED_DELETED: Final = "objects of the COMMIT that counts are deleted"
COUNTED_OVERWRITTEN: Final = "objects of the COMMIT that counts are overwritten"
READER_MIXES: Final = "a reader's result mixes two COMMITs of one producer"
JOB_MIXES: Final = "an accepted job mixes two COMMITs of one producer"
CURSOR_ON_OTHER_DATA: Final = "a consumer with a cursor went on with other data"
ABORTED_COUNTS: Final = "an aborted attempt counts"
REPAIR_COUNTS_EARLY: Final = "a repair counts without a REPLACE"
FALSE_SUCCESS: Final = "an attempt reports success, but its COMMIT does not count"

DATA_DAMAGE: Final = frozenset(
    {COUNTED_DELETED, COUNTED_OVERWRITTEN, READER_MIXES, JOB_MIXES, CURSOR_ON_OTHER_DATA}
)
"""What a user would see in the data, whatever the attempts report."""

SEGMENTS: Final = 2
"""Segments per attempt; each holds one record of the consumer."""

NOT_WRITTEN: Final = 0
DELETED: Final = -1


class Licence(Enum):
    """What gives others than attempt x leave to delete x's objects."""

    FATE_IS_ABORT = auto()
    """Rule 3: the first record that names x is ABORT(x)."""
    ANY_ABORT = auto()
    """ABORT(x) stands anywhere in the producer log."""
    OTHER_COMMIT = auto()
    """ABORT is x's fate, or another attempt's COMMIT stands there and x has no fate yet."""
    NOT_REPLACED_BY = auto()
    """ABORT(x) stands anywhere, or another's COMMIT does and no REPLACE names x."""
    FAILURE = auto()
    """x is believed dead and its fate is not COMMIT."""


@dataclass(frozen=True, slots=True)
class BatchSetup:
    """How many actors and faults there are, and which rules hold."""

    attempts: int = 2
    """Attempts that may be launched, repairs included."""
    readers: int = 1
    consumer: bool = True
    attempt_crashes: int = 1
    driver_crashes: int = 1
    consumer_crashes: int = 1
    aborts: int = 1
    corruptions: int = 1
    contents: tuple[int, ...] | None = None
    """What each attempt writes; None means all differ."""

    random_ids: bool = True
    """Rule 1. Off: attempts 0 and 1 share one id, hence one path."""
    deletes_when_unknown: bool = False
    """Rule 2 off: an attempt that gets no answer to its COMMIT deletes its objects."""

    licence: Licence = Licence.FATE_IS_ABORT
    """Rule 3."""
    first_record_decides: bool = True
    """Rule 3. Off: a COMMIT(x) above ABORT(x) counts."""
    walks_from_slot_0: bool = True
    """Rule 3. Off: an attempt looks for its fate from the end of the log on."""
    stops_at_own_abort: bool = True
    """Rule 3. Off: an attempt that meets its own ABORT goes on."""
    cleaner_stops_at_commit: bool = True
    """Off: a cleaner that lost the slot to COMMIT(x) aims ABORT(x) at the next one."""
    passes_foreign_abort: bool = True
    """Off: an attempt that meets another's ABORT stops."""
    repair_passes_commits: bool = True
    """Off: a repair that meets a COMMIT stops like any other attempt."""
    repair_passes_repairs: bool = True
    """Off: a repair goes on only past COMMITs that somebody could not read; it loses to others."""
    loser_commits: bool = False
    """A plain attempt commits above another's COMMIT, too."""
    seals_newest: bool = False
    """The driver names the newest COMMIT in SEAL instead of the first."""
    repairs: bool = True
    """Off: nobody repairs a bad segment."""

    follows_newest_commit: bool = False
    """Rule 6 off: what counts is the newest COMMIT, whatever the stage log names."""
    reader_starts_again: bool = True
    """Rule 6. Off: a reader whose entry changed to other data keeps what it has."""
    job_compares_tags: bool = True
    """Rule 6. Off: a job counts although its results carry different tags."""
    cursor_compares_tags: bool = True
    """Rules 4 and 6. Off: a consumer with a cursor goes on with whatever the entry names."""
    driver_checks_cursors: bool = False
    """The driver refuses a REPLACE with other data while it sees a cursor above 0."""
    tag_is_content: bool = True
    """Off: the tag is the commit slot, so that equal data written twice counts as different."""
    only_fate_aborts: bool = False
    """What ABORTED_COUNTS calls aborted: any ABORT(x) in the log, or only one that is x's fate."""

    def content(self, who: int) -> int:
        return who if self.contents is None else self.contents[who]

    def attempt_id(self, who: int) -> int:
        return who if self.random_ids or who > 1 else 0


class Record(NamedTuple):
    """A record of the producer log."""

    kind: Literal["COMMIT", "ABORT"]
    attempt_id: int
    content: int | None
    """The content tag of a COMMIT."""


class StageRecord(NamedTuple):
    """A record of the stage log; both kinds make one commit slot count."""

    kind: Literal["SEAL", "REPLACE"]
    commit_slot: int


class ProducerCreate(NamedTuple):
    slot: int
    record: Record


class StageCreate(NamedTuple):
    slot: int
    record: StageRecord


Create: TypeAlias = ProducerCreate | StageCreate


class Attempt(NamedTuple):
    phase: Literal["idle", "running", "judging", "waiting", "deleting", "done", "lost", "dead"]
    role: Literal["none", "plain", "repair"]
    slot: int
    """Where to go on judging, or the slot it aims at."""


class Driver(NamedTuple):
    alive: bool
    request: StageCreate | None


class Cleaner(NamedTuple):
    """Busy with attempt `target`: deletes its objects, or aims an ABORT at `slot`."""

    phase: Literal["deleting", "aborting"]
    target: int
    slot: int


class Reader(NamedTuple):
    """A reader without a cursor; `got` is the content of each segment it has read."""

    phase: Literal["idle", "reading", "starved", "done"]
    commit_slot: int | None
    got: tuple[int, ...]


class View(NamedTuple):
    """What the consumer has open: lost in a crash."""

    commit_slot: int
    unacked: tuple[int, ...]


class Consumer(NamedTuple):
    """The consumer's log, in short: cursor, the commit slot it was won by, and all it delivered."""

    cursor: int
    commit_slot: int | None
    delivered: tuple[int, ...]
    view: View | None


class BatchState(NamedTuple):
    producer_log: tuple[Record, ...]
    stage_log: tuple[StageRecord, ...]
    net: frozenset[Create]
    attempts: tuple[Attempt, ...]
    objects: tuple[int, ...]
    """Per attempt id: NOT_WRITTEN, DELETED, or 1 + the content that was written last."""
    drivers: tuple[Driver, ...]
    cleaner: Cleaner | None
    readers: tuple[Reader, ...]
    consumer: Consumer
    bad: frozenset[tuple[int, int]]
    """(attempt id, segment) that turned bad."""
    requested: frozenset[int]
    """Commit slots that somebody could not read."""
    attempt_crashes: int
    driver_crashes: int
    consumer_crashes: int
    aborts: int
    corruptions: int
    outcome: Literal["running", "accepted", "refused"]
