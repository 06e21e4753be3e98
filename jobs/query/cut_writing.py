"""How the stage store writes a durable exchange of a query, or the query's result rows."""

from collections.abc import Mapping, Sequence

from durable_shuffle.jobs.engine.arrow_schema import narrow_arrow_schema
from durable_shuffle.jobs.engine.classic import run_producers
from durable_shuffle.jobs.engine.engine import Planned
from durable_shuffle.jobs.engine.tasks import RESULT_SCHEMA, ArrowFunction, MapResult
from durable_shuffle.jobs.plan_cut.cuts import Cut, schema_of
from durable_shuffle.jobs.plan_cut.tree import active
from durable_shuffle.jobs.query.planned_query import PlannedQuery
from durable_shuffle.jobs.stages.store import StoredStage
from durable_shuffle.jobs.stages.work import Shape, row_writer
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle


class CutWriting:
    """Implements `Writing` for one cut.

    Args:
        below: cut number -> stage, for all cuts that the cut's piece reads. It must be complete
            when `plan` is called.
    """

    def __init__(self, query: PlannedQuery, cut: Cut, below: Mapping[int, StoredStage]) -> None:
        self._query, self._cut, self._below = query, cut, below

    @property
    def name(self) -> str:
        return self._query.name

    def shape(self) -> Shape:
        schema, exchange = schema_of(self._cut.node.plan), self._cut.exchange
        return Shape(
            codec="arrow",
            schema=narrow_arrow_schema(schema),
            columns=tuple(field.name for field in schema),
            partitioner=exchange.kind,
            keys=(),
            partitions=exchange.partitions or None,
        )

    def planning_settings(self) -> dict[str, str]:
        return self._query.planning_settings()

    def plan(self, conf: Mapping[str, str], *, large_rows: bool = False) -> Planned:
        return self._query.plan(self._cut, self._below, conf, large_rows=large_rows)

    def writer(
        self,
        stage: StageHandle,
        *,
        producers: int,
        settings: Settings,
        max_batch_bytes: int | None,
    ) -> ArrowFunction:
        return row_writer(
            stage,
            producers=producers,
            settings=settings,
            max_batch_bytes=max_batch_bytes,
            engine=self._query.engine,
        )

    def run(
        self, planned: Planned, function: ArrowFunction, producers: Sequence[int], label: str
    ) -> list[MapResult]:
        with active(planned.df.sparkSession):
            tasks = planned.df.mapInArrow(function, RESULT_SCHEMA).rdd
        with self._query.engine.described(label):
            return run_producers(self._query.spark, tasks, producers)
