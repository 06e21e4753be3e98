"""The job log: which driver may write or delete, and which stages exist.

The newest CLAIM wins; nobody can tell a dead driver from a slow one, so an older driver learns it
at its next write and stops. Making, reusing and releasing a stage all win a slot here first, so
that a release can never race a driver that plans to reuse. A released stage stays released: a STAGE
record behind RELEASED of the same incarnation is void, and `append` refuses to write one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.layout import StagePath, job_log_prefix, parse_stage_folder
from durable_shuffle.shuffle.records import (
    JOB_RECORDS,
    LAYOUT_VERSION,
    Claim,
    StageBegun,
    StageReleased,
    StageUse,
)
from durable_shuffle.shuffle.slot_log import SlotLog, Won, refuse_older
from durable_shuffle.shuffle.storage import Storage

JobRecord = Claim | StageBegun | StageUse | StageReleased
_APPEND_TRIES = 1000


@dataclass(slots=True)
class JobState:
    """What the records of a job log add up to. `apply` is the only thing that changes it."""

    job: str
    next_slot: int = 0
    generation: int = 0
    owner: str = ""
    """`record_id` of the newest CLAIM."""
    stages: dict[tuple[str, str], StagePath] = field(default_factory=dict)
    """(name, fingerprint) -> newest incarnation that is not released."""
    order: list[StagePath] = field(default_factory=list)
    """All stages that are not released, oldest first."""
    released: list[StagePath] = field(default_factory=list)
    """Stages whose release was decided, oldest first; their data may not all be gone yet."""
    begun: list[StagePath] = field(default_factory=list)
    """Stages that writers make and that do not count yet."""
    given_up: list[StagePath] = field(default_factory=list)
    """Those of the released ones that never counted."""

    def apply(self, record: JobRecord) -> None:
        """Take in the record of `next_slot`."""
        if isinstance(record, Claim):
            if record.job != self.job:
                raise InvalidInputError(
                    f"this root belongs to another job: expected job={self.job!r} found "
                    f"job={record.job!r}; give another url or another job name"
                )
            if record.layout_version > LAYOUT_VERSION:
                raise IncompatibleError(
                    f"the job was written by a newer durable-shuffle: layout "
                    f"found={record.layout_version} supported={LAYOUT_VERSION} job={self.job!r}"
                )
            self.generation, self.owner = record.generation, record.record_id
        elif isinstance(record, StageBegun):
            self.begun.append(self.path_of(record))
        elif isinstance(record, StageUse):
            path = self.path_of(record)
            if path not in self.released:
                self.begun = [p for p in self.begun if p != path]
                self.stages[record.name, record.fingerprint] = path
                if path not in self.order:
                    self.order.append(path)
                replaced = parse_stage_folder(self.job, record.replaced)
                if replaced is not None:
                    self._release(replaced)
        elif isinstance(record, StageReleased):
            self._release(self.path_of(record))
        self.next_slot += 1

    def _release(self, path: StagePath) -> None:
        if path in self.begun:
            self.begun.remove(path)
            self.given_up.append(path)
        self.order = [p for p in self.order if p != path]
        if path not in self.released:
            self.released.append(path)
        if self.stages.get((path.name, path.fingerprint)) == path:
            del self.stages[path.name, path.fingerprint]

    def path_of(self, record: StageBegun | StageUse | StageReleased) -> StagePath:
        """Return the stage that a record names.

        Raises:
            CorruptDataError: it names none that can be.
        """
        try:
            return StagePath(self.job, record.name, record.fingerprint, record.incarnation)
        except InvalidInputError as error:
            raise CorruptDataError(
                f"a record of job {self.job!r} names no stage: {error}"
            ) from error


def read_job(storage: Storage, job: str) -> JobState:
    """Read a job's log to its end, without claiming it."""
    state = JobState(job)
    log = SlotLog(storage, job_log_prefix(job))
    for slot, data in log.read_from():
        state.apply(_decode(log, slot, data))
    return state


def _decode(log: SlotLog, slot: int, data: bytes) -> JobRecord:
    record = JOB_RECORDS.decode(data, name=log.key(slot))
    if not isinstance(record, JobRecord):
        raise CorruptDataError(f"not a job record: key={log.key(slot)!r}")
    return record


