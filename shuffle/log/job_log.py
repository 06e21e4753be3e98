"""The job log: which driver may write or delete, and which stages exist.

The newest CLAIM wins. Nobody can tell a dead driver from a slow one, so an older driver stops at
its next write. A driver that makes, reuses or releases a stage first wins a slot here, so a release
cannot race a driver that plans to reuse. A released stage stays released: a STAGE record behind
RELEASED of the same incarnation is void, and `append` refuses to write one. So is one of an older
driver behind the CLAIM of a newer one.

Reading begins at the newest snapshot (`job_state.py`), and writers leave a new one now and then.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from durable_shuffle.serialization.errors import (
    ConflictError,
    DurableShuffleError,
    FencedError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.side_by_side import Later, at_once
from durable_shuffle.shuffle.log.job_floor import JobRecords
from durable_shuffle.shuffle.log.job_records import (
    JOB_RECORDS,
    DriverEnded,
    JobRecord,
    StageBegun,
    StagesGone,
)
from durable_shuffle.shuffle.log.job_state import (
    SNAPSHOT_EVERY,
    JobState,
    keep_snapshot,
    newest_snapshot,
    with_job_record,
)
from durable_shuffle.shuffle.log.layout import StagePath, job_log_prefix, preflight_key
from durable_shuffle.shuffle.log.records import (
    LAYOUT_VERSION,
    Claim,
    StageReleased,
    StageUse,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog, refuse_older
from durable_shuffle.shuffle.log.typed_log import TypedLog
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.exclusive_create import prove_create


def job_records(storage: Storage, job: str) -> JobRecords:
    """Return a job's log. To read it use `read_job`, which begins at the newest snapshot."""
    return JobRecords(SlotLog(storage, job_log_prefix(job)), JOB_RECORDS, with_job_record, job)


def read_job(storage: Storage, job: str) -> JobState:
    """Read a job's log to its end, without claiming it."""
    log = job_records(storage, job)
    state, asked = newest_snapshot(storage, job, log.slots)
    # as a rule a snapshot stands so near to the end
    return log.read(state, ahead=SNAPSHOT_EVERY, asked=asked)


