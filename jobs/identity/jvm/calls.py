"""Calls into the JVM: those of the identity walk, and small ones that engine and queries use too.

A call over py4j costs 0.05 to 0.2 ms. Nothing here changes a session.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from durable_shuffle.jobs.identity.jvm.document import (
    COLUMN_NAMES,
    EVERYTHING,
    KINDS,
    Seen,
    document,
)
from durable_shuffle.jobs.in_one_call import in_one_call, object_of
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import argument_names, sql_class
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.user_code import named_text_of

_LOG = logging.getLogger(__name__)

JVM_ERRORS = (Py4JError, PySparkException)
"""What a call may raise: PySpark turns some of the JVM's errors into its own. Catch these, never
`Py4JError` alone; the linter bans it elsewhere."""
_SEPARATOR = "\n\x01\n"
_PROXIES = "org.apache.spark.util.IndylambdaScalaClosures"


class UnknownInternalsError(Py4JError):  # type: ignore[misc]
    """The JVM has other classes than those that are known here."""


@contextmanager
def planning(what: str) -> Iterator[None]:
    """Turn an error of our own calls into the JVM into InvalidInputError: nothing has run yet.

    Errors that PySpark names are about the user's query, and stay as they are.
    """
    try:
        yield
    except PySparkException:
        raise
    except Py4JError as error:
        raise InvalidInputError(
            f"{what}: durable-shuffle cannot read what Spark says about this plan: "
            f"{named_text_of(error)}"
        ) from error


@dataclass(slots=True)
class KnownClass:
    """What is the same for all objects of a class; None where nobody asked yet."""

    kind: str | None = None
    fields: tuple[str, ...] | None = None
    """Names of the constructor arguments."""
    curried: bool = True
    """Whether a tree node may have a second parameter list."""
    belongs: dict[str, bool] = field(default_factory=dict)
    """Whether its objects are of another class."""


_CLASS_UTILS = "org.apache.commons.lang3.ClassUtils"
_OWN_CLASSES: WeakKeyDictionary[SparkContext, dict[str, KnownClass]] = WeakKeyDictionary()
"""What is known about the classes of Spark's own jars, which are the same while Spark runs."""


