"""Makes a wanted stage a sealed one: look into the job log, decide, describe, run, seal.

The steps are the same for every kind of stage and of session. Every step that changes the stored
state first wins a slot in a log. Several threads may ensure stages of one job at once.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

from durable_shuffle.jobs.engine.engine import Engine, Planned
from durable_shuffle.jobs.engine.tasks import MapResult
from durable_shuffle.jobs.engine.transfer import LargeRowsError
from durable_shuffle.jobs.stages.built_on import built_on, superseded
from durable_shuffle.jobs.stages.compact_tasks import compacted
from durable_shuffle.jobs.stages.description import described
from durable_shuffle.jobs.stages.healing import Healing
from durable_shuffle.jobs.stages.identity import StageIdentity
from durable_shuffle.jobs.stages.misses import Misses
from durable_shuffle.jobs.stages.producer_runs import ProducerRuns, Ran, unproven
from durable_shuffle.jobs.stages.recorded import recorded_settings
from durable_shuffle.jobs.stages.report import StageReport, tell
from durable_shuffle.jobs.stages.stored_stage import ALONE, Ahead, SealedRows, StoredStage
from durable_shuffle.jobs.stages.work import InputsChangedError, TwoExecutionsError, Writing
from durable_shuffle.recovery.resume import (
    Decision,
    Fresh,
    KnownStage,
    Repair,
    Resume,
    Reuse,
    ReusePolicy,
    WantedStage,
    decide,
    unrecognised,
)
from durable_shuffle.serialization.errors import NotFoundError
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.side_by_side import beside, each_at_once, side_by_side
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import StagePath, job_log_prefix
from durable_shuffle.shuffle.log.named_stage import LostRecords
from durable_shuffle.shuffle.log.producer_log import read_producer
from durable_shuffle.shuffle.log.records import Lasts, Seal, StageUse
from durable_shuffle.shuffle.log.stage import (
    SEALED,
    StageHandle,
    StageState,
    describe_stage,
    open_stage,
    open_with_log,
    read_state,
)
from durable_shuffle.shuffle.log.typed_log import NOTHING
from durable_shuffle.shuffle.read.sealed_reader import small_index
from durable_shuffle.shuffle.release.stages import delete_orphans
from durable_shuffle.shuffle.repair.compaction import bytes_to_compact_at_seal
from durable_shuffle.shuffle.seal.seal import Listed, count_reruns, list_written
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import is_far
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.write.awaited import Awaited

_LOOKING_TASKS = 64
"""Of so many map tasks each looks for the stage's first records itself, and starts beside them. It
costs a request per task; of more tasks, only the first would gain by it."""
_LOG = logging.getLogger(__name__)
_EXECUTIONS = 4
"""How often a stage is tried. Spark tries its own stages as often when it lost what they read."""


_Seen = tuple[StageHandle, Mapping[int, bytes | None]] | tuple[None, None]
"""An opened stage, and what stands in the first slots of its log; None if there is none."""


class StageStore:
    """Stages of one claimed job. `ensure` may be called from several threads."""

    def __init__(
        self,
        *,
        storage: CountingStorage,
        task_storage: Storage,
        log: JobLog,
        policy: ReusePolicy,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
        engine: Engine,
        lost_records: Literal["refuse", "ignore"] = "refuse",
    ) -> None:
        self._lost = LostRecords(storage) if lost_records == "refuse" else None
        self._seen: dict[tuple[str, str], _Seen] = {}
        """(name, fingerprint) -> what a look at it just found, for `ensure`."""
        self._engine = engine
        self._storage, self._task_storage, self._log = storage, task_storage, log
        self.policy, self._settings = policy, settings
        self.clock, self._ids = clock, ids
        self.misses = Misses(storage, log, settings)
        self.healing = Healing(log, settings, clock, ids)
        self._runs = ProducerRuns(engine, task_storage, log, settings, ids, self.healing)
        self.is_far = is_far(storage)

    def look(self, work: Writing, identity: StageIdentity) -> Decision:
        """Say what `ensure` would do under policy "auto".

        Plans the stage if it is partly stored. On Spark Connect planning runs a small job.
        """
        stage, asked = self._opened(work.name, identity, self._storage)
        return self._decide(work, identity, stage, "auto", runs=False, asked=asked)[0]

    def stored(
        self, name: str, identity: StageIdentity, storage: Storage | None = None
    ) -> StageHandle | None:
        """Return the newest incarnation with this name and fingerprint, sealed or not."""
        path = self._log.state.stages.get((name, identity.fingerprint))
        return open_stage(storage or self._storage, path) if path else None

    def stored_with_state(
        self, name: str, identities: Iterable[StageIdentity], *, runs: bool
    ) -> dict[str, tuple[StageHandle, StageState]]:
        """Return fingerprint -> stage and state of those stored, all asked at once; see `state`."""
        wanted = {one.fingerprint: one for one in identities}

        def look(identity: StageIdentity) -> tuple[StageHandle, StageState] | None:
            seen = stage, asked = self._opened(name, identity, self._storage)
            if stage is None:
                return None
            if runs:
                self._seen[name, identity.fingerprint] = seen
            return stage, self.state(stage, runs=runs, asked=asked or NOTHING)

        found = zip(wanted, each_at_once(look, list(wanted.values())), strict=True)
        return {fingerprint: one for fingerprint, one in found if one is not None}

    def mend(self, paths: Iterable[StagePath]) -> bool:
        """Mend those of these stages in which readers noted damage; return whether there is one."""
        with suppress(NotFoundError):  # it was released
            return self.healing.mend([open_stage(self._storage, path) for path in paths])
        return False

    def _opened(self, name: str, identity: StageIdentity, storage: Storage) -> _Seen:
        """As `stored`, and what stands in the first slots of its log."""
        path = self._log.state.stages.get((name, identity.fingerprint))
        return open_with_log(storage, path) if path else (None, None)

    def state(
        self,
        stage: StageHandle,
        *,
        runs: bool,
        asked: Mapping[int, bytes | None] = NOTHING,
    ) -> StageState:
        """Return the state of a stage; if it `runs`, mend damage that a reader noted first."""
        if runs:
            return self.healing.state(stage, asked)
        return read_state(stage, ahead=SEALED, asked=asked)

    def superseded(self, stage: StageHandle) -> str:
        """Return which stage below was computed again since; "" if none was."""
        return superseded(stage, self._log.state)

    def ensure(
        self,
        work: Writing,
        identity: StageIdentity,
        *,
        confirms: bool = True,
        ahead: Ahead = ALONE,
    ) -> StoredStage:
        """Make sure that the stage is stored and sealed; return it.

        Args:
            confirms: False leaves it to the caller to call `confirm` before rows are handed out.
            ahead: what goes on beside.

        Raises:
            IncompatibleError: policy "require" and the stage would have to start fresh.
            CorruptDataError: the job's log lost the record of this stage; see `lost_records`.
            FencedError: a newer driver claimed the job.
            NotFoundError: another thread of this driver released the stage meanwhile.
        """
        changed, large_rows = "", False
        for left in reversed(range(_EXECUTIONS)):
            try:
                return self._ensure(
                    *(work, identity, changed, ahead), large_rows=large_rows, confirms=confirms
                )
            except (InputsChangedError, TwoExecutionsError) as e:
                if not left:
                    raise
                _LOG.warning("stage %s is stored again: %s", work.name, e)
                if isinstance(e, InputsChangedError):
                    changed = str(e)  # this time as Spark itself would have read them
                large_rows = large_rows or isinstance(e.__cause__, LargeRowsError)
        raise AssertionError

    def confirm(self, *, anew: bool) -> None:
        """Make sure that this driver owned the job when it sealed its last stage.

        Args:
            anew: whether it sealed one.

        Raises:
            FencedError: a newer driver had claimed the job.
        """
        self._log.confirm(end=anew)

    def _ensure(
        self,
        work: Writing,
        identity: StageIdentity,
        changed: str,
        ahead: Ahead,
        *,
        large_rows: bool,
        confirms: bool,
    ) -> StoredStage:
        """Do what `ensure` does.

        Args:
            changed: the inputs that changed when it was tried before; "" if nothing was tried.
            large_rows: its rows were too large for an ordinary plan before.
        """
        start = self.clock.monotonic()
        storage = CountingStorage(self._storage)  # other threads have their own
        before = self._storage.retry_counts
        anew = changed or self.policy == "never"
        key = work.name, identity.fingerprint
        stage, asked = self._seen.pop(key, (None, None))
        if anew:
            stage, asked = None, None
        elif stage is None or stage.path != self._log.state.stages.get(key):
            stage, asked = self._opened(work.name, identity, storage)
        decision: Decision
        planned: Planned | None
        if anew:
            why = unrecognised([changed]) if changed else ""
            decision, planned = decide(WantedStage(None, "", ()), None, self.policy, why), None
        else:
            decision, planned = self._decide(
                work, identity, stage, self.policy, runs=True, asked=asked
            )
        lasts: Lasts = "unrecognised" if identity.unresolved else "while_used"
        results: list[MapResult] = []
        ran: Ran | None = None
        listed: Listed | None = None
        index: tuple[str, bytes] | None = None
        new = isinstance(decision, Fresh) or stage is None
        if new or stage is None:
            planned = planned or self._plan(
                work, work.planning_settings(), runs=True, large_rows=large_rows
            )
            path = StagePath(
                self._log.state.job, work.name, identity.fingerprint, self._ids.new_id()
            )
            describe = described(
                *(path, work, identity, planned),
                generation=self._log.generation,
                below=built_on(identity.reads, self._log.state),
                settings=self._settings,
                clock=self.clock,
                ids=self._ids,
            )
            stage = StageHandle(storage, path, describe)
            self.misses.made(stage)
            state = StageState()  # nobody else knows the incarnation
        else:
            stored, whole = stage, isinstance(decision, Reuse)
            sealed = read_state(stage, asked=asked or NOTHING).seal if whole else None
            self._use(stage, lasts)
            _, state, listed, index = side_by_side(
                self._log.confirm,
                lambda: read_state(stored, ahead=SEALED),
                lambda: list_written(stored) if whole else None,
                lambda: small_index(stored, sealed),
                far=self.is_far,
            )
        seal, why = state.seal, decision.why
        native = planned.native_exchanges if planned else 0
        if isinstance(decision, Repair):
            stage = replace(stage, damaged=state.damaged)
        if seal is None or stage.damaged:
            assert planned is not None  # only a sealed stage that is whole is used without a plan
            use = self._ids.new_id()
            enter = partial(self._enter, stage, lasts, use) if new else lambda: None
            awaited: tuple[Awaited, ...] = ()
            if new and self.is_far and planned.producers <= _LOOKING_TASKS:
                prefix, slot = job_log_prefix(self._log.state.job), self._log.state.next_slot
                awaited = (Awaited(prefix, slot, use), *ahead.awaited)
            with beside(enter) as entered:
                ran = self._runs.run(
                    *(work, stage, planned, identity, changed),
                    new=new,
                    large_rows=new and large_rows,
                    confirms=confirms,
                    may_start=partial(ahead.starts_behind, entered),
                    awaited=awaited,
                    foreseen=partial(self._foresee, stage, ahead),
                )
            state, results, listed = ran.state, ran.results, ran.listed
            assert state.seal is not None
            if state.unrecognised:
                self._use(stage, "unrecognised", sure=True)
                why = f"{why}; {unrecognised(state.unrecognised)}"
            stage = replace(stage, damaged={})
            seal = compacted(
                *(self._engine, stage, self._for_tasks(stage), state.seal),
                *(self._log.generation, self._settings, self._ids),
            )
        stage = replace(stage, unrecognised=bool(state.unrecognised))
        reruns = count_reruns(stage, seal, listed)
        retries = sum(r.tries_before for r in results)
        if isinstance(decision, Resume | Repair) or retries:
            delete_orphans(stage, self._ids, cause="the stage is sealed without this attempt")
        wrote = sum(r.wrote for r in results) + (ran.earlier if ran else 0)
        if index is None:
            index = small_index(stage, seal, ran.index) if ran else small_index(stage, seal)
        stage = replace(stage, index=index)
        after = self._storage.retry_counts
        report = StageReport(
            name=stage.path.name,
            fingerprint=stage.path.fingerprint,
            incarnation=stage.path.incarnation,
            action=decision.action,
            why="; ".join(filter(None, (why, self.healing.told(stage)))),
            partitioner=stage.describe.partitioner,
            keys=stage.describe.key_names,
            columns=stage.describe.columns,
            map_tasks=seal.producers,
            map_tasks_run=wrote,
            map_tasks_reused=seal.producers - wrote,
            map_tasks_rerun=reruns.attempts,
            native_exchanges=native,
            rows=seal.rows,
            data_bytes=seal.data_bytes,
            objects=reruns.segments + seal.producers + 1,
            requests=storage.total + sum(r.requests for r in results),
            storage_retries=after.retries
            - before.retries
            + sum(r.storage_retries for r in results),
            storage_wait_seconds=after.waited_seconds
            - before.waited_seconds
            + sum(r.storage_wait_seconds for r in results),
            retries=retries,
            seconds=self.clock.monotonic() - start,
        )
        tell(report, _LOG)
        found = StoredStage(self._for_tasks(stage), seal, report)
        self._runs.recognised[found.fingerprint] = not stage.unrecognised
        return found

    def _for_tasks(self, stage: StageHandle) -> StageHandle:
        return replace(stage, storage=self._task_storage)

    def _plan(
        self,
        work: Writing,
        conf: Mapping[str, str],
        *,
        runs: bool,
        large_rows: bool = False,
    ) -> Planned:
        if runs:
            self._engine.start_workers()
        return work.plan(conf, large_rows=large_rows)

    def _enter(self, stage: StageHandle, lasts: Lasts, use: str) -> None:
        """Describe a new stage, then enter it into the job's log; only then may producers write."""
        describe_stage(stage.storage, stage.path, stage.describe)
        self._use(stage, lasts, use)

    def _foresee(self, stage: StageHandle, ahead: Ahead, seal: Seal, index: bytes) -> None:
        """Tell the caller of a stage that will not be compacted."""
        if not bytes_to_compact_at_seal(stage, seal, self._settings):
            stage = replace(stage, index=(stage.path.index_key(seal.index), index))
            ahead.foreseen(SealedRows(self._for_tasks(stage), seal))

    def _use(self, stage: StageHandle, lasts: Lasts, use: str = "", *, sure: bool = False) -> None:
        """Win a STAGE record. Unless `sure`, `confirm` or `check_owner` says whether it counts."""
        self._log.append(
            StageUse(
                use or self._ids.new_id(),
                self._log.generation,
                stage.path.name,
                stage.path.fingerprint,
                stage.path.incarnation,
                wall_seconds=self.clock.wall(),
                lasts=lasts,
            ),
            sure=sure,
        )

    def _decide(
        self,
        work: Writing,
        identity: StageIdentity,
        stage: StageHandle | None,
        policy: ReusePolicy,
        *,
        runs: bool,
        asked: Mapping[int, bytes | None] | None,
    ) -> tuple[Decision, Planned | None]:
        if stage is None:
            lost = None if policy == "never" else self._lost
            key = work.name, identity.fingerprint
            _, why = side_by_side(
                lambda: lost.refuse(self._log.state, *key) if lost else None,
                lambda: self.misses.why(work.name, identity),
                far=self.is_far,
            )
            return decide(WantedStage(None, "", ()), None, policy, why), None
        state = self.state(stage, runs=runs and policy != "never", asked=asked or NOTHING)
        why = "" if state.release is None else f"released: {state.release.cause}"
        why = why or superseded(stage, self._log.state) or self.healing.hopeless(stage)
        if why:  # the job log may have lost the record of a release
            return decide(
                WantedStage(None, "", ()), None, policy, f"the stored stage was {why}"
            ), None
        sealed = state.seal is not None
        if (sealed and not state.damaged) or state.unrecognised or policy == "never":
            known = KnownStage(sealed, None, "", frozenset(), unrecognised=state.unrecognised)
            return decide(WantedStage(None, "", ()), known, policy), None
        planned = self._plan(work, recorded_settings(stage), runs=runs)
        commits = {} if sealed else self._runs.committed(stage, stage.describe.producers)
        logs = (read_producer(stage.producer_log(p)) for p in state.damaged)
        unsure = unproven(identity, planned) if commits or state.damaged else ()
        decision = decide(
            WantedStage(planned.producers, planned.splits, unsure),
            KnownStage(
                sealed=sealed,
                producers=stage.describe.producers,
                splits=stage.describe.splits,
                committed=frozenset(commits),
                damaged=frozenset(state.damaged),
                commits=max((len(log.commits()) for log in logs), default=0),
            ),
            policy,
        )
        return decision, None if isinstance(decision, Fresh) else planned

    def progress(self, name: str, identity: StageIdentity) -> tuple[int, int]:
        """Return (producers committed, producers in total); (0, 0) before the stage exists."""
        stage = self.stored(name, identity)
        if stage is None:
            return 0, 0
        producers = stage.describe.producers
        return len(self._runs.committed(stage, producers)), producers