class JobLog:
    """A claimed job; one per driver. Safe to call from several threads."""

    def __init__(
        self, log: JobRecords, state: JobState, record_id: str, later: Later = at_once
    ) -> None:
        self._log, self._state, self._record_id, self._later = log, state, record_id, later
        self._lock = threading.RLock()
        self._generation = state.generation
        self._sure = state.next_slot
        """Slot below which no slot was gone when it was read or won; `confirm` raises it."""
        self.run = state.runs
        """Number of the run that this driver began; for a command, of the one that comes next."""

    @classmethod
    def claim(
        cls,
        storage: Storage,
        job: str,
        record_id: str,
        *,
        take_over: bool = True,
        by: str = "",
        wall_seconds: float = 0.0,
        run: bool = True,
        before: JobState | None = None,
        later: Later = at_once,
    ) -> "JobLog":
        """Win the job: from here on older drivers are fenced.

        Args:
            record_id: random id of this driver.
            take_over: False refuses a job whose newest driver has not said that it ended.
            by: host and process, for messages.
            wall_seconds: now, since 1970, for messages.
            run: whether a run of the job begins, which retention counts; False for commands.
            before: what `read_job` returned just now; None to read it.
            later: runs what nobody need wait for.

        Raises:
            ConflictError: `take_over` is False and another driver is active or died.
            InvalidInputError: the log belongs to another job, or the storage lets two writers win.
        """

        def claim(state: JobState) -> Claim:
            if state.owner and not (state.ended or take_over):
                raise ConflictError(
                    f"job {job!r} is claimed by {_driver(state)}, which is still active or "
                    "was killed; on_conflict='fail' does not take it over. Wait for it; if it was "
                    "killed, start once with on_conflict='take_over'"
                )
            made = state.generation + 1, LAYOUT_VERSION, by, wall_seconds, run
            return Claim(record_id, job, *made)

        log = job_records(storage, job)
        begin = read_job(storage, job) if before is None else before
        if begin.next_slot:
            state, _ = log.decide(begin, claim)
        else:  # once: then the CLAIM stands
            key = preflight_key(job, record_id)
            state, _ = prove_create(storage, key, lambda: log.decide(begin, claim))
        claimed = cls(log, keep_snapshot(storage, state, later), record_id, later)
        claimed.run += not run
        return claimed

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
        record: StageUse | StageReleased | StagesGone,
        *,
        unless: Callable[[JobState], bool] = lambda _: False,
        sure: bool = True,
    ) -> bool:
        """Win a slot for `record`; return whether it did.

        Args:
            unless: if it holds of the state before the slot, nothing is written.
            sure: False leaves it to `confirm` or `check_owner` to find out whether the slot was
                gone already; one of them must run before anybody relies on the record.

        Raises:
            FencedError: a newer driver claimed the job.
            NotFoundError: a STAGE record of a stage that was released; nothing was written.
        """

        def wanted(state: JobState) -> StageUse | StageReleased | StagesGone | None:
            self._take_in(state)
            if isinstance(record, StageUse):
                refuse_released(state, state.path_of(record))
            return None if unless(state) else replace(record, generation=self._generation)

        with self._lock:
            self._go_on()
            if sure:
                self.confirm()
            decide = self._log.decide if sure else partial(TypedLog.decide, self._log)
            state, won = decide(self._state, wanted)
            if sure:
                self._sure = state.next_slot
            self._state = self._kept(state) if sure else state
            return won is not None

    def look(self) -> None:
        """Read what came since, except that the slots may be gone; `confirm` makes sure of it.

        Raises:
            FencedError: a newer driver claimed the job.
        """
        with self._lock:
            self._go_on()
            self._take_in(self._state)
            state = TypedLog.read(self._log, self._state, self._is_lost)
            if self._is_lost(state):
                self.check_owner()  # it may be the CLAIM of a slot that is gone
            else:
                self._take_in(state)

    def confirm(self, *, end: bool = False) -> None:
        """Make sure that what was appended with `sure=False` counts.

        Args:
            end: and that the log ended where `look` found its end.

        Raises:
            FencedError: a newer driver claimed the job.
        """
        with self._lock:
            sure, unsure = self._sure, self._state.next_slot
        if sure >= unsure and not end:
            return  # another thread has made sure of it since
        floor = self._log.floor_above(sure)
        with self._lock:
            if floor is not None:
                self._take_in(self._log.read(floor))
                unsure = self._state.next_slot
            self._sure = max(self._sure, unsure)
            self._state = self._kept(self._state)

    def records(self, slot: int) -> Iterator[tuple[int, JobRecord]]:
        """Yield (slot, record) from `slot`, which is not below the floor, up to an empty slot."""
        return self._log.records(slot)

    def check_owner(self) -> None:
        """Read what came since.

        Raises:
            FencedError: a newer driver claimed the job.
        """
        with self._lock:
            self._go_on()
            self._take_in(self._state)
            self._take_in(self._log.read(self._state, until=self._is_lost, sure=self._sure))
            self._sure = self._state.next_slot
            self._state = self._kept(self._state)

    def end(self) -> None:
        """Say that this driver writes nothing more, so that another one need not take over.

        A driver that goes on all the same claims the job again with its next call. Does nothing if
        a newer driver claimed the job.
        """

        def ended(state: JobState) -> DriverEnded | None:
            self._state = state
            mine = state.generation == self._generation and not self._is_lost(state)
            return DriverEnded(self._record_id, self._generation) if mine else None

        with self._lock, suppress(FencedError):
            self.confirm()
            if not self._state.ended:
                # nobody relies on it, so nobody looks whether its slot was gone
                self._state, _ = TypedLog.decide(self._log, self._state, ended)

    def __enter__(self) -> "JobLog":
        return self

    def __exit__(self, *_: object) -> None:
        """End; a storage that does not answer is no error here."""
        with suppress(DurableShuffleError):
            self.end()

    def move(self, storage: Storage) -> None:
        """Go on over another connection to the same storage."""
        with self._lock:
            self._log = job_records(storage, self._state.job)

    def _go_on(self) -> None:
        """Claim the job again if this driver has ended and no other one has claimed it since."""

        def claim(state: JobState) -> Claim | None:
            if self._is_lost(state) or not state.ended:
                return None
            state = replace(state, generation=state.generation + 1)
            names = state.job, state.generation, LAYOUT_VERSION, state.by, state.since
            return Claim(self._record_id, *names)

        if self._state.ended and not self._is_lost(self._state):
            self.confirm()
            state, _ = self._log.decide(self._state, claim)
            self._sure = state.next_slot
            self._take_in(state)
            self._generation = state.generation

    def _kept(self, state: JobState) -> JobState:
        return keep_snapshot(self._log.slots.storage, state, self._later)

    def _is_lost(self, state: JobState) -> bool:
        return state.owner != self._record_id

    def _take_in(self, state: JobState) -> None:
        """Go on from a newer state of the log.

        Raises:
            FencedError: a newer driver claimed the job.
        """
        before, self._state = self._state, state
        if self._is_lost(state) and not self._is_lost(before):
            slot = state.next_slot - 1  # of the CLAIM
            refuse_older(self._log.slots, slot, found=state.generation, mine=self._generation)
        if self._is_lost(state):  # a fenced driver stays fenced
            raise FencedError(
                f"another driver took over job {state.job!r}: mine=generation "
                f"{self._generation}, newest={_driver(state)}; this driver must stop. If you did "
                "not start a second one, check whether your scheduler started the job twice"
            )


