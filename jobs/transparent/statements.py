"""SQL statements that run queries and write: INSERT, CREATE TABLE AS SELECT, CACHE, MERGE, DELETE.

Strategy: Spark parses the text. The query below the statement is stored like any other; then the
parsed statement is run, once, with the plan of the stored rows in place of the query. In DELETE and
UPDATE these are the queries in expressions, if none of them reads the changed row. That plan
also shows the one that the rows came from (`catalyst.with_origin`), so Spark checks the statement
as the user wrote it.

A statement is left to Spark, as the user wrote it, if Spark refuses it, if the table that it would
create exists, or if its query cannot be analyzed alone (`DEFAULT` in VALUES). So errors are Spark's
own and come before anything is stored.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.engine.catalyst import active, of_rows
from durable_shuffle.jobs.engine.engine import session_settings
from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS, analyzed_plan, every, items, to_seq
from durable_shuffle.jobs.java import classes_of

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
_CHANGES = ("UpdateTable", "DeleteFromTable")
"""Statements that may have queries in their expressions."""
_REWRITES = ("ReplaceData", "WriteDelta")
"""What the former become where a table is changed row by row, as Iceberg's are."""
_QUERY_EXPRESSIONS = ("ListQuery", "Exists", "ScalarSubquery")
_VIEWS_OF_PLANS = "spark.sql.legacy.storeAnalyzedPlanForView"
"""CACHE TABLE AS makes a view: by default of the query's text, which would run in Spark again."""
_AT_ONCE = frozenset(
    {
        *_QUERY_AT,
        *_CHANGES,
        *("CacheTable", "MergeIntoTable"),
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
    plan: Any
    """As it was parsed."""
    queries: tuple[Any, ...]
    """The parsed plans of the queries below it; empty if it is known, but its queries are not."""
    rebuilt: Callable[[Sequence[Any]], Any]
    """Returns the statement over other plans, one for each query."""
    again: bool
    """Whether a second run of it leaves what one run leaves."""
    folders: tuple[str, ...] = ()
    """What INSERT OVERWRITE DIRECTORY deletes."""


def statement_in(spark: SparkSession, text: str) -> Statement | None:
    """Return the statement of an SQL text that writes at once; None for any other text."""
    parser: Any = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
    try:
        with active(spark):  # Spark's expressions keep settings of the session that is active
            plan = parser.parsePlan(text)
    except Exception:  # noqa: BLE001 - Spark itself says what is wrong with the text
        return None
    try:
        known = _statement(spark, plan)
    except JVM_ERRORS:  # this Spark's plans look otherwise
        known = None
    return known or _named(plan)


def frames_of(spark: SparkSession, statement: Statement) -> list[DataFrame]:
    """Return a DataFrame for each query; none if the statement is left to Spark. Runs nothing."""
    try:
        with active(spark):
            if not statement.queries or not _is_due(spark, statement):
                return []
            return [of_rows(spark, plan) for plan in statement.queries]
    except JVM_ERRORS:
        return []


def statement_over(spark: SparkSession, statement: Statement, frames: Sequence[DataFrame]) -> Any:
    """Return the plan of the statement over other frames; None if Spark does not accept it."""
    try:
        with active(spark):
            plan = statement.rebuilt([analyzed_plan(df) for df in frames])
            _analyze(spark, plan)
    except JVM_ERRORS:
        return None
    return plan


def run_over(spark: SparkSession, statement: Statement, plan: Any) -> DataFrame:
    """Run the plan that `statement_over` returned, once."""
    caches = statement.name == "CacheTableAsSelect"
    with session_settings(spark, {_VIEWS_OF_PLANS: "true"} if caches else {}):
        return of_rows(spark, plan)


def _is_due(spark: SparkSession, statement: Statement) -> bool:
    """Return whether nothing that Spark can tell beforehand keeps the statement from running."""
    analyzed = _analyze(spark, statement.plan)
    if statement.name in _CHANGES:
        return _name(analyzed) in _REWRITES and not _reads_changed_row(analyzed)
    if statement.name != "CreateTableAsSelect":
        return True
    parts = [str(part) for part in items(items(statement.plan.children())[0].nameParts())]
    return not spark.catalog.tableExists(".".join(f"`{p.replace('`', '``')}`" for p in parts))


def _analyze(spark: SparkSession, plan: Any) -> Any:
    """Let Spark check a statement without running it; return its analyzed plan.

    Raises:
        One of JVM_ERRORS.
    """
    jvm: Any = classes_of(spark)
    skip = jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    execution: Any = spark._jsparkSession.sessionState().executePlan(plan, skip)  # noqa: SLF001
    execution.assertAnalyzed()
    return execution.analyzed()


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
        deleted = [str(plan.storage().locationUri().get())] if name == "InsertIntoDir" else []
        return Statement(name, plan, (children[at],), rebuilt, again, tuple(deleted))
    if name == "UnresolvedWith":  # WITH ... INSERT: the query sees the common table expressions
        inner = _statement(spark, children[0])
        if inner is None or inner.name not in _REPLACES:  # conditions may name them, too
            return None
        queries = tuple(_with_children(spark, plan, [query]) for query in inner.queries)
        return replace(inner, plan=plan, queries=queries)
    if name == "Union":  # FROM ... INSERT ... INSERT ...
        parts = [_statement(spark, child) for child in children]
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None

        def joined(plans: Sequence[Any]) -> Any:
            made = [part.rebuilt([one]) for part, one in zip(known, plans, strict=True)]
            return _with_children(spark, plan, made)

        queries = tuple(part.queries[0] for part in known)
        again = all(part.again for part in known)
        folders = tuple(folder for part in known for folder in part.folders)
        return Statement(known[0].name, plan, queries, joined, again, folders)
    if name == "MergeIntoTable" and _name(children[1]) == "SubqueryAlias":
        source = children[1]

        def merged(plans: Sequence[Any]) -> Any:
            alias = _with_children(spark, source, [plans[0]])
            return _with_children(spark, plan, [children[0], alias])

        return Statement(name, plan, (items(source.children())[0],), merged, again=False)
    return _changing(spark, plan) if name in _CHANGES else None


def _changing(spark: SparkSession, plan: Any) -> Statement:
    """Return UPDATE or DELETE with the queries of its expressions."""
    queries = list[Any]()

    def found(query: Any) -> Any:
        queries.append(query)
        return query

    def rebuilt(plans: Sequence[Any]) -> Any:
        given = iter(plans)
        return _with_queries(spark, plan, lambda _: next(given))

    _with_queries(spark, plan, found)
    return Statement(_name(plan), plan, tuple(queries), rebuilt, again=False)


def _reads_changed_row(analyzed: Any) -> bool:
    """Return whether a query in an expression of UPDATE or DELETE reads columns of the row.

    Only the whole statement tells. Alone, such a query may find a variable of the session with the
    same name as the column.
    """
    expressions = (top for node in every(analyzed) for top in items(node.expressions()))
    queries = (one for top in expressions for one in every(top))
    return any(
        query.outerAttrs().nonEmpty() for query in queries if _name(query) in _QUERY_EXPRESSIONS
    )


def _with_queries(spark: SparkSession, plan: Any, new: Callable[[Any], Any]) -> Any:
    """Return UPDATE or DELETE over the `new` of each query in its expressions, in their order."""

    def changed(expression: Any) -> Any:
        if _name(expression) in _QUERY_EXPRESSIONS:
            return expression.withNewPlan(new(expression.plan()))
        children = items(expression.children())
        return _with_children(spark, expression, map(changed, children)) if children else expression

    if _name(plan) == "DeleteFromTable":
        return plan.copy(plan.table(), changed(plan.condition()))
    jvm: Any = classes_of(spark)
    assignments = to_seq(jvm, [changed(one) for one in items(plan.assignments())])
    condition = plan.condition()
    if condition.isDefined():
        condition = jvm.scala.Option.apply(changed(condition.get()))
    return plan.copy(plan.table(), assignments, condition)


def _named(plan: Any) -> Statement | None:
    """Return a statement of which only the name is known; it may stand inside WITH or FROM."""
    names = (name for name in map(_name, every(plan)) if name in _AT_ONCE)
    name = next(names, None)
    return None if name is None else Statement(name, plan, (), lambda _: plan, again=False)


def _name(plan: Any) -> str:
    return str(plan.getClass().getSimpleName())


def _with_children(spark: SparkSession, plan: Any, children: Iterable[Any]) -> Any:
    jvm: Any = classes_of(spark)
    return plan.withNewChildren(to_seq(jvm, list(children)))
