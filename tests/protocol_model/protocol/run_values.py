"""What the model of `run_model.py` is made of: its setup, the log's records, who is at work."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.slots import with_item

DOUBLED: Final = "a batch stands in the log twice, or out of order"
LOST: Final = "Spark calls a batch done that the log does not have"
FENCED_APPENDED: Final = "a run appended rows that were written before another OPEN"
REOPENED: Final = "a run that was followed opened again"
NAMED_OBJECT_GONE: Final = "a segment that the log names is deleted"
JOB_DOUBLED: Final = "a write job stands in the log twice"
JOB_LOST: Final = "a write job was told of success and the log does not have it"
JOB_REFUSED: Final = "a write job failed because another was faster"

BATCHES: Final = 2


@dataclass(frozen=True, slots=True)
class RunSetup:
    """How many actors and faults there are, and which rules hold."""

    runs: int = 2
    jobs: int = 0
    crashes: int = 1
    timeouts: int = 1
    repeats: int = 0
    """How often Spark calls a commit again that succeeded."""
    collections: int = 0

    drops_known_batch: bool = True
    """Off: a batch that is in the log is appended again."""
    keeps_standing: bool = True
    """Off: a commit that finds its batch in the log deletes the segment that it was given."""
    parts_carry_epoch: bool = True
    """Off: a commit opens for its run if need be, and appends what the run wrote at any time."""
    looks_back: bool = True
    """Off: a run that is not the owner opens, also if another has followed it."""
    asks_again: bool = True
    """Off: an APPEND that lost its slot is sent to the end of the log, whatever stands there."""
    keeps_sent: bool = True
    """Off: who gets no answer to an APPEND gives its segment back."""
    knows_itself: bool = True
    """Off: a write job does not look for a record of its own."""
    rebases: bool = True
    """Off: a write job that lost a slot gives up."""
    aborts_first: bool = True
    """Off: a cleaner takes a write job's segments without an ABORT_JOB."""
    obeys_abort: bool = True
    """Off: a write job does not look for an ABORT_JOB of its own."""
    spares_owner: bool = True
    """Off: a cleaner takes what no record names; else only of epochs that were followed."""


class Segment(NamedTuple):
    """What an author wrote; each epoch of a run writes other rows."""

    author: int
    epoch: int
    batch: int


class Record(NamedTuple):
    """A record of the log. Epoch, owner and batch are those that stand behind it."""

    kind: Literal["OPEN", "APPEND", "ABORT_JOB"]
    author: int
    """Run or write job; of an ABORT_JOB, who is aborted."""
    epoch: int
    owner: int
    """Run of the newest OPEN, -1 if there is none."""
    batch: int
    """The query's newest, -1 if there is none."""
    segment: Segment | None = None

    def __str__(self) -> str:
        return f"{self.kind}({self.author}, epoch {self.epoch}, batch {self.batch})"


EMPTY: Final = Record("ABORT_JOB", -1, 0, -1, -1)
"""Stands for the end of a log without records."""


class Create(NamedTuple):
    """A create request."""

    slot: int
    record: Record


class Run(NamedTuple):
    """One start of the query, or one write job."""

    phase: Literal["idle", "task", "commit", "waiting", "orphan", "stopped", "done", "refused"]
    batch: int
    segment: Segment | None
    request: Create | None
    after: Literal["task", "commit", "orphan"]
    """What goes on once the request is answered."""


class RunState(NamedTuple):
    log: tuple[Record, ...]
    objects: frozenset[Segment]
    net: frozenset[Create]
    done: int
    """Batches that Spark's checkpoint calls done."""
    runs: tuple[Run, ...]
    """Starts of the query, then write jobs."""
    crashes: int
    timeouts: int
    repeats: int
    condemned: frozenset[Segment] | None
    aborting: Create | None
    """What the cleaner waits for."""
    collections: int

    @property
    def last(self) -> Record:
        return self.log[-1] if self.log else EMPTY


IDLE: Final = Run("idle", 0, None, None, "task")
JOB: Final = Run("task", 0, None, None, "task")


def all_done(state: RunState) -> bool:
    """Whether Spark calls all batches done."""
    return state.done >= BATCHES


def all_told(state: RunState) -> bool:
    """Whether every write job knows what became of it, or is dead."""
    return all(r.phase in ("done", "stopped") for r in state.runs)


def followed(state: RunState, who: int) -> bool:
    """Whether a run opened and is not the owner any more. The product looks at the newest records
    only: who opened before them opens again, which fences and costs nothing else."""
    opened = any(r.kind == "OPEN" and r.author == who for r in state.log)
    return opened and state.last.owner != who


def aborted_in(state: RunState, job: int) -> bool:
    return any(r.kind == "ABORT_JOB" and r.author == job for r in state.log)


def become(state: RunState, who: int, run: Run) -> RunState:
    return state._replace(runs=with_item(state.runs, who, run))


def next_batch(state: RunState, who: int) -> RunState:
    """Spark calls the batch done and begins the next one."""
    me = state.runs[who]
    ahead = me._replace(phase="task", batch=me.batch + 1, segment=None, request=None)
    return become(state._replace(done=max(state.done, me.batch + 1)), who, ahead)
