"""How the stage of one cut of a query is written."""

from collections.abc import Mapping

from durable_shuffle.jobs.engine.arrow_schema import narrow_arrow_schema
from durable_shuffle.jobs.engine.engine import Planned
from durable_shuffle.jobs.query.cuts import Cut, schema_of
from durable_shuffle.jobs.query.native_stage import Source
from durable_shuffle.jobs.query.planned_query import PlannedQuery
from durable_shuffle.jobs.stages.work import Shape, Writing


class CutWork(Writing):
    """How the stage of one cut is written.

    Args:
        below: cut number -> stage, for all cuts that the cut's piece reads. It must be complete
            when `plan` is called.
    """

    def __init__(self, query: PlannedQuery, cut: Cut, below: Mapping[int, Source]) -> None:
        self.name, self.engine = query.name, query.engine
        self._query, self._cut, self._below = query, cut, below

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