class Jvm:
    """Access to one driver's JVM; make one per identification."""

    def __init__(self, context: SparkContext) -> None:
        self.context = context
        self.root: Any = classes_of(context)
        self._jars: dict[str, str] = {}
        self._jars_of_paths: dict[str, str] = {}
        self._own_classes = _OWN_CLASSES.setdefault(context, {})
        self._other_classes: dict[str, KnownClass] = {}

    def class_name(self, obj: Any) -> str:
        """Return the full class name of a JVM object."""
        return (
            obj.seen_class.name
            if isinstance(obj, Seen)
            else str(getattr(self.root, _CLASS_UTILS).getName(obj))
        )

    def seen(self, obj: Any, asked: str = EVERYTHING) -> Any:
        """Return an object with what is below it, in a few calls; see `document`.

        It is the object itself, to be asked call by call, where the JVM cannot write documents.
        """
        if isinstance(obj, Seen):
            return obj
        return self.seen_of(lambda _, one: one, obj, asked=asked)

    def seen_of(self, work: Callable[..., Any], *objects: Any, asked: str = EVERYTHING) -> Any:
        """Return the object that a function of `in_one_call` returns, as `seen` does."""
        try:
            return document(self.root, work, *objects, asked=asked)
        except JVM_ERRORS as error:
            _LOG.debug("this plan is read call by call: %s", named_text_of(error))
            found = in_one_call(self.root, work, *objects)
            return object_of(found)

    def known(self, name: str) -> KnownClass:
        """Return what is known about a class, to be completed."""
        own = self._own_classes.get(name)
        return own or self._other_classes.setdefault(name, KnownClass())

    def fields(self, obj: Any, name: str) -> tuple[str, ...]:
        """Return the names of a Product's constructor arguments; `name` is that of its class."""
        known = self.known(name)
        if known.fields is None:
            seen = obj.seen_class.fields if isinstance(obj, Seen) else None
            known.fields = seen or tuple(argument_names(self.root, obj))
        return known.fields

    def identity_hash(self, obj: Any) -> int:
        """Return a number that is the same for the same object; rarely also for another one."""
        return (
            obj.seen_hash
            if isinstance(obj, Seen)
            else int(getattr(self.root, "java.lang.System").identityHashCode(obj))
        )

    def is_a(self, obj: Any, full_name: str) -> bool:
        """Return whether a JVM object is an instance of a class; False if no such class exists."""
        if not isinstance(obj, Seen):
            return self._is_instance(obj, full_name)
        if full_name in KINDS:
            return full_name in obj.seen_class.kinds
        belongs = self.known(obj.seen_class.name).belongs
        if full_name not in belongs:
            belongs[full_name] = self._is_instance(obj, full_name)
        return belongs[full_name]

    def _is_instance(self, obj: Any, full_name: str) -> bool:
        try:
            return bool(getattr(self.root, "py4j.reflection.TypeUtil").isInstanceOf(full_name, obj))
        except JVM_ERRORS:  # no such class in this Spark version
            return False

    def text(self, obj: Any) -> str:
        """Return Scala's text of an object; unlike `toString` it shows the elements of arrays."""
        return str(getattr(self.root, "scala.runtime.ScalaRunTime").stringOf(obj))

    def entries(self, scala_map: Any) -> dict[str, str]:
        """Return a Scala Map[String, String] as a dict, in one call if it was not seen."""
        pairs = scala_map.seen_elements() if isinstance(scala_map, Seen) else None
        if pairs is not None:
            return dict(pair.seen_elements() for pair in pairs)
        return entries(in_one_call(self.root, lambda _, one: printed(one), scala_map), " -> ")

    def to_seq(self, values: Sequence[Any]) -> Any:
        """Return a Scala Seq."""
        return to_seq(self.root, values)

    def array(self, name: str, length: int) -> Any:
        """Return a Java array of a class."""
        gateway: Any = cast("Any", self.context)._gateway  # noqa: SLF001
        return gateway.new_array(getattr(self.root, name), length)

    def fresh_execution(self, df: DataFrame) -> Any:
        """Return a new QueryExecution over the DataFrame's analyzed plan.

        An existing one keeps the state of its first use, for example that nothing was cached.
        """
        return in_one_call(self.root, fresh_execution, cast("Any", df)._jdf)  # noqa: SLF001

    def bytes_digest(self, obj: Any) -> str:
        """Return the SHA-256, in hex, of an object's Java serialization, made in the JVM."""
        conf = cast("Any", self.context)._jsc.sc().conf()  # noqa: SLF001
        serializer = getattr(self.root, "org.apache.spark.serializer.JavaSerializer")(conf)
        tag = self.module("scala.reflect.ClassTag").Any()
        sha = getattr(self.root, "java.security.MessageDigest").getInstance("SHA-256")
        sha.update(serializer.newInstance().serialize(obj, tag))
        return bytes(sha.digest()).hex()

    def unsafe_rows(self, schema: Any, rows: Any) -> Any:
        """Return rows of any class as Spark's own binary rows. For few rows: three calls each."""
        names = "org.apache.spark.sql.catalyst.expressions.UnsafeProjection"
        projection = getattr(self.root, names).create(schema)
        numbers = range(int(rows.size()))
        return self.to_seq([projection.apply(rows.apply(i)).copy() for i in numbers])

    def module(self, name: str) -> Any:
        """Return a Scala `object` by its class name."""
        return module(self.root, name)

    def foreign_jar(self, obj: Any, name: str = "") -> str:
        """Return name and size of the jar of an object's class; "" for Spark's own jars.

        The package name is not enough: other projects also use `org.apache.spark.`.

        Args:
            name: of the object's class, if it is known.
        """
        name = name or self.class_name(obj)
        if name in self._own_classes:
            return ""
        if name not in self._jars:
            self._jars[name] = self._jar(obj)
            if not self._jars[name]:
                self._own_classes[name] = self.known(name)
        return self._jars[name]

    def _jar(self, obj: Any) -> str:
        if isinstance(obj, Seen):
            path = obj.seen_class.jar
        else:
            source = obj.getClass().getProtectionDomain().getCodeSource()
            path = "" if source is None else str(source.getLocation().getPath())
        if not path:
            return "no jar"
        if path not in self._jars_of_paths:
            self._jars_of_paths[path] = self._foreign(path)
        return self._jars_of_paths[path]

    def _foreign(self, path: str) -> str:
        def asked(root: Any, context: Any) -> tuple[Any, ...]:
            file = getattr(root, "java.io.File")
            jar, core = file(path), context.sc().getClass()
            of_core = file(core.getProtectionDomain().getCodeSource().getLocation().getPath())
            of_jar = jar.getName(), jar.getParent(), jar.length()
            return *of_jar, of_core.getParent(), context.version()

        jar, folder, length, own_folder, version = in_one_call(
            *(self.root, asked, cast("Any", self.context)._jsc)  # noqa: SLF001
        )
        of_spark = jar.startswith("spark-") and jar.endswith(f"-{version}.jar")
        is_own = folder == own_folder and (of_spark or jar.startswith("scala-"))
        return "" if is_own else f"{jar}, {length} bytes"

    def lambda_proxy(self, obj: Any) -> Any | None:
        """Return the serialization proxy of a JVM lambda: name of its code and captured values."""
        try:
            proxy = self.module(_PROXIES).getSerializationProxy(obj)
        except JVM_ERRORS:
            return None
        return proxy.get() if proxy.isDefined() else None

    def field(self, obj: Any, name: str) -> Any:
        """Return the value of a private field of the object's class or a superclass."""
        fields = getattr(self.root, "org.apache.commons.lang3.reflect.FieldUtils")
        return fields.readField(obj, name, True)  # noqa: FBT003

    def has_field(self, obj: Any, name: str) -> bool:
        """Return whether the object's class or a superclass has this field."""
        fields = getattr(self.root, "org.apache.commons.lang3.reflect.FieldUtils")
        return fields.getField(obj.getClass(), name, True) is not None  # noqa: FBT003

    def call(self, obj: Any, name: str) -> Any:
        """Call a method without arguments, even if it or its class is not public."""
        methods = getattr(self.root, "org.apache.commons.lang3.reflect.MethodUtils")
        return methods.invokeMethod(obj, True, name)  # noqa: FBT003

    def member(self, obj: Any, *names: str) -> Any:
        """Return the first private field that the object has, or what such a method returns.

        Raises:
            Py4JError: it has none of them.
        """
        for name in names:
            if self.has_field(obj, name):
                return self.field(obj, name)
        for name in names[:-1]:
            try:
                return self.call(obj, name)
            except JVM_ERRORS:
                continue
        return self.call(obj, names[-1])


