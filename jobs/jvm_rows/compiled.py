"""The only file that touches the internals of Spark's code generation. PySpark 3.5 to 4.3.

Spark sends the Java source of whole-stage code to its executors as text and compiles it there, once
per text and executor. `WholeStageCodegenEvaluatorFactory` does the same with the text given here.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from importlib.resources import files
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.in_one_call import in_one_call, list_in, now, standing_for
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import scala_iterator

_FACTORY = "org.apache.spark.sql.execution.WholeStageCodegenEvaluatorFactory"
_SQL = "org.apache.spark.sql."
_INTERNAL_ROW = f"{_SQL}catalyst.InternalRow"


@cache
def java_text(folder: str) -> str:
    """Return the Java source in a folder beside this file, all its files as one text."""
    sources = files("durable_shuffle.jobs.jvm_rows").joinpath(folder).iterdir()
    named = sorted((source.name, source) for source in sources if source.name.endswith(".java"))
    return "".join(source.read_text(encoding="utf-8") for _, source in named)


def compiled(
    spark: SparkSession,
    text: str,
    given: Callable[..., tuple[Any, Sequence[Any]]],
    *objects: Any,
    finish: Callable[..., Any] | None = None,
) -> Any:
    """Return the JVM RDD of internal rows that the Java code makes of each partition of an RDD.

    All calls are made in one; see `in_one_call` for what the functions may do.

    Args:
        text: the body of a class with `public Object generate(Object[] references)`, which returns
            a BufferedRowIterator.
        given: returns the JVM RDD of internal rows, and what `generate` gets: text, numbers, bytes,
            serializable objects. It takes the JVM, its SparkContext, and the objects.
        objects: of the JVM.
        finish: takes the JVM, the RDD and the objects; returns what is wanted in the RDD's place.

    Raises:
        Py4JError: this Spark has no such class or another constructor.
    """

    def made(jvm: Any, *objects: Any) -> Any:
        rows = compiled_in(jvm, spark, text, given, *objects)
        return rows if finish is None else finish(jvm, rows, *objects)

    return in_one_call(classes_of(spark), made, *objects)


def compiled_in(
    jvm: Any,
    spark: SparkSession,
    text: str,
    given: Callable[..., tuple[Any, Sequence[Any]]],
    *objects: Any,
) -> Any:
    """Like `compiled`, for a function of `in_one_call`."""
    root: Any = classes_of(spark)
    form = _form_of_code(root)
    java_context = spark.sparkContext._jsc  # noqa: SLF001
    context, code = standing_for(jvm, java_context), standing_for(jvm, _code(root, text))
    rdd, references = given(jvm, context.sc(), *objects)
    row_class = getattr(jvm, "scala.reflect.ClassTag").apply(
        getattr(jvm, "java.lang.Class").forName(_INTERNAL_ROW)
    )
    factory = _factory(jvm, context, _held(jvm, context, code, form), references)
    return rdd.mapPartitionsWithEvaluator(factory, row_class)


def check_internals(spark: SparkSession, text: str) -> None:
    """Check, without running anything, that `compiled` finds what it needs.

    Raises:
        Py4JError: this Spark has other internals than expected.
    """
    root: Any = classes_of(spark)
    form = _form_of_code(root)

    def look(jvm: Any, context: Any, code: Any) -> None:
        _factory(jvm, context, _held(jvm, context, code, form), [])
        of_name = getattr(jvm, "java.lang.Class").forName
        names = ("org.apache.spark.PartitionEvaluatorFactory", "scala.reflect.ClassTag")
        classes = _array(jvm, "java.lang.Class", list(map(of_name, names)))
        of_name("org.apache.spark.rdd.RDD").getMethod("mapPartitionsWithEvaluator", classes)

    in_one_call(root, look, spark.sparkContext._jsc, _code(root, text))  # noqa: SLF001


def run_here(
    spark: SparkSession,
    text: str,
    given: Callable[[Any], tuple[Sequence[Any], Sequence[Any]]],
    read: Callable[[Any, Any], tuple[Any, ...]],
    count: int,
) -> list[list[Any]]:
    """Compile the Java code on the driver, run it on a few rows or bytes, and return what is read
    of each row that it makes.

    Args:
        given: a function of `in_one_call`: takes the JVM, returns what `generate` gets, and the
            rows or bytes.
        read: the same; takes the JVM and a method that calls a method of the row.
        count: how many rows the code makes, from 1.

    Raises:
        Py4JError: the text does not compile with this Spark, or fails.
        ValueError: it makes another number of rows.
    """
    root: Any = classes_of(spark)

    def ran(jvm: Any, code: Any) -> tuple[Any, ...]:
        codegen = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.codegen")
        made = codegen.CodeGenerator.compile(code)._1()  # noqa: SLF001
        references, rows = given(jvm)
        iterator = _invoke(jvm, made, "generate", objects(jvm, references))
        waiting = scala_iterator(jvm, list_in(jvm, rows).iterator())
        _invoke(jvm, iterator, "init", 0, _array(jvm, "scala.collection.Iterator", [waiting]))
        found: list[Any] = []
        for _ in range(count):
            _invoke(jvm, iterator, "hasNext")
            found += read(jvm, partial(_invoke, jvm, _invoke(jvm, iterator, "next")))
        return *found, _invoke(jvm, iterator, "hasNext")

    *found, has_more = in_one_call(root, ran, _code(root, text))
    if has_more:
        raise ValueError(f"more than {count} rows")
    values = len(found) // count
    return [found[i : i + values] for i in range(0, len(found), values)]


def _invoke(jvm: Any, on: Any, method: str, *arguments: Any) -> Any:
    """Call a public method of an object of generated code; for a function of `in_one_call`.

    py4j caches methods by the names of classes, and all generated classes have the same names.
    """
    methods = getattr(jvm, "org.apache.commons.lang3.reflect.MethodUtils")
    return methods.invokeMethod(on, method, objects(jvm, arguments))


def generic_row(jvm: Any, values: Sequence[Any]) -> Any:
    """Return an internal row of the values; a str becomes Spark's own kind of text. For a function
    of `in_one_call`."""
    text = getattr(jvm, "org.apache.spark.unsafe.types.UTF8String").fromString
    given = [text(value) if isinstance(value, str) else value for value in values]
    row = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.GenericInternalRow")
    return row(objects(jvm, given))


def java_schema(jvm: Any, schema: StructType) -> Any:
    """Return the schema as an object of the JVM."""
    return getattr(jvm, "org.apache.spark.sql.types.DataType").fromJson(schema.json())


def objects(jvm: Any, values: Sequence[Any]) -> Any:
    """Return a Java array of objects."""
    return _array(jvm, "java.lang.Object", values)


def _array(jvm: Any, of: str, values: Sequence[Any]) -> Any:
    made = getattr(jvm, "java.lang.reflect.Array").newInstance(
        getattr(jvm, "java.lang.Class").forName(of), len(values)
    )
    for i, value in enumerate(values):
        made[i] = value
    return made


def _factory(jvm: Any, context: Any, code: Any, references: Sequence[Any]) -> Any:
    """Return what makes the Java code's iterators.

    Args:
        context: a JavaSparkContext.
        code: from `_held`.
    """
    metrics = getattr(jvm, "org.apache.spark.sql.execution.metric.SQLMetrics")
    metric = metrics.createMetric(context.sc(), "duration")
    return getattr(jvm, _FACTORY)(code, metric, objects(jvm, references))


def _held(jvm: Any, context: Any, code: Any, form: str) -> Any:
    """Return code as this Spark's factory takes it."""
    if form == "scala.util.Either":
        return getattr(jvm, "scala.util.Right")(code)
    return context.broadcast(code) if form.endswith("Broadcast") else code


