"""Stores the missing exchanges of one planned query, independent ones at the same time.

Going down from the result, a sealed stage makes everything below it unnecessary. The other cuts run
bottom up. Each map side is one Spark job in its own thread. It is planned, described and entered
once the map tasks below have committed, and its tasks start when the stages that they read are
sealed. If the plan may still change, map sides run in waves: the query is planned again when all of
a wave have committed. Stages that are sealed already are opened before the first wave. So the plans
of a later run follow from the same sizes.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from durable_shuffle.jobs.engine import catalyst
from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS
from durable_shuffle.jobs.query.at_risk import AtRisk
from durable_shuffle.jobs.query.cut_work import CutWork
from durable_shuffle.jobs.query.cuts import Cut, PlanPiece, ready_broadcasts
from durable_shuffle.jobs.query.native_stage import NativeStage, Source, sizes_of
from durable_shuffle.jobs.query.planned_query import PlannedQuery
from durable_shuffle.jobs.query.sealed_cuts import Known, SealedCuts
from durable_shuffle.jobs.stages.progress import ProgressView
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.stages.runner import StageRunner
from durable_shuffle.jobs.stages.stored_stage import Ahead, SealedRows, StoredStage
from durable_shuffle.serialization.errors import ConflictError
from durable_shuffle.shuffle.base.side_by_side import side_by_side
from durable_shuffle.shuffle.write.awaited import Awaited

T = TypeVar("T")

_AT_ONCE = 8
"""Map sides that may run at the same time, each in its own thread."""

_LEFT = "left to Spark: a driver that dies loses {:.1f} s of work, at_risk allows {:g} s"


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
        self._inherits: Callable[[Callable[[], Source]], Callable[[], Source]]
        self._running: dict[Future[Source], Cut] = {}
        self._foreseen: dict[Future[SealedRows], Future[Source]] = {}
        """What gives a stage before it is sealed -> what gives it sealed; of running cuts."""
        self._sealing: dict[Future[Source], SealedRows] = {}
        self._finished: dict[int, Cut] = {}
        self._native_since: dict[int, float] = {}
        """Number of a cut that Spark runs now -> when it started."""
        self._must_store: set[int] = set()
        """Numbers of cuts that took longer than may be at risk."""
        self._started: dict[str, int] = {}
        """Fingerprint -> number of the cut that started with it; equal exchanges are one stage."""
        self.stored: dict[int, Source] = {}
        self.left: list[str] = []
        """What was left to Spark, and how much work was at risk then."""

    def ensure(self, above: Callable[[Mapping[int, Source]], T], confirm: Callable[[], None]) -> T:
        """Run the cuts that are needed and missing; return what is made of all of them.

        Args:
            above: gets cut number -> stage, beside the sealing of the last ones.
            confirm: is called behind the last SEAL.
        """
        self._tell_plan()
        context, tag = self._spark.sparkContext, self._tag
        threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="durable-query")
        # the threads inherit them; in this thread only `in_one_call` starts jobs
        tags = catalyst.with_properties(self._spark, {}, [tag], calls_only=True)
        with tags, threads as pool:
            self._inherits = catalyst.inherited(self._spark)
            try:
                self._start(pool)
                while self._running:
                    awaited: list[Future[Any]] = [*self._running, *self._foreseen, *self._sealing]
                    left = self._time_left()
                    done, _ = wait(awaited, timeout=left, return_when=FIRST_COMPLETED)
                    running = len(self._running)
                    for future in done:
                        self._take(pool, future)
                    if not done:
                        self._stop_late()
                        continue
                    if len(self._running) == running:
                        continue  # a stage was sealed that others read already
                    if self._running and self._query.may_adapt():
                        continue  # what is planned next must not depend on who ends first
                    self._plan_again()
                    self._start(pool)
                _, result = side_by_side(
                    lambda: self._seal_all(confirm), lambda: above(self.stored)
                )
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                with suppress(Exception):  # of a stopped context; the first error counts
                    context.cancelJobsWithTag(tag)
                raise
        return result

    def reports(self) -> list[StageReport]:
        """Return what is stored so far, lower stages first."""
        stored = (stage for _, stage in sorted(self.stored.items()))
        every = [stage.report for stage in stored if isinstance(stage, StoredStage)]
        # a query that is planned again may have several cuts that are one stage
        return list({report.incarnation: report for report in every}.values())

    def _seal_all(self, confirm: Callable[[], None]) -> None:
        for future in list(self._sealing):
            self._sealed_now(future)
        confirm()

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
        pieces = [cut.piece for cut in starting]
        if starting and not self._query.joins():
            pieces += [*(cut.piece for cut in waiting), self._query.above(self.stored)]
        found = {node.id: node for piece in pieces for node in ready_broadcasts(piece)}
        broadcasts = list(found.values())
        # with other settings the scans below a broadcast would be split differently
        if broadcasts and self._query.conf == self._query.current:
            self._query.start_broadcasts(broadcasts)
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
        self._query.starts(cut)
        self._started[self._query.fingerprint(cut)] = cut.number
        work: Callable[[], Source]
        foreseen: Future[SealedRows] | None = None
        if self._is_left(cut):
            self._native_since[cut.number] = self._stages.store.clock.monotonic()
            work = partial(self._natively, cut)
        else:
            writing = CutWork(self._query, cut, self.stored)
            ahead = self._ahead(cut)
            if not self._at_risk.budget:  # else it has to be known how long the stage took
                foreseen = Future()
                ahead = replace(ahead, foreseen=foreseen.set_result)
            ensure = self._stages.store.ensure
            work = partial(ensure, writing, identity, confirms=False, ahead=ahead)
        future: Future[Source] = pool.submit(self._inherits(work))
        self._running[future] = cut
        if foreseen is not None:
            self._foreseen[foreseen] = future

    def _ahead(self, cut: Cut) -> Ahead:
        """Return what waits until the stages that a cut reads are sealed, or raises."""
        below = {id(self.stored.get(one.number)) for one in cut.piece.cuts}
        pending = {future: one for future, one in self._sealing.items() if id(one) in below}

        def wait() -> None:
            for future in pending:
                future.result()

        seals = ((one.handle.path, one.seal.record_id) for one in pending.values())
        return Ahead(wait, tuple(Awaited(path.log_prefix, 1, seal) for path, seal in seals))

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

    def _take(self, pool: ThreadPoolExecutor, future: "Future[Any]") -> None:
        """Take note of what a future gives, if it has not become known otherwise."""
        if future in self._running:
            self._end(pool, future)
        elif future in self._sealing:
            self._sealed_now(future)
        elif future in self._foreseen:
            ending = self._foreseen.pop(future)
            self._sealing[ending] = future.result()
            self._finish(self._running.pop(ending), future.result())

    def _sealed_now(self, future: "Future[Source]") -> None:
        """Put the sealed stage in the place of what was foreseen."""
        source, foreseen = future.result(), self._sealing.pop(future)
        if sizes_of(source) != foreseen.seal:
            raise ConflictError(f"another driver sealed {foreseen.handle.path.prefix!r}")
        for number in [n for n, one in self.stored.items() if one is foreseen]:
            self.stored[number] = source
            self._tell(self._finished[number], source)

    def _end(self, pool: ThreadPoolExecutor, future: "Future[Source]") -> None:
        cut = self._running.pop(future)
        for foreseen, ending in list(self._foreseen.items()):
            if ending is future:
                del self._foreseen[foreseen]
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
        self.stored[cut.number], self._finished[cut.number] = source, cut
        read = self._query.input_bytes(cut) if self._at_risk.budget else 0
        self._query.starts(cut)  # unless it has
        self._query.sized(cut, sizes_of(source))
        if isinstance(source, NativeStage):
            self._at_risk.takes(cut.number, source.seconds)
            self._at_risk.measured(read, source.seconds)
            self.left.append(f"{_title(cut)}: {_LEFT.format(source.seconds, self._at_risk.budget)}")
        elif isinstance(source, StoredStage) and not source.report.map_tasks_reused:
            self._at_risk.measured(read, source.report.seconds)
        self._tell(cut, source)
        self._at_risk.keeps(self._lost_with_driver())

    def _tell(self, cut: Cut, source: Source) -> None:
        """Say that a cut has ended."""
        if isinstance(source, NativeStage):
            self._progress.left(cut.number, _title(cut), source.seconds)
        elif isinstance(source, StoredStage):
            self._progress.finished(cut.number, _title(cut), source.report)

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
        return isinstance(self.stored.get(cut.number), SealedRows)


def _title(cut: Cut) -> str:
    if cut.exchange.kind == "passthrough":
        return f"result {cut.number}"
    return f"exchange {cut.number} {cut.exchange.kind}({cut.exchange.partitions})"
