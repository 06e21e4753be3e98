"""SQL statements that write the rows of a query: INSERT, CREATE TABLE AS SELECT, CACHE, MERGE.

Strategy: Spark parses the text. The query below the statement is stored like any other; then the
parsed statement is run, once, with the plan of the stored rows in place of the query. That plan
also shows the one that the rows came from (`catalyst.with_origin`), so Spark checks the statement
as the user wrote it.

A statement whose query Spark cannot analyze alone (`DEFAULT` in VALUES) is left to Spark.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.engine.catalyst import of_rows
from durable_shuffle.jobs.identity.plan.jvm import every, items, to_seq

_QUERY_AT = {
    "InsertIntoStatement": 0,
    "InsertIntoDir": 0,
    "CreateTableAsSelect": 1,
    "ReplaceTableAsSelect": 1,
    "CacheTableAsSelect": 0,
    "OverwriteByExpression": 0,  # REPLACE WHERE
}
"""Statement -> which of its children is the query."""
_REPLACES = ("InsertIntoStatement", "InsertIntoDir")
_AT_ONCE = frozenset(
    {
        *_QUERY_AT,
        *("CacheTable", "MergeIntoTable", "UpdateTable", "DeleteFromTable"),
        *("AppendData", "OverwritePartitionsDynamic"),
        *("ExecuteImmediateQuery", "UnresolvedExecuteImmediate", "CompoundBody"),
    }
)
"""Statements whose query runs inside `sql()`."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A parsed statement that writes."""

    name: str
    """The class of its plan, for people."""
    queries: tuple[Any, ...]
    """The parsed plans of the queries below it; empty if it is known, but its queries are not."""
    rebuilt: Callable[[Sequence[Any]], Any]
    """Returns the statement over other plans, one for each query."""
    again: bool
    """Whether a second run of it leaves what one run leaves."""


def statement_in(spark: SparkSession, text: str) -> Statement | None:
    """Return the statement of an SQL text that writes at once; None for any other text."""
    parser: Any = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
    try:
        plan = parser.parsePlan(text)
    except Exception:  # noqa: BLE001 - Spark itself says what is wrong with the text
        return None
    return _statement(spark, plan) or _named(plan)


def frames_of(spark: SparkSession, statement: Statement) -> list[DataFrame] | None:
    """Return a DataFrame for each query; None if Spark does not analyze one alone."""
    try:
        return [of_rows(spark, plan) for plan in statement.queries]
    except PySparkException:
        return None


def _statement(spark: SparkSession, plan: Any) -> Statement | None:
    """Return a statement whose queries are known."""
    name, children = _name(plan), items(plan.children())
    if name in _QUERY_AT:
        at = _QUERY_AT[name]
        children = children or items(plan.childrenToAnalyze())
        if at >= len(children):
            return None

        def rebuilt(plans: Sequence[Any]) -> Any:
            return _with_children(spark, plan, [*children[:at], plans[0], *children[at + 1 :]])

        again = name in _REPLACES and bool(plan.overwrite())
        return Statement(name, (children[at],), rebuilt, again)
    if name == "UnresolvedWith":  # WITH ... INSERT: the query sees the common table expressions
        inner = _statement(spark, children[0])
        if inner is None:
            return None
        queries = tuple(_with_children(spark, plan, [query]) for query in inner.queries)
        return Statement(inner.name, queries, inner.rebuilt, inner.again)
    if name == "Union":  # FROM ... INSERT ... INSERT ...
        parts = [_statement(spark, child) for child in children]
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None

        def joined(plans: Sequence[Any]) -> Any:
            made = [part.rebuilt([one]) for part, one in zip(known, plans, strict=True)]
            return _with_children(spark, plan, made)

        queries = tuple(part.queries[0] for part in known)
        return Statement(known[0].name, queries, joined, all(part.again for part in known))
    if name == "MergeIntoTable" and _name(children[1]) == "SubqueryAlias":
        source = children[1]

        def merged(plans: Sequence[Any]) -> Any:
            alias = _with_children(spark, source, [plans[0]])
            return _with_children(spark, plan, [children[0], alias])

        return Statement(name, (items(source.children())[0],), merged, again=False)
    return None


def _named(plan: Any) -> Statement | None:
    """Return a statement of which only the name is known; it may stand inside WITH or FROM."""
    names = (name for name in map(_name, every(plan)) if name in _AT_ONCE)
    name = next(names, None)
    return None if name is None else Statement(name, (), lambda _: plan, again=False)


def _name(plan: Any) -> str:
    return str(plan.getClass().getSimpleName())


def _with_children(spark: SparkSession, plan: Any, children: Sequence[Any]) -> Any:
    jvm: Any = spark._jvm  # noqa: SLF001
    return plan.withNewChildren(to_seq(jvm, list(children)))
