"""The few JVM calls that the identity walk is made of, looked up once.

A call over py4j costs 0.05 to 0.2 ms and every `jvm.some.package.Class` costs several, so what is
called often is held here. The only file of this folder that touches PySpark's private attributes.
Nothing here changes a session.
"""

from collections.abc import Sequence
from typing import Any, cast

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame

_SEPARATOR = "\n\x01\n"
_PROXIES = "org.apache.spark.util.IndylambdaScalaClosures"


class Jvm:
    """Access to one driver's JVM; make one per identification."""

    def __init__(self, context: SparkContext) -> None:
        self.context = context
        self.root: Any = cast("Any", context)._jvm  # noqa: SLF001
        self._jars: dict[str, str] = {}
        self._own_folder = ""
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
        return self.to_seq([])

    def to_seq(self, values: Sequence[Any]) -> Any:
        """A Scala Seq."""
        return self.root.org.apache.spark.api.python.PythonUtils.toSeq(list(values))

    def fresh_execution(self, df: DataFrame) -> Any:
        """A new QueryExecution over the data frame's analyzed plan.

        New, because a QueryExecution keeps what it found at its first use, for instance that
        nothing was cached yet.
        """
        dataset = self.root.org.apache.spark.sql.classic.Dataset
        return dataset.ofRows(java_session(df), query_execution(df).analyzed()).queryExecution()

    def bytes_digest(self, obj: Any) -> str:
        """SHA-256, in hex, of an object's Java serialization; the bytes stay in the JVM."""
        conf = cast("Any", self.context)._jsc.sc().conf()  # noqa: SLF001
        serializer = self.root.org.apache.spark.serializer.JavaSerializer(conf)
        tag = self.module("scala.reflect.ClassTag").Any()
        sha = self.root.java.security.MessageDigest.getInstance("SHA-256")
        sha.update(serializer.newInstance().serialize(obj, tag))
        return bytes(sha.digest()).hex()

    def module(self, name: str) -> Any:
        """A Scala object."""
        return getattr(getattr(self.root, f"{name}$"), "MODULE$")

    def foreign_jar(self, obj: Any) -> str:
        """Name and size of the jar that an object's class comes from; empty for Spark's own jars.

        The package does not tell: other projects put classes below `org.apache.spark.` too.
        """
        name = self.class_name(obj)
        if name not in self._jars:
            self._jars[name] = self._jar(obj.getClass())
        return self._jars[name]

    def _jar(self, java_class: Any) -> str:
        source = java_class.getProtectionDomain().getCodeSource()
        if source is None:
            return "no jar"
        file = self.root.java.io.File(source.getLocation().getPath())
        if not self._own_folder:
            core = cast("Any", self.context)._jsc.sc().getClass()  # noqa: SLF001
            own = core.getProtectionDomain().getCodeSource().getLocation().getPath()
            self._own_folder = str(self.root.java.io.File(own).getParent())
        jar = str(file.getName())
        of_spark = jar.startswith("spark-") and jar.endswith(f"-{self.context.version}.jar")
        is_own = str(file.getParent()) == self._own_folder and (
            of_spark or jar.startswith("scala-")
        )
        return "" if is_own else f"{jar}, {int(file.length())} bytes"

    def lambda_proxy(self, obj: Any) -> Any | None:
        """What a JVM lambda would be serialized as: its code's name and what it captured."""
        try:
            found = self.module(_PROXIES).getSerializationProxy(obj)
        except Py4JError:
            return None
        return found.get() if found.isDefined() else None

    def field(self, obj: Any, name: str) -> Any:
        """The value of a private field, looked for in the superclasses too."""
        fields = self.root.org.apache.commons.lang3.reflect.FieldUtils
        return fields.readField(obj, name, True)  # noqa: FBT003


def query_execution(df: DataFrame) -> Any:
    """The data frame's QueryExecution."""
    return cast("Any", df)._jdf.queryExecution()  # noqa: SLF001


def java_rdd(rdd: RDD[Any]) -> Any:
    """The JVM's RDD behind one of PySpark."""
    return cast("Any", rdd)._jrdd.rdd()  # noqa: SLF001


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