def conf_values(
    root: Any, java_session: Any, required: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, str | None]:
    """Return settings of a JVM session, in one call.

    Args:
        required: settings that are set or have a default.
        optional: settings that may have none; None if they are not set.
    """

    def asked(_: Any, session: Any) -> tuple[Any, ...]:
        conf = session.conf()
        return *map(conf.get, required), *(conf.get(name, None) for name in optional)

    values = in_one_call(root, asked, java_session)
    return dict(zip((*required, *optional), values, strict=True))


def printed(entries: Any) -> Any:
    """Return the text of a Scala collection of entries, for `entries`. Many KB take 40 ms."""
    return entries.mkString(_SEPARATOR)


def entries(printed: str, arrow: str) -> dict[str, str]:
    """Return the entries that were printed.

    Args:
        arrow: what stands between key and value: " -> " in Scala's maps, "=" in Java's.
    """
    return dict(entry.split(arrow, 1) for entry in printed.split(_SEPARATOR) if arrow in entry)


def query_execution(df: DataFrame) -> Any:
    """Return the DataFrame's QueryExecution."""
    return cast("Any", df)._jdf.queryExecution()  # noqa: SLF001


def fresh_execution(jvm: Any, frame: Any) -> Any:
    """Return what `Jvm.fresh_execution` returns, of the JVM's DataFrame."""
    return frame_of(jvm, frame.sparkSession(), plan_of(frame)).queryExecution()


