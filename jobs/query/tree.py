"""A physical plan read once from the JVM into plain nodes, and rebuilt over stored stages.

Decisions on nodes need no JVM calls. Wrappers of code generation are nodes too, because the plan is
rebuilt from these nodes. Operators bind to the session that is active when they are made. So call
`Rebuilder` and `rows_of` with the planning session active in the calling thread (`active`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark.sql import SparkSession

from durable_shuffle.jobs.engine import catalyst, rdd_frames
from durable_shuffle.jobs.engine.row_numbers import ROW_COLUMN
from durable_shuffle.jobs.engine.tasks import ID_COLUMN
from durable_shuffle.jobs.identity.jvm.calls import (
    Jvm,
    analyzed_plan,
    class_name,
    items,
    module,
    set_field,
    simple_name,
    to_seq,
)
from durable_shuffle.jobs.identity.jvm.document import OPERATORS
from durable_shuffle.jobs.in_one_call import in_one_call, standing_for
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import ClassicFrame as DataFrame
from durable_shuffle.jobs.spark_versions import appended, newest_form

SHUFFLE = "ShuffleExchangeExec"
REUSED = "ReusedExchangeExec"
BROADCAST = "BroadcastExchangeExec"
_BUILDING = frozenset(
    {"BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec", "ShuffledHashJoinExec"}
)
WRAPPERS = frozenset({"WholeStageCodegenExec", "InputAdapter"})
"""Operators that only wrap others, for code generation."""
SUBQUERIES = ("SubqueryExec", "SubqueryBroadcastExec")


@dataclass(slots=True, eq=False)
class Node:
    """One operator. `subqueries` are the subqueries in its own expressions."""

    plan: Any
    full_name: str
    """Of the operator's class; `name` is the simple one."""
    name: str
    id: int
    """Spark's id of the operator, unique within the JVM."""
    children: list["Node"] = field(default_factory=list)
    subqueries: list["Node"] = field(default_factory=list)
    target: "Node | None" = None
    """For a reused exchange or subquery: the original."""
    partitioning: Any = None
    """Output partitioning; only for exchanges, reused exchanges, unions and placed cuts."""
    prunes: bool = False
    """True for a subquery that finds the partitions that a scan must read."""
    build_side: str = ""
    """Of a join that builds a relation of one side."""
    cut: Any = None
    """The cut whose stage is read here, if the plan was made after the cut started."""

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


def read_tree(jvm: Jvm, plan: Any, cut_of_rdd: Mapping[int, Any] | None = None) -> Node:
    """Return the tree of a physical plan. An operator that occurs twice is one node.

    Args:
        cut_of_rdd: RDD id -> the cut whose stage stands there.
    """
    known: dict[int, Node] = {}

    def read(plan: Any) -> Node:
        number = int(plan.id())
        if number in known:
            return known[number]
        full_name = jvm.class_name(plan)
        node = Node(plan, full_name, simple_name(full_name), number)
        known[number] = node
        if node.name in (REUSED, "ReusedSubqueryExec"):
            node.target = read(jvm.seen(plan.child(), OPERATORS))
        else:
            node.children = [read(child) for child in items(plan.children())]
        if node.name in SUBQUERIES:
            node.prunes = str(plan.name()).startswith("dynamicpruning")
        if node.name in _BUILDING:
            node.build_side = str(plan.buildSide().toString())
        node.subqueries = [
            read(jvm.seen(subquery, OPERATORS)) for subquery in items(plan.subqueries())
        ]
        if cut_of_rdd and node.name == "RDDScanExec":
            node.cut = cut_of_rdd.get(int(plan.rdd().id()))
        if node.name in (SHUFFLE, REUSED, "UnionExec") or node.cut is not None:
            node.partitioning = plan.outputPartitioning()
        return node

    return read(jvm.seen(plan, OPERATORS))


def path_to(root: Node, wanted: Node) -> list[Node] | None:
    """Return the operators from `root` down to `wanted`; None if a subquery has it."""
    if root is wanted:
        return [root]
    for child in root.children:
        path = path_to(child, wanted)
        if path is not None:
            return [root, *path]
    return None


