"""Calls to Spark's planner internals through py4j. PySpark 3.5 and 4.0 to 4.3, classic only.

Strategy: plan the map side on a clone of the user's session without adaptive execution, so that the
user's session keeps its settings. The read side is in `rdd_frames.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar, cast

from py4j.clientserver import ClientServer
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from durable_shuffle.jobs.engine import arrow_schema
from durable_shuffle.jobs.engine.arrow_schema import narrow_positions
from durable_shuffle.jobs.identity.jvm.calls import (
    analyzed_plan,
    attributes_of,
    every,
    frame_of,
    items,
    module,
    plan_of,
    to_seq,
)
from durable_shuffle.jobs.in_one_call import during, in_one_call, now, or_none
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import ClassicFrame as DataFrame
from durable_shuffle.jobs.spark_versions import (
    argument_counts,
    session_over,
    sql_class,
    with_tags_of_session,
)

T = TypeVar("T")

_TAGS = "spark.job.tags"
_SHUFFLE = "ShuffleExchangeExec"
_PARTITIONS_APART = frozenset({"UnionExec", "CoalesceExec", "CartesianProductExec"})
"""Operators whose partitions are not those of their children, or whose number the user gave."""


def planning_session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return a clone of the session that plans without adaptive execution, with `conf` on top."""
    java_session = spark._jsparkSession  # noqa: SLF001
    return session_over(spark, in_one_call(classes_of(spark), partial(_clone, conf), java_session))


def planned_apart(
    df: DataFrame, conf: Mapping[str, str], asked: Callable[..., Sequence[Sequence[Any]]]
) -> tuple[DataFrame, Any, list[list[Any]]]:
    """Return the same analysed query on a new `planning_session`, its analyzed plan, and what a
    function asks of the user's session and the new one in the same call.

    Args:
        asked: takes the JVM and both sessions, returns groups of answers.
    """
    spark, sizes = df.sparkSession, list[int]()

    def planned(jvm: Any, java_session: Any, frame: Any) -> tuple[Any, ...]:
        session = _clone(conf, jvm, java_session)
        made = frame_of(jvm, session, plan_of(frame))
        groups = asked(jvm, java_session, session)
        sizes[:] = map(len, groups)
        return session, made, plan_of(made), *chain(*groups)

    session, made, plan, *told = in_one_call(
        *(classes_of(spark), planned, spark._jsparkSession, df._jdf)  # noqa: SLF001
    )
    answers = iter(told)
    groups = [list(islice(answers, size)) for size in sizes]
    return DataFrame(made, session_over(spark, session)), plan, groups


def _clone(conf: Mapping[str, str], _: Any, java_session: Any) -> Any:
    made = java_session.cloneSession()
    given = made.conf()
    for key, value in {"spark.sql.adaptive.enabled": "false", **conf}.items():
        given.set(key, value)
    return made


def active(session: SparkSession, *, calls_only: bool = False) -> AbstractContextManager[None]:
    """Make `session` the active session of this thread; restore the previous one at the end.

    Args:
        calls_only: as for `during`.
    """

    def enter(jvm: Any, java_session: Any) -> Any:
        sessions = sql_class(jvm, "SparkSession")
        before = or_none(sessions.getActiveSession())
        sessions.setActiveSession(java_session)
        return before

    def leave(jvm: Any, before: Any, _: Any) -> None:
        sql_class(jvm, "SparkSession").setActiveSession(before)

    java_session = session._jsparkSession  # noqa: SLF001
    return during(classes_of(session), enter, leave, java_session, calls_only=calls_only)


def with_properties(
    spark: SparkSession,
    wanted: Mapping[str, str],
    more_tags: Sequence[str] = (),
    *,
    calls_only: bool = False,
) -> AbstractContextManager[None]:
    """Set local properties of this thread for the jobs that run meanwhile, then the old ones.

    The jobs get the tags that Spark gives to an action of the session, and more. So `interruptAll`,
    `interruptTag` and `interruptOperation` cancel them, too. Threads that inherit local properties
    inherit the tags.

    Args:
        calls_only: as for `during`.
    """
    names = (_TAGS, *wanted)

    def enter(_: Any, session: Any) -> tuple[Any, ...]:
        context = session.sparkContext()
        before = tuple(context.getLocalProperty(name) for name in names)
        tags = with_tags_of_session(context.getJobTags(), session)
        for tag in more_tags:
            tags = getattr(tags, "$plus")(tag)
        context.setLocalProperty(_TAGS, tags.mkString(","))
        for name, value in wanted.items():
            context.setLocalProperty(name, value)
        return before

    def leave(_: Any, before: tuple[Any, ...], session: Any) -> None:
        context = session.sparkContext()
        for name, value in zip(names, before, strict=True):
            context.setLocalProperty(name, value)

    java_session = spark._jsparkSession  # noqa: SLF001
    return during(classes_of(spark), enter, leave, java_session, calls_only=calls_only)


