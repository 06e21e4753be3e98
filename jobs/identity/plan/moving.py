"""Finds values that are others in another run: the current time, user and the like.

These include casts of the texts 'now', 'today', 'tomorrow' and 'yesterday', which the optimizer
replaces by plain values. Spark's own rule finds them; only the text 'epoch' always has the same
value.
"""

from typing import Any

from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS, Jvm, every, items, simple_name

_CURRENT = frozenset(
    {
        *("CurrentTimestamp", "Now", "LocalTimestamp", "CurrentDate", "CurrentTime"),
        *("CurrentBatchTimestamp", "CurrentTimeZone"),
        *("CurrentUser", "CurrentDatabase", "CurrentCatalog"),
    }
)
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."
_NEVER_MOVES = "epoch"


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
