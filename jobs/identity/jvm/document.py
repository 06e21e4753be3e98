"""Reads a whole plan in two calls: `plan.java` writes it as one document, inside the JVM.

A call over py4j asks one object one thing. `document` asks for everything below an object at
once, and returns it as a `Seen`: what the document says is answered from it, and anything else is
asked in the JVM as before. So code that reads plans does not know whether an object was seen.

The document says of each object its class, its elements (of lists, options, arrays and Spark's case
classes), and what the methods in `_DEEP` return. Objects of other kinds are in it by number.
"""

import base64
import json
import threading
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

from py4j.java_gateway import JavaObject

from durable_shuffle.jobs.in_one_call import (
    compiled_in_driver,
    in_one_call,
    object_of,
    runner_of,
)

EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
LOGICAL = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"
PHYSICAL = "org.apache.spark.sql.execution.SparkPlan"
TREE = "org.apache.spark.sql.catalyst.trees.TreeNode"
EXCHANGE = "org.apache.spark.sql.execution.exchange.Exchange"
CODEGEN_INPUT = "org.apache.spark.sql.execution.InputRDDCodegen"
ARRAY_DATA = "org.apache.spark.sql.catalyst.util.ArrayData"
MAP_DATA = "org.apache.spark.sql.catalyst.util.MapData"
ROW = "org.apache.spark.sql.catalyst.InternalRow"
COLUMN_NAMES = "schema.fieldNames"

KINDS = (
    TREE,
    "org.apache.spark.sql.types.DataType",
    "scala.Option",
    "scala.collection.Map",
    "scala.collection.Set",
    "scala.collection.Seq",
    "scala.Enumeration$Value",
    "java.lang.Enum",
    "java.lang.Class",
    "org.apache.spark.sql.types.Metadata",
    "org.apache.spark.QueryContext",
    "scala.reflect.ClassTag",
    "org.apache.spark.sql.connector.expressions.Expression",
    "scala.Product",
    LOGICAL,
    PHYSICAL,
    EXCHANGE,
    CODEGEN_INPUT,
    ARRAY_DATA,
    MAP_DATA,
    ROW,
)
"""Classes of which a document says which of its objects belong to them."""
_EXECUTION = "org.apache.spark.sql.execution."
_LEAF = "org.apache.spark.sql.catalyst.plans.logical.LeafNode"
_PARTITIONING = "org.apache.spark.sql.catalyst.plans.physical.Partitioning"
_SHALLOW = ((TREE, "children"), ("org.apache.spark.sql.catalyst.plans.QueryPlan", "subqueries"))
_DEEP = (
    *_SHALLOW,
    (TREE, "otherCopyArgs"),
    (LOGICAL, COLUMN_NAMES),
    (_LEAF, "output"),
    (_LEAF, "schema"),
    (PHYSICAL, "id"),
    ("org.apache.spark.rdd.RDD", "id"),
    (PHYSICAL, "output"),
    (PHYSICAL, "schema"),
    (EXCHANGE, "outputPartitioning"),
    (_EXECUTION + "exchange.ReusedExchangeExec", "outputPartitioning"),
    (_EXECUTION + "UnionExec", "outputPartitioning"),
    (_EXECUTION + "exchange.ShuffleExchangeLike", "shuffleOrigin"),
    (_EXECUTION + "exchange.ShuffleOrigin", "toString"),
    (_EXECUTION + "joins.HashJoin", "buildSide"),
    (_EXECUTION + "joins.BroadcastNestedLoopJoinExec", "buildSide"),
    ("org.apache.spark.sql.catalyst.optimizer.BuildSide", "toString"),
    (_PARTITIONING, "numPartitions"),
    (_EXECUTION + "datasources.HadoopFsRelation", "sparkSession"),
    (EXPRESSIONS + "NamedExpression", "name"),
    (EXPRESSIONS + "NamedExpression", "exprId"),
    (EXPRESSIONS + "AttributeReference", "dataType"),
    (EXPRESSIONS + "Literal", "dataType"),
    (EXPRESSIONS + "Literal", "value"),
    (EXPRESSIONS + "ExprId", "id"),
    ("org.apache.spark.sql.types.DataType", "json"),
    ("org.apache.spark.sql.types.DataType", "sql"),
    ("org.apache.spark.sql.types.StructType", "fieldNames"),
    ("org.apache.spark.sql.types.Decimal", "toString"),
    ("org.apache.spark.sql.connector.expressions.Expression", "toString"),
    ("org.apache.spark.unsafe.types.CalendarInterval", "toString"),
    ("scala.Enumeration$Value", "toString"),
    ("scala.reflect.ClassTag", "toString"),
    ("org.apache.spark.unsafe.types.UTF8String", "getBytes"),
)
"""Classes and methods without arguments that change nothing; a document says what they return."""
_WITHIN = ("org.apache.spark.sql.catalyst.", _EXECUTION, "scala.Tuple")
"""Packages of the case classes whose arguments are in a document."""
_APART = ("InternalRow", "util.ArrayData", "util.MapData")
"""Lists of these, which may be long, are not in a document."""


