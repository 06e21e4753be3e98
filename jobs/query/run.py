"""Stores the missing exchanges of one planned query, independent ones at the same time.

Going down from the result, a sealed stage makes everything below it unnecessary. The other cuts run
bottom up. Each map side is one Spark job in its own thread; it starts when the stages that it reads
are sealed. If the plan may still change, map sides run in waves: the query is planned again when
all of a wave are sealed. Stages that are sealed already are opened before the first wave. So the
plans of a later run follow from the same sizes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial

from pyspark.sql import SparkSession

from durable_shuffle.jobs.engine import catalyst
from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS
from durable_shuffle.jobs.query.at_risk import AtRisk
from durable_shuffle.jobs.query.cut_work import CutWork
from durable_shuffle.jobs.query.cuts import Cut, PlanPiece
from durable_shuffle.jobs.query.native_stage import NativeStage, Source, sizes_of
from durable_shuffle.jobs.query.planned_query import PlannedQuery
from durable_shuffle.jobs.spark_versions import thread_target
from durable_shuffle.jobs.stages.built_on import reads_missing
from durable_shuffle.jobs.stages.progress import ProgressView
from durable_shuffle.jobs.stages.runner import StageRunner
from durable_shuffle.jobs.stages.store import StoredStage
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle, StageState

_AT_ONCE = 8
"""Map sides that may run at the same time, each in its own thread."""

Known = tuple[StageHandle, StageState]
"""A stage that was looked up just now, and its state."""

_LEFT = "left to Spark: a driver that dies loses {:.1f} s of work, at_risk allows {:g} s"


def whole_seal(state: StageState) -> Seal | None:
    """Return the seal of a stage; None if none of it can be used, or not all of it."""
    return None if state.damaged or state.unrecognised else state.seal


class SealedCuts:
    """Which cuts of a query are sealed; asks the storage once per stage.

    Args:
        runs: whether the query will run, so that damaged stages may be mended.
        known: fingerprint -> what is known of a stored stage.
    """

    def __init__(
        self,
        query: PlannedQuery,
        stages: StageRunner,
        at_risk: AtRisk,
        *,
        runs: bool,
        known: Mapping[str, Known],
    ) -> None:
        self._query, self._store, self._at_risk = query, stages.store, at_risk
        self._runs = runs
        self._least = stages.settings.result_least_bytes
        self._known = dict(known)
        self._seals: dict[str, Seal | None] = {}
        self._stages: dict[str, StageHandle] = {}

    def seal(self, cut: Cut) -> Seal | None:
        """Return the seal of a cut's stage if nothing of it has to run."""
        self._look_up([cut])
        return self._seals[self._query.fingerprint(cut)]

    def _look_up(self, cuts: Iterable[Cut]) -> None:
        """Find out the seals of cuts, all at once."""
        query = self._query
        asked = {query.fingerprint(cut): query.identity(cut) for cut in cuts}
        asked = {key: one for key, one in asked.items() if key not in self._seals}
        if self._store.policy != "never":
            new = [one for one in asked.values() if one.fingerprint not in self._known]
            self._known |= self._store.stored_with_state(query.name, new, runs=self._runs)
        for key, identity in asked.items():
            self._seals[key] = self._seal_of(key, self._known.get(identity.fingerprint))

    def _seal_of(self, key: str, known: Known | None) -> Seal | None:
        if known is None or self._store.superseded(known[0]):
            return None
        stage, state = known
        self._stages[key] = stage
        return None if self._store.healing.hopeless(stage) else whole_seal(state)

    def needed(self) -> dict[int, bool]:
        """Return cut number -> whether its stage is sealed, for all cuts that are needed.

        A stage that was built on one that has to be computed again is not used, either.
        """
        while True:
            needed = self._needed()
            cuts = {cut.number: self._query.fingerprint(cut) for cut in self._query.cuts}
            missing = {cuts[number] for number, is_sealed in needed.items() if not is_sealed}
            stale = [
                cuts[number]
                for number, is_sealed in needed.items()
                if is_sealed and reads_missing(self._stages[cuts[number]], missing)
            ]
            if not stale:
                return needed
            self._seals |= dict.fromkeys(stale)

    def _needed(self) -> dict[int, bool]:
        needed: dict[int, bool] = {}

        def look(piece: PlanPiece) -> None:
            self._look_up(piece.cuts)
            for cut in piece.cuts:
                if cut.number not in needed:
                    needed[cut.number] = self.seal(cut) is not None
                    if not needed[cut.number]:
                        look(cut.piece)

        result = self._query.result_cut
        if result is not None:
            needed[result.number] = self.seal(result) is not None
        if result is None or not needed[result.number]:
            look(self._query.last)
        return needed

    def ready(self) -> list[Cut]:
        """Return the missing exchanges that read sealed stages only."""
        needed = self.needed()
        return [
            cut
            for cut in self._query.cuts
            if needed.get(cut.number) is False
            and cut is not self._query.result_cut
            and all(needed.get(below.number) for below in cut.piece.cuts)
        ]

    def taken_into_account(self) -> bool:
        """Let the sealed stages stand for what they store; return whether the plan changed."""
        query = self._query
        for cut in list(query.cuts):
            seal = self.seal(cut) if self.needed().get(cut.number) else None
            if seal is not None:
                query.place(cut)
                query.sized(cut, seal)
        return query.replan()

    def result_stays_native(self) -> bool:
        """Return True if it is already certain that the query's rows will not be stored."""
        assert self._query.result_cut is not None
        seals = [self.seal(cut) for cut in self._query.result_cut.piece.cuts]
        known = [seal for seal in seals if seal is not None]
        return len(known) == len(seals) and not self.stores_result(known)

    def stores_result(self, below: Iterable[Seal | NativeStage]) -> bool:
        """Return whether to store the query's rows, given the stages that the last piece reads."""
        size = sum(sizes.data_bytes for sizes in below)
        if self._at_risk.budget:
            pays = not self._at_risk.allows(self._at_risk.expected(size))
        else:
            pays = size >= self._least
        return pays and self._store.policy != "require"


