"""Plans queries with several distinct aggregates alike in every session.

For `count(distinct a), sum(distinct b)` Spark makes rows for `a` and rows for `b`, and numbers both
groups. The order of the numbers is that of a hash table of `a` and `b`. It depends on the ids of
columns, which a session counts, and for some functions on the place of an object in memory. Stored
rows hold the number, so another order is another query.

Strategy: apply Spark's own rules one after the other, as Spark does. The rule that numbers groups
gets columns with fixed ids in the place of `a` and `b`, which then take their places again. So the
order comes from the query alone.
"""

from collections.abc import Callable
from typing import Any

from py4j.java_gateway import JavaObject

from durable_shuffle.jobs.identity.plan.jvm import Jvm, items
from durable_shuffle.jobs.plan_cut.tree import Node

_CATALYST = "org.apache.spark.sql.catalyst."
_NUMBERING = _CATALYST + "optimizer.RewriteDistinctAggregates"
_OPTIMIZE_SUBQUERIES = _CATALYST + "optimizer.Optimizer$OptimizeSubqueries"
_LOGICAL = _CATALYST + "plans.logical."
_EXPRESSION = _CATALYST + "expressions.Expression"
_SUBQUERY = _CATALYST + "expressions.SubqueryExpression"
_AGGREGATE = _CATALYST + "expressions.aggregate.AggregateExpression"
_NUMBER = "gid"
"""Spark's name for the column of numbers."""

Change = Callable[[Any], Any]


def numbers_groups(root: Node) -> bool:
    """Whether a physical plan numbers groups of distinct aggregates."""
    return any(node.name == "ExpandExec" and _has_number(node.plan) for node in root.every())


def _has_number(plan: Any) -> bool:
    return any(str(column.name()) == _NUMBER for column in items(plan.output()))