def _asking(members: Iterable[tuple[str, str]], *more: str) -> str:
    lines = [f"kind {name}" for name in KINDS]
    return "\n".join([*lines, *(f"member {of} {name}" for of, name in members), *more])


_INSIDE = [
    *(f"within {name}" for name in _WITHIN),
    *(f"apart org.apache.spark.sql.catalyst.{name}" for name in _APART),
]
TREE_ALONE = _asking((*_SHALLOW, (LOGICAL, "isStreaming")))
"""Asks for the operators of a plan, or the nodes of an expression."""
LEAVES = _asking(_SHALLOW, f"within {_EXECUTION}datasources.")
"""Asks for the same, and which relations the leaves read."""
SPLITS = _asking(
    (
        *_SHALLOW,
        (EXCHANGE, "outputPartitioning"),
        (_EXECUTION + "exchange.ReusedExchangeExec", "outputPartitioning"),
        (_PARTITIONING, "numPartitions"),
    )
)
"""Asks for the operators of a physical plan, and how its exchanges place rows."""
EVERYTHING = _asking(_DEEP, *_INSIDE)
OPERATORS = _asking((*_DEEP, (PHYSICAL, "logicalLink")), *_INSIDE, f"closed {LOGICAL}")
"""Asks for a physical plan, all its expressions, and the logical operator that each operator was
planned for, but for nothing below that."""
_compiling = threading.Lock()
_OPENED = "a case class of which the document has the arguments"
_BEFORE_MEMBERS = 3
"""A node is a list: number of its class, identity hash, elements, then what its methods return."""


def compile_ahead(root: Any) -> None:
    """Start to compile what writes documents; in a cold JVM it takes some tenths of a second."""
    name = "durable-shuffle-plans"
    threading.Thread(target=writer, args=(root,), name=name, daemon=True).start()


def writer(root: Any) -> Any | None:
    """Return the JVM's object that writes documents. It is compiled once per JVM.

    Args:
        root: from `classes_of`.

    Returns:
        None if this JVM has no compiler, or the source does not compile there.
    """
    with _compiling:
        return _compiled(root)


@lru_cache(maxsize=4)
def _compiled(root: Any) -> Any | None:
    if runner_of(root) is None:
        return None
    package = "durable_shuffle.jobs.identity.jvm"
    return compiled_in_driver(root, package, "plan.java", "PlanDocument")


def document(root: Any, work: Callable[..., Any], *objects: Any, asked: str) -> Any:
    """Return the object that a function of `in_one_call` returns, and what is below it, as seen.

    It is the object itself, to be asked call by call, where the JVM has no `writer`.

    Args:
        root: from `classes_of`.
        work: see `in_one_call`, as for `objects`.
        asked: `EVERYTHING`, `OPERATORS`, `TREE_ALONE` or `LEAVES`.

    Raises:
        Py4JError: a method in the document failed for this object.
    """
    write = writer(root)
    if write is None:
        found = in_one_call(root, work, *objects)
        return object_of(found)

    def written(jvm: Any, writer: Any, *objects: Any) -> tuple[Any, Any]:
        found = writer.apply(work(jvm, *objects), asked)
        text = found.get(0)
        found.set(0, None)  # only the objects are kept
        return text, found

    return Document(*in_one_call(root, written, write, *objects)).at(1)


class ClassSeen:
    """What a document says of one class."""

    __slots__ = ("fields", "jar", "kinds", "members", "name")

    def __init__(
        self, name: str, kinds: list[int], jar: str, members: list[str], fields: list[str] | None
    ) -> None:
        self.name = name
        self.kinds = {KINDS[i] for i in kinds} | ({_OPENED} if fields is not None else set())
        """Those of `KINDS` that it belongs to, and `_OPENED`."""
        self.jar = jar
        """Path of the jar, "" if the class is from none."""
        self.fields = None if fields is None else tuple(fields)
        """Names of the constructor arguments; None if these are not in the document, () where
        Scala 2.12 has no names."""
        self.members = {member: _BEFORE_MEMBERS + i for i, member in enumerate(members)}


