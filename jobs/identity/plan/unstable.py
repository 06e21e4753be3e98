"""Finds what may differ between two runs of the same plan.

- `moving_values`: the current time, user and the like. These include casts of the texts 'now',
  'today', 'tomorrow' and 'yesterday', which the optimizer replaces by plain values. Spark's own
  rule finds them; only the text 'epoch' always has the same value.
- `unstable_below_exchange`: non-deterministic expressions and operators below exchanges that Spark
  runs itself. If the rows there differ between two runs, producers of both runs must not be mixed:
  rows would be lost or doubled. Broadcasts and subqueries count as exchanges, because every
  producer reads them whole.

Not found: rows that tie in the sort order of a window or a limit, and the last bits of
floating-point sums, if they decide rows or keys of another exchange.
"""

from collections.abc import Collection
from typing import Any

from durable_shuffle.jobs.identity.plan.jvm import JVM_ERRORS, Jvm, every, items, simple_name

# these pick rows by the order in which rows arrive
_LIMITS = frozenset({"GlobalLimitExec", "CollectLimitExec", "CollectTailExec"})
_BY_POSITION = frozenset({"SampleExec"})
# their result depends on the order of rows, which above an exchange is the order of arrival
_BY_ORDER = frozenset({"First", "Last", "AnyValue", "CollectList", "ListAgg"})
_LOGICAL_LIMITS = frozenset({"GlobalLimit", "LocalLimit", "Tail", "Offset", "Sample"})

_EXCHANGE = "org.apache.spark.sql.execution.exchange.Exchange"
_AQE = "AdaptiveSparkPlanExec"
_CACHED, _CACHED_SCAN = "InMemoryRelation", "InMemoryTableScanExec"
_CURRENT = frozenset(
    {
        *("CurrentTimestamp", "Now", "LocalTimestamp", "CurrentDate", "CurrentTime"),
        *("CurrentBatchTimestamp", "CurrentTimeZone"),
        *("CurrentUser", "CurrentDatabase", "CurrentCatalog"),
    }
)
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."
_NEVER_MOVES = "epoch"


def unstable_below_exchange(jvm: Jvm, execution: Any, classes: set[str]) -> tuple[str, ...]:
    """Return the names of what is unstable below a native exchange of a query, sorted.

    Args:
        jvm: access to the driver's JVM.
        execution: a QueryExecution, with or without adaptive execution.
        classes: simple class names in its logical plan. If none of them is suspect, the query is
            not planned.
    """
    expressions = (
        not execution.withCachedData().deterministic()
        or not _BY_ORDER.isdisjoint(classes)
        or _CACHED in classes
    )
    if not expressions and _LOGICAL_LIMITS.isdisjoint(classes):
        return ()
    names: set[str] = set()
    look = _Look(jvm, names, expressions=expressions)
    look.at(execution.executedPlan(), below=False)
    return tuple(sorted(names))


def unstable_in_piece(
    jvm: Jvm, plan: Any, classes: set[str], stored: Collection[int]
) -> tuple[str, ...]:
    """Return the names of what is unstable below a native exchange of a piece, sorted.

    Native exchanges are Spark's own: broadcasts, subqueries and shuffles that are not durable.

    Args:
        jvm: access to the driver's JVM.
        plan: the top of the piece.
        classes: simple class names in the piece.
        stored: ids of operators whose rows come from storage, in an order that never changes.
    """
    suspects = _LIMITS | _BY_ORDER | {_CACHED_SCAN}
    if plan.deterministic() and suspects.isdisjoint(classes):
        return ()
    names: set[str] = set()
    _Look(jvm, names, expressions=True, stored=stored).at(plan, below=False)
    return tuple(sorted(names))


def unstable_if_native(
    jvm: Jvm, plan: Any, classes: set[str], stored: Collection[int], native: Collection[int]
) -> tuple[str, ...]:
    """Return the names of what would be unstable if Spark ran the exchange above `plan`, sorted.

    Args:
        jvm: access to the driver's JVM.
        plan: the top of the piece below the exchange.
        classes: simple class names in the piece.
        stored: ids of operators whose rows come from storage, in an order that never changes.
        native: ids of operators whose rows come from Spark's own shuffle, as they arrive.
    """
    suspects = _LIMITS | _BY_POSITION | _BY_ORDER | {_CACHED_SCAN}
    if plan.deterministic() and suspects.isdisjoint(classes):
        return ()
    names: set[str] = set()
    _Look(jvm, names, expressions=True, stored=stored, native=native).at(plan, below=True)
    return tuple(sorted(names))


