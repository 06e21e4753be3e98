"""What differs between PySpark 3.5 and 4.x, and between Scala 2.12 and 2.13. Nothing else does.

Every difference is decided by what is there, never by a version's number. Java texts are the same
for all versions: they name no class that one of them lacks.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from pyspark import SparkContext
from pyspark.cloudpickle import cloudpickle
from pyspark.errors import PySparkException
from pyspark.serializers import CloudPickleSerializer, Serializer
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types
from pyspark.sql.types import DataType

from durable_shuffle.jobs.in_one_call import in_one_call, now
from durable_shuffle.serialization.errors import IncompatibleError

try:
    from pyspark.core import broadcast as broadcasts
    from pyspark.core.context import _load_from_socket  # type: ignore[attr-defined]
    from pyspark.core.rdd import (
        Partitioner,
        PipelinedRDD,
        _prepare_for_python_RDD,
        portable_hash,
    )
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    _CLASSES = "org.apache.spark.sql.classic."
except ImportError:  # PySpark 3.5
    from pyspark import broadcast as broadcasts
    from pyspark.context import (  # type: ignore[import-not-found, no-redef]
        _load_from_socket,
    )
    from pyspark.rdd import (  # type: ignore[import-not-found, no-redef]
        Partitioner,
        PipelinedRDD,
        _prepare_for_python_RDD,
        portable_hash,
    )
    from pyspark.sql import DataFrame as ClassicFrame  # type: ignore[assignment]

    _CLASSES = "org.apache.spark.sql."

_OF_CONTEXT = ("_sc", "_jsc", "_jvm", "_profiler_collector")
"""Attributes of PySpark's sessions that are the same for all sessions of a context."""
_SHORT_COMMAND = 1 << 16
"""Bytes; Spark broadcasts those above 1 MiB, unless it is told otherwise."""
__all__ = [
    "ClassicFrame",
    "Partitioner",
    "PipelinedRDD",
    "broadcasts",
    "portable_hash",
]

# -- Python


def reductions() -> Any:
    """Return the module of PySpark's cloudpickle that reduces functions and classes."""
    if hasattr(cloudpickle, "_code_reduce"):
        return cloudpickle
    from pyspark.cloudpickle import cloudpickle_fast  # 3.5

    return cloudpickle_fast


def types_named(*names: str) -> tuple[type[DataType], ...]:
    """Return the classes of column types that this PySpark has, of these names."""
    return tuple(getattr(spark_types, name) for name in names if hasattr(spark_types, name))


def prepared_for_workers(context: SparkContext, command: object) -> tuple[Any, ...]:
    """Return a pickled command, the broadcasts of the JVM that it needs, the variables of the
    workers' environment, and the files that they load.

    Spark's own function takes three calls to ask from which length on a command is broadcast.
    """
    pickled = cast("Any", CloudPickleSerializer)().dumps(command)
    if len(pickled) > _SHORT_COMMAND:
        return _prepare_for_python_RDD(context, command)
    needed: Any = context._pickled_broadcast_vars  # noqa: SLF001
    broadcasts = [one._jbroadcast for one in needed]  # noqa: SLF001
    needed.clear()
    return pickled, broadcasts, context.environment, context._python_includes  # noqa: SLF001


def elements_served(served: Sequence[Any], serializer: Serializer) -> list[Any]:
    """Return the elements that a JVM serves on a socket.

    Args:
        served: port, or the path of a socket, and secret.
    """
    found: Any = _load_from_socket(served, serializer)
    if not hasattr(found, "__enter__"):  # before 4.2
        return list(found)
    with found as elements:
        return list(elements)


def type_of_ddl(text: str) -> DataType:
    """Return the type that a text names, as `DataType.fromDDL` does."""
    if hasattr(DataType, "fromDDL"):
        return DataType.fromDDL(text)
    return spark_types._parse_datatype_string(text)  # noqa: SLF001 - what 3.5 has


def condition_of(error: PySparkException) -> str | None:
    """Return the name of Spark's error, None if it has none."""
    named = getattr(error, "getCondition", None) or error.getErrorClass
    return cast("str | None", named())


def has_classic_package() -> bool:
    """Return whether classic sessions have a package of their own, as since PySpark 4.0."""
    return _CLASSES.endswith(".classic.")


# -- the JVM