def _driver(state: JobState) -> str:
    """Name the newest driver of a job, for people."""
    since = datetime.fromtimestamp(state.since, UTC).isoformat(" ", "seconds")
    who = f" ({state.by}, since {since})" if state.by else ""
    return f"generation {state.generation}{who}"


@dataclass(frozen=True, slots=True)
class Entered:
    """What entering a stage came to."""

    path: StagePath
    """The stage of this name that counts: the caller's, or one that another writer entered."""
    replaced: StagePath | None = None
    """The stage whose place it took just now. It is released, and its data may go."""


def begin_stage(storage: Storage, path: StagePath, *, record_id: str, claim_id: str) -> None:
    """Enter a stage that is about to be made and does not count yet, so that `gc` knows of it.

    Claims a job that nobody ever claimed, and no other.

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
    """Enter a described stage into its job's log, without a claim, so no driver is fenced.

    For writers that make one stage. Claims a job that nobody ever claimed. Safe to repeat.

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
        standing = state.newest_named(path.name)
        if standing is not None and not replaces:
            return None
        counted = path in state.gone and not state.gone[path].unfinished
        if path in state.live or (replaces and counted):
            replaced = None
            return None  # it counts, or did until another took its place
        refuse_released(state, path)
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
    return Entered(state.newest_named(path.name) or path)


def use_stage(storage: Storage, path: StagePath, *, record_id: str, now: float = 0.0) -> None:
    """Enter another use of a stage that counts, without a claim.

    Whoever found the stage unused before does not release it any more. A stage that does not count
    yet, or of which the job log knows nothing, has no uses.

    Args:
        now: since 1970; by default the time of the last use stands.

    Raises:
        NotFoundError: its release is decided.
    """

    def record(state: JobState) -> StageUse | None:
        refuse_released(state, path)
        used = state.live.get(path)
        if used is None:
            return None
        return StageUse(
            record_id,
            state.generation,
            path.name,
            path.fingerprint,
            path.incarnation,
            # another time than before, by which this use is told from the last one
            wall_seconds=max(now, math.nextafter(used.wall_seconds, math.inf)),
            lasts=used.lasts,
        )

    job_records(storage, path.job).decide(read_job(storage, path.job), record)


def _write_unclaimed(
    storage: Storage,
    job: str,
    claim_id: str,
    record: Callable[[JobState], StageBegun | StageUse | None],
) -> JobState:
    """Win a slot for what `record` makes of the log's state, None for nothing; return the state."""
    log, state = job_records(storage, job), read_job(storage, job)

    def claimed_first(state: JobState) -> Claim | DriverEnded | None:
        if state.generation:
            alone = state.owner == claim_id and not state.ended
            return DriverEnded(claim_id, state.generation) if alone else None
        return Claim(claim_id, job, 1, LAYOUT_VERSION)

    if record(state) is not None:
        if not state.next_slot:
            prove_create(storage, preflight_key(job, claim_id), lambda: None)
        for _ in range(2):  # it is no driver, so it ends at once
            state, _ = log.decide(state, claimed_first)
    return keep_snapshot(storage, log.decide(state, record)[0])


def refuse_released(state: JobState, path: StagePath) -> None:
    """Refuse a stage whose release is decided."""
    if path in state.gone:
        raise NotFoundError(
            f"the stage was released and cannot be used again: {path.prefix!r}; run again, which "
            "makes a new one"
        )
