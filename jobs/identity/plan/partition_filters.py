"""Finds the filters that decide which partitions of a partitioned table a query reads.

A file of another partition yields no row, so it is not an input of the query. Only conditions over
partition columns alone are used, because Spark evaluates them before it reads a file.
"""

from collections.abc import Sequence
from typing import Any

from durable_shuffle.jobs.identity.plan.jvm import Jvm, items, simple_name

_NAMES = frozenset({"SubqueryAlias", "View"})
_PLAN_EXPRESSION = "org.apache.spark.sql.catalyst.expressions.PlanExpression"
_UNKNOWN = frozenset({"PythonUDF", "ScalaUDF", "CallMethodViaReflection"})


def filtered_leaf(jvm: Jvm, node: Any) -> tuple[Any, list[Any]]:
    """Return the leaf below a chain of filters and projections, and the conditions of the chain.

    The leaf is None if another operator or a non-deterministic expression is in between.
    """
    conditions: list[Any] = []
    while True:
        name = simple_name(jvm.class_name(node))
        if name == "Filter":
            if not node.condition().deterministic():
                return None, []
            conditions += _conjuncts(jvm, node.condition())
        elif name == "Project":
            columns = items(node.projectList())
            if not all(one.deterministic() and _plain(jvm, one) for one in columns):
                return None, []
        elif name == "LogicalRelation":
            return node, conditions
        elif name not in _NAMES:
            return None, []
        node = node.child()


def over_partitions(jvm: Jvm, leaf: Any, conditions: Sequence[Any]) -> list[Any]:
    """Return the conditions that use only partition columns of a leaf.

    Args:
        leaf: a scan of files, logical or physical, with `output` and `relation`.
    """
    names = set(map(str, leaf.relation().partitionSchema().fieldNames()))
    ids = {str(one.exprId().toString()) for one in items(leaf.output()) if one.name() in names}
    return [one for one in conditions if _is_over(jvm, one, ids)]


def _is_over(jvm: Jvm, condition: Any, ids: set[str]) -> bool:
    used = {str(one.exprId().toString()) for one in items(condition.references().toSeq())}
    return bool(used) and used <= ids and bool(condition.deterministic()) and _plain(jvm, condition)


def _plain(jvm: Jvm, expression: Any) -> bool:
    """Return whether an expression contains neither a subquery nor user code."""
    if jvm.is_a(expression, _PLAN_EXPRESSION):
        return False
    if simple_name(jvm.class_name(expression)) in _UNKNOWN:
        return False
    return all(_plain(jvm, child) for child in items(expression.children()))


def _conjuncts(jvm: Jvm, condition: Any) -> list[Any]:
    if simple_name(jvm.class_name(condition)) != "And":
        return [condition]
    return _conjuncts(jvm, condition.left()) + _conjuncts(jvm, condition.right())
