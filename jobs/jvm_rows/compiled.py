"""The only file that touches the internals of Spark's code generation. PySpark 3.5 to 4.3.

Spark sends the Java source of whole-stage code to its executors as text and compiles it there, once
per text and executor. `WholeStageCodegenEvaluatorFactory` does the same with the text given here.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import ClassicFrame as DataFrame
from durable_shuffle.jobs.spark_versions import scala_iterator

_FACTORY = "org.apache.spark.sql.execution.WholeStageCodegenEvaluatorFactory"
_INTERNAL_ROW = "org.apache.spark.sql.catalyst.InternalRow"


@cache
def java_text(folder: str) -> str:
    """Return the Java source in a folder beside this file, all its files as one text."""
    sources = files("durable_shuffle.jobs.jvm_rows").joinpath(folder).iterdir()
    named = sorted((source.name, source) for source in sources if source.name.endswith(".java"))
    return "".join(source.read_text(encoding="utf-8") for _, source in named)


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
    jvm: Any = classes_of(spark)
    row_class = getattr(jvm, "scala.reflect.ClassTag").apply(
        getattr(jvm, "java.lang.Class").forName(_INTERNAL_ROW)
    )
    return rdd.mapPartitionsWithEvaluator(_factory(spark, text, references), row_class)


def check_internals(spark: SparkSession, text: str) -> None:
    """Check, without running anything, that `compiled` finds what it needs.

    Raises:
        Py4JError: this Spark has other internals than expected.
    """
    _factory(spark, text, [])
    jvm: Any = classes_of(spark)
    classes = _array(spark, getattr(jvm, "java.lang.Class"), 2)
    classes[0] = getattr(jvm, "java.lang.Class").forName(
        "org.apache.spark.PartitionEvaluatorFactory"
    )
    classes[1] = getattr(jvm, "java.lang.Class").forName("scala.reflect.ClassTag")
    rdd_class = getattr(jvm, "java.lang.Class").forName("org.apache.spark.rdd.RDD")
    rdd_class.getMethod("mapPartitionsWithEvaluator", classes)


def run_here(
    spark: SparkSession, text: str, references: Sequence[Any], rows: Sequence[Any]
) -> Iterator[Any]:
    """Compile the Java code on the driver, and yield the rows that it makes of a few rows.

    Each row is valid until the next one is asked for; read it with `invoke`.

    Raises:
        Py4JError: the text does not compile with this Spark, or fails.
    """
    jvm: Any = classes_of(spark)
    codegen = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.codegen")
    made = codegen.CodeGenerator.compile(_code(spark, text))._1()  # noqa: SLF001
    iterator = invoke(spark, made, "generate", _objects(spark, references))
    given = getattr(jvm, "java.util.ArrayList")()
    for row in rows:
        given.add(row)
    inputs = _array(spark, getattr(jvm, "scala.collection.Iterator"), 1)
    inputs[0] = scala_iterator(jvm, given.iterator())
    invoke(spark, iterator, "init", 0, inputs)
    while invoke(spark, iterator, "hasNext"):
        yield invoke(spark, iterator, "next")


def invoke(spark: SparkSession, on: Any, method: str, *arguments: Any) -> Any:
    """Call a public method of an object of generated code.

    py4j caches methods by the names of classes, and all generated classes have the same names.
    """
    jvm: Any = classes_of(spark)
    methods = getattr(jvm, "org.apache.commons.lang3.reflect.MethodUtils")
    return methods.invokeMethod(on, method, _objects(spark, arguments))


def generic_row(spark: SparkSession, values: Sequence[Any]) -> Any:
    """Return an internal row of the values; a str becomes Spark's own kind of text."""
    jvm: Any = classes_of(spark)
    text = getattr(jvm, "org.apache.spark.unsafe.types.UTF8String").fromString
    given = [text(value) if isinstance(value, str) else value for value in values]
    row = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.GenericInternalRow")
    return row(_objects(spark, given))


def java_schema(spark: SparkSession, schema: StructType) -> Any:
    """Return the schema as an object of the JVM."""
    jvm: Any = classes_of(spark)
    return getattr(jvm, "org.apache.spark.sql.types.DataType").fromJson(schema.json())


def _factory(spark: SparkSession, text: str, references: Sequence[Any]) -> Any:
    jvm: Any = classes_of(spark)
    execution, code = getattr(jvm, "org.apache.spark.sql.execution"), _code(spark, text)
    constructor = getattr(jvm, "java.lang.Class").forName(_FACTORY).getConstructors()[0]
    first = str(constructor.getParameterTypes()[0].getName())
    java_context = spark.sparkContext._jsc  # noqa: SLF001
    held = code
    if first == "scala.util.Either":
        held = getattr(jvm, "scala.util.Right")(code)
    elif first.endswith("Broadcast"):
        held = java_context.broadcast(code)
    metric = execution.metric.SQLMetrics.createMetric(java_context.sc(), "duration")
    objects = _objects(spark, references)
    return execution.WholeStageCodegenEvaluatorFactory(held, metric, objects)


def _code(spark: SparkSession, text: str) -> Any:
    jvm: Any = classes_of(spark)
    no_comments = getattr(jvm, "org.apache.spark.api.python.PythonUtils").toScalaMap({})
    codegen = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.codegen")
    return codegen.CodeAndComment(text, no_comments)


def _objects(spark: SparkSession, values: Sequence[Any]) -> Any:
    jvm: Any = classes_of(spark)
    array = _array(spark, getattr(jvm, "java.lang.Object"), len(values))
    for i, value in enumerate(values):
        array[i] = value
    return array


def _array(spark: SparkSession, of: Any, length: int) -> Any:
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
    return gateway.new_array(of, length)


def frame_over(session: SparkSession, rdd: Any, schema: str) -> DataFrame:
    """Return a DataFrame over a JVM RDD of internal rows.

    Args:
        schema: its columns, in Spark's language for tables.
    """
    jvm: Any = classes_of(session)
    java_schema = getattr(jvm, "org.apache.spark.sql.types.StructType").fromDDL(schema)
    java_session = session._jsparkSession  # noqa: SLF001
    return DataFrame(java_session.internalCreateDataFrame(rdd, java_schema, False), session)  # noqa: FBT003
