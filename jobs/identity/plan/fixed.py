"""Makes a plan read one version of each table that moves.

A Delta table, a partitioned table of the catalog and an Iceberg table up to 1.10 are listed anew
each time that Spark plans a query. A stage is planned several times: to identify it, to count its
producers, to run them. `fixed_frame` replaces such leaves once, so that the files that are
compared are the files that are read, and all producers read the same version. Rows that the session
has cached are taken into the plan, too.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from durable_shuffle.jobs.identity.jvm.calls import (
    JVM_ERRORS,
    Jvm,
    every,
    every_with_subqueries,
    frame_of,
    fresh_execution,
    items,
    java_session,
    simple_name,
)
from durable_shuffle.jobs.identity.jvm.deep import deep_plans
from durable_shuffle.jobs.identity.jvm.document import LEAVES, is_object
from durable_shuffle.jobs.identity.plan.conditions import Conditions
from durable_shuffle.jobs.identity.plan.files import is_file_relation, usable
from durable_shuffle.jobs.identity.tables import delta, iceberg
from durable_shuffle.jobs.spark_versions import ClassicFrame, argument_names, updated

_CATALOG = "org.apache.spark.sql.execution.datasources.CatalogFileIndex"
_PLAN = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"
_EXPRESSION = "org.apache.spark.sql.catalyst.expressions.Expression"
_SUBQUERY = "org.apache.spark.sql.catalyst.expressions.PlanExpression"


@deep_plans()
def fixed_frame(df: DataFrame) -> DataFrame:
    """Return the same query over one version of each table that it reads; `df` does not change.

    It is `df` itself if no table moves. A leaf that cannot be fixed stays as it is; its identity
    is then unresolved.
    """
    jvm = Jvm(df.sparkSession.sparkContext)

    def current(root: Any, frame: Any) -> Any:
        return fresh_execution(root, frame).withCachedData()

    plan = jvm.seen_of(current, df._jdf, asked=LEAVES)  # noqa: SLF001
    if not any(is_moving(jvm, node) for node in every_with_subqueries(plan)):
        return df
    fixing = _Fixing(jvm)
    fixing.conditions.learn(plan)
    fixed = fixing.plan(plan)
    fixed.setAnalyzed()
    return ClassicFrame(frame_of(jvm.root, java_session(df), fixed), df.sparkSession)


def cached_plan(jvm: Jvm, builder: Any) -> tuple[Any, str]:
    """Return the logical plan of cached rows over the versions of tables that were cached.

    Args:
        builder: the `CachedRDDBuilder` of an InMemoryRelation.

    Returns:
        The plan, and why it does not show what was cached; "" if it does.
    """
    plan = builder.logicalPlan()
    tops = (plan, *items(plan.subqueriesAll()))
    if not any(is_moving(jvm, leaf) for top in tops for leaf in items(top.collectLeaves())):
        return plan, ""
    fixing = _Fixing(jvm, _scanned_versions(jvm, builder.cachedPlan()))
    try:
        return fixing.plan(plan), ""
    except _UnknownVersionError as error:
        return plan, f"made from {error}, whose version at that time is not known"


def physical_nodes(jvm: Jvm, plan: Any) -> Iterator[Any]:
    """Yield all operators of a physical plan: also those of subqueries, and of cached rows."""
    for node in every(plan):
        yield node
        name = simple_name(jvm.class_name(node))
        below = items(node.subqueries())
        if name == "AdaptiveSparkPlanExec":
            below.append(node.initialPlan())
        elif name == "InMemoryTableScanExec":
            below.append(node.relation().cacheBuilder().cachedPlan())
        for other in below:
            yield from physical_nodes(jvm, other)


def _scanned_versions(jvm: Jvm, plan: Any) -> dict[str, Any]:
    """Return the versions of the Delta tables that a physical plan reads, by table."""
    found: dict[str, Any] = {}
    several = set()
    for node in physical_nodes(jvm, plan):
        if simple_name(jvm.class_name(node)) != "FileSourceScanExec":
            continue
        table, snapshot = delta.scanned_version(jvm, node.relation().location())
        if table and table in found and found[table].version() != snapshot.version():
            several.add(table)
        if table:
            found[table] = snapshot
    return {table: snapshot for table, snapshot in found.items() if table not in several}


class _UnknownVersionError(Exception):
    """Names a table that was cached in a version that nothing tells."""


def is_moving(jvm: Jvm, leaf: Any) -> bool:
    """Return whether Spark lists the files of a leaf anew each time that it plans a query."""
    kind = simple_name(jvm.class_name(leaf))
    if kind == "LogicalRelation":
        relation = leaf.relation()
        if not is_file_relation(jvm, relation):
            return False
        index = relation.location()
        return jvm.class_name(index) == _CATALOG or delta.is_moving(jvm, index)
    return kind == "DataSourceV2Relation" and iceberg.is_moving(jvm, leaf)


class _Fixing:
    """Rebuilds a logical plan; nodes without a moving table below stay the same objects.

    Args:
        cached: versions of the tables that were cached; None takes the newest versions of now.
    """

    def __init__(self, jvm: Jvm, cached: dict[str, Any] | None = None) -> None:
        self._jvm = jvm
        self.conditions = Conditions(jvm)
        self._cached = cached
        self._snapshots: dict[str, Any] = {}
        self._done: dict[int, Any] = {}

    def plan(self, node: Any) -> Any:
        """Return the plan with fixed leaves."""
        children = items(node.children())
        if not children:
            return self._leaf(node) if is_moving(self._jvm, node) else self._with_subqueries(node)
        new = [self.plan(child) for child in children]
        if any(n is not old for n, old in zip(new, children, strict=True)):
            node = node.withNewChildren(self._jvm.to_seq(new))
        return self._with_subqueries(node)

    def _leaf(self, leaf: Any) -> Any:
        places = self.conditions.above(leaf)
        number = int(self._jvm.root.java.lang.System.identityHashCode(leaf))
        if number not in self._done:  # one object may stand at several places
            try:
                self._done[number] = self._fixed(leaf, places)
            except JVM_ERRORS:  # unknown internals: the leaf stays unresolved
                self._done[number] = leaf
        return self._done[number]

    def _fixed(self, leaf: Any, places: list[list[Any]]) -> Any:
        if self._cached is not None:
            return self._as_cached(leaf, self._cached)
        if simple_name(self._jvm.class_name(leaf)) == "DataSourceV2Relation":
            none = self._jvm.root.scala.Option.empty()
            table = iceberg.at_one_version(self._jvm, leaf.table())
            return self._with(leaf, table=table, catalog=none, identifier=none)
        relation = leaf.relation()
        index = relation.location()
        if self._jvm.class_name(index) == _CATALOG:
            filters = usable(self._jvm, leaf, places[0]) if len(places) == 1 else []
            fixed = index.filterPartitions(self._jvm.to_seq(filters))
        else:
            fixed = delta.at_one_version(self._jvm.root, index, self._snapshots)
        return self._over(leaf, fixed)

    def _as_cached(self, leaf: Any, cached: dict[str, Any]) -> Any:
        if simple_name(self._jvm.class_name(leaf)) == "DataSourceV2Relation":
            raise _UnknownVersionError(f"the Iceberg table {leaf.table().name()}")
        index = leaf.relation().location()
        if self._jvm.class_name(index) == _CATALOG:
            table = index.table().identifier().unquotedString()
            raise _UnknownVersionError(f"the partitioned table {table}")
        if delta.table_of(index) not in cached:
            raise _UnknownVersionError(f"the Delta table {index.path().toString()}")
        return self._over(leaf, delta.at_one_version(self._jvm.root, index, cached))

    def _over(self, leaf: Any, index: Any) -> Any:
        """Return a scan of the files of another index."""
        relation = leaf.relation()
        arguments = [relation.productElement(i) for i in range(1, relation.productArity())]
        new = relation.copy(index, *arguments, relation.sparkSession())
        return self._with(leaf, relation=new)

    def _with(self, node: Any, **arguments: Any) -> Any:
        """Return a node with other arguments of these names."""
        names = argument_names(self._jvm.root, node)
        return self._copy(node, {names.index(name): new for name, new in arguments.items()})

    def _copy(self, node: Any, changed: dict[int, Any]) -> Any:
        arguments = updated(node.productIterator(), changed)
        return node.makeCopy(arguments.toArray(self._jvm.root.scala.reflect.ClassTag.AnyRef()))

    def _with_subqueries(self, node: Any) -> Any:
        """Return a node whose expressions read fixed tables in their subqueries."""
        if not node.subqueries().nonEmpty():
            return node
        changed = {}
        for i in range(node.productArity()):
            old = node.productElement(i)
            new = self._value(old)
            if new is not old:
                changed[i] = new
        return self._copy(node, changed) if changed else node

    def _value(self, value: Any) -> Any:
        """Return an argument with fixed subqueries; children of the node are left as they are."""
        jvm = self._jvm
        if not is_object(value):
            return value
        if jvm.is_a(value, _EXPRESSION):
            return self._expression(value)
        if jvm.is_a(value, "scala.collection.Seq"):
            for i, old in enumerate(items(value)):
                new = self._value(old)
                if new is not old:
                    value = updated(value, {i: new})
        elif jvm.is_a(value, "scala.Some"):
            old = value.get()
            new = self._value(old)
            if new is not old:
                return jvm.root.scala.Option.apply(new)
        return value

    def _expression(self, expression: Any) -> Any:
        children = items(expression.children())
        new = [self._expression(child) for child in children]
        if any(n is not old for n, old in zip(new, children, strict=True)):
            expression = expression.withNewChildren(self._jvm.to_seq(new))
        if self._jvm.is_a(expression, _SUBQUERY) and self._jvm.is_a(expression.plan(), _PLAN):
            old = expression.plan()
            fixed = self.plan(old)
            if fixed is not old:
                return expression.withNewPlan(fixed)
        return expression
