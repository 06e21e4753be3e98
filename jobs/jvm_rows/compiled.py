"""The only file that touches the internals of Spark's code generation. PySpark 4.0 to 4.3.

Spark sends the Java source of whole-stage code to its executors as text and compiles it there, once
per text and executor. `WholeStageCodegenEvaluatorFactory` does the same with the text given here.
"""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

_FACTORY = "org.apache.spark.sql.execution.WholeStageCodegenEvaluatorFactory"
_INTERNAL_ROW = "org.apache.spark.sql.catalyst.InternalRow"


def compiled(spark: SparkSession, rdd: Any, text: str, references: Sequence[Any]) -> Any:
    """Return the JVM RDD of internal rows that the Java code makes of each partition of `rdd`.

    Args:
        rdd: a JVM RDD of internal rows.
        text: the body of a class with `public Object generate(Object[] references)`, which returns
            a BufferedRowIterator.
        references: what `generate` gets: text, numbers, bytes, serializable objects of the JVM.

    Raises:
        Py4JError: this Spark has no such class or another constructor.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    context = spark.sparkContext
    execution = jvm.org.apache.spark.sql.execution
    codegen = jvm.org.apache.spark.sql.catalyst.expressions.codegen
    no_comments = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})
    code = codegen.CodeAndComment(text, no_comments)
    array = context._gateway.new_array(jvm.java.lang.Object, len(references))  # noqa: SLF001
    for i, reference in enumerate(references):
        array[i] = reference
    constructor = jvm.java.lang.Class.forName(_FACTORY).getConstructors()[0]
    first = str(constructor.getParameterTypes()[0].getName())
    java_context = context._jsc  # noqa: SLF001
    held = code
    if first == "scala.util.Either":
        held = jvm.scala.util.Right(code)
    elif first.endswith("Broadcast"):
        held = java_context.broadcast(code)
    metric = execution.metric.SQLMetrics.createMetric(java_context.sc(), "duration")
    factory = execution.WholeStageCodegenEvaluatorFactory(held, metric, array)
    row_class = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName(_INTERNAL_ROW))
    return rdd.mapPartitionsWithEvaluator(factory, row_class)


def frame_over(session: SparkSession, rdd: Any, schema: str) -> DataFrame:
    """Return a DataFrame over a JVM RDD of internal rows.

    Args:
        schema: its columns, in Spark's language for tables.
    """
    jvm: Any = session._jvm  # noqa: SLF001
    java_schema = jvm.org.apache.spark.sql.types.StructType.fromDDL(schema)
    java_session = session._jsparkSession  # noqa: SLF001
    return DataFrame(java_session.internalCreateDataFrame(rdd, java_schema, False), session)  # noqa: FBT003
