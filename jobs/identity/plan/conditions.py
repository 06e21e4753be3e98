"""Finds the conditions that hold for every row that a query takes from a leaf of its plan.

Spark's own rule pushes the filters of a plan down to its leaves. The pushed plan is equivalent to
the plan and has the same leaves in the same order. A file, all of whose rows fail such a condition,
is not an input of the query. Conditions with subqueries, user code or non-deterministic
expressions are not used.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS, Jvm, every, items, simple_name
from durable_shuffle.jobs.identity.jvm.document import TREE_ALONE

_ANALYSIS = "org.apache.spark.sql.catalyst.analysis."
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."
_PUSH_DOWN = _OPTIMIZER + "PushDownPredicates"
_LITERALS = ("ConstantFolding", "UnwrapCastInBinaryComparison")
"""Rules that turn `id < cast(2 as bigint)` into a comparison that table formats understand."""
_ROUNDS = 20
_PRUNED = frozenset({"LogicalRelation", "DataSourceV2Relation"})
"""Leaves from which conditions leave files out."""
_PLAN_EXPRESSION = "org.apache.spark.sql.catalyst.expressions.PlanExpression"
_UNKNOWN = frozenset({"PythonUDF", "ScalaUDF", "CallMethodViaReflection"})


class Conditions:
    """The conditions above the leaves of some plans."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._found: dict[int, list[list[Any]]] = {}
        """Identity of a leaf object -> conditions at each of its places in the plans."""
        self._asked: dict[int, int] = {}

    def learn(self, plan: Any) -> None:
        """Add the leaves of a logical plan and of its subqueries."""
        for top in (plan, *items(plan.subqueriesAll())):
            leaves = items(top.collectLeaves())
            if not any(self._is_pruned(leaf) for leaf in leaves):
                continue
            operators = self._jvm.seen(self._pushed(top), TREE_ALONE)
            pushed = list(self._above_leaves(operators, ()))
            alike = len(pushed) == len(leaves)
            for i, leaf in enumerate(leaves):
                found = pushed[i][1] if alike and self._same(leaf, pushed[i][0]) else []
                self._found.setdefault(self._number(leaf), []).append(found)

    def above(self, leaf: Any) -> list[list[Any]]:
        """Return the conditions at each place of a leaf, of which this call is one.

        One object may stand at several places, and a caller cannot tell which one it visits. If it
        visits more places than the plans have, the answer is one place without conditions.
        """
        number = self._number(leaf)
        self._asked[number] = self._asked.get(number, 0) + 1
        places = self._found.get(number, [])
        if self._asked[number] > len(places):
            return [[]]
        return [found for i, found in enumerate(places) if found not in places[:i]]

    def _is_pruned(self, leaf: Any) -> bool:
        return simple_name(self._jvm.class_name(leaf)) in _PRUNED

    def _number(self, leaf: Any) -> int:
        return int(self._jvm.root.java.lang.System.identityHashCode(leaf))

    def _same(self, leaf: Any, pushed: Any) -> bool:
        return bool(leaf.equals(pushed)) or column_ids(leaf) == column_ids(pushed)

    def _pushed(self, plan: Any) -> Any:
        jvm = self._jvm
        try:
            for rule in ("EliminateSubqueryAliases", "EliminateView"):
                plan = jvm.module(_ANALYSIS + rule).apply(plan)
            push = jvm.module(_PUSH_DOWN)
            for _ in range(_ROUNDS):
                before, plan = plan, push.apply(plan)
                if plan.fastEquals(before):
                    break
            for rule in _LITERALS:
                plan = jvm.module(_OPTIMIZER + rule).apply(plan)
        except JVM_ERRORS:  # another Spark: no condition is known
            pass
        return plan

    def _above_leaves(
        self, node: Any, conditions: Sequence[Any]
    ) -> Iterator[tuple[Any, list[Any]]]:
        name = self._jvm.class_name(node)
        children = items(node.children())
        if not children:
            yield node, list(conditions)
        is_filter = simple_name(name) == "Filter"
        if is_filter and node.condition().deterministic():
            below = [*conditions, *_conjuncts(self._jvm, node.condition())]
            yield from self._above_leaves(children[0], below)
            return
        for child in children:
            yield from self._above_leaves(child, ())


def column_ids(leaf: Any, names: Sequence[str] | None = None) -> set[str]:
    """Return the expression ids of a leaf's columns.

    Args:
        names: only those with these names.
    """
    columns = items(leaf.output())
    return {
        str(column.exprId().toString())
        for column in columns
        if names is None or column.name() in names
    }


def over(jvm: Jvm, conditions: Sequence[Any], ids: set[str]) -> list[Any]:
    """Return the conditions that use some of these columns, and nothing else."""
    return [condition for condition in conditions if _is_over(jvm, condition, ids)]


def _is_over(jvm: Jvm, condition: Any, ids: set[str]) -> bool:
    used = {
        str(attribute.exprId().toString()) for attribute in items(condition.references().toSeq())
    }
    return bool(used) and used <= ids and bool(condition.deterministic()) and _plain(jvm, condition)


def _plain(jvm: Jvm, expression: Any) -> bool:
    """Return whether an expression contains neither a subquery nor user code."""
    return not any(
        jvm.is_a(node, _PLAN_EXPRESSION) or simple_name(jvm.class_name(node)) in _UNKNOWN
        for node in every(expression)
    )


def _conjuncts(jvm: Jvm, condition: Any) -> list[Any]:
    if simple_name(jvm.class_name(condition)) != "And":
        return [condition]
    return _conjuncts(jvm, condition.left()) + _conjuncts(jvm, condition.right())