class PlannedAlike:
    """Plans one query. The session that plans it is the active one meanwhile."""

    def __init__(self, jvm: Jvm, execution: Any) -> None:
        self._jvm, self._execution = jvm, execution
        patterns = jvm.root.org.apache.spark.sql.catalyst.trees.TreePattern
        self._with_aggregates = patterns.AGGREGATE()
        self._with_subqueries = patterns.PLAN_EXPRESSION()
        optimizer = execution.sparkSession().sessionState().optimizer()
        self._batches = [
            (int(batch.strategy().maxIterations()), items(batch.rules()))
            for batch in items(optimizer.batches())
        ]

    def physical(self) -> Any:
        """Return the physical plan, ready to run."""
        plan = self._optimized(self._execution.withCachedData().clone())
        answer = self._jvm.root.org.apache.spark.sql.catalyst.plans.logical.ReturnAnswer(plan)
        physical = self._execution.planner().plan(answer).next()
        executions = self._jvm.module("org.apache.spark.sql.execution.QueryExecution")
        return executions.prepareForExecution(self._execution.preparations(), physical)

    def _optimized(self, plan: Any) -> Any:
        """Apply each batch of rules until it changes nothing, or as often as it may be applied."""
        for most, rules in self._batches:
            for _ in range(most):
                before = plan
                for rule in rules:
                    plan = self._applied(rule, plan)
                if plan.fastEquals(before):
                    break
        return plan

    def _applied(self, rule: Any, plan: Any) -> Any:
        name = str(rule.ruleName())
        if name == _NUMBERING:
            return self._numbered(plan)
        if name == _OPTIMIZE_SUBQUERIES and plan.containsPattern(self._with_subqueries):
            return self._with_numbered_subqueries(plan, rule.apply(plan))
        return rule.apply(plan)

    def _numbered(self, plan: Any) -> Any:
        """Number groups in the whole plan, bottom up."""
        if not plan.containsPattern(self._with_aggregates):
            return plan
        plan = self._over(plan, self._numbered)
        return self._one_numbered(plan) if self._is(plan, "Aggregate") else plan

    def _one_numbered(self, aggregate: Any) -> Any:
        stand_ins = _StandIns(self._jvm)

        def stand_in(argument: Any) -> Any:
            return argument if argument.foldable() else stand_ins.of(argument)

        def hidden(expression: Any) -> Any:
            if self._jvm.class_name(expression) != _AGGREGATE:
                return self._over(expression, hidden)
            if not expression.isDistinct():
                return expression
            function, *rest = items(expression.children())
            function = self._over(function, stand_in)
            return expression.withNewChildren(self._jvm.to_seq([function, *rest]))

        without = self._with_argument(aggregate, 1, hidden)
        numbered = self._jvm.module(_NUMBERING).rewrite(without)
        if numbered.fastEquals(without):  # one group needs no number
            return aggregate
        return self._over(
            numbered,
            lambda inner: self._over(
                inner, lambda expand: self._with_argument(expand, 0, stand_ins.original)
            ),
        )

    def _with_numbered_subqueries(self, before: Any, after: Any) -> Any:
        """Return a plan whose subqueries Spark optimized, with groups numbered in those too.

        Args:
            before: the plan before that.
        """
        written: dict[str, Any] = {}
        subqueries = self._jvm.module(_LOGICAL + "Subquery")

        def remember(subquery: Any) -> Any:
            written[str(subquery.exprId().toString())] = subqueries.fromExpression(subquery)
            return subquery

        def numbered(subquery: Any) -> Any:
            root = written.get(str(subquery.exprId().toString()))
            if root is None or not self._numbers(subquery.plan()):
                return subquery
            return subquery.withNewPlan(self._without_sort(self._optimized(root).child()))

        self._each_subquery(before, remember)
        return self._each_subquery(after, numbered)

    def _numbers(self, plan: Any) -> bool:
        if self._is(plan, "Expand") and _has_number(plan):
            return True
        return any(map(self._numbers, [*items(plan.children()), *items(plan.subqueries())]))

    def _without_sort(self, plan: Any) -> Any:
        """Drop the sort of a subquery's rows, as Spark does: they have no order."""
        if self._is(plan, "Sort"):
            return plan.child()
        return self._over(plan, self._without_sort) if self._is(plan, "Project") else plan

    def _each_subquery(self, plan: Any, change: Change) -> Any:
        """Return the plan with another expression in the place of each of a subquery."""

        def changed(expression: Any) -> Any:
            if not expression.containsPattern(self._with_subqueries):
                return expression
            if self._jvm.is_a(expression, _SUBQUERY):
                return change(expression)
            return self._over(expression, changed)

        if not plan.containsPattern(self._with_subqueries):
            return plan
        plan = self._over(plan, lambda child: self._each_subquery(child, change))
        for at in range(plan.productArity()):
            plan = self._with_argument(plan, at, changed)
        return plan

    def _is(self, plan: Any, name: str) -> bool:
        return self._jvm.class_name(plan) == _LOGICAL + name

    def _over(self, node: Any, change: Change) -> Any:
        """Return a plan or an expression over changed children."""
        old = items(node.children())
        new = [change(child) for child in old]
        return node if _same(old, new) else node.withNewChildren(self._jvm.to_seq(new))

    def _with_argument(self, plan: Any, at: int, change: Change) -> Any:
        """Return a plan with the expressions in one of its arguments changed."""
        old = plan.productElement(at)
        new = self._changed(old, change)
        if new is old:
            return plan
        # other arguments stay in the JVM: on their way through Python numbers change their types
        arguments = plan.productIterator().toSeq().updated(at, new)
        return plan.makeCopy(arguments.toArray(self._jvm.root.scala.reflect.ClassTag.AnyRef()))

    def _changed(self, value: Any, change: Change) -> Any:
        if not isinstance(value, JavaObject):
            return value
        if self._jvm.is_a(value, _EXPRESSION):
            return change(value)
        if self._jvm.is_a(value, "scala.Option") and value.isDefined():
            old = value.get()
            new = self._changed(old, change)
            return value if new is old else self._jvm.root.scala.Option.apply(new)
        if self._jvm.is_a(value, "scala.collection.Seq"):
            old = items(value)
            new = [self._changed(one, change) for one in old]
            return value if _same(old, new) else self._jvm.to_seq(new)
        return value


def _same(old: list[Any], new: list[Any]) -> bool:
    return all(one is other for one, other in zip(old, new, strict=True))


class _StandIns:
    """Columns that stand for the arguments of distinct aggregates: equal in every session."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._known: list[tuple[Any, Any]] = []

    def of(self, argument: Any) -> Any:
        """The column of an argument; arguments that are equal have one."""
        for known, column in self._known:
            if known.semanticEquals(argument):
                return column
        number = len(self._known) + 1
        root = self._jvm.root
        expressions = root.org.apache.spark.sql.catalyst.expressions
        column = expressions.AttributeReference(
            f"distinct {number}",
            argument.dataType(),
            argument.nullable(),
            root.org.apache.spark.sql.types.Metadata.empty(),
            expressions.ExprId(number, root.java.util.UUID(0, 0)),  # of no JVM
            self._jvm.to_seq([]),
        )
        self._known.append((argument, column))
        return column

    def original(self, expression: Any) -> Any:
        """What a column stands for; the expression itself if it is none of these."""
        return next((one for one, column in self._known if column.equals(expression)), expression)