class Rebuilder:
    """Rebuilds pieces of one plan. Shared operators stay shared. Not thread-safe."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._jvm: Any = classes_of(session)
        self._done: dict[int, Any] = {}

    def piece(
        self, root: Node, scan: Callable[[Any, Node], Any], sites: Mapping[int, Any]
    ) -> tuple[Any, int]:
        """Return the plan of a piece in which each site is replaced by `scan(jvm, site)`, and how
        many sort orders its rows have.

        The plan may be `Held`.

        Args:
            scan: returns a plan node, from `stored_scan`; called once per site.
            sites: its keys are the node ids of the sites.
        """
        changed: list[int] = []

        def built(jvm: Any) -> tuple[Any, ...]:
            local: dict[int, Any] = {}
            done: dict[int, Any] = {}

            def build(node: Node) -> Any:
                if node.id in sites:
                    if node.id not in local:
                        local[node.id] = scan(jvm, node)
                    return local[node.id]
                if node.id in self._done:
                    return self._done[node.id]
                if node.id not in done:
                    done[node.id] = self._rebuilt(jvm, node, build)
                    if done[node.id] is not node.plan:
                        changed.append(node.id)
                    else:
                        self._done[node.id] = node.plan
                return done[node.id]

            plan = build(root)
            orders = standing_for(jvm, plan).outputOrdering().size()
            return plan, orders, *(done[number] for number in changed)

        plan, orders, *made = in_one_call(self._jvm, built, fetch=False)
        self._done |= dict(zip(changed, made, strict=True))
        return plan, orders

    def _rebuilt(self, jvm: Any, node: Node, build: Callable[[Node], Any]) -> Any:
        for subquery in node.subqueries:
            build(subquery)
        plan = node.plan
        if node.target is not None:
            target = build(node.target)
            if target is node.target.plan or node.name != REUSED:
                return plan
            reused = getattr(jvm, "org.apache.spark.sql.execution.exchange.ReusedExchangeExec")
            return reused(standing_for(jvm, plan).output(), standing_for(jvm, target))
        if not node.children:
            return plan
        children = [build(child) for child in node.children]
        if all(new is old.plan for new, old in zip(children, node.children, strict=True)):
            return plan
        if node.name in SUBQUERIES:
            # expressions all over the plan hold this object, so its child is replaced in place
            set_field(jvm, standing_for(jvm, plan), "child", standing_for(jvm, children[0]))
            return plan
        below = [standing_for(jvm, child) for child in children]
        return standing_for(jvm, plan).withNewChildren(to_seq(jvm, below))


def stored_scan(jvm: Any, site: Node, rdd: Any, partitioning: Any) -> Any:
    """Return a scan over an RDD of stored rows, to replace a whole exchange."""
    none, nil = getattr(jvm, "scala.Option").empty(), to_seq(jvm, [])
    scan = [site.plan.output(), rdd, "durable exchange", partitioning, nil]
    name = "org.apache.spark.sql.execution.RDDScanExec"
    return newest_form(jvm, name, [*scan, none], scan)


def partitioning_over(jvm: Any, original: Any, partitions: int) -> Any:
    """Return an exchange's kind of partitioning over this number of partitions.

    Args:
        original: the exchange's partitioning, None if the site is no exchange.
    """
    physical = getattr(jvm, "org.apache.spark.sql.catalyst.plans.physical")
    if original is None:
        return physical.UnknownPartitioning(partitions)
    if original.numPartitions() == partitions:
        return original
    kind = simple_name(class_name(original))
    if kind == "HashPartitioning":
        return physical.HashPartitioning(original.expressions(), partitions)
    if kind == "RangePartitioning":
        return physical.RangePartitioning(original.ordering(), partitions)
    return physical.UnknownPartitioning(partitions)


def prepare(_: Any, *plans: Any) -> None:
    """Start what operators need before they run; for a function of `in_one_call`."""
    for plan in plans:
        plan.prepare()


def rows_of(
    session: SparkSession, plan: Any, orders: int, hashed: Any = None
) -> tuple[DataFrame, Any, int, int, Any]:
    """Return a DataFrame over the rows of a plan, its RDD, the RDD's id, its partitions, and the
    expression of the partition that a row goes to.

    Broadcasts and subqueries of the plan run inside this call; its own tasks run later.

    Args:
        orders: how many sort orders its rows have.
        hashed: how the rows are hashed; None: they are not, and there is no expression.
    """
    known = rdd_frames.kept_order(session, plan, orders)

    def made(jvm: Any, java_session: Any, plan: Any, *hashed: Any) -> tuple[Any, ...]:
        rdd = plan.execute()
        order = plan.outputOrdering().take(known) if known else None
        frame = rdd_frames.frame_of_rdd(jvm, java_session, plan.output(), rdd, order)
        place = hashed[0].partitionIdExpression() if hashed else None
        return frame, rdd, rdd.id(), rdd.getNumPartitions(), place

    given = [session._jsparkSession, plan, *([] if hashed is None else [hashed])]  # noqa: SLF001
    frame, rdd, number, partitions, place = in_one_call(classes_of(session), made, *given)
    return DataFrame(frame, session), rdd, number, partitions, place


def with_ids(rows: DataFrame, partition_id: Any | None) -> DataFrame:
    """Return the rows with the columns that map tasks in Python take.

    These are c0, c1, … by position (the plan's names may repeat), then the partition id if there
    is one, then zeros for `rdd_frames.counted_to_the_end`.

    Args:
        partition_id: a Catalyst expression over the columns of `rows`.
    """
    jvm: Any = classes_of(rows.sparkSession)
    columns = analyzed_plan(rows).output()
    names = [f"c{i}" for i in range(columns.size())]
    if partition_id is not None:
        columns = appended(columns, catalyst.alias(jvm, partition_id, ID_COLUMN))
        names.append(ID_COLUMN)
    literal = module(jvm, "org.apache.spark.sql.catalyst.expressions.Literal")
    zero = literal.default(getattr(jvm, "org.apache.spark.sql.types.DataTypes").LongType)
    columns = appended(columns, catalyst.alias(jvm, zero, ROW_COLUMN))
    names.append(ROW_COLUMN)
    return cast("DataFrame", catalyst.project(rows, columns).toDF(*names))
