"""A physical plan read once from the JVM into plain nodes, so that decisions need no JVM calls.

Wrappers of code generation are nodes too, because the plan is rebuilt from these nodes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from durable_shuffle.jobs.identity.plan.jvm import Jvm, items, simple_name

SHUFFLE = "ShuffleExchangeExec"
REUSED = "ReusedExchangeExec"
BROADCAST = "BroadcastExchangeExec"
SUBQUERIES = ("SubqueryExec", "SubqueryBroadcastExec")


@dataclass(slots=True, eq=False)
class Node:
    """One operator. `subqueries` are the subqueries in its own expressions."""

    plan: Any
    name: str
    """Simple class name."""
    id: int
    """Spark's id of the operator, unique within the JVM."""
    children: list["Node"] = field(default_factory=list)
    subqueries: list["Node"] = field(default_factory=list)
    target: "Node | None" = None
    """For a reused exchange or subquery: the original."""
    partitioning: Any = None
    """Output partitioning; only for exchanges, reused exchanges and unions."""
    prunes: bool = False
    """True for a subquery that finds the partitions that a scan must read."""

    def below(self) -> Iterator["Node"]:
        """Yield children, subqueries and the target."""
        yield from self.children
        yield from self.subqueries
        if self.target is not None:
            yield self.target

    def every(self) -> Iterator["Node"]:
        """Yield this node and all nodes below it, each once."""
        seen: set[int] = set()
        stack = [self]
        while stack:
            node = stack.pop()
            if node.id not in seen:
                seen.add(node.id)
                yield node
                stack += node.below()


def read_tree(jvm: Jvm, plan: Any) -> Node:
    """Return the tree of a physical plan. An operator that occurs twice is one node."""
    return _Reader(jvm).read(plan)


class _Reader:
    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._known: dict[int, Node] = {}

    def read(self, plan: Any) -> Node:
        number = int(plan.id())
        if number in self._known:
            return self._known[number]
        node = Node(plan, simple_name(self._jvm.class_name(plan)), number)
        self._known[number] = node
        if node.name in (REUSED, "ReusedSubqueryExec"):
            node.target = self.read(plan.child())
        else:
            node.children = [self.read(child) for child in items(plan.children())]
        if node.name in SUBQUERIES:
            node.prunes = str(plan.name()).startswith("dynamicpruning")
        node.subqueries = [self.read(one) for one in items(plan.subqueries())]
        if node.name in (SHUFFLE, REUSED, "UnionExec"):
            node.partitioning = plan.outputPartitioning()
        return node
