"""The optimized logical plan of a query, planned again as the sizes of its stages become known.

As in Spark's adaptive execution: a stage that has started takes the place of the logical operator
whose rows it holds, with its true size once it is sealed. Then Spark's planner plans the query
again. So it may broadcast a join side that turned out small, and a stage is never computed under
two plans. A started stage stays as it is: nothing below it is planned again.

Source: `AdaptiveSparkPlanExec.replaceWithQueryStagesInLogicalPlan` of Apache Spark.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

from pyspark.sql import SparkSession

from durable_shuffle.jobs.engine import catalyst
from durable_shuffle.jobs.identity.jvm.calls import Jvm, items
from durable_shuffle.jobs.identity.jvm.document import TREE_ALONE
from durable_shuffle.jobs.query.cuts import Cut
from durable_shuffle.jobs.query.tree import WRAPPERS, Node, path_to, stored_scan

Placing = Literal["placed", "elsewhere", "unknown"]
_ADAPTIVE_THRESHOLD = "spark.sql.adaptive.autoBroadcastJoinThreshold"
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."


@dataclass(frozen=True, slots=True)
class _Operator:
    """An operator of the logical plan, and those below it."""

    object: Any
    number: int
    """Its identity hash."""
    children: "list[_Operator]"


class LogicalPlan:
    """The plan of one query. Its session must be the active session of the calling thread."""

    def __init__(self, jvm: Jvm, session: SparkSession, execution: Any, plan: Any) -> None:
        self._jvm, self._session, self._execution = jvm, session, execution
        self._root = self._read(plan)
        self._copies: dict[int, list[tuple[Any, Any]]] = {}
        """Identity hash -> (an operator, the copy with other children, or leaf, in its place)."""
        self._leaves: dict[int, Any] = {}
        """Cut number -> the leaf that stands for it."""
        self._whole: set[int] = set()
        """Numbers of the cuts that hold all rows of the operator that they replaced."""
        self.cut_of_rdd: dict[int, Cut] = {}
        excluded = session.conf.get("spark.sql.adaptive.optimizer.excludedRules", None)
        self._drops_empty = "AQEPropagateEmptyRelation" not in (excluded or "")

    def physical(self) -> Any:
        """Return the physical plan, ready to run."""
        answer = getattr(
            self._jvm.root, "org.apache.spark.sql.catalyst.plans.logical.ReturnAnswer"
        )(self._root.object)
        physical = self._execution.planner().plan(answer).next()
        executions = self._jvm.module("org.apache.spark.sql.execution.QueryExecution")
        return executions.prepareForExecution(self._execution.preparations(), physical)

    def place(self, cut: Cut, root: Node) -> Placing:
        """Let a cut stand for what it computes, with Spark's estimate of its size.

        Args:
            root: the newest physical plan.

        Returns:
            "elsewhere" if the exchange is in a subquery, which Spark plans apart; "unknown" if
            Spark does not say which operator the exchange belongs to. The plan is unchanged then.
        """
        path = path_to(root, cut.node)
        if path is None:
            return "elsewhere"
        link = _link_below(cut.node)
        if link is None:
            return "unknown"
        number = self._hash(link)
        top = next((i for i, node in enumerate(path) if self._links_to(node, number, link)), -1)
        chain = path[top:]
        if any(len(node.children) != 1 for node in chain[:-1]):
            return "unknown"
        replaced = self._newest(link)
        output = chain[0].plan.output()
        if not chain[0].plan.outputSet().equals(replaced.outputSet()):
            return "unknown"
        rdd, partitioning = self._stand_in(cut), cut.node.partitioning
        leaf = catalyst.logical_rdd(self._session, output, rdd, partitioning, replaced.stats())
        whole = len(chain) == 1
        if not whole:
            scan = stored_scan(self._jvm.root, cut.node, rdd, partitioning)
            leaf = self._query_stage(leaf, self._above(chain[:-1], scan))
        if not self._replace(replaced, leaf):
            return "unknown"
        self._leaves[cut.number] = leaf
        if whole:
            self._whole.add(cut.number)
        return "placed"

    def sized(self, cut: Cut, *, data_bytes: int, rows: int) -> None:
        """Give a placed cut its true size. Without rows, drop what needs rows of it."""
        leaf = self._leaves.get(cut.number)
        if leaf is None:
            return
        if not rows and cut.number in self._whole and self._drops_empty:
            empty = self._jvm.module("org.apache.spark.sql.catalyst.plans.logical.LocalRelation")
            if self._replace(leaf, empty.apply(leaf.output())):
                propagate = self._jvm.module(_OPTIMIZER + "PropagateEmptyRelation")
                nullable = self._jvm.module(
                    "org.apache.spark.sql.catalyst.analysis.UpdateAttributeNullability"
                )
                self._root = self._read(nullable.apply(propagate.apply(self._root.object)))
                del self._leaves[cut.number]
            return
        size = catalyst.statistics(
            self._session, data_bytes=max(1, data_bytes), rows=rows, measured=True
        )
        stage = leaf if cut.number in self._whole else leaf.logicalPlan()
        sized = catalyst.logical_rdd(
            *(self._session, stage.output(), self._stand_in(cut), stage.outputPartitioning()), size
        )
        if cut.number not in self._whole:
            sized = self._query_stage(sized, leaf.physicalPlan())
        if self._replace(leaf, sized):
            self._leaves[cut.number] = sized

    def _stand_in(self, cut: Cut) -> Any:
        """Return a new RDD, by which the cut is recognised in the next physical plan.

        Two leaves over the same RDD would be equal for Spark, whatever their sizes.
        """
        rdd = cast("Any", self._session.sparkContext)._jsc.emptyRDD().rdd()  # noqa: SLF001
        self.cut_of_rdd[int(rdd.id())] = cut
        return rdd

    def _query_stage(self, logical: Any, physical: Any) -> Any:
        adaptive = getattr(self._jvm.root, "org.apache.spark.sql.execution.adaptive")
        return adaptive.LogicalQueryStage(logical, physical)

    def _above(self, chain: list[Node], scan: Any) -> Any:
        """Return the operators of a chain over `scan`, without wrappers of code generation."""
        plan = scan
        for node in reversed(chain):
            if node.name not in WRAPPERS:
                plan = node.plan.withNewChildren(self._jvm.to_seq([plan]))
        return plan

    def _links_to(self, node: Node, number: int, link: Any) -> bool:
        own = _link(node)
        return own is not None and self._hash(own) == number and own.fastEquals(link)

    def _newest(self, operator: Any) -> Any:
        """Return the copy that stands for an operator of an earlier plan."""
        while True:
            copies = self._copies.get(self._hash(operator), [])
            copy = next((new for old, new in copies if old.fastEquals(operator)), None)
            if copy is None:
                return operator
            operator = copy

    def _replace(self, old: Any, new: Any) -> bool:
        """Replace an operator wherever it occurs; return whether it did."""
        number, found = self._hash(old), False

        def over(operator: _Operator) -> _Operator:
            nonlocal found
            if operator.number == number and operator.object.fastEquals(old):
                found = True
                return self._read(new)
            children = [over(child) for child in operator.children]
            if all(one is other for one, other in zip(operator.children, children, strict=True)):
                return operator
            plans = [child.object for child in children]
            copy = operator.object.withNewChildren(self._jvm.to_seq(plans))
            changed = _Operator(copy, self._hash(copy), children)
            assert changed.number != operator.number, "Spark took the new child for the old"
            self._copies.setdefault(operator.number, []).append((operator.object, copy))
            return changed

        self._root = over(self._root)
        if found:
            self._copies.setdefault(number, []).append((old, new))
        return found

    def _read(self, plan: Any) -> _Operator:
        def read(one: Any) -> _Operator:
            return _Operator(one, self._hash(one), [read(child) for child in items(one.children())])

        return read(self._jvm.seen(plan, TREE_ALONE))

    def _hash(self, jvm_object: Any) -> int:
        """Return a number that is the same for the same object; rarely also for another one."""
        return int(self._jvm.identity_hash(jvm_object))


def estimated_bytes(node: Node) -> int:
    """Return Spark's estimate of the bytes of an operator's rows; 0 if it has none.

    An operator that Spark's planner added counts as what is below it.
    """
    link = _link_below(node)
    return 0 if link is None else int(link.stats().sizeInBytes())


def _link(node: Node) -> Any | None:
    """Return the logical operator that an operator was planned for."""
    link = node.plan.logicalLink()
    return link.get() if link.isDefined() else None


def _link_below(top: Node) -> Any | None:
    """Return the logical operator whose rows, or whose partial rows, an operator passes on."""
    for node in _downwards(top):
        link = _link(node)
        if link is not None:
            return link
    return None


def _downwards(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _downwards(child)


def broadcast_bytes(jvm: Jvm, session: SparkSession) -> int:
    """Return the most bytes that Spark broadcasts if it knows them."""
    measured = session.conf.get(_ADAPTIVE_THRESHOLD, None)
    if measured is not None:
        return int(
            getattr(jvm.root, "org.apache.spark.network.util.JavaUtils").byteStringAsBytes(measured)
        )
    conf = cast("Any", session)._jsparkSession.sessionState().conf()  # noqa: SLF001
    return int(conf.autoBroadcastJoinThreshold())


def split_bytes(session: SparkSession) -> int:
    """Return the most bytes of files that one task reads."""
    conf = cast("Any", session)._jsparkSession.sessionState().conf()  # noqa: SLF001
    return int(conf.filesMaxPartitionBytes())
