"""What the records of a job log add up to: the fold, and its snapshots.

A snapshot holds the state below one slot, so that a reader need not begin at slot 0. It stands
beside the log under the name of that slot and decides nothing: every writer still meets each record
that it has not read. A snapshot that is damaged, lost or late only makes a reader read more. Why no
slot of the log may go because of it: `tests/protocol_model/protocol/snapshot_model.py`.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.side_by_side import Later, at_once, side_by_side
from durable_shuffle.shuffle.log.field_checks import check_seconds
from durable_shuffle.shuffle.log.job_records import DriverEnded, JobRecord, StageBegun, StagesGone
from durable_shuffle.shuffle.log.layout import (
    StagePath,
    job_snapshots_prefix,
    parse_stage_folder,
)
from durable_shuffle.shuffle.log.records import (
    LAYOUT_VERSION,
    Claim,
    Closed,
    Lasts,
    StageReleased,
    StageUse,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog, slots_listed
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import is_far

SNAPSHOT_EVERY = 8
"""Most records from one snapshot to the next, and so most that opening a job reads behind one."""
_KEPT = 2
"""Snapshots that stay: the newest, and one that a reader may have just found in a listing."""


@dataclass(frozen=True, slots=True)
class Use:
    """The last use of a stage that is not released."""

    generation: int
    """Of the driver that used it."""
    run: int
    """Runs of the job that had begun then."""
    wall_seconds: float
    """Since 1970; 0 if unknown."""
    lasts: Lasts

    def __post_init__(self) -> None:
        check_seconds("the time of a stage's last use", self.wall_seconds)


@dataclass(frozen=True, slots=True)
class Gone:
    """A stage whose release was decided."""

    unfinished: bool = False
    """Whether it never counted."""
    freed: float = 0.0
    """When all of its data was found deleted, since 1970; 0 if that is not known."""

    def __post_init__(self) -> None:
        check_seconds("the time at which a stage's data was gone", self.freed)


@dataclass(frozen=True, slots=True)
class JobState:
    """What the records of a job log add up to."""

    job: str
    next_slot: int = 0
    generation: int = 0
    owner: str = ""
    """`record_id` of the newest CLAIM."""
    by: str = ""
    """Host and process that claimed it, for people; "" if unknown, or if no driver did."""
    since: float = 0.0
    """When it was claimed, in seconds since 1970."""
    ended: bool = False
    """Whether the newest driver said that it ended."""
    runs: int = 0
    """How many runs have begun."""
    stages: Mapping[tuple[str, str], StagePath] = field(default_factory=dict)
    """(name, fingerprint) -> newest incarnation that is not released."""
    live: Mapping[StagePath, Use] = field(default_factory=dict)
    """All stages that are not released, oldest first, each with its last use."""
    gone: Mapping[StagePath, Gone] = field(default_factory=dict)
    """Stages whose release was decided, oldest first, until they are purged."""
    begun: tuple[StagePath, ...] = ()
    """Stages that writers make and that do not count yet."""
    purged: frozenset[str] = frozenset()
    """Names that purged stages had."""
    snapshot: int = field(default=0, compare=False)
    """Slot of the newest snapshot that is known; 0 if none is."""

    @property
    def order(self) -> tuple[StagePath, ...]:
        """All stages that are not released, oldest first."""
        return tuple(self.live)

    @property
    def released(self) -> tuple[StagePath, ...]:
        """Stages whose release was decided and that were not purged, oldest first."""
        return tuple(self.gone)

    def newest_named(self, name: str) -> StagePath | None:
        """Return the newest stage with a label that is not released."""
        return next((path for path in reversed(self.order) if path.name == name), None)

    @property
    def given_up(self) -> tuple[StagePath, ...]:
        """Released stages that never counted."""
        return tuple(path for path, gone in self.gone.items() if gone.unfinished)

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


def with_job_record(state: JobState, record: JobRecord, name: str = "") -> JobState:
    """Return the state behind the record of slot `state.next_slot`. Pure.

    Raises:
        InvalidInputError: the log belongs to another job.
        IncompatibleError: a newer version claimed the job.
        CorruptDataError: the record names no stage, or does not belong into a job log.
    """
    state = replace(state, next_slot=state.next_slot + 1)
    match record:
        case Claim():
            return _claimed(state, record)
        case DriverEnded():
            return replace(state, ended=state.ended or record.generation == state.generation)
        case StageBegun():
            return replace(state, begun=(*state.begun, state.path_of(record)))
        case StageUse():
            return _used(state, record)
        case StageReleased():
            return _released(state, state.path_of(record))
        case StagesGone():
            return _gone(state, record)
        case Closed():
            raise CorruptDataError(f"not a job record: key={name!r}")


def _claimed(state: JobState, record: Claim) -> JobState:
    if record.job != state.job:
        raise InvalidInputError(
            f"this root belongs to another job: expected job={state.job!r} found "
            f"job={record.job!r}; give another url or another job name"
        )
    if record.layout_version > LAYOUT_VERSION:
        raise IncompatibleError(
            f"the job was written by a newer durable-shuffle: layout "
            f"found={record.layout_version} supported={LAYOUT_VERSION} job={state.job!r}"
        )
    return replace(
        state,
        generation=record.generation,
        owner=record.record_id,
        by=record.by,
        since=record.wall_seconds,
        ended=False,
        runs=state.runs + record.run,
    )


def _used(state: JobState, record: StageUse) -> JobState:
    path = state.path_of(record)
    if path in state.gone or record.generation < state.generation:
        return state  # void: it was released, or an older driver won slots before it looked
    use = Use(record.generation, state.runs, record.wall_seconds, record.lasts)
    state = replace(
        state,
        begun=tuple(p for p in state.begun if p != path),
        stages={**state.stages, (path.name, path.fingerprint): path},
        live={**state.live, path: use},
    )
    replaced = parse_stage_folder(state.job, record.replaced)
    return state if replaced is None else _released(state, replaced)


def _released(state: JobState, path: StagePath) -> JobState:
    if path in state.gone:
        return state
    key = path.name, path.fingerprint
    stages = state.stages
    if stages.get(key) == path:
        stages = {k: p for k, p in stages.items() if k != key}
    return replace(
        state,
        begun=tuple(p for p in state.begun if p != path),
        live={p: use for p, use in state.live.items() if p != path},
        gone={**state.gone, path: Gone(path in state.begun)},
        stages=stages,
    )


def _gone(state: JobState, record: StagesGone) -> JobState:
    gone, names = dict(state.gone), set(state.purged)
    for folder in record.folders:
        path = parse_stage_folder(state.job, folder)
        if path is None or path not in gone:
            continue
        if record.logs:
            names.add(path.name)
            del gone[path]
        else:
            gone[path] = replace(gone[path], freed=record.wall_seconds)
    return replace(state, gone=gone, purged=frozenset(names))


# -- snapshots


@dataclass(frozen=True, slots=True)
class LiveStage:
    """A stage that is not released."""

    folder: str
    newest: bool
    """Whether no newer stage has its name and fingerprint."""
    used: Use


@dataclass(frozen=True, slots=True)
class GoneStage:
    """A stage whose release was decided."""

    folder: str
    gone: Gone


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The state below a slot, which is the object's name. Stages are named by their folders."""

    KIND: ClassVar[str] = "SNAPSHOT"
    job: str
    generation: int
    owner: str
    by: str
    since: float
    ended: bool
    runs: int
    live: tuple[LiveStage, ...]
    """Oldest first."""
    released: tuple[GoneStage, ...]
    """Oldest first."""
    begun: tuple[str, ...]
    purged: tuple[str, ...]
    """Names of stages."""

    def __post_init__(self) -> None:
        check_seconds("the time of the newest claim", self.since)


