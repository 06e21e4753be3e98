"""Tasks of Python that take or yield bytes of the JVM, without a plan of Spark SQL.

`DataFrame.mapInArrow` makes a plan of its own for each stage: about 40 calls into the JVM and 12 ms
of a short query. Bytes need no plan. Spark's RDDs of Python pass them as they are.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark import SparkContext
from pyspark.serializers import NoOpSerializer, Serializer

from durable_shuffle.jobs.in_one_call import empty_rdd, in_one_call, list_in
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import elements_served, prepared_for_workers

_PYTHON = "org.apache.spark.api.python."
_AS_IN_SQL = {"SPARK_SIMPLIFIED_TRACEBACK": "1"}
"""Spark SQL sets it for its Python workers. Workers are shared where all variables are equal."""


def results_of_pieces(
    context: SparkContext,
    pieces: Any,
    function: Callable[[Iterator[bytes]], Iterator[Any]],
    partitions: Sequence[int],
) -> list[Any]:
    """Run a function over partitions of an RDD and return what it yields.

    Args:
        pieces: the JVM's RDD of byte[].
    """

    def of_task(_: int, pieces: Iterator[bytes]) -> Iterator[Any]:
        return function(pieces)

    rdd = _python_rdd(context, of_task, context.serializer)
    given = pieces, context._javaAccumulator  # noqa: SLF001
    return _collected(context, partitions, context.serializer, rdd, *given)


def collected(
    context: SparkContext, rdd: Any, partitions: Sequence[int], serializer: Serializer
) -> list[Any]:
    """Run a job over partitions of an RDD and return their elements, in a few calls.

    Args:
        rdd: the JVM's JavaRDD of byte[].
        serializer: makes elements of the bytes.
    """
    return _collected(context, partitions, serializer, lambda _, rdd: rdd, rdd)


def _collected(
    context: SparkContext,
    partitions: Sequence[int],
    serializer: Serializer,
    rdd: Callable[..., Any],
    *objects: Any,
) -> list[Any]:
    """Like `collected`, of the RDD that a function of `in_one_call` returns."""

    def ran(jvm: Any, java_context: Any, *objects: Any) -> tuple[Any, Any]:
        run = getattr(jvm, f"{_PYTHON}PythonRDD").runJob
        served = run(java_context.sc(), rdd(jvm, *objects), list_in(jvm, partitions))
        return served[0], served[1]

    served = in_one_call(classes_of(context), ran, context._jsc, *objects)  # noqa: SLF001
    return elements_served(served, serializer)


def blocks_of_tasks(
    context: SparkContext, function: Callable[[int], Iterator[bytes]], tasks: int
) -> Any:
    """Return the JVM's RDD of the bytes, byte[], that a function yields for each task's number."""
    made = _tasks(context, function, tasks)
    given = context._jsc, context._javaAccumulator  # noqa: SLF001
    return in_one_call(classes_of(context), lambda *given: made(*given).rdd(), *given)


def run_tasks(
    context: SparkContext, function: Callable[[int], Iterator[bytes]], tasks: int
) -> list[bytes]:
    """Run tasks, and return the bytes that a function yields for each task's number."""
    given = context._jsc, context._javaAccumulator  # noqa: SLF001
    made = _tasks(context, function, tasks)
    return _collected(context, range(tasks), NoOpSerializer(), made, *given)


def _tasks(
    context: SparkContext, function: Callable[[int], Iterator[bytes]], tasks: int
) -> Callable[..., Any]:
    """Return a function of `in_one_call` that makes the JavaRDD of what `function` yields.

    It takes the JavaSparkContext, and the context's accumulator.
    """

    def of_task(number: int, elements: Iterator[bytes]) -> Iterator[bytes]:
        deque(elements, maxlen=0)  # Spark ends a worker that has not read its input to the end
        return function(number)

    rdd = _python_rdd(context, of_task, NoOpSerializer())

    def made(jvm: Any, java_context: Any, accumulator: Any) -> Any:
        return rdd(jvm, empty_rdd(jvm, java_context.sc(), tasks), accumulator)

    return made


def _python_rdd(
    context: SparkContext,
    function: Callable[[int, Iterator[bytes]], Iterator[Any]],
    yields: Serializer,
) -> Callable[[Any, Any, Any], Any]:
    """Return a function of `in_one_call` that makes the JavaRDD of what `function` yields.

    It takes the JVM's RDD of byte[], and the context's accumulator.

    Args:
        function: takes the number of a partition and its elements. Runs in a Python worker.
        yields: makes bytes of what the function yields.
    """
    command = function, None, NoOpSerializer(), yields
    pickled, broadcasts, environment, includes = prepared_for_workers(context, command)

    def made(jvm: Any, rdd: Any, accumulator: Any) -> Any:
        variables = getattr(jvm, "java.util.HashMap")()
        for key, value in {**environment, **_AS_IN_SQL}.items():
            variables.put(key, value)
        code = getattr(jvm, f"{_PYTHON}SimplePythonFunction")(
            bytes(pickled),
            variables,
            list_in(jvm, includes),
            context.pythonExec,
            context.pythonVer,
            list_in(jvm, broadcasts),
            accumulator,
        )
        return getattr(jvm, f"{_PYTHON}PythonRDD")(rdd, code, False, False).asJavaRDD()  # noqa: FBT003

    return made
