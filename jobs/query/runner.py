"""Runs a query's cuts: decides which are needed, and runs independent ones at the same time.

Going down from the result, a sealed stage makes everything below it unnecessary. The other cuts run
bottom up. Each map side is one Spark job in its own thread; it starts when the stages that it reads
are sealed.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.engine.checks import check_frame
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.jobs.query.cuts import Cut, PlanPiece, schema_of
from durable_shuffle.jobs.query.planned_query import CutWork, PlannedQuery
from durable_shuffle.jobs.query.probe import check_internals
from durable_shuffle.jobs.stages.progress import ProgressView
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.stages.runner import StageRunner, in_python
from durable_shuffle.jobs.stages.store import StoredStage
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle, read_state

_NO_STREAM = (
    "a streaming DataFrame is no query that ends: write it with "
    "writeStream.format('durable_shuffle'), or call query() inside foreachBatch"
)
_AT_ONCE = 8
"""Map sides that may run at the same time, each in its own thread."""


State = Literal["committed", "partly committed", "missing", "not needed"]


@dataclass(frozen=True, slots=True)
class ExchangeExplanation:
    """One durable exchange, or the query's result rows."""

    number: int
    """From 0. An exchange has a higher number than the exchanges that it reads."""
    kind: str
    """"hash", "single", "round_robin", "range"; or "passthrough" for the query's result rows, which
    are stored if they aggregate a large join."""
    partitions: int
    """0 if the number is known only after planning."""
    columns: tuple[str, ...]
    fingerprint: str
    reads: tuple[int, ...]
    """Numbers of the exchanges that this one reads directly."""
    state: State
    why: str
    why_python: str
    """Why Python workers encode the rows; "" if the JVM does."""

    def __str__(self) -> str:
        columns = ", ".join(self.columns[:4]) + (", …" if len(self.columns) > 4 else "")
        reads = f" reads {', '.join(map(str, self.reads))}" if self.reads else ""
        what = f"{self.kind}({self.partitions})" if self.partitions else "the query's rows"
        line = f"{self.number:>3}  {self.state:<16}  {what} [{columns}]{reads}: {self.why}"
        return line + in_python(self.why_python)


@dataclass(frozen=True, slots=True)
class QueryExplanation:
    """All exchanges of a query, lower ones first."""

    name: str
    exchanges: tuple[ExchangeExplanation, ...]
    native: tuple[str, ...]
    """Exchanges that Spark runs itself, each with the reason."""

    @property
    def hit(self) -> bool:
        """True if no producer would run."""
        return all(e.state in ("committed", "not needed") for e in self.exchanges)

    @property
    def why(self) -> str:
        """A summary in one line."""
        running = [e for e in self.exchanges if e.state in ("missing", "partly committed")]
        if not running:
            return "every exchange that is needed is committed"
        return f"{len(running)} of {len(self.exchanges)} exchanges would run"

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.why}", *map(str, self.exchanges)]
        return "\n".join([*lines, *(f"native: {text}" for text in self.native)])