def inherited(spark: SparkSession) -> Callable[[Callable[[], T]], Callable[[], T]]:
    """Return what makes a function for another thread, which runs it with the local properties that
    this thread has now. PySpark's own takes eight calls per thread."""
    if not isinstance(SparkContext._gateway, ClientServer):  # noqa: SLF001 - threads are not apart
        return lambda work: work
    jvm: Any = classes_of(spark)
    session = spark._jsparkSession  # noqa: SLF001

    def taken(_: Any, session: Any) -> Any:
        return session.sparkContext().getLocalProperties().clone()

    def put(_: Any, session: Any, found: Any) -> None:
        session.sparkContext().setLocalProperties(found.clone())

    found = in_one_call(jvm, taken, session)

    def of(work: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            in_one_call(jvm, put, session, found)
            return work()

        return run

    return of


def on_session(df: DataFrame, session: SparkSession) -> DataFrame:
    """Return the same analysed query, planned by `session`."""

    def planned(jvm: Any, frame: Any, java_session: Any) -> Any:
        return frame_of(jvm, java_session, plan_of(frame))

    jvm: Any = classes_of(session)
    made = in_one_call(jvm, planned, df._jdf, session._jsparkSession)  # noqa: SLF001
    return DataFrame(made, session)


def java_rows(df: DataFrame) -> Any:
    """Return Spark's RDD of the internal rows of `df`. Broadcasts and subqueries run for it."""
    return df._jdf.queryExecution().toRdd()  # noqa: SLF001


def partition_count(df: DataFrame) -> int:
    """Return how many partitions the physical plan of `df` has. Plans, runs nothing."""
    return int(java_rows(df).getNumPartitions())


def executor_count(spark: SparkSession) -> int:
    """Return how many executors are registered, 0 if tasks run in the driver; a killed one counts
    until Spark has noticed."""

    def listed(jvm: Any, context: Any) -> Any:
        executors = context.sc().statusTracker().getExecutorInfos()
        return getattr(jvm, "java.lang.reflect.Array").getLength(executors)

    found = in_one_call(classes_of(spark), listed, spark.sparkContext._jsc)  # noqa: SLF001
    return int(found) - 1  # the driver is listed too


def native_exchanges(df: DataFrame) -> int:
    """Return how many of Spark's own shuffle exchanges the physical plan contains."""
    plan = df._jdf.queryExecution().executedPlan()  # noqa: SLF001
    return sum(_name(node) == _SHUFFLE for node in every(plan))


def may_be_coalesced(df: DataFrame) -> bool:
    """Return whether adaptive execution would join small partitions of `df`.

    It does if all rows come from shuffles whose number of partitions the user did not ask for.
    Joined partitions must keep the order of rows: with one, only ranges of that order are joined.
    """
    plan = df._jdf.queryExecution().executedPlan()  # noqa: SLF001
    order = plan.outputOrdering()
    if not order.isEmpty():
        ranges = plan.outputPartitioning()
        if _name(ranges) != "RangePartitioning" or not ranges.ordering().equals(order):
            return False
    return _from_shuffles(plan)


def _from_shuffles(node: Any) -> bool:
    name = _name(node)
    if name == _SHUFFLE:
        return "BY_NUM" not in str(node.shuffleOrigin())
    below = [one for one in items(node.children()) if _name(one) != "BroadcastExchangeExec"]
    return name not in _PARTITIONS_APART and bool(below) and all(map(_from_shuffles, below))


def _name(obj: Any) -> str:
    return str(obj.getClass().getSimpleName())


def key_positions(df: DataFrame, keys: DataFrame) -> tuple[int, ...] | None:
    """Return the positions of the key columns in `df`, None if any key is computed.

    Args:
        keys: `df.select(...)` of the key columns.
    """
    columns = attributes_of(classes_of(df.sparkSession), df)
    positions = tuple(int(columns.indexOf(key.exprId())) for key in _output(keys))
    return None if -1 in positions else positions


def narrow_decimals(df: DataFrame) -> DataFrame:
    """Return `df` with decimals of up to 18 digits as their unscaled longs.

    Spark makes a BigDecimal object for each decimal that it passes to Arrow; a long needs none.
    """
    narrow = narrow_positions(df.schema)
    if not narrow:
        return df
    jvm: Any = classes_of(df.sparkSession)
    columns = _output(df)
    for i in narrow:
        long = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.UnscaledValue")(columns[i])
        columns[i] = alias(jvm, long, df.columns[i])
    return project(df, to_seq(jvm, columns))


def with_unique_fields(df: DataFrame) -> DataFrame:
    """Return `df` with other names for the fields of a struct that have one name.

    Args:
        df: its columns have unique names.
    """
    types = [(field.name, field.dataType) for field in df.schema]
    renamed = {name: arrow_schema.with_unique_fields(kind) for name, kind in types}
    casts = {name: F.col(name).cast(renamed[name]) for name, kind in types if renamed[name] != kind}
    return cast("DataFrame", df.withColumns(casts)) if casts else df


def alias(jvm: Any, expression: Any, name: str) -> Any:
    """Return a Catalyst expression with a name and a new id."""
    expressions = getattr(jvm, "org.apache.spark.sql.catalyst.expressions")
    none, nil = getattr(jvm, "scala.Option").empty(), to_seq(jvm, [])
    new_id = expressions.NamedExpression.newExprId()
    return expressions.Alias(expression, name, new_id, nil, none, nil)


def project(df: DataFrame, columns: Any) -> DataFrame:
    """Return `df` projected to the given named Catalyst expressions, a Scala Seq."""
    session = df.sparkSession
    given = session._jsparkSession, cast("Any", df)._jdf, columns  # noqa: SLF001
    return DataFrame(in_one_call(classes_of(session), projected, *given), session)


def projected(jvm: Any, java_session: Any, frame: Any, columns: Any) -> Any:
    """Like `project`, of the JVM's DataFrame; for `in_one_call`."""
    logical = getattr(jvm, "org.apache.spark.sql.catalyst.plans.logical")
    return frame_of(jvm, java_session, logical.Project(columns, plan_of(frame)))


def with_origin(rows: DataFrame, origin: DataFrame) -> DataFrame:
    """Return `rows`, named as `origin`, in a plan that also shows the plan of `origin`, from which
    they were computed.

    Names differ in letter case where the optimizer dropped a select that did no more than that.
    Spark refuses to overwrite a table that the written plan reads. It finds the tables by walking
    the analyzed plan, so stored rows alone would hide them. `origin` becomes a common table
    expression that nothing uses: the optimizer drops it before anything else.
    """
    session = rows.sparkSession
    jvm: Any = classes_of(session)

    # `df.columns` fails at a type that PySpark has no name for, as of an indeterminate collation
    def made(jvm: Any, java_session: Any, rows: Any, origin: Any) -> tuple[Any, ...]:
        unused = _with_defaults(jvm, "CTERelationDef", plan_of(origin))
        plan = _with_defaults(jvm, "WithCTE", plan_of(rows), to_seq(jvm, [unused]))
        return frame_of(jvm, java_session, plan), rows.columns(), origin.columns()

    java_session = session._jsparkSession  # noqa: SLF001
    found = in_one_call(jvm, made, java_session, rows._jdf, origin._jdf)  # noqa: SLF001
    frame, present, wanted = found
    if present == wanted:
        return DataFrame(frame, session)
    return with_origin(cast("DataFrame", rows.toDF(*wanted)), origin)


def _with_defaults(jvm: Any, name: str, *arguments: Any) -> Any:
    """Return a new logical operator whose other arguments have their default values."""
    full_name = f"org.apache.spark.sql.catalyst.plans.logical.{name}"
    (count,) = argument_counts(now(jvm), full_name)
    numbers = range(len(arguments) + 1, count + 1)
    companion = module(jvm, full_name) if numbers else None
    defaults = [getattr(companion, f"$lessinit$greater$default${number}")() for number in numbers]
    return getattr(jvm, full_name)(*arguments, *defaults)


def computed(df: DataFrame) -> Any:
    """Return the Catalyst expression of the only column of a DataFrame that computes one."""
    return analyzed_plan(df).projectList().head().child()


def of_rows(session: SparkSession, plan: Any) -> DataFrame:
    """Return the DataFrame of a logical plan; a command runs."""
    jvm: Any = classes_of(session)
    return DataFrame(frame_of(jvm, session._jsparkSession, plan), session)  # noqa: SLF001


def _output(df: DataFrame) -> list[Any]:
    return items(analyzed_plan(df).output())