class QueryRun:
    """One run of a query. Use once.

    Args:
        query: planned, not started.
        progress: is told what starts and ends.
        at_risk: how much work may be lost; nothing is at risk yet.
        replanned: called after the query was planned again.
        known: as for `SealedCuts`.
    """

    def __init__(
        self,
        spark: SparkSession,
        engine: Engine,
        stages: StageRunner,
        query: PlannedQuery,
        progress: ProgressView,
        at_risk: AtRisk,
        replanned: Callable[[], None],
        known: Mapping[str, Known],
    ) -> None:
        self._spark, self._engine, self._stages, self._query = spark, engine, stages, query
        self._progress, self._replanned = progress, replanned
        self._sealed = SealedCuts(query, stages, at_risk, runs=True, known=known)
        self._at_risk = at_risk
        self._tag = f"durable-shuffle-{stages.ids.new_id()}"
        self._running: dict[Future[Source], Cut] = {}
        self._native_since: dict[int, float] = {}
        """Number of a cut that Spark runs now -> when it started."""
        self._must_store: set[int] = set()
        """Numbers of cuts that took longer than may be at risk."""
        self._started: dict[str, int] = {}
        """Fingerprint -> number of the cut that started with it; equal exchanges are one stage."""
        self.stored: dict[int, Source] = {}
        self.left: list[str] = []
        """What was left to Spark, and how much work was at risk then."""

    def ensure(self) -> dict[int, Source]:
        """Return cut number -> stage, for all cuts that are needed; run those that are missing.

        The caller must `confirm` in the end.
        """
        self._tell_plan()
        context, tag = self._spark.sparkContext, self._tag
        context.addJobTag(tag)  # the threads inherit it
        threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="durable-query")
        with catalyst.tagged(self._spark), threads as pool:
            try:
                self._start(pool)
                while self._running:
                    left = self._time_left()
                    done, _ = wait(self._running, timeout=left, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._end(pool, future)
                    if not done:
                        self._stop_late()
                        continue
                    if self._running and self._query.may_adapt():
                        continue  # what is planned next must not depend on who ends first
                    self._plan_again()
                    self._start(pool)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                with suppress(Exception):  # of a stopped context; the first error counts
                    context.cancelJobsWithTag(tag)
                raise
            finally:
                with suppress(Exception):
                    context.removeJobTag(tag)
        return self.stored

    def _plan_again(self) -> None:
        """Plan the query again until neither sizes nor equal exchanges change the plan.

        A new plan may have new exchanges that are equal to stored ones. A later run would find
        these sealed and plan with their sizes, too.
        """
        while True:
            list(self._waiting(self._sealed.needed()))  # equal cuts are stored, too
            if not self._query.replan():
                return
            self._replanned()

    def _tell_plan(self) -> None:
        needed = self._sealed.needed()
        exchanges = [cut.number for cut in self._query.cuts if cut is not self._query.result_cut]
        sealed = sum(needed.values())
        missing = sum(needed.get(number) is False for number in exchanges)
        self._progress.planned(self._query.name, len(exchanges), sealed, missing)

    def _start(self, pool: ThreadPoolExecutor) -> None:
        """Open the sealed stages, and start the cuts that are ready; if the plan may change, open
        the sealed ones first."""
        needed = self._sealed.needed()
        waiting = list(self._waiting(needed))
        opening = [cut for cut in waiting if needed[cut.number]]
        if not (opening and self._query.may_adapt()):
            self._start_missing(pool, [cut for cut in waiting if not needed[cut.number]])
        for cut in opening:
            self._submit(pool, cut)

    def _start_missing(self, pool: ThreadPoolExecutor, waiting: list[Cut]) -> None:
        ready = [cut for cut in waiting if self._is_ready(cut)]
        running = list(self._running.values())
        starting = self._query.starting(ready, running)
        # with other settings the scans below a broadcast would be split differently
        if starting and self._query.conf == self._engine.planning_settings():
            certain = [] if self._query.joins() else [cut.piece for cut in waiting]
            if not self._query.joins():
                certain.append(self._query.above(self.stored))
            with self._engine.described("durable_shuffle: broadcasts"):
                self._query.start_broadcasts([*(cut.piece for cut in starting), *certain])
        for cut in starting:
            self._submit(pool, cut)

    def _waiting(self, needed: Mapping[int, bool]) -> Iterator[Cut]:
        """Yield the needed cuts that are neither stored nor running, one of equal ones."""
        first_of = dict(self._started)
        running = {cut.number for cut in self._running.values()}
        for cut in self._query.cuts:
            number = cut.number
            if number not in needed or number in self.stored or number in running:
                continue
            first = first_of.setdefault(self._query.fingerprint(cut), number)
            if first == number:
                yield cut
            elif first in self.stored:
                self._finish(cut, self.stored[first])

    def _is_ready(self, cut: Cut) -> bool:
        if any(below.number not in self.stored for below in cut.piece.cuts):
            return False
        below = (sizes_of(self.stored[below.number]) for below in cut.piece.cuts)
        return cut is not self._query.result_cut or self._sealed.stores_result(below)

    def _submit(self, pool: ThreadPoolExecutor, cut: Cut) -> None:
        identity = self._query.identity(cut)
        committed = partial(self._stages.store.progress, self._query.name, identity)
        self._progress.started(cut.number, _title(cut), committed)
        self._query.place(cut)
        self._started[self._query.fingerprint(cut)] = cut.number
        work: Callable[[], Source]
        if self._is_left(cut):
            self._native_since[cut.number] = self._stages.store.clock.monotonic()
            work = partial(self._natively, cut)
        else:
            writing = CutWork(self._query, cut, self.stored)
            work = partial(self._stages.store.ensure, writing, identity, confirms=False)
        self._running[pool.submit(thread_target(self._spark, work))] = cut

    def _is_left(self, cut: Cut) -> bool:
        """Leave an exchange to Spark if the budget allows it, and if nothing of it is stored."""
        if not self._at_risk.budget or cut.number in self._must_store:
            return False
        name, identity = self._query.name, self._query.identity(cut)
        expected = self._at_risk.expected(self._query.input_bytes(cut))
        native = {n for n, source in self.stored.items() if isinstance(source, NativeStage)}
        left = (
            self._at_risk.allows(expected)
            and self._stages.store.stored(name, identity) is None
            and self._query.may_be_left(cut, native)
        )
        if left:
            self._at_risk.takes(cut.number, expected)
        return left

    def _natively(self, cut: Cut) -> NativeStage:
        context, tag = self._spark.sparkContext, self._tag_of(cut.number)
        context.addJobTag(tag)
        try:
            return self._query.run_natively(cut, self.stored, self._stages.store.clock)
        finally:
            with suppress(Exception):  # of a stopped context; the first error counts
                context.removeJobTag(tag)

    def _tag_of(self, number: int) -> str:
        return f"{self._tag}-{number}"

    def _time_left(self) -> float | None:
        """Return the seconds until a cut that Spark runs has taken all that may be at risk."""
        now = self._stages.store.clock.monotonic()
        return min(
            (
                max(0.0, since + self._at_risk.limit(number) - now)
                for number, since in self._native_since.items()
                if number not in self._must_store
            ),
            default=None,
        )

    def _stop_late(self) -> None:
        """Stop what Spark runs for too long; it will be stored."""
        now = self._stages.store.clock.monotonic()
        for number, since in self._native_since.items():
            if now >= since + self._at_risk.limit(number) and number not in self._must_store:
                self._must_store.add(number)
                self._spark.sparkContext.cancelJobsWithTag(self._tag_of(number))

    def _end(self, pool: ThreadPoolExecutor, future: "Future[Source]") -> None:
        cut = self._running.pop(future)
        try:
            source = future.result()
        except JVM_ERRORS:
            if cut.number not in self._native_since or cut.number not in self._must_store:
                raise
            del self._native_since[cut.number]
            self._at_risk.forgets(cut.number)
            self._submit(pool, cut)
            return
        self._native_since.pop(cut.number, None)
        self._finish(cut, source)

    def _finish(self, cut: Cut, source: Source) -> None:
        self.stored[cut.number] = source
        read = self._query.input_bytes(cut)
        self._query.place(cut)  # unless it started
        self._query.sized(cut, sizes_of(source))
        if isinstance(source, NativeStage):
            self._at_risk.takes(cut.number, source.seconds)
            self._at_risk.measured(read, source.seconds)
            self.left.append(f"{_title(cut)}: {_LEFT.format(source.seconds, self._at_risk.budget)}")
            self._progress.left(cut.number, _title(cut), source.seconds)
        else:
            if source.report.map_tasks_run == source.report.map_tasks:
                self._at_risk.measured(read, source.report.seconds)
            self._progress.finished(cut.number, _title(cut), source.report)
        self._at_risk.keeps(self._lost_with_driver())

    def _lost_with_driver(self) -> set[int]:
        """Return the cuts that a later run would have to compute again, if they are not stored."""
        lost: set[int] = set()

        def look(piece: PlanPiece) -> None:
            for cut in piece.cuts:
                if cut.number not in lost and not self._is_stored(cut):
                    lost.add(cut.number)
                    look(cut.piece)

        result = self._query.result_cut
        if result is None or not self._is_stored(result):
            look(self._query.last)
        return lost

    def _is_stored(self, cut: Cut) -> bool:
        return isinstance(self.stored.get(cut.number), StoredStage)


def _title(cut: Cut) -> str:
    if cut.exchange.kind == "passthrough":
        return f"result {cut.number}"
    return f"exchange {cut.number} {cut.exchange.kind}({cut.exchange.partitions})"
