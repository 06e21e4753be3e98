"""Plans queries with several distinct aggregates the same way in every session.

For `count(distinct a), sum(distinct b)` Spark makes one group of rows for `a` and one for `b`, and
numbers the groups. The numbers follow the order of a hash table of `a` and `b`. That order depends
on column ids, which differ between sessions, and for some functions on the memory address of an
object. Stored rows contain the number, so rows with another order do not match them.

Strategy: apply Spark's own rules one after the other, as Spark does. For the rule that numbers
groups, replace `a` and `b` by columns with fixed ids, and put them back afterwards. Then the order
depends on the query alone.
"""

from collections.abc import Callable
from typing import Any

from durable_shuffle.jobs.identity.jvm.calls import Jvm, every, items
from durable_shuffle.jobs.identity.jvm.document import is_object
from durable_shuffle.jobs.query.tree import Node
from durable_shuffle.jobs.spark_versions import updated

_CATALYST = "org.apache.spark.sql.catalyst."
_NUMBERING = _CATALYST + "optimizer.RewriteDistinctAggregates"
_OPTIMIZE_SUBQUERIES = _CATALYST + "optimizer.Optimizer$OptimizeSubqueries"
_LOGICAL = _CATALYST + "plans.logical."
_EXPRESSION = _CATALYST + "expressions.Expression"
_SUBQUERY = _CATALYST + "expressions.SubqueryExpression"
_AGGREGATE = _CATALYST + "expressions.aggregate.AggregateExpression"
_NUMBER = "gid"
"""Spark's name for the column of group numbers."""

Change = Callable[[Any], Any]


def numbers_groups(root: Node) -> bool:
    """Return whether a physical plan numbers groups of distinct aggregates."""
    return any(node.name == "ExpandExec" and _has_number(node.plan) for node in root.every())


def _has_number(plan: Any) -> bool:
    return any(str(column.name()) == _NUMBER for column in items(plan.output()))


class PlannedAlike:
    """Plans one query. Its session must be the active session of the calling thread."""

    def __init__(self, jvm: Jvm, execution: Any) -> None:
        self._jvm, self._execution = jvm, execution
        patterns = getattr(jvm.root, "org.apache.spark.sql.catalyst.trees.TreePattern")
        self._with_aggregates = patterns.AGGREGATE()
        self._with_subqueries = patterns.PLAN_EXPRESSION()
        optimizer = execution.sparkSession().sessionState().optimizer()
        self._batches = [
            (int(batch.strategy().maxIterations()), items(batch.rules()))
            for batch in items(optimizer.batches())
        ]

    def optimized(self) -> Any:
        """Return the optimized logical plan."""
        return self._optimized(self._execution.withCachedData().clone())

    def _optimized(self, plan: Any) -> Any:
        """Apply each batch of rules until nothing changes, but at most `maxIterations` times."""
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
        """Return `after` with fixed group numbers in its subqueries too.

        Args:
            before: the plan before Spark optimized its subqueries.
            after: the plan after that.
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
        plans = [plan, *items(plan.subqueriesAll())]
        nodes = (node for top in plans for node in every(top))
        return any(self._is(node, "Expand") and _has_number(node) for node in nodes)

    def _without_sort(self, plan: Any) -> Any:
        """Drop the sort of a subquery's rows, as Spark does, since their order has no meaning."""
        if self._is(plan, "Sort"):
            return plan.child()
        return self._over(plan, self._without_sort) if self._is(plan, "Project") else plan

    def _each_subquery(self, plan: Any, change: Change) -> Any:
        """Return the plan with `change` applied to each subquery expression."""

        def changed(expression: Any) -> Any:
            if not expression.containsPattern(self._with_subqueries):
                return expression
            if self._jvm.is_a(expression, _SUBQUERY):
                return change(expression)
            return self._over(expression, changed)

        if not plan.containsPattern(self._with_subqueries):
            return plan
        plan = self._over(plan, lambda child: self._each_subquery(child, change))
        for i in range(plan.productArity()):
            plan = self._with_argument(plan, i, changed)
        return plan

    def _is(self, plan: Any, name: str) -> bool:
        return self._jvm.class_name(plan) == _LOGICAL + name

    def _over(self, node: Any, change: Change) -> Any:
        """Return a plan or an expression with `change` applied to each child."""
        old = items(node.children())
        new = [change(child) for child in old]
        return node if _same(old, new) else node.withNewChildren(self._jvm.to_seq(new))

    def _with_argument(self, plan: Any, i: int, change: Change) -> Any:
        """Return a plan with the expressions in one of its arguments changed."""
        old = plan.productElement(i)
        new = self._changed(old, change)
        if new is old:
            return plan
        # the other arguments stay in the JVM: passing through Python would change number types
        arguments = updated(plan.productIterator(), {i: new})
        return plan.makeCopy(
            arguments.toArray(getattr(self._jvm.root, "scala.reflect.ClassTag").AnyRef())
        )

    def _changed(self, value: Any, change: Change) -> Any:
        if not is_object(value):
            return value
        if self._jvm.is_a(value, _EXPRESSION):
            return change(value)
        if self._jvm.is_a(value, "scala.Option") and value.isDefined():
            old = value.get()
            new = self._changed(old, change)
            return value if new is old else getattr(self._jvm.root, "scala.Option").apply(new)
        if self._jvm.is_a(value, "scala.collection.Seq"):
            old = items(value)
            new = [self._changed(item, change) for item in old]
            return value if _same(old, new) else self._jvm.to_seq(new)
        return value


def _same(old: list[Any], new: list[Any]) -> bool:
    return all(one is other for one, other in zip(old, new, strict=True))


class _StandIns:
    """Columns that replace the arguments of distinct aggregates; the same in every session."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._known: list[tuple[Any, Any]] = []

    def of(self, argument: Any) -> Any:
        """Return the column for an argument; equal arguments share a column."""
        for known, column in self._known:
            if known.semanticEquals(argument):
                return column
        number = len(self._known) + 1
        root = self._jvm.root
        expressions = getattr(root, "org.apache.spark.sql.catalyst.expressions")
        column = expressions.AttributeReference(
            f"distinct {number}",
            argument.dataType(),
            argument.nullable(),
            getattr(root, "org.apache.spark.sql.types.Metadata").empty(),
            expressions.ExprId(number, getattr(root, "java.util.UUID")(0, 0)),  # of no JVM
            self._jvm.to_seq([]),
        )
        self._known.append((argument, column))
        return column

    def original(self, expression: Any) -> Any:
        """Return the argument that a column replaces, or the expression itself if it is another."""
        return next(
            (argument for argument, column in self._known if column.equals(expression)), expression
        )