class JobLog:
    """A claimed job. Not thread-safe; one per driver."""

    def __init__(self, log: SlotLog, state: JobState, record_id: str) -> None:
        self._log, self._state, self._record_id = log, state, record_id
        self._generation = state.generation

    @classmethod
    def claim(
        cls, storage: Storage, job: str, record_id: str, *, take_over: bool = True
    ) -> "JobLog":
        """Win the job: from here on older drivers are fenced.

        Args:
            record_id: random id of this driver.
            take_over: False refuses a job that another driver ever claimed.

        Raises:
            ConflictError: `take_over` is False and the job is claimed.
            InvalidInputError: the log belongs to another job.
        """
        log = SlotLog(storage, job_log_prefix(job))
        state = read_job(storage, job)
        for _ in range(_APPEND_TRIES):
            if state.owner and not take_over:
                raise ConflictError(
                    f"job {job!r} is claimed by generation {state.generation} and "
                    "on_conflict='fail' was asked for; use on_conflict='take_over' if that driver "
                    "is gone"
                )
            claim = Claim(record_id, job, state.generation + 1, LAYOUT_VERSION)
            answer = log.append(state.next_slot, JOB_RECORDS.encode(claim))
            if isinstance(answer, Won):
                state.apply(claim)
                return cls(log, state, record_id)
            state.apply(_decode(log, state.next_slot, answer.existing))
        raise ConflictError(f"could not claim job {job!r}: {_APPEND_TRIES} others were faster")

    @property
    def generation(self) -> int:
        """This driver's generation, from 1; stays its own when a newer driver takes over."""
        return self._generation

    @property
    def state(self) -> JobState:
        """What the log said when it was last read."""
        return self._state

    def append(
        self,
        record: StageUse | StageReleased,
        *,
        unless: Callable[[JobState], bool] = lambda _: False,
    ) -> bool:
        """Win a slot for `record`; return whether it did.

        Args:
            unless: of what stands before the slot: where it holds, nothing is written.

        Raises:
            FencedError: a newer driver claimed the job.
            NotFoundError: a STAGE record of a stage that was released; nothing was written.
        """
        self._check_not_fenced()
        data = JOB_RECORDS.encode(record)
        for _ in range(_APPEND_TRIES):
            if isinstance(record, StageUse):
                _refuse_released(self._state, self._state.path_of(record))
            if unless(self._state):
                return False
            answer = self._log.append(self._state.next_slot, data)
            if isinstance(answer, Won):
                self._state.apply(record)
                return True
            self._take_in(answer.existing)
        raise ConflictError(f"could not write to the log of job {self._state.job!r}")

    def check_owner(self) -> None:
        """Read what came since.

        Raises:
            FencedError: a newer driver claimed the job.
        """
        self._check_not_fenced()
        while (data := self._log.read(self._state.next_slot)) is not None:
            self._take_in(data)

    def _take_in(self, data: bytes) -> None:
        slot = self._state.next_slot
        record = _decode(self._log, slot, data)
        if isinstance(record, Claim):
            refuse_older(self._log, slot, found=record.generation, mine=self._generation)
        self._state.apply(record)
        self._check_not_fenced()

    def _check_not_fenced(self) -> None:
        """Raise if a newer CLAIM was ever seen: who is fenced stays fenced."""
        if self._state.owner != self._record_id:
            raise FencedError(
                f"another driver took over job {self._state.job!r}: mine=generation "
                f"{self._generation}, newest=generation {self._state.generation}; this driver "
                "must stop"
            )


@dataclass(frozen=True, slots=True)
class Entered:
    """What entering a stage came to."""

    path: StagePath
    """The stage of this name that counts: one's own, or the one that another writer entered."""
    replaced: StagePath | None = None
    """The stage whose place it took just now: it is released, and its data may go."""


def begin_stage(storage: Storage, path: StagePath, *, record_id: str, claim_id: str) -> None:
    """Enter a stage that is about to be made and does not count yet, so that `gc` knows of it.

    Claims nothing; a job that nobody ever claimed is claimed.

    Raises:
        ConflictError: others kept winning the slots; try again.
    """

    def record(state: JobState) -> StageBegun:
        return StageBegun(
            record_id, state.generation, path.name, path.fingerprint, path.incarnation
        )

    _write_unclaimed(storage, path.job, claim_id, record)


def enter_stage(
    storage: Storage,
    path: StagePath,
    *,
    record_id: str,
    claim_id: str,
    replaces: bool,
    releases: Callable[[StagePath], bool] = lambda _: False,
) -> Entered:
    """Enter a described stage into its job's log, without a claim: whoever claimed goes on.

    For writers that make one stage. A job that nobody ever claimed is claimed. Safe to repeat.

    Args:
        replaces: enter it even if a stage of this name stands; readers then find the new one.
        releases: whether the stage that it replaces is released by the same record.

    Raises:
        ConflictError: others kept winning the slots; try again.
        NotFoundError: `path` was given up or released before it counted.
    """
    replaced: StagePath | None = None

    def record(state: JobState) -> StageUse | None:
        nonlocal replaced
        standing = newest_named(state, path.name)
        if standing is not None and not replaces:
            return None
        counted = path in state.released and path not in state.given_up
        if path in state.order or (replaces and counted):
            replaced = None
            return None  # it counts, or did until another took its place
        _refuse_released(state, path)
        replaced = standing if standing is not None and releases(standing) else None
        return StageUse(
            record_id,
            state.generation,
            path.name,
            path.fingerprint,
            path.incarnation,
            replaced.folder if replaced else "",
        )

    state = _write_unclaimed(storage, path.job, claim_id, record)
    if replaces:
        return Entered(path, replaced)
    found = newest_named(state, path.name)
    return Entered(found or path)


def _write_unclaimed(
    storage: Storage,
    job: str,
    claim_id: str,
    record: Callable[[JobState], StageBegun | StageUse | None],
) -> JobState:
    """Win a slot for what `record` makes of the log's state, None for nothing; return the state."""
    log = SlotLog(storage, job_log_prefix(job))
    state = read_job(storage, job)
    for _ in range(_APPEND_TRIES):
        wanted = record(state)
        if wanted is None:
            return state
        sent: JobRecord = wanted
        if not state.generation:
            sent = Claim(claim_id, job, 1, LAYOUT_VERSION)
        answer = log.append(state.next_slot, JOB_RECORDS.encode(sent))
        if isinstance(answer, Won):
            state.apply(sent)
            if sent is wanted:
                return state
        else:
            state.apply(_decode(log, state.next_slot, answer.existing))
    raise ConflictError(f"could not write to the log of job {job!r}")


def newest_named(state: JobState, name: str) -> StagePath | None:
    """Return the newest stage with a label that is not released."""
    return next((path for path in reversed(state.order) if path.name == name), None)


def _refuse_released(state: JobState, path: StagePath) -> None:
    if path in state.released:
        raise NotFoundError(
            f"the stage was released and cannot be used again: {path.prefix!r}; run again, which "
            "makes a new one"
        )