class QueryRunner:
    """Runs queries of one claimed job on a classic session. Not thread-safe."""

    def __init__(self, spark: SparkSession, engine: ClassicEngine, stages: StageRunner) -> None:
        self._spark, self._engine, self._stages = spark, engine, stages
        self._store = stages.store
        self._checked = False

    def run(
        self, df: DataFrame, name: str, version: str | None, progress: ProgressView
    ) -> tuple[DataFrame, list[StageReport], tuple[str, ...]]:
        """Store the query's exchanges that are missing.

        Returns:
            The query's rows; a report per needed cut, lower cuts first; the exchanges that Spark
            runs itself, each with the reason.
        """
        query = self._planned(df, name, version, remember=True)
        stored = self._ensure(query, progress)
        reports = [stored[number].report for number in sorted(stored)]
        return query.result(stored), reports, query.native

    def explain(self, df: DataFrame, name: str, version: str | None) -> QueryExplanation:
        """Say what `run` would do. Plans the query, runs nothing."""
        query = self._planned(df, name, version, remember=False)
        needed = self._needed(query)
        exchanges = []
        for cut in query.cuts:
            if cut is query.result_cut and not needed[cut.number] and self._stays_native(query):
                continue
            state, why = self._state(query, cut, needed)
            exchanges.append(
                ExchangeExplanation(
                    number=cut.number,
                    kind=cut.exchange.kind,
                    partitions=cut.exchange.partitions,
                    columns=tuple(field.name for field in schema_of(cut.node.plan)),
                    fingerprint=query.fingerprint(cut),
                    reads=tuple(below.number for below in cut.piece.cuts),
                    state=state,
                    why=why,
                    why_python=self._engine.why_python(schema_of(cut.node.plan)),
                )
            )
        return QueryExplanation(name, tuple(exchanges), query.native)

    def _state(
        self, query: PlannedQuery, cut: Cut, needed: Mapping[int, bool]
    ) -> tuple[State, str]:
        if cut.number not in needed:
            return "not needed", "what reads it is committed"
        if needed[cut.number]:
            return "committed", "same fingerprint and sealed"
        identity = query.identity(cut)
        stage = None if self._store.policy == "never" else self._store.stored(query.name, identity)
        if stage is None:
            return "missing", self._store.misses.why(query.name, identity)
        done, total = self._store.progress(query.name, identity)
        return "partly committed", f"{done} of {total} producers committed"

    def _planned(
        self, df: DataFrame, name: str, version: str | None, *, remember: bool
    ) -> PlannedQuery:
        check_frame(df, streaming=_NO_STREAM)
        query = self._first_plan(df, name, version, self._engine.planning_settings())
        recorded = self._recorded(query)
        if recorded is not None and recorded != query.conf:
            query = PlannedQuery(df, name, self._engine, self._stages, version, recorded)
        for cut in query.cuts:  # also those below a sealed one, which do not run
            self._stages.seen.check(name, query.identity(cut), remember=remember)
        return query

    def _first_plan(
        self, df: DataFrame, name: str, version: str | None, conf: Mapping[str, str]
    ) -> PlannedQuery:
        """Plan the query; the first time, check meanwhile whether this Spark's plans are known."""
        if self._checked:
            return PlannedQuery(df, name, self._engine, self._stages, version, conf)
        with ThreadPoolExecutor(1, thread_name_prefix="durable-check") as pool:
            check = pool.submit(check_internals, self._spark)
            try:
                return PlannedQuery(df, name, self._engine, self._stages, version, conf)
            finally:
                check.result()  # its error explains more than the planning error that it caused
                self._checked = True

    def _recorded(self, query: PlannedQuery) -> dict[str, str] | None:
        """Return the split settings of the first stage that an earlier run left incomplete."""
        for cut in query.cuts:
            stage = self._store.stored(query.name, query.identity(cut))
            if stage is not None and not _is_whole(stage):
                planning = stage.describe.planning
                return {k: v for k, v in planning.items() if k.startswith("spark.sql.")}
        return None

    def _ensure(self, query: PlannedQuery, progress: ProgressView) -> dict[int, StoredStage]:
        """Return cut number -> stage, for all cuts that are needed; run those that are missing."""
        needed = self._needed(query)
        sealed = [number for number, is_sealed in needed.items() if is_sealed]
        exchanges = [cut.number for cut in query.cuts if cut is not query.result_cut]
        to_run = len([number for number in exchanges if needed.get(number) is False])
        progress.planned(query.name, len(exchanges), len(sealed), to_run)
        if query.conf == self._engine.planning_settings():  # else scans would split differently
            missing = [cut.piece for cut in query.cuts if needed.get(cut.number) is False]
            with self._engine.described("durable_shuffle: broadcasts"):
                query.start_broadcasts([*missing, query.above(sealed)])
        stored: dict[int, StoredStage] = {}
        running: dict[Future[StoredStage], Cut] = {}
        waiting = [cut for cut in query.cuts if cut.number in needed]
        first_of: dict[str, int] = {}
        context, tag = self._spark.sparkContext, f"durable-shuffle-{self._stages.ids.new_id()}"
        context.addJobTag(tag)  # the threads inherit it
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="durable-query") as pool:
            try:
                while waiting or running:
                    for cut in list(waiting):
                        twin = first_of.setdefault(query.fingerprint(cut), cut.number)
                        if twin != cut.number:  # equal exchanges are one stage
                            if twin in stored:
                                stored[cut.number] = stored[twin]
                                waiting.remove(cut)
                        elif not needed[cut.number] and any(
                            below.number not in stored for below in cut.piece.cuts
                        ):
                            continue
                        elif cut is query.result_cut and not (
                            needed[cut.number]
                            or self._large(stored[below.number].seal for below in cut.piece.cuts)
                        ):
                            waiting.remove(cut)
                        else:
                            identity = query.identity(cut)
                            committed = partial(self._store.progress, query.name, identity)
                            progress.started(cut.number, _title(cut), committed)
                            task = inheritable_thread_target(self._spark)(self._store.ensure)
                            work = CutWork(query, cut, stored)
                            running[pool.submit(task, work, identity)] = cut
                            waiting.remove(cut)
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        cut = running.pop(future)
                        stored[cut.number] = future.result()
                        progress.finished(cut.number, _title(cut), stored[cut.number].report)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                context.cancelJobsWithTag(tag)
                raise
            finally:
                context.removeJobTag(tag)
        return stored

    def _needed(self, query: PlannedQuery) -> dict[int, bool]:
        """Return cut number -> whether its stage is sealed, for all cuts that are needed."""
        needed: dict[int, bool] = {}

        def look(piece: PlanPiece) -> None:
            for cut in piece.cuts:
                if cut.number in needed:
                    continue
                needed[cut.number] = self._is_sealed(query, cut)
                if not needed[cut.number]:
                    look(cut.piece)

        result = query.result_cut
        if result is not None:
            needed[result.number] = self._is_sealed(query, result)
        if result is None or not needed[result.number]:
            look(query.last)
        return needed

    def _is_sealed(self, query: PlannedQuery, cut: Cut) -> bool:
        if self._store.policy == "never":
            return False
        stage = self._store.stored(query.name, query.identity(cut))
        return stage is not None and _is_whole(stage)

    def _seal(self, query: PlannedQuery, cut: Cut) -> Seal | None:
        stage = self._store.stored(query.name, query.identity(cut))
        return None if stage is None else read_state(stage).seal

    def _large(self, below: Iterable[Seal]) -> bool:
        """Return whether to store the query's rows, given the stages that the last piece reads."""
        size = sum(seal.data_bytes for seal in below)
        return self._store.policy != "require" and size >= self._stages.settings.result_least_bytes

    def _stays_native(self, query: PlannedQuery) -> bool:
        """Return True if it is already certain that the query's rows will not be stored."""
        assert query.result_cut is not None
        seals = [self._seal(query, cut) for cut in query.result_cut.piece.cuts]
        known = [seal for seal in seals if seal is not None]
        return len(known) == len(seals) and not self._large(known)


def _is_whole(stage: StageHandle) -> bool:
    """Return whether a stage is sealed and has no damaged producers."""
    state = read_state(stage)
    return state.seal is not None and not state.damaged


def _title(cut: Cut) -> str:
    if cut.exchange.kind == "passthrough":
        return f"result {cut.number}"
    return f"exchange {cut.number} {cut.exchange.kind}({cut.exchange.partitions})"
