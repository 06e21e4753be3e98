"""Runs and explains the queries of one claimed job."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.engine import catalyst
from durable_shuffle.jobs.engine.checks import check_frame
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.jobs.identity.jvm.calls import planning
from durable_shuffle.jobs.query.at_risk import AtRisk, QueryCall
from durable_shuffle.jobs.query.cuts import Cut, schema_of
from durable_shuffle.jobs.query.logical import split_bytes
from durable_shuffle.jobs.query.native_stage import Source
from durable_shuffle.jobs.query.planned_query import PlannedQuery
from durable_shuffle.jobs.query.probe import check_internals
from durable_shuffle.jobs.query.run import QueryRun
from durable_shuffle.jobs.query.sealed_cuts import Known, SealedCuts, whole_seal
from durable_shuffle.jobs.spark_versions import ClassicFrame
from durable_shuffle.jobs.stages.explanation import Explanation, StageExplanation
from durable_shuffle.jobs.stages.healing import healing
from durable_shuffle.jobs.stages.progress import ProgressView
from durable_shuffle.jobs.stages.recorded import recorded_settings
from durable_shuffle.jobs.stages.report import StageReport
from durable_shuffle.jobs.stages.runner import StageRunner
from durable_shuffle.recovery.resume import unrecognised
from durable_shuffle.shuffle.base.words import StageAction, StageStatus, status_of
from durable_shuffle.shuffle.log.stage import read_state

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
        self.store = stages.store
        self._checked = False

    def run(self, df: DataFrame, call: QueryCall, progress: ProgressView) -> QueryResult:
        """Store the query's exchanges that are missing and worth it.

        What reads a damaged stage is tried again, after the stage has been mended.
        """
        planned: list[PlannedQuery] = []
        earlier: list[StageReport] = []

        def mend() -> bool:
            query = planned[-1]
            stored = (self.store.stored(query.name, query.identity(cut)) for cut in query.cuts)
            return self.store.healing.mend(stage for stage in stored if stage is not None)

        result = healing(lambda: self._run(df, call, progress, planned, earlier), mend)
        ran = {report.incarnation for report in earlier if report.map_tasks_run}
        reports = [report for report in earlier if report.map_tasks_run]
        reports += [r for r in result.reports if r.incarnation not in ran or r.map_tasks_run]
        return replace(result, reports=reports)

    def _run(
        self,
        df: DataFrame,
        call: QueryCall,
        progress: ProgressView,
        planned: list[PlannedQuery],
        earlier: list[StageReport],
    ) -> QueryResult:
        """Do what `run` does, once.

        Args:
            planned: the plan is added to it.
            earlier: if this fails, the reports of stages that it has stored are added to it.
        """
        with planning("query"):
            query, known = self._planned(df, call, remember=True)
        planned.append(query)
        check = partial(self._check_inputs, query, remember=True)
        at_risk = self._at_risk(query, call)
        run = QueryRun(
            *(self._spark, self._engine, self._stages, query, progress, at_risk, check, known)
        )

        def confirm() -> None:
            anew = any(report.action != StageAction.REUSED for report in run.reports())
            self.store.confirm(anew=anew)

        asked = cast("ClassicFrame", df)

        def above(below: Mapping[int, Source]) -> DataFrame:
            return catalyst.with_origin(cast("ClassicFrame", query.result(below)), asked)

        try:
            frame = run.ensure(above, confirm)
        except Exception:
            earlier += run.reports()
            raise
        native = (*query.native, *run.left)
        return QueryResult(frame, run.reports(), native, tuple(query.adapted))

    def _at_risk(self, query: PlannedQuery, call: QueryCall) -> AtRisk:
        if not call.at_risk:
            return AtRisk(0, 1, 0)
        cores = self._spark.sparkContext.defaultParallelism
        largest = min(query.largest_scan() // cores, split_bytes(self._spark))
        return AtRisk(call.at_risk, cores, largest)

    def explain(self, df: DataFrame, call: QueryCall) -> Explanation:
        """Say what `run` would do. Plans the query, runs nothing."""
        query, known = self._planned(df, call, remember=False)
        at_risk = self._at_risk(query, call)
        sealed = SealedCuts(query, self._stages, at_risk, runs=False, known=known)
        while sealed.taken_into_account():
            self._check_inputs(query, remember=False)
        needed = sealed.needed()
        first = {cut.number for cut in query.starting(sealed.ready(), [])}
        certain = first if query.joins() else needed.keys()
        exchanges: list[StageExplanation] = []
        for cut in query.cuts:
            result = cut is query.result_cut
            if result and not needed[cut.number] and sealed.result_stays_native():
                continue
            status, action, why = self._state(query, cut, needed)
            if action is StageAction.COMPUTED and at_risk.budget and not result:
                left = StageAction.LEFT_TO_SPARK
                native = {one.number for one in exchanges if one.action is left}
                action, why = self._left(query, cut, at_risk, native, why)
            exchanges.append(
                StageExplanation(
                    number=cut.number,
                    kind=cut.exchange.kind,
                    partitions=cut.exchange.partitions,
                    columns=tuple(field.name for field in schema_of(cut.node.plan)),
                    fingerprint=query.identity(cut).fingerprint,
                    reads=tuple(below.number for below in cut.piece.cuts),
                    status=status,
                    action=action,
                    why=why,
                    why_python=self._engine.why_python(schema_of(cut.node.plan)),
                    may_change=needed.get(cut.number) is False and cut.number not in certain,
                )
            )
        return Explanation(call.name, tuple(exchanges), query.native, tuple(query.adapted))

    def _left(
        self, query: PlannedQuery, cut: Cut, at_risk: AtRisk, native: set[int], why: str
    ) -> tuple[StageAction, str]:
        """Say whether a missing exchange is expected to be left to Spark."""
        expected = at_risk.expected(query.input_bytes(cut))
        numbers = at_risk.says(expected)
        if not at_risk.allows(expected):
            return StageAction.COMPUTED, f"{why}; not left to Spark: {numbers}"
        if not query.may_be_left(cut, native):
            unstable = "its rows may differ in each run"
            return StageAction.COMPUTED, f"{why}; not left to Spark: {unstable}"
        at_risk.takes(cut.number, expected)
        return StageAction.LEFT_TO_SPARK, numbers

    def _state(
        self, query: PlannedQuery, cut: Cut, needed: Mapping[int, bool]
    ) -> tuple[StageStatus, StageAction, str]:
        absent = StageStatus.ABSENT, StageAction.COMPUTED
        if needed.get(cut.number):
            return StageStatus.STORED, StageAction.REUSED, "stored under the same fingerprint"
        identity = query.identity(cut)
        stage = None if self.store.policy == "never" else self.store.stored(query.name, identity)
        state = None if stage is None else read_state(stage)
        if cut.number not in needed:
            status = StageStatus.ABSENT
            if state is not None:
                sealed, damaged = state.seal is not None, bool(state.damaged)
                status = status_of(released=False, sealed=sealed, damaged=damaged)
            return status, StageAction.NOT_NEEDED, "what reads it is stored"
        if state is None:
            return *absent, self.store.misses.why(query.name, identity)
        if state.unrecognised:
            return *absent, unrecognised(state.unrecognised)
        if state.damaged:
            why = f"data of {len(state.damaged)} map tasks is lost"
            return StageStatus.DAMAGED, StageAction.REPAIRED, why
        done, total = self.store.progress(query.name, identity)
        why = f"{done} of {total} map tasks are stored"
        return StageStatus.PARTIAL, StageAction.RESUMED, why

    def _planned(
        self, df: DataFrame, call: QueryCall, *, remember: bool
    ) -> tuple[PlannedQuery, Mapping[str, Known]]:
        """Return the planned query, and what is stored of it."""
        check_frame(df, streaming=_NO_STREAM)
        df = self._engine.fixed(df)
        current = self._engine.planning_settings()
        query = self._first_plan(df, call, current)
        known: Mapping[str, Known] = {}
        if self.store.policy != "never":
            cuts = (query.identity(cut) for cut in query.cuts)
            known = self.store.stored_with_state(query.name, cuts, runs=remember)
        recorded = _recorded(query, known)
        if recorded is not None and recorded != query.conf:
            query = self._query(df, call, recorded, current)
        self._check_inputs(query, remember=remember)
        return query, known

    def _check_inputs(self, query: PlannedQuery, *, remember: bool) -> None:
        for cut in query.cuts:  # also those below a sealed one, which do not run
            self._stages.seen.check(query.name, query.identity(cut), remember=remember)

    def _query(
        self, df: DataFrame, call: QueryCall, conf: Mapping[str, str], current: Mapping[str, str]
    ) -> PlannedQuery:
        of = self._engine, self._stages
        return PlannedQuery(df, call.name, *of, call.version, conf, current)

    def _first_plan(self, df: DataFrame, call: QueryCall, conf: Mapping[str, str]) -> PlannedQuery:
        """Plan the query; the first time, check meanwhile whether this Spark's plans are known, and
        whether rows can stay in the JVM."""
        if self._checked:
            return self._query(df, call, conf, conf)
        self._engine.route.prepare()
        with ThreadPoolExecutor(1, thread_name_prefix="durable-check") as pool:
            check = pool.submit(check_internals, self._spark)
            try:
                return self._query(df, call, conf, conf)
            finally:
                check.result()  # its error explains more than the planning error that it caused
                self._checked = True


def _recorded(query: PlannedQuery, known: Mapping[str, Known]) -> dict[str, str] | None:
    """Return the split settings of the first stage that an earlier run left incomplete."""
    for cut in query.cuts:
        stage, state = known.get(query.identity(cut).fingerprint, (None, None))
        if stage is not None and state is not None and whole_seal(state) is None:
            planning = recorded_settings(stage)
            return {k: v for k, v in planning.items() if k.startswith("spark.sql.")}
    return None
