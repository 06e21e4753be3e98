"""DataFrames over RDDs of Spark's internal rows: the read side of stages, and pieces of queries.

They are `LogicalRDD`s with their true partitioning, order and size, so that Spark plans no second
exchange on a key, and no second sort. PySpark 3.5 and 4.0 to 4.3, classic only.
"""

from collections.abc import Sequence
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from durable_shuffle.jobs.engine.row_numbers import ROW_COLUMN
from durable_shuffle.jobs.identity.jvm.calls import (
    analyzed_plan,
    frame_of,
    items,
    module,
    set_field,
    to_seq,
)
from durable_shuffle.jobs.in_one_call import in_one_call
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import ClassicFrame as DataFrame
from durable_shuffle.jobs.spark_versions import appended, newest_form


def with_durable_rows(
    df: DataFrame,
    rdd: Any,
    *,
    hashed_by: Sequence[int],
    partitions: int,
    row_count: int,
    data_bytes: int,
    ordered: bool,
) -> DataFrame:
    """Return a DataFrame with the columns of `df` whose rows come from `rdd`.

    Args:
        rdd: of internal rows, columns in the same order, one partition per stored partition. A
            column may be a long if `df` has a decimal of up to 18 digits there: in Spark's binary
            rows both are the same eight bytes, so no conversion is needed.
        hashed_by: positions of the columns by whose Spark hash the rows are partitioned; empty if
            they are not hash partitioned.
        data_bytes: estimated uncompressed size.
        ordered: each partition of `rdd` has the rows in the order of `df`.
    """
    session = df.sparkSession
    jvm: Any = classes_of(session)
    plan = analyzed_plan(df)
    known = kept_order(session, plan) if ordered else 0

    def made(jvm: Any, java_session: Any, plan: Any, rdd: Any) -> Any:
        output = plan.output()
        physical = getattr(jvm, "org.apache.spark.sql.catalyst.plans.physical")
        if hashed_by:
            attributes = [output.apply(i) for i in hashed_by]
            partitioning = physical.HashPartitioning(to_seq(jvm, attributes), partitions)
        else:
            partitioning = physical.UnknownPartitioning(partitions)
        order = plan.outputOrdering().take(known) if known else None
        size = statistics(jvm, data_bytes=data_bytes, rows=row_count)
        leaf = logical_rdd(jvm, java_session, output, rdd, partitioning, size, order)
        return frame_of(jvm, java_session, leaf)

    frame = in_one_call(jvm, made, session._jsparkSession, plan, rdd)  # noqa: SLF001
    return DataFrame(frame, session)


def kept_order(session: SparkSession, plan: Any, keys: int | None = None) -> int:
    """Return how many sort orders of the rows within each partition of a plan its columns alone
    tell: the first ones of `outputOrdering`.

    Spark's writers rely on them: they sort again if they do not know that rows are sorted.

    Args:
        keys: how many orders there are, if it is known.
    """
    jvm: Any = classes_of(session)
    if keys is None:
        keys = int(in_one_call(jvm, lambda _, plan: plan.outputOrdering().size(), plan))
    if not keys:
        return 0

    def told(jvm: Any, plan: Any) -> tuple[Any, ...]:
        order, output = plan.outputOrdering(), plan.outputSet()
        patterns = module(jvm, "org.apache.spark.sql.catalyst.trees.TreePattern")
        subquery, found = patterns.PLAN_EXPRESSION(), []
        for n in range(keys):
            key = order.apply(n)
            found += [key.references().subsetOf(output), key.containsPattern(subquery)]
        return tuple(found)

    found = in_one_call(jvm, told, plan)
    pairs = zip(found[::2], found[1::2], strict=True)
    return next((n for n, (own, asks) in enumerate(pairs) if asks or not own), keys)


def from_rdd(session: SparkSession, output: Any, rdd: Any) -> DataFrame:
    """Return a DataFrame over an RDD of Spark's internal rows.

    Args:
        output: a Seq of attributes, one per column.
    """
    jvm: Any = classes_of(session)

    def made(jvm: Any, java_session: Any, output: Any, rdd: Any) -> Any:
        return frame_of_rdd(jvm, java_session, output, rdd)

    frame = in_one_call(jvm, made, session._jsparkSession, output, rdd)  # noqa: SLF001
    return DataFrame(frame, session)


def frame_of_rdd(
    jvm: Any, java_session: Any, output: Any, rdd: Any, order: Any | None = None
) -> Any:
    """Return the JVM's DataFrame over an RDD of internal rows; see `from_rdd`.

    Args:
        order: a Seq of sort orders that the rows of each partition are in.
    """
    unknown = getattr(jvm, "org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning")
    partitioning = unknown(rdd.getNumPartitions())
    leaf = logical_rdd(jvm, java_session, output, rdd, partitioning, None, order)
    return frame_of(jvm, java_session, leaf)