@lru_cache(maxsize=4)
def _form_of_code(root: Any) -> str:
    """Return the class of the factory's first argument."""

    def form(jvm: Any) -> Any:
        constructor = getattr(jvm, "java.lang.Class").forName(_FACTORY).getConstructors()[0]
        return constructor.getParameterTypes()[0].getName()

    return str(in_one_call(root, form))


@lru_cache(maxsize=8)
def _code(root: Any, text: str) -> Any:
    """Return Java text as the object that Spark compiles. It is passed to the JVM once."""

    def made(jvm: Any) -> Any:
        empty = getattr(jvm, "java.util.HashMap")()
        no_comments = getattr(jvm, "org.apache.spark.api.python.PythonUtils").toScalaMap(empty)
        codegen = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.codegen")
        return codegen.CodeAndComment(text, no_comments)

    return in_one_call(root, made)


def bytes_of_rows(jvm: Any, rdd: Any, conf: Any) -> Any:
    """Return the RDD of byte[] in the first column of an RDD of internal rows.

    Args:
        conf: a SQLConf, under which Spark makes the rows.
    """
    of_class = getattr(jvm, "scala.reflect.ClassTag").apply
    rows = getattr(jvm, f"{_SQL}execution.SQLExecutionRDD")(rdd, conf)
    first_column = standing_for(jvm, _first_column(now(jvm)))
    return rows.map(first_column, of_class(getattr(jvm, "java.lang.Class").forName("[B")))


@lru_cache(maxsize=4)
def _first_column(root: Any) -> Any:
    """Return the function that takes the bytes of a row's first column. Tasks have copies of it; it
    is made once, because that takes 8 ms."""

    def made(jvm: Any) -> Any:
        encoders = f"{_SQL}catalyst.encoders."
        of_bytes = getattr(jvm, f"{encoders}AgnosticEncoders$BinaryEncoder$")
        encoder = getattr(jvm, f"{encoders}ExpressionEncoder").apply(getattr(of_bytes, "MODULE$"))
        defaults = (getattr(encoder, f"resolveAndBind$default${n}")() for n in (1, 2))
        return encoder.resolveAndBind(*defaults).createDeserializer()

    return in_one_call(root, made)
