"""Walks the piece of a physical plan that feeds a durable exchange, for its fingerprint.

Strategy: as the walk over analyzed plans, with four differences. Operators are visited after their
children, so that columns are numbered by the leaves, whatever order an optimizer gave to
predicates. Operands of AND and OR, and lists of filters, count as sets for the same reason. Names
that hold counters of the JVM are dropped, and so are wrappers of code generation. A cut is the
fingerprint of its stage and the columns it gives.
"""

from collections.abc import Callable, Mapping
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from durable_shuffle.jobs.identity.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.jvm import Jvm, items, simple_name
from durable_shuffle.jobs.identity.plan_functions import PlanFunctions
from durable_shuffle.jobs.identity.plan_leaves import PlanLeaves

_PLAN = "org.apache.spark.sql.execution.SparkPlan"
_WRAPPERS = frozenset({"WholeStageCodegenExec", "InputAdapter"})
_SETS = frozenset({"And", "Or"})
_NAMED_BY_COUNTER = frozenset({"SubqueryExec", "SubqueryBroadcastExec", "CollectMetricsExec"})


class PieceWalk(CatalystWalk):
    """One walk over one piece.

    Args:
        df: any data frame of the session.
        stage_of_rdd: RDD id -> fingerprint of the stage of ours that it reads, or None.
        stage_at: plan node id -> fingerprint of the stage that is read there.
    """

    def __init__(
        self,
        jvm: Jvm,
        df: DataFrame,
        stage_of_rdd: Callable[[int], str | None],
        stage_at: Mapping[int, str],
    ) -> None:
        super().__init__(jvm)
        self._stage_at = stage_at
        self._plans: dict[int, int] = {}
        self._is_plan: dict[str, bool] = {}
        self.leaves = _PhysicalLeaves(self, df, stage_of_rdd)
        self.functions = PlanFunctions(self)

    def components(self) -> dict[str, str]:
        """Digests of what was visited, by aspect."""
        lists = {
            "files": self.leaves.files,
            "rows": self.leaves.rows,
            "functions": self.functions.digests,
            "stages_below": self.leaves.stages_below,
        }
        return {"plan": self.digest(), **{k: hex_digest(v) for k, v in lists.items()}}

    def _object(self, obj: JavaObject) -> None:
        name = self.jvm.class_name(obj)
        if name not in self._is_plan:
            self._is_plan[name] = self.jvm.is_a(obj, _PLAN)
        if self._is_plan[name]:
            self._operator(obj, name, simple_name(name))
        elif simple_name(name) in _SETS and name.startswith("org.apache.spark."):
            self.classes.add(simple_name(name))
            self._unordered(name, self._operands(obj, name))
        else:
            super()._object(obj)

    def _operator(self, plan: Any, name: str, simple: str) -> None:
        if simple in _WRAPPERS:
            self.visit(plan.child())
            return
        number = int(plan.id())
        if number in self._plans:
            self.tokens.append(f"operator {self._plans[number]}")
            return
        self._plans[number] = len(self._plans)
        if number in self._stage_at:
            self.leaves.stage(plan, self._stage_at[number])
        elif simple in self.handlers:
            self.classes.add(simple)
            self.handlers[simple](plan, name)
        else:
            children = items(plan.children())
            for child in children:
                self.visit(child)
            self._product(plan, name, simple, is_tree=True)

    def _product(self, obj: Any, name: str, simple: str, *, is_tree: bool) -> None:
        if simple in _NAMED_BY_COUNTER:
            self.classes.add(simple)
            self.tokens.append(name)
            for at in range(1, obj.productArity()):
                self.visit(obj.productElement(at))
            return
        super()._product(obj, name, simple, is_tree=is_tree)

    def _operands(self, obj: Any, name: str) -> list[Any]:
        """The operands of a chain of one operator."""
        found = []
        for side in (obj.left(), obj.right()):
            same = self.jvm.class_name(side) == name
            found += self._operands(side, name) if same else [side]
        return found

    def as_set(self, tag: str, values: list[Any]) -> None:
        """Visit values whose order means nothing."""
        self._unordered(tag, values)


class _PhysicalLeaves(PlanLeaves):
    """Handlers for the leaves of a physical plan."""

    def __init__(
        self, walk: PieceWalk, df: DataFrame, stage_of_rdd: Callable[[int], str | None]
    ) -> None:
        super().__init__(walk, df, stage_of_rdd)
        self._sets = walk
        walk.handlers |= {
            "FileSourceScanExec": self._file_scan,
            "BatchScanExec": self._unknown_source,
            "RowDataSourceScanExec": self._unknown_source,
            "HiveTableScanExec": self._unknown_source,
            "LocalTableScanExec": self._local_table,
            "RDDScanExec": self._rdd_scan,
            "ExternalRDDScanExec": self._rdd_scan,
            "InMemoryTableScanExec": self._cached,
        }

    def stage(self, node: Any, fingerprint: str) -> None:
        """A cut: the stage that is read, and its columns."""
        self._head(node, f"stage, list {len(self.stages_below)}")
        self.stages_below.append(fingerprint)

    def _file_scan(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._walk.tokens.append(node.requiredSchema().json())
        self._sets.as_set("partition filters", items(node.partitionFilters()))
        self._sets.as_set("data filters", items(node.dataFilters()))
        for number in (node.optionalBucketSet(), node.optionalNumCoalescedBuckets()):
            self._walk.tokens.append(str(number.toString()))
        self._walk.tokens.append(str(node.disableBucketedScan()))
        self._file_relation(node.relation())

    def _local_table(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._internal_rows(node.rows().toIndexedSeq())

    def _rdd_scan(self, node: Any, name: str) -> None:
        self._head(node, name)
        stage = self._stage_of_rdd(int(node.productElement(1).id()))
        if stage is None:
            self._walk.give_up(f"an RDD scan ({self._columns(node)})")
            return
        self._walk.tokens.append(f"stage, list {len(self.stages_below)}")
        self.stages_below.append(stage)
