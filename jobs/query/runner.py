"""Runs and explains the queries of one claimed job."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.engine.checks import check_frame
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.jobs.query.cuts import Cut, schema_of
from durable_shuffle.jobs.query.planned_query import PlannedQuery
from durable_shuffle.jobs.query.probe import check_internals
from durable_shuffle.jobs.query.run import QueryRun, SealedCuts, whole_seal
from durable_shuffle.jobs.stages.explanation import Explanation, StageExplanation, State
from durable_shuffle.jobs.stages.progress import ProgressView
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.stages.runner import StageRunner

_NO_STREAM = (
    "a streaming DataFrame is no query that ends: write it with "
    "writeStream.format('durable_shuffle'), or call query() inside foreachBatch"
)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A query whose exchanges are stored."""

    frame: DataFrame
    """The query's rows."""
    reports: list[StageReport]
    """One per needed stage, lower ones first."""
    native: tuple[str, ...]
    """Exchanges that Spark runs itself, each with the reason."""
    adapted: tuple[str, ...]
    """What was planned again while the query ran, and why."""


class QueryRunner:
    """Runs queries of one claimed job on a classic session. Not thread-safe."""

    def __init__(self, spark: SparkSession, engine: ClassicEngine, stages: StageRunner) -> None:
        self._spark, self._engine, self._stages = spark, engine, stages
        self._store = stages.store
        self._checked = False

    def run(
        self, df: DataFrame, name: str, version: str | None, progress: ProgressView
    ) -> QueryResult:
        """Store the query's exchanges that are missing."""
        query = self._planned(df, name, version, remember=True)
        check = partial(self._check_inputs, query, remember=True)
        run = QueryRun(self._spark, self._engine, self._stages, query, progress, check)
        stored = run.ensure()
        # a query that is planned again may have several cuts that are one stage
        every = [stored[number].report for number in sorted(stored)]
        reports = list({report.incarnation: report for report in every}.values())
        return QueryResult(query.result(stored), reports, query.native, tuple(query.adapted))

    def explain(self, df: DataFrame, name: str, version: str | None) -> Explanation:
        """Say what `run` would do. Plans the query, runs nothing."""
        query = self._planned(df, name, version, remember=False)
        sealed = SealedCuts(query, self._stages)
        while sealed.taken_into_account():
            self._check_inputs(query, remember=False)
        needed = sealed.needed()
        first = {cut.number for cut in query.starting(sealed.ready(), [])}
        certain = first if query.joins() else needed.keys()
        exchanges = []
        for cut in query.cuts:
            result = cut is query.result_cut
            if result and not needed[cut.number] and sealed.result_stays_native():
                continue
            state, why = self._state(query, cut, needed)
            exchanges.append(
                StageExplanation(
                    number=cut.number,
                    kind=cut.exchange.kind,
                    partitions=cut.exchange.partitions,
                    columns=tuple(field.name for field in schema_of(cut.node.plan)),
                    fingerprint=query.identity(cut).fingerprint,
                    reads=tuple(below.number for below in cut.piece.cuts),
                    state=state,
                    why=why,
                    why_python=self._engine.why_python(schema_of(cut.node.plan)),
                    may_change=needed.get(cut.number) is False and cut.number not in certain,
                )
            )
        return Explanation(name, tuple(exchanges), query.native, tuple(query.adapted))

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
        df = self._engine.fixed(df)
        query = self._first_plan(df, name, version, self._engine.planning_settings())
        recorded = self._recorded(query)
        if recorded is not None and recorded != query.conf:
            query = PlannedQuery(df, name, self._engine, self._stages, version, recorded)
        self._check_inputs(query, remember=remember)
        return query

    def _check_inputs(self, query: PlannedQuery, *, remember: bool) -> None:
        for cut in query.cuts:  # also those below a sealed one, which do not run
            self._stages.seen.check(query.name, query.identity(cut), remember=remember)

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
            if stage is not None and whole_seal(stage) is None:
                planning = stage.describe.planning
                return {k: v for k, v in planning.items() if k.startswith("spark.sql.")}
        return None
