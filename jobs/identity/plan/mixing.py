"""Decides whether producers of two runs may be mixed in one stage: an allow list.

A producer's rows count whole or not at all, so it does not matter how a task makes them of its own
input. What matters is that the input itself is the same rows in both runs. It is if it comes from
files split by split, from stages that are stored whole, or from rows in memory. Behind one of
Spark's own exchanges (a shuffle, a broadcast, a subquery), it is only if everything below gives the
same rows in any order of arrival: otherwise producers of two runs lose rows and double others.

`why_not_mixed` names everything below such an exchange that is not proven to do so. What is not
listed here is not proven. The problem is that of Spark's indeterminate stages (SPARK-23207).
"""

from collections.abc import Collection, Iterator
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    StringType,
    StructType,
    _parse_datatype_json_string,
)

from durable_shuffle.jobs.identity.jvm.calls import Jvm, items, simple_name
from durable_shuffle.jobs.identity.jvm.deep import deep_plans

_LEAVES = frozenset(
    {
        *("FileSourceScanExec", "BatchScanExec"),  # their splits are recorded
        *("LocalTableScanExec", "RangeExec", "CommandResultExec", "EmptyRelationExec"),
        "OneRowRelationExec",
    }
)
"""Leaves whose partitions have the same rows in the same order in each run of one plan."""
_WRAPPERS = frozenset(
    {
        *("WholeStageCodegenExec", "InputAdapter", "ColumnarToRowExec", "RowToColumnarExec"),
        *("ProjectExec", "FilterExec", "ExpandExec", "GenerateExec", "BatchEvalPythonExec"),
    }
)
"""Operators that take row after row: the same rows in the same order, if their expressions are
deterministic."""
_IN_ORDER = frozenset(
    {
        *("LocalLimitExec", "SampleExec"),  # the position of a row decides
        *("ArrowEvalPythonExec", "MapInPandasExec", "MapInArrowExec"),  # functions see batches
        "CoalesceExec",  # which partitions are joined is recorded with the splits
        "UnionExec",
    }
)
"""Operators that give the same rows in the same order if they get them in the same order."""
_ANY_ORDER = frozenset(
    {
        *("SortExec", "UnionExec"),
        *("SortMergeJoinExec", "ShuffledHashJoinExec", "BroadcastHashJoinExec"),
        *("BroadcastNestedLoopJoinExec", "CartesianProductExec"),
        *("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"),
        *("WindowExec", "WindowGroupLimitExec"),
    }
)
"""Operators that give the same rows, in some order, for the same rows in any order. Sorting is one:
rows that tie come as they arrive. Functions of groups are checked apart."""
_EXCHANGES = frozenset(
    {
        *("ShuffleExchangeExec", "BroadcastExchangeExec", "ReusedExchangeExec"),
        *("SubqueryExec", "SubqueryBroadcastExec", "ReusedSubqueryExec"),
    }
)
_PARTITIONINGS = frozenset({"HashPartitioning", "SinglePartition", "RoundRobinPartitioning"})
"""The row decides the partition. Bounds of ranges are samples, which differ from run to run."""
_SORTS_FIRST = "spark.sql.execution.sortBeforeRepartition"
"""Without it, the order of arrival decides the partition of a row in turn."""
_EXACT = frozenset(
    {
        *("Count", "Min", "Max", "Sum", "CountIf", "BoolAnd", "BoolOr"),
        *("BitAndAgg", "BitOrAgg", "BitXorAgg", "BloomFilterAggregate"),
    }
)
"""Aggregate functions whose result is the same for any order of rows of an exact type."""
_DECIMAL_ONLY = frozenset({"Average"})
"""Its sum of whole numbers is a double."""
_RANKS = frozenset({"Rank", "DenseRank", "PercentRank", "CumeDist"})
"""Window functions that give equal values to rows that tie."""
_GROUP_LIMITS = frozenset({"Rank", "DenseRank"})
_EXACT_TYPES = frozenset(
    {
        *("BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "DecimalType"),
        *("DateType", "TimestampType", "TimestampNTZType", "TimeType", "BinaryType"),
        *("DayTimeIntervalType", "YearMonthIntervalType", "NullType"),
    }
)
"""Types whose equal values are the same bytes, and whose sums do not depend on the order. Texts
are exact, too, if their collation is binary."""
_BINARY_COLLATION = "UTF8_BINARY"
_NARROW = frozenset({"OneToOneDependency", "RangeDependency", "PruneDependency"})
"""Dependencies of an RDD: a partition is made of the same partitions each time."""
_AQE, _CACHED = "AdaptiveSparkPlanExec", "InMemoryTableScanExec"
_TAKES_FIRST = "TakeOrderedAndProjectExec"
_RDD_SCANS = frozenset({"RDDScanExec", "ExternalRDDScanExec"})


@deep_plans()
def why_not_mixed(
    jvm: Jvm,
    plan: Any,
    *,
    stored: Collection[int] = (),
    native: Collection[int] = (),
    stages: Collection[int] = (),
    below: bool = False,
    vouched: bool = False,
) -> tuple[str, ...]:
    """Return what is not proven to be the same in each run below a native exchange, sorted.

    Args:
        jvm: access to the driver's JVM.
        plan: a physical plan, without adaptive execution.
        stored: ids of operators whose rows come from stored stages, in an order that never changes.
        native: ids of operators whose rows come from Spark's own shuffle, as they arrive.
        stages: ids of RDDs that read stored stages.
        below: the whole plan is below a native exchange.
        vouched: only a version vouches for functions of the plan.
    """
    look = _Look(jvm, stored, native, stages, vouched=vouched)
    look.at(plan, below=below)
    return tuple(sorted(look.names))


def why_rdd_not_mixed(jvm: Jvm, rdd: Any) -> tuple[str, ...]:
    """Like `why_not_mixed`, for an RDD of the JVM: what its partitions are made of may change."""
    look = _Look(jvm, (), (), ())
    look.rdd(rdd)
    return tuple(sorted(look.names))


class _Look:
    """A walk down a physical plan. Each step returns whether rows come in the same order."""

    def __init__(
        self,
        jvm: Jvm,
        stored: Collection[int],
        native: Collection[int],
        stages: Collection[int],
        *,
        vouched: bool = False,
    ) -> None:
        self._jvm, self._stages, self._vouched = jvm, stages, vouched
        self._sites = dict.fromkeys(stored, True) | dict.fromkeys(native, False)
        self.names: set[str] = set()

    def at(self, node: Any, *, below: bool) -> bool:
        if self._sites:
            site = self._sites.get(int(node.id()))
            if site is not None:
                return site
        full_name = self._jvm.class_name(node)
        name = simple_name(full_name)
        shared = name in _EXCHANGES or name in (_CACHED, _TAKES_FIRST)
        if self._vouched and (shared or not node.subqueries().isEmpty()):
            self.names.add("a function that only version= vouches for, and a native exchange")
        for subquery in items(node.subqueries()):
            self.at(subquery, below=True)
        if name == _AQE:
            return self.at(node.initialPlan(), below=below)
        if name == _CACHED:
            return self._cached(node, below=below)
        if name in _RDD_SCANS:
            return self._scanned(node.productElement(1))
        if name in _EXCHANGES:
            self._exchange(node, full_name, name)
            return False
        if name == _TAKES_FIRST:
            self.names.add("rows that tie in ORDER BY with LIMIT")
        ordered = [self.at(child, below=below) for child in items(node.children())]
        if below:
            self._operator(node, name, in_order=all(ordered))
        keeps = name in _WRAPPERS or name in _IN_ORDER or name in _LEAVES
        return keeps and all(ordered)

    def _exchange(self, node: Any, full_name: str, name: str) -> None:
        if name == "ShuffleExchangeExec":
            kind = simple_name(self._jvm.class_name(node.outputPartitioning()))
            sorts = node.conf().getConfString(_SORTS_FIRST, "true") == "true"
            if kind not in _PARTITIONINGS:
                self.names.add(f"the bounds of a native exchange ({kind})")
            elif kind == "RoundRobinPartitioning" and not sorts:
                self.names.add(f"a native exchange by turns with {_SORTS_FIRST}=false")
        for child in items(node.children()):
            self.at(child, below=True)

    def _cached(self, scan: Any, *, below: bool) -> bool:
        """Look at the plan of cached rows, which a session makes anew if it has lost them."""
        plan = scan.relation().cacheBuilder().cachedPlan()
        adaptive = simple_name(self._jvm.class_name(plan)) == _AQE
        if adaptive and self._has_shuffle(plan.initialPlan()):
            self.names.add("cached rows whose partitions adaptive execution has made")
        return self.at(plan, below=below)

    def _has_shuffle(self, node: Any) -> bool:
        name = simple_name(self._jvm.class_name(node))
        return name == "ShuffleExchangeExec" or any(map(self._has_shuffle, items(node.children())))

    def _scanned(self, rdd: Any) -> bool:
        before = len(self.names)
        if int(rdd.id()) not in self._stages:
            self.rdd(rdd)
        return len(self.names) == before

    def rdd(self, rdd: Any) -> None:
        """Look at an RDD and those below it; each once. Functions in it count by identity."""
        waiting, seen = [rdd], set[int]()
        while waiting:
            one = waiting.pop()
            number = int(one.id())
            if number in seen or number in self._stages:
                continue
            seen.add(number)
            for dependency in items(one.dependencies()):
                kind = simple_name(self._jvm.class_name(dependency))
                if kind not in _NARROW:
                    self.names.add(f"an RDD behind a {kind}")
                else:
                    waiting.append(dependency.rdd())

    def _operator(self, node: Any, name: str, *, in_order: bool) -> None:
        """Look at one operator below a native exchange."""
        if name not in _LEAVES | _WRAPPERS | _IN_ORDER | _ANY_ORDER:
            self._add(name.removesuffix("Exec"))
        elif name in _IN_ORDER and name not in _ANY_ORDER and not in_order:
            self._add(f"{name.removesuffix('Exec')} of rows as they arrive")
        for expression in items(node.expressions()):
            self._expression(expression)
        if name.endswith("AggregateExec"):
            for aggregate in items(node.aggregateExpressions()):
                self._aggregate(aggregate.aggregateFunction())
            self._exact("a key", items(node.groupingExpressions()), floats=True)
        if name == "WindowExec":
            for window in _windows(self._jvm, items(node.windowExpression())):
                self._window(window)
        if name == "WindowGroupLimitExec":
            kind = simple_name(self._jvm.class_name(node.rankLikeFunction()))
            if kind not in _GROUP_LIMITS:
                self._add(str(node.rankLikeFunction().prettyName()))

    def _expression(self, expression: Any) -> None:
        """Add the innermost expressions whose result may differ between runs."""
        if expression.deterministic():
            return
        children = items(expression.children())
        if all(child.deterministic() for child in children):
            is_udf = simple_name(self._jvm.class_name(expression)) == "PythonUDF"
            self._add(str(expression.name() if is_udf else expression.prettyName()))
        for child in children:
            self._expression(child)

    def _aggregate(self, function: Any) -> None:
        name = simple_name(self._jvm.class_name(function))
        exact = name in _EXACT or (name in _DECIMAL_ONLY and _is_decimal(function.dataType()))
        if not exact:
            self._add(f"{function.prettyName()} of rows as they arrive")
        elif name != "Count":
            self._exact(str(function.prettyName()), items(function.children()), floats=False)

    def _exact(self, what: str, expressions: list[Any], *, floats: bool) -> None:
        """Add values of types whose equal values may differ, or whose sums depend on the order."""
        for expression in expressions:
            kind = _parse_datatype_json_string(str(expression.dataType().json()))
            if not _is_exact(kind, floats=floats):
                self._add(f"{what} of type {kind.simpleString()}")

    def _window(self, window: Any) -> None:
        function = window.windowFunction()
        name = simple_name(self._jvm.class_name(function))
        if name in _RANKS:
            return
        if name != "AggregateExpression":
            self._add(f"{function.prettyName()} over rows that may tie")
            return
        frame = window.windowSpec().frameSpecification()
        by_value = simple_name(self._jvm.class_name(frame.frameType())) == "RangeFrame"
        bounds = [simple_name(self._jvm.class_name(b)) for b in (frame.lower(), frame.upper())]
        whole = bounds == ["UnboundedPreceding", "UnboundedFollowing"]
        if not (by_value or whole):
            self._add(f"{function.aggregateFunction().prettyName()} over ROWS that may tie")
        self._aggregate(function.aggregateFunction())

    def _add(self, what: str) -> None:
        self.names.add(f"{what} below a native exchange")


def _windows(jvm: Jvm, expressions: list[Any]) -> Iterator[Any]:
    for expression in expressions:
        if simple_name(jvm.class_name(expression)) == "WindowExpression":
            yield expression
        else:
            yield from _windows(jvm, items(expression.children()))


def _is_decimal(kind: Any) -> bool:
    return str(kind.typeName()).startswith("decimal")


def _is_exact(kind: DataType, *, floats: bool) -> bool:
    if isinstance(kind, StringType):
        return getattr(kind, "collation", _BINARY_COLLATION) == _BINARY_COLLATION
    if isinstance(kind, (FloatType, DoubleType)):
        return floats
    if isinstance(kind, StructType):
        return all(_is_exact(field.dataType, floats=floats) for field in kind)
    if isinstance(kind, ArrayType):
        return _is_exact(kind.elementType, floats=floats)
    return type(kind).__name__ in _EXACT_TYPES