def counted_to_the_end(df: DataFrame) -> DataFrame:
    """Return the rows with their numbers, and an end row after the last row of each partition.

    The columns of the end row are null, except for its number, which is the bitwise complement of
    the next row number. So the reader can check that it got all rows, as Spark counted them. This
    call makes the RDD of `df` to learn its partitions; broadcasts and subqueries run for it. All
    columns of the result are nullable.

    Args:
        df: its last column, ROW_COLUMN, is a long 0 in every row.
    """
    session = df.sparkSession
    jvm: Any = classes_of(session)
    execution = df._jdf.queryExecution()  # noqa: SLF001
    rows, output = execution.toRdd(), items(analyzed_plan(df).output())
    partitions = int(rows.getNumPartitions())
    if not partitions:  # no task runs
        return df
    end = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.GenericInternalRow")(len(output))
    end.setLong(len(output) - 1, -1)
    context = session.sparkContext._jsc  # noqa: SLF001
    ends = context.parallelize(
        getattr(jvm, "java.util.Collections").nCopies(partitions, end), partitions
    ).rdd()
    rdds, any_class = (
        getattr(jvm, "org.apache.spark.rdd"),
        getattr(jvm, "scala.reflect.ClassTag").Any(),
    )
    # RDDs with the same partitioner are joined partition by partition; it is not used otherwise
    same = getattr(jvm, "scala.Option").apply(
        getattr(jvm, "org.apache.spark.HashPartitioner")(partitions)
    )
    sides = [rdds.UnionRDD(context.sc(), to_seq(jvm, [rdd]), any_class) for rdd in (rows, ends)]
    for side in sides:
        set_field(jvm, side, "partitioner", same, of="org.apache.spark.rdd.RDD")
    joined = rdds.PartitionerAwareUnionRDD(context.sc(), to_seq(jvm, sides), any_class)
    nullable = [attribute.withNullability(True) for attribute in output]  # noqa: FBT003
    number = F.monotonically_increasing_id().bitwiseXOR(F.col(ROW_COLUMN))
    counted = from_rdd(session, to_seq(jvm, nullable), joined).withColumn(ROW_COLUMN, number)
    return cast("DataFrame", counted)


def logical_rdd(
    jvm: Any,
    java_session: Any,
    output: Any,
    rdd: Any,
    partitioning: Any,
    size: Any | None,
    order: Any | None = None,
) -> Any:
    """Return a `LogicalRDD`, a leaf of a logical plan over an RDD of Spark's internal rows.

    Args:
        jvm: from `classes_of`, or what stands for it in one call.
        order: a Seq of sort orders that the rows of each partition are in.
    """
    none, nil = getattr(jvm, "scala.Option").empty(), to_seq(jvm, [])
    leaf = [output, rdd, partitioning, nil if order is None else order, False]
    known = getattr(jvm, "scala.Option").apply(size)
    return newest_form(
        jvm,
        "org.apache.spark.sql.execution.LogicalRDD",
        [*leaf, none, java_session, known, none, False],
        [*leaf, none, java_session, known, none],
        [*leaf, java_session, known, none],
    )


def statistics(jvm: Any, *, data_bytes: int, rows: int, measured: bool = False) -> Any:
    """Return a Catalyst `Statistics`; for a function of `in_one_call`.

    py4j turns every Scala BigInt into a Python number, so it cannot be passed as an argument.
    Instead, take Some(BigInt) from the row count of a `Range`, build the argument list inside the
    JVM, and call the constructor by reflection. The `Range` is only a leaf of a plan: a DataFrame
    would be analyzed and optimized, which takes milliseconds.

    Args:
        measured: the rows are stored already. Spark then compares the bytes with
            `spark.sql.adaptive.autoBroadcastJoinThreshold`.
    """
    ranges = module(jvm, "org.apache.spark.sql.catalyst.plans.logical.Range")

    def some(number: int) -> Any:
        return ranges.apply(0, number, 1, 1).stats().rowCount()

    name = "org.apache.spark.sql.catalyst.plans.logical.Statistics"
    no_columns = module(jvm, "org.apache.spark.sql.catalyst.expressions.AttributeMap").empty()
    arguments = appended(some(max(1, data_bytes)).toList(), some(rows), no_columns, measured)
    array = arguments.toArray(getattr(jvm, "scala.reflect.ClassTag").Any())
    return getattr(jvm, "java.lang.Class").forName(name).getConstructors()[0].newInstance(array)