JOB_SNAPSHOTS: RecordCodec[JobSnapshot] = RecordCodec((JobSnapshot,))


def snapshot_of(state: JobState) -> JobSnapshot:
    """Return the snapshot of a state. Pure."""
    current = set(state.stages.values())
    return JobSnapshot(
        state.job,
        state.generation,
        state.owner,
        state.by,
        state.since,
        state.ended,
        state.runs,
        tuple(LiveStage(p.folder, p in current, use) for p, use in state.live.items()),
        tuple(GoneStage(path.folder, gone) for path, gone in state.gone.items()),
        tuple(path.folder for path in state.begun),
        tuple(sorted(state.purged)),
    )


def state_at(job: str, slot: int, snapshot: JobSnapshot) -> JobState:
    """Return the state that the snapshot named `slot` holds. Pure.

    Raises:
        CorruptDataError: it is of another job, or names a stage that cannot be.
    """
    if snapshot.job != job:
        raise CorruptDataError(f"a snapshot of job {snapshot.job!r} stands at {job!r}")
    stages, released = snapshot.live, snapshot.released
    live = dict(zip(_paths(job, (stage.folder for stage in stages)), stages, strict=True))
    folders = _paths(job, (stage.folder for stage in released))
    gone = {path: stage.gone for path, stage in zip(folders, released, strict=True)}
    return JobState(
        job,
        slot,
        snapshot.generation,
        snapshot.owner,
        snapshot.by,
        snapshot.since,
        snapshot.ended,
        snapshot.runs,
        {(p.name, p.fingerprint): p for p, stage in live.items() if stage.newest},
        {p: stage.used for p, stage in live.items()},
        gone,
        tuple(_paths(job, snapshot.begun)),
        frozenset(snapshot.purged),
        slot,
    )