def frame_of(jvm: Any, java_session: Any, plan: Any) -> Any:
    """Return the JVM's DataFrame of a logical plan; a command runs."""
    return sql_class(jvm, "Dataset").ofRows(java_session, plan)


def plan_of(frame: Any) -> Any:
    """Return what `analyzed_plan` returns, of the JVM's DataFrame."""
    return frame.queryExecution().commandExecuted()


def analyzed_plan(df: DataFrame) -> Any:
    """Return the DataFrame's analyzed plan, with the result of a command in the command's place.

    Spark has run a command (INSERT, SHOW TABLES, …) once when it made the DataFrame. A plan that
    still held the command would run it again, even if it is only planned.
    """
    return plan_of(cast("Any", df)._jdf)  # noqa: SLF001


def attributes_of(root: Any, df: DataFrame) -> Any:
    """Return the columns of a DataFrame as an AttributeSeq, which finds them by their ids."""
    sequence = getattr(root, "org.apache.spark.sql.catalyst.expressions.package$AttributeSeq")
    return sequence(analyzed_plan(df).output())


def java_session(df: DataFrame) -> Any:
    """Return the JVM session of the DataFrame, which may be a planning session."""
    return cast("Any", df)._jdf.sparkSession()  # noqa: SLF001


def to_seq(root: Any, values: Sequence[Any]) -> Any:
    """Return a Scala Seq, in one call per value. `root` comes from `classes_of`."""
    found = module(root, "scala.collection.immutable.Nil")
    for value in reversed(values):
        found = getattr(found, "$colon$colon")(value)
    return found


def module(root: Any, name: str) -> Any:
    """Return a Scala `object` by its class name."""
    return getattr(getattr(root, f"{name}$"), "MODULE$")


def set_field(root: Any, jvm_object: Any, name: str, value: Any, *, of: str = "") -> None:
    """Set a field of a JVM object, even if it is final. `root` is a session's `_jvm`.

    Args:
        of: the class that declares the field, if not the object's own class.
    """
    declaring = getattr(root, "java.lang.Class").forName(of) if of else jvm_object.getClass()
    field = declaring.getDeclaredField(name)
    field.setAccessible(True)
    field.set(jvm_object, value)


def items(seq: Any) -> list[Any]:
    """Return a Scala Seq as a list; one that was not seen costs one call per element."""
    seen = seq.seen_elements() if isinstance(seq, Seen) else None
    return list(seen) if seen is not None else [seq.apply(i) for i in range(seq.size())]


def elements(collection: Any) -> list[Any]:
    """Return the elements of a Scala collection of any kind; of a map, its pairs."""
    seen = collection.seen_elements() if isinstance(collection, Seen) else None
    return list(seen) if seen is not None else items(collection.iterator().toSeq())


def class_name(obj: Any) -> str:
    """Return the full class name of a JVM object."""
    return obj.seen_class.name if isinstance(obj, Seen) else str(obj.getClass().getName())


def column_names(plan: Any) -> list[str]:
    """Return the names of a plan's columns."""
    if isinstance(plan, Seen) and plan.seen_answers(COLUMN_NAMES):
        return list(plan.seen_answer(COLUMN_NAMES))
    return [str(name) for name in plan.schema().fieldNames()]


def every(node: Any) -> Iterator[Any]:
    """Yield a plan node or an expression, then all nodes below it. Subqueries are not below."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(items(node.children()))


def every_with_subqueries(plan: Any) -> Iterator[Any]:
    """Yield the operators of a logical plan, and those of the subqueries in their expressions."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed([*items(node.children()), *items(node.subqueries())])


def simple_name(class_name: str) -> str:
    """Return a class name without package, outer classes and the `$` of a Scala object."""
    return class_name.rpartition(".")[2].removesuffix("$").rpartition("$")[2]