class _Look:
    """A walk down a physical plan."""

    def __init__(
        self,
        jvm: Jvm,
        names: set[str],
        *,
        expressions: bool,
        stored: Collection[int] = (),
        native: Collection[int] = (),
    ) -> None:
        self._jvm = jvm
        self._names = names
        self._expressions = expressions
        self._sites = dict.fromkeys(stored, False) | dict.fromkeys(native, True)

    def at(self, node: Any, *, below: bool) -> bool:
        """Collect names below exchanges; return whether the rows of `node` passed an exchange."""
        full_name = self._jvm.class_name(node)
        class_name = simple_name(full_name)
        if self._sites:
            native = self._sites.get(int(node.id()))
            if native is not None:
                return native
        if class_name == _AQE:
            return self.at(node.initialPlan(), below=below)
        if class_name == _CACHED_SCAN:
            return self._in_cache(node, below=below)
        is_exchange = self._jvm.is_a(node, _EXCHANGE) or class_name == "ReusedExchangeExec"
        for subquery in items(node.subqueries()):
            self.at(subquery, below=True)
        down = below or is_exchange
        children = self._jvm.children(node, full_name)
        below_each = [self.at(child, below=down) for child in children]
        shuffled = any(below_each)
        if below and (class_name in _LIMITS or (class_name in _BY_POSITION and shuffled)):
            self._names.add(class_name.removesuffix("Exec"))
        if below and self._expressions:
            for expression in items(node.expressions()):
                self._in(expression, shuffled=shuffled)
        return is_exchange or shuffled

    def _in_cache(self, scan: Any, *, below: bool) -> bool:
        """Look at the plan of cached rows, which a session makes anew if it has lost them."""
        plan = scan.relation().cacheBuilder().cachedPlan()
        exchange = self.at(plan, below=below)
        if exchange and simple_name(self._jvm.class_name(plan)) == _AQE:
            self._names.add("cached rows whose partitions adaptive execution has made")
        return exchange

    def _in(self, expression: Any, *, shuffled: bool) -> None:
        """Add the innermost expressions whose result may differ between runs."""
        full_name = self._jvm.class_name(expression)
        children = self._jvm.children(expression, full_name)
        for child in children:
            self._in(child, shuffled=shuffled)
        class_name = simple_name(full_name)
        if shuffled and class_name in _BY_ORDER:
            self._names.add(str(expression.prettyName()))
        if not expression.deterministic() and all(child.deterministic() for child in children):
            is_udf = class_name == "PythonUDF"
            self._names.add(str(expression.name() if is_udf else expression.prettyName()))


def moving_values(jvm: Jvm, plan: Any, classes: set[str]) -> tuple[str, ...]:
    """Return sentences about values that may differ in another run; empty if there are none.

    Args:
        plan: an analyzed logical plan.
        classes: simple class names in it.
    """
    sentences: list[str] = []
    pattern = getattr(jvm.root, "org.apache.spark.sql.catalyst.trees.TreePattern").CURRENT_LIKE()
    if plan.containsPattern(pattern):
        names = ", ".join(sorted(_CURRENT & classes)) or "an expression like current_timestamp()"
        what = f"{names} may have another value in another run"
        sentences.append(f"{what}: pass the value in as a literal, or give version=")
    plans = [plan, *items(plan.subqueriesAll())]  # Spark optimizes subqueries separately
    special = sorted({text for top in plans for text in _special(jvm, top)})
    if special:
        texts = ", ".join(map(repr, special))
        what = f"{texts} as a date or a timestamp has another value in another run"
        sentences.append(f"{what}: pass the value in as a literal, or give version=")
    return tuple(sentences)


def _special(jvm: Jvm, plan: Any) -> list[str]:
    """Return the texts that the optimizer would replace by a date or time of the current run."""
    replaced = jvm.module(_OPTIMIZER + "ReplaceExpressions").apply(plan)
    if jvm.module(_OPTIMIZER + "SpecialDatetimeValues").apply(replaced).fastEquals(replaced):
        return []
    tops = (expression for node in every(replaced) for expression in items(node.expressions()))
    expressions = (expression for top in tops for expression in every(top))
    texts = [
        _folded(expression.child())
        for expression in expressions
        if simple_name(jvm.class_name(expression)) == "Cast"
        and _to_time(jvm, expression, expression.child())
    ]
    return [t for t in texts if t is not None and not t.strip().lower().startswith(_NEVER_MOVES)]


def _to_time(jvm: Jvm, cast: Any, child: Any) -> bool:
    """Return whether a cast makes a date or timestamp of a constant text."""
    target = simple_name(jvm.class_name(cast.dataType()))
    return bool(
        target in ("DateType", "TimestampType", "TimestampNTZType")
        and jvm.is_a(child.dataType(), "org.apache.spark.sql.types.StringType")
        and child.foldable()
    )


def _folded(expression: Any) -> str | None:
    """Return the value of a constant text if it contains letters, as the special texts do."""
    try:
        value = expression.eval(None)
    except JVM_ERRORS:  # fails in the query as well
        return None
    text = None if value is None else str(value.toString())
    return text if text is not None and any(c.isalpha() for c in text) else None
