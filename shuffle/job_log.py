"""The job log: which driver may write or delete, and which stages exist.

The newest CLAIM wins; nobody can tell a dead driver from a slow one, so an older driver learns it
at its next write and stops. Making, reusing and releasing a stage all win a slot here first, so
that a release can never race a driver that plans to reuse. A released stage stays released: a STAGE
record behind RELEASED of the same incarnation is void, and `append` refuses to write one.
"""

from dataclasses import dataclass, field

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.layout import StagePath, job_log_prefix
from durable_shuffle.shuffle.records import (
    JOB_RECORDS,
    LAYOUT_VERSION,
    Claim,
    StageReleased,
    StageUse,
)
from durable_shuffle.shuffle.slot_log import SlotLog, Won, refuse_older
from durable_shuffle.shuffle.storage import Storage

JobRecord = Claim | StageUse | StageReleased
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
        elif isinstance(record, StageUse):
            path = self.path_of(record)
            if path not in self.released:
                self.stages[record.name, record.fingerprint] = path
                if path not in self.order:
                    self.order.append(path)
        elif isinstance(record, StageReleased):
            path = self.path_of(record)
            self.order = [p for p in self.order if p != path]
            if path not in self.released:
                self.released.append(path)
            if self.stages.get((path.name, path.fingerprint)) == path:
                del self.stages[path.name, path.fingerprint]
        self.next_slot += 1

    def path_of(self, record: StageUse | StageReleased) -> StagePath:
        """Return the stage that a record names."""
        return StagePath(self.job, record.name, record.fingerprint, record.incarnation)


def read_job(storage: Storage, job: str) -> JobState:
    """Read a job's log to its end, without claiming it."""
    state = JobState(job)
    log = SlotLog(storage, job_log_prefix(job))
    for slot, data in log.read_from():
        state.apply(_decode(log, slot, data))
    return state


def _decode(log: SlotLog, slot: int, data: bytes) -> JobRecord:
    record = JOB_RECORDS.decode(data, name=log.key(slot))
    if not isinstance(record, (Claim, StageUse, StageReleased)):
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

    def append(self, record: StageUse | StageReleased) -> None:
        """Win a slot for `record`.

        Raises:
            FencedError: a newer driver claimed the job.
            NotFoundError: a STAGE record of a stage that was released; nothing was written.
        """
        self._check_not_fenced()
        data = JOB_RECORDS.encode(record)
        for _ in range(_APPEND_TRIES):
            if isinstance(record, StageUse):
                _refuse_released(self._state, self._state.path_of(record))
            answer = self._log.append(self._state.next_slot, data)
            if isinstance(answer, Won):
                self._state.apply(record)
                return
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


def enter_stage(
    storage: Storage, path: StagePath, *, record_id: str, claim_id: str, replaces: bool
) -> StagePath:
    """Enter a described stage into its job's log, without a claim: whoever claimed goes on.

    For writers that make one stage and delete nothing. A job that nobody ever claimed is claimed.

    Args:
        replaces: enter it even if a stage of this name stands; readers then find the new one.

    Returns:
        The stage of this name that counts: `path`, or the one that another writer entered first.

    Raises:
        ConflictError: others kept winning the slots; try again.
        NotFoundError: `path` was entered and released before.
    """
    log = SlotLog(storage, job_log_prefix(path.job))
    state = read_job(storage, path.job)
    for _ in range(_APPEND_TRIES):
        standing = newest_named(state, path.name)
        if standing is not None and (standing == path or not replaces):
            return standing
        _refuse_released(state, path)
        record: JobRecord = Claim(claim_id, path.job, 1, LAYOUT_VERSION)
        if state.generation:
            record = StageUse(
                record_id, state.generation, path.name, path.fingerprint, path.incarnation
            )
        answer = log.append(state.next_slot, JOB_RECORDS.encode(record))
        if isinstance(answer, Won):
            state.apply(record)
        else:
            state.apply(_decode(log, state.next_slot, answer.existing))
    raise ConflictError(f"could not write to the log of job {path.job!r}")


def newest_named(state: JobState, name: str) -> StagePath | None:
    """Return the newest stage with a label that is not released."""
    return next((path for path in reversed(state.order) if path.name == name), None)


def _refuse_released(state: JobState, path: StagePath) -> None:
    if path in state.released:
        raise NotFoundError(
            f"the stage was released and cannot be used again: {path.prefix!r}; run again, which "
            "makes a new one"
        )
