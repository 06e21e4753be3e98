"""The few JVM calls that the identity walk is made of, looked up once.

A call over py4j costs 0.05 to 0.2 ms and every `jvm.some.package.Class` costs several, so what is
called often is held here. The only file of this folder that touches PySpark's private attributes.
Nothing here changes a session.
"""

from typing import Any, cast

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

_SEPARATOR = "\n\x01\n"


class Jvm:
    """Access to one driver's JVM; make one per identification."""

    def __init__(self, df: DataFrame) -> None:
        spark = cast("Any", df.sparkSession)
        self.root: Any = spark.sparkContext._jvm  # noqa: SLF001
        # bound methods: py4j asks the JVM anew whenever a static method is looked up by its name
        self._get_name = self.root.org.apache.commons.lang3.ClassUtils.getName
        self._is_instance_of = self.root.py4j.reflection.TypeUtil.isInstanceOf
        self._string_of = self.root.scala.runtime.ScalaRunTime.stringOf

    def class_name(self, obj: Any) -> str:
        """Full class name of a JVM object."""
        return str(self._get_name(obj))

    def is_a(self, obj: Any, full_name: str) -> bool:
        """Whether a JVM object is an instance of the class or interface; no if there is none."""
        try:
            return bool(self._is_instance_of(full_name, obj))
        except Py4JJavaError:  # no such class in this Spark version
            return False

    def text(self, obj: Any) -> str:
        """Scala's own text of an object; unlike `toString` it shows the elements of arrays."""
        return str(self._string_of(obj))

    def entries(self, scala_map: Any) -> dict[str, str]:
        """A Scala Map[String, String] in one call."""
        printed = str(scala_map.mkString(_SEPARATOR))
        return dict(one.split(" -> ", 1) for one in printed.split(_SEPARATOR) if " -> " in one)

    def no_filters(self) -> Any:
        """An empty Scala Seq."""
        return self.root.org.apache.spark.api.python.PythonUtils.toSeq([])

    def fresh_execution(self, df: DataFrame) -> Any:
        """A new QueryExecution over the data frame's analyzed plan.

        New, because a QueryExecution keeps what it found at its first use, for instance that
        nothing was cached yet.
        """
        dataset = self.root.org.apache.spark.sql.classic.Dataset
        return dataset.ofRows(java_session(df), query_execution(df).analyzed()).queryExecution()

    def bytes_digest(self, df: DataFrame, obj: Any) -> str:
        """SHA-256, in hex, of an object's Java serialization; the bytes stay in the JVM."""
        spark_context = java_session(df).sparkContext()
        serializer = self.root.org.apache.spark.serializer.JavaSerializer(spark_context.conf())
        tag = getattr(self.root.scala.reflect, "ClassTag$").__getattr__("MODULE$").Any()
        sha = self.root.java.security.MessageDigest.getInstance("SHA-256")
        sha.update(serializer.newInstance().serialize(obj, tag))
        return bytes(sha.digest()).hex()


def query_execution(df: DataFrame) -> Any:
    """The data frame's QueryExecution."""
    return cast("Any", df)._jdf.queryExecution()  # noqa: SLF001


def java_session(df: DataFrame) -> Any:
    """The JVM session that the data frame belongs to (a planning session, if that is where)."""
    return cast("Any", df)._jdf.sparkSession()  # noqa: SLF001


def java_schema(df: DataFrame) -> Any:
    """The data frame's JVM StructType."""
    return cast("Any", df)._jdf.schema()  # noqa: SLF001


def items(seq: Any) -> list[Any]:
    """A Scala Seq as a list: one call per element."""
    return [seq.apply(at) for at in range(seq.size())]


def simple_name(class_name: str) -> str:
    """Class name without package and without the `$` of a Scala object."""
    return class_name.rpartition(".")[2].removesuffix("$").rpartition("$")[2]