class Document:
    """One document. The objects in it stay in the JVM as long as it is held here."""

    __slots__ = ("_nodes", "_seen", "classes", "objects")

    def __init__(self, text: str, objects: Any) -> None:
        self.objects = objects
        found = json.loads(text)
        self._nodes = found["nodes"]
        self.classes = [ClassSeen(*of) for of in found["classes"]]
        self._seen: dict[int, Seen] = {}

    def at(self, number: int) -> "Seen":
        """Return the object of a number, from 1: the root."""
        if number not in self._seen:
            node = self._nodes[number - 1]
            self._seen[number] = Seen(self, number, self.classes[node[0]], node)
        return self._seen[number]

    def object(self, number: int) -> Any:
        """Return the object in the JVM."""
        return self.objects.get(number)

    def value(self, written: Any) -> Any:
        """Return a value as py4j would; of an array of objects, a list."""
        if isinstance(written, list):
            seen = self.at(written[0])
            is_array = seen.seen_class.name.startswith("[")
            elements = seen.seen_elements() if is_array else None
            return seen if elements is None else elements
        if isinstance(written, dict):
            ((kind, text),) = written.items()
            return _FORMS[kind](text)
        return written


_FORMS: dict[str, Callable[[str], Any]] = {
    "float": float,
    "decimal": Decimal,
    "bytes": base64.b64decode,
}


class Seen:
    """An object of the JVM that stands in a document. Use it like py4j's."""

    __slots__ = ("_document", "_elements", "_node", "_number", "_object", "seen_class")

    def __init__(self, document: Document, number: int, of: ClassSeen, node: list[Any]) -> None:
        self._document, self._number, self._node = document, number, node
        self._elements: list[Any] | None = None
        self._object: Any = None
        self.seen_class = of

    @property
    def seen_hash(self) -> int:
        """The identity hash."""
        return int(self._node[1])

    def seen_elements(self) -> list[Any] | None:
        """Return the elements, None if the document does not have them."""
        written = self._node[2]
        if self._elements is None and written is not None:
            self._elements = list(map(self._document.value, written))
        return self._elements

    def seen_answers(self, method: str) -> bool:
        """Return whether the document has what a method returns."""
        at = self.seen_class.members.get(method)
        return at is not None and self._node[at] != []

    def seen_answer(self, method: str) -> Any:
        """Return what a method returns, which the document has."""
        return self._document.value(self._node[self.seen_class.members[method]])

    def _argument(self, place: int) -> Any:
        return self._document.value(self._node[2][place])

    @property
    def seen_place(self) -> tuple[Any, int]:
        """The list in the JVM that has the object, and its number there."""
        return self._document.objects, self._number

    @property
    def seen_object(self) -> Any:
        """The object in the JVM, as py4j's."""
        if self._object is None:
            self._object = self._document.object(self._number)
        return self._object

    def _get_object_id(self) -> str:
        """Return what py4j passes on as an argument."""
        return str(self.seen_object._get_object_id())  # noqa: SLF001

    def __getitem__(self, key: Any) -> Any:  # no __iter__: py4j would copy it as a list
        return self.seen_object[key]

    def __str__(self) -> str:
        return str(self.toString())

    def __getattr__(self, name: str) -> Any:
        """Return a method: from the document if that has the answer."""
        if self.seen_answers(name):
            return partial(self.seen_answer, name)
        fields = self.seen_class.fields or ()
        if name in fields and self._node[2] is not None:
            return partial(self._argument, fields.index(name))
        method = _OF_KINDS.get(name)
        if method is not None and method[0] in self.seen_class.kinds:
            elements = self.seen_elements()
            if elements is not None:
                return partial(method[1], elements)
        return getattr(self.seen_object, name)


_OF_KINDS: dict[str, tuple[str, Callable[..., Any]]] = {
    "apply": ("scala.collection.Seq", lambda elements, i: elements[i]),
    "size": ("scala.collection.Seq", len),
    "get": ("scala.Option", lambda elements: elements[0]),
    "isDefined": ("scala.Option", bool),
    "productElement": (_OPENED, lambda elements, i: elements[i]),
    "productArity": (_OPENED, len),
}
"""Methods that the elements answer, of the objects of a class."""


def is_object(value: Any) -> bool:
    """Return whether a value is an object of the JVM."""
    return isinstance(value, JavaObject | Seen)
