"""Tasks of Python that take or yield bytes of the JVM, without a plan of Spark SQL.

`DataFrame.mapInArrow` makes a plan of its own for each stage: about 40 calls into the JVM and 12 ms
of a short query. Bytes need no plan. Spark's RDDs of Python pass them as they are.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark import SparkContext
from pyspark.serializers import NoOpSerializer, Serializer

from durable_shuffle.jobs.in_one_call import in_one_call, java_list, list_in
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import elements_served, prepared_for_workers

_PYTHON = "org.apache.spark.api.python."
_AS_IN_SQL = {"SPARK_SIMPLIFIED_TRACEBACK": "1"}
"""Spark SQL sets it for its Python workers. Workers are shared where all variables are equal."""


def results_of_pieces(
    context: SparkContext, pieces: Any, function: Callable[[Iterator[bytes]], Iterator[Any]]
) -> Any:
    """Return the JVM's JavaRDD of what a function yields for each partition, pickled.

    Args:
        pieces: the JVM's RDD of byte[].
    """

    def of_task(_: int, pieces: Iterator[bytes]) -> Iterator[Any]:
        return function(pieces)

    return _python_rdd(context, pieces, of_task, context.serializer)


def collected(
    context: SparkContext, rdd: Any, partitions: Sequence[int], serializer: Serializer
) -> list[Any]:
    """Run a job over partitions of an RDD and return their elements, in a few calls.

    Args:
        rdd: the JVM's JavaRDD of byte[].
        serializer: makes elements of the bytes.
    """

    def ran(jvm: Any, java_context: Any, rdd: Any) -> tuple[Any, Any]:
        run = getattr(jvm, f"{_PYTHON}PythonRDD").runJob
        served = run(java_context.sc(), rdd, list_in(jvm, partitions))
        return served[0], served[1]

    served = in_one_call(classes_of(context), ran, context._jsc, rdd)  # noqa: SLF001
    return elements_served(served, serializer)


def blocks_of_tasks(
    context: SparkContext, function: Callable[[int], Iterator[bytes]], tasks: int
) -> Any:
    """Return the JVM's RDD of the bytes, byte[], that a function yields for each task's number."""

    def of_task(number: int, nothing: Iterator[bytes]) -> Iterator[bytes]:
        deque(nothing, maxlen=0)  # Spark ends a worker that has not read its input to the end
        return function(number)

    nothing = context._jsc.parallelize(java_list(classes_of(context), ()), tasks)  # noqa: SLF001
    return _python_rdd(context, nothing.rdd(), of_task, NoOpSerializer()).rdd()


def _python_rdd(
    context: SparkContext,
    rdd: Any,
    function: Callable[[int, Iterator[bytes]], Iterator[Any]],
    yields: Serializer,
) -> Any:
    """Return the JVM's JavaRDD of what a function yields for each partition of an RDD.

    Args:
        rdd: of the JVM, of byte[].
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

    accumulator = context._javaAccumulator  # noqa: SLF001
    return in_one_call(classes_of(context), made, rdd, accumulator)
