"""Finds expressions whose value differs in each run: the current time, user and the like.

These include casts of the texts 'now', 'today', 'tomorrow' and 'yesterday' to a date or timestamp,
which the optimizer replaces by plain values. Spark's own rule is used to find them; only the text
'epoch' always has the same value.
"""

from typing import Any

from py4j.protocol import Py4JJavaError

from durable_shuffle.jobs.identity.plan.jvm import Jvm, items, simple_name

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
    found: list[str] = []
    pattern = jvm.root.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    if plan.containsPattern(pattern):
        names = ", ".join(sorted(_CURRENT & classes)) or "an expression like current_timestamp()"
        found.append(f"{names} may have another value in another run")
    special = sorted({text for one in _with_subqueries(plan) for text in _special(jvm, one)})
    if special:
        texts = ", ".join(map(repr, special))
        found.append(f"{texts} as a date or a timestamp has another value in another run")
    return tuple(found)


def _with_subqueries(plan: Any) -> list[Any]:
    """Return the plan and the plans of all its subqueries, which Spark optimizes separately."""
    return [plan, *items(plan.subqueriesAll())]


def _special(jvm: Jvm, plan: Any) -> list[str]:
    """Return the texts that the optimizer would replace by a date or time of the current run."""
    replaced = jvm.module(_OPTIMIZER + "ReplaceExpressions").apply(plan)
    if jvm.module(_OPTIMIZER + "SpecialDatetimeValues").apply(replaced).fastEquals(replaced):
        return []
    texts: list[str] = []
    _collect_from_plan(jvm, replaced, texts)
    return texts


def _collect_from_plan(jvm: Jvm, plan: Any, texts: list[str]) -> None:
    for expression in items(plan.expressions()):
        _collect(jvm, expression, texts)
    for child in items(plan.children()):
        _collect_from_plan(jvm, child, texts)


def _collect(jvm: Jvm, expression: Any, texts: list[str]) -> None:
    if simple_name(jvm.class_name(expression)) == "Cast":
        child = expression.child()
        text = _folded(child) if _to_time(jvm, expression, child) else None
        if text is not None and not text.strip().lower().startswith(_NEVER_MOVES):
            texts.append(text)
    for child in items(expression.children()):
        _collect(jvm, child, texts)


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
    except Py4JJavaError:  # fails in the query as well
        return None
    text = None if value is None else str(value.toString())
    return text if text is not None and any(c.isalpha() for c in text) else None