def _paths(job: str, folders: Iterable[str]) -> list[StagePath]:
    paths = []
    for folder in folders:
        path = parse_stage_folder(job, folder)
        if path is None:
            raise CorruptDataError(f"a snapshot of job {job!r} names no stage: {folder!r:.200}")
        paths.append(path)
    return paths


def snapshots_listed(storage: Storage, job: str) -> list[int]:
    """Return the slots of a job's snapshots, newest first, as a listing shows them."""
    prefix = job_snapshots_prefix(job)
    listed = slots_listed(info.key for info in storage.list(prefix))
    return sorted(listed.get(prefix, ()), reverse=True)


def read_snapshot(storage: Storage, job: str, slot: int) -> JobState | None:
    """Return the state that a snapshot holds, None if there is no such snapshot.

    Raises:
        CorruptDataError, IncompatibleError: it cannot be used.
    """
    slots = SlotLog(storage, job_snapshots_prefix(job))
    data = slots.read(slot)
    return (
        None if data is None else state_at(job, slot, JOB_SNAPSHOTS.decode(data, slots.key(slot)))
    )


def newest_snapshot(
    storage: Storage, job: str, log: SlotLog | None = None
) -> tuple[JobState, Mapping[int, bytes | None]]:
    """Return the newest state that a snapshot holds, else the state of an empty log.

    A snapshot that cannot be read is passed over: the log holds what it says. `verify` reports it.

    Args:
        log: the job's; the slots behind the newest snapshot are asked for beside it.

    Returns:
        The state, and what stands in the slots that were asked for.
    """
    asked: Mapping[int, bytes | None] = {}
    for slot in snapshots_listed(storage, job):

        def look(slot: int = slot) -> JobState | None:
            with suppress(CorruptDataError, IncompatibleError):
                return read_snapshot(storage, job, slot)
            return None

        if log is None:
            state = look()
        else:
            behind = range(slot, slot + SNAPSHOT_EVERY + 1)  # with the empty slot
            state, asked = side_by_side(look, partial(log.read_many, behind), far=is_far(storage))
        if state is not None:
            return state, asked
    return JobState(job), asked


def keep_snapshot(storage: Storage, state: JobState, later: Later = at_once) -> JobState:
    """Write a snapshot if the last one is old, and delete older ones.

    A storage that refuses it does not stop the caller: the next writer tries again.

    Args:
        later: runs what writes and deletes, perhaps behind the caller.

    Returns:
        The state with the slot of the newest snapshot.
    """
    if state.next_slot - state.snapshot < SNAPSHOT_EVERY:
        return state
    later(partial(_write_snapshot, storage, state))
    return replace(state, snapshot=state.next_slot)


def _write_snapshot(storage: Storage, state: JobState) -> None:
    slots = SlotLog(storage, job_snapshots_prefix(state.job))
    with suppress(UnavailableError, OutcomeUnknownError):
        slots.append(state.next_slot, JOB_SNAPSHOTS.encode(snapshot_of(state)))
        old = snapshots_listed(storage, state.job)[_KEPT:]
        if old:
            storage.delete([slots.key(slot) for slot in old])