def with_tags_of_session(tags: Any, java_session: Any) -> Any:
    """Return a Scala Set of job tags with those that Spark gives to an action of a classic session.

    There are none in 3.5.
    """
    if not has_classic_package():
        return tags
    own = getattr(tags, "$plus")(java_session.sessionJobTag())
    return getattr(own, "$plus$plus")(java_session.managedJobTags().get().values().toSet())


def session_over(spark: SparkSession, java_session: Any) -> SparkSession:
    """Return PySpark's object of another session of the JVM, without the calls of its constructor.

    They set what `java_session` has already.

    Args:
        spark: any session of the same context.
    """
    made = object.__new__(type(spark))
    made.__dict__ = {name: vars(spark)[name] for name in _OF_CONTEXT if name in vars(spark)}
    made._jsparkSession = java_session
    return made


def sql_class(jvm: Any, name: str) -> Any:
    """Return `Dataset` or `SparkSession`, the classes that classic Spark uses."""
    return getattr(jvm, _CLASSES + name)


def sql_class_name(name: str) -> str:
    """Return the full name of such a class."""
    return _CLASSES + name


@lru_cache(maxsize=8)
def is_scala_212(jvm: Any) -> bool:
    """Return whether the JVM has the collections of Scala 2.12."""

    def version(jvm: Any) -> Any:
        return getattr(jvm, "scala.util.Properties").versionString()

    return "2.12." in str(in_one_call(jvm, version))


def array_inside(jvm: Any, seq: Any) -> Any:
    """Return the Java array that a Scala Seq wraps.

    Raises:
        Py4JError: it wraps none.
    """
    return seq.array() if is_scala_212(now(jvm)) else seq.unsafeArray()


def appended(seq: Any, *values: Any) -> Any:
    """Return a list with more elements; those that it has stay in the JVM."""
    buffer = seq.toBuffer()
    for value in values:
        getattr(buffer, "$plus$eq")(value)
    return buffer.toList()


def updated(values: Any, changed: dict[int, Any]) -> Any:
    """Return a list with other elements at these places; the others stay in the JVM.

    Args:
        values: a Seq or an Iterator.
    """
    buffer = values.toBuffer()
    for at, value in changed.items():
        buffer.update(at, value)
    return buffer.toList()


def scala_iterator(jvm: Any, java_iterator: Any) -> Any:
    """Return a Scala Iterator over what a Java iterator yields."""
    if is_scala_212(now(jvm)):
        return getattr(jvm, "scala.collection.JavaConverters").asScalaIterator(java_iterator)
    return getattr(jvm, "scala.jdk.javaapi.CollectionConverters").asScala(java_iterator)


def argument_names(jvm: Any, product: Any) -> list[str]:
    """Return the names of a Product's constructor arguments."""
    if not is_scala_212(now(jvm)):
        return [str(product.productElementName(i)) for i in range(product.productArity())]
    reflection = getattr(getattr(jvm, "org.apache.spark.sql.catalyst.ScalaReflection$"), "MODULE$")
    names = reflection.getConstructorParameterNames(product.getClass())
    return str(names.mkString("\n")).split("\n") if product.productArity() else []


@lru_cache(maxsize=64)
def argument_counts(jvm: Any, name: str) -> tuple[int, ...]:
    """Return how many arguments each constructor of a class takes."""

    def listed(jvm: Any) -> Any:
        constructors = getattr(jvm, "java.lang.Class").forName(name).getConstructors()
        return getattr(jvm, "org.apache.commons.lang3.ArrayUtils").toString(constructors)

    return arities(str(in_one_call(jvm, listed)))


def arities(constructors: str) -> tuple[int, ...]:
    """Return the numbers of arguments of constructors, given as text."""
    lists = re.findall(r"\(([^)]*)\)", constructors)
    return tuple(len(types.split(",")) if types else 0 for types in lists)


def newest_form(jvm: Any, name: str, *forms: Sequence[Any]) -> Any:
    """Return a new object of a class whose constructor differs between versions.

    Args:
        forms: arguments for each version, the newest first; their number tells them apart.

    Raises:
        IncompatibleError: the constructor takes another number.
    """
    counts = argument_counts(now(jvm), name)
    for arguments in forms:
        if len(arguments) in counts:
            return getattr(jvm, name)(*arguments)
    known = ", ".join(str(len(form)) for form in forms)
    raise IncompatibleError(
        f"this Spark's {name} takes {list(counts)} arguments, expected one of {known}: PySpark 3.5 "
        "and 4.0 to 4.3 are supported"
    )
