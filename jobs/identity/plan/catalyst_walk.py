"""Reads a Catalyst tree generically into tokens that are equal in every JVM run.

Strategy: plan nodes and expressions are Scala Products. So their class name and constructor
arguments describe them fully, even for operators that this code does not know. Expression ids are
numbered by first appearance. An object that is neither one of Spark's Products nor of a kind listed
here is unresolved, with its class name; no object is skipped silently. The printed form of a plan
is never used, because it cuts lists and names Python functions without their code.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from py4j.java_collections import JavaArray, JavaList

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.exclusions import names
from durable_shuffle.jobs.identity.jvm.calls import (
    JVM_ERRORS,
    Jvm,
    column_names,
    elements,
    items,
    simple_name,
)
from durable_shuffle.jobs.identity.jvm.document import (
    EXPRESSIONS,
    LOGICAL,
    Seen,
    is_object,
)
from durable_shuffle.jobs.identity.plan.blind import BLIND
from durable_shuffle.jobs.identity.plan.numbers import Numbers
from durable_shuffle.jobs.identity.plan.read_options import named_files
from durable_shuffle.jobs.identity.plan.values import literal, untyped
from durable_shuffle.shuffle.base.user_code import named_text_of

_LOG = logging.getLogger(__name__)

# Constructor arguments that never change rows. Range's numSlices is the core count unless the user
# gave one (`_slices`). Names of lambda variables carry a counter of the JVM.
DROPPED = {
    "Range": {"numSlices"},
    "CollectMetrics": {"name", "dataframeId"},
    "CTERelationRef": {"statsOpt"},
    "Generate": {"qualifier"},
    "SQLFunction": {"comment", "createTimeMs", "owner"},
    "NamedLambdaVariable": {"name", "value"},
    "MapInArrow": {"profile"},
    "MapInPandas": {"profile"},
    "PythonMapInArrow": {"profile"},
}
# These only name the plan below them; Spark removes them before it optimizes.
_ONLY_NAMES = frozenset({"SubqueryAlias", "View"})
# Arguments that are ids counted by the JVM; they are numbered like expression ids, per kind.
IDS = {
    "CTERelationDef": {"id": "cte"},
    "CTERelationRef": {"cteId": "cte"},
    "UnionLoop": {"id": "loop"},
    "UnionLoopRef": {"loopId": "loop"},
    "CommonExpressionId": {"id": "common"},  # the two uses of x in x BETWEEN a AND b
}
_KINDS = (  # the first match wins
    ("org.apache.spark.sql.catalyst.trees.TreeNode", "tree"),
    ("org.apache.spark.sql.types.DataType", "type"),
    ("scala.Option", "option"),
    ("scala.collection.Map", "map"),
    ("scala.collection.Set", "set"),
    ("scala.collection.Seq", "seq"),
    ("scala.Enumeration$Value", "enum"),
    ("java.lang.Enum", "enum"),
    ("java.lang.Class", "java class"),
    ("org.apache.spark.sql.types.Metadata", "nothing"),  # descriptions of columns
    ("org.apache.spark.QueryContext", "nothing"),  # where in the query's text
    ("scala.reflect.ClassTag", "text"),
    ("org.apache.spark.sql.connector.expressions.Expression", "text"),  # pushed to a source
    ("scala.Product", "product"),
)
_VALUE_TEXTS = frozenset(
    {
        *("java.sql.Date", "java.sql.Timestamp", "java.math.BigDecimal"),
        *("java.time.LocalDate", "java.time.LocalDateTime", "java.time.Instant"),
        *("java.time.Duration", "java.time.Period", "java.time.LocalTime"),
        "org.apache.spark.sql.types.Decimal",
        "org.apache.spark.unsafe.types.CalendarInterval",
        "java.math.BigInteger",
        "java.util.Locale",
        "java.util.UUID",
    }
)
_MADE_BY_SPARK = re.compile(r"#\d+|_(?:common_expr|gen_alias)_\d+|_pyspark_[0-9a-f]{32}")
"""What names may hold that Spark makes from expressions, from a counter of the JVM, or at random
(for frames in `sql("... {df}", df=df)`). A user may write such a name, too."""
_ASSEMBLER = "org.apache.spark.ml.feature.VectorAssembler"
_UID = re.compile(r"(?<=_VectorAssembler_)[0-9a-f]{12}(?='$)")
"""How Spark ends the names of fields that it passes to the function of a VectorAssembler. The
function reads fields by place."""
_BLIND = names(BLIND)
_SAFE_CLASSES = ("org.apache.spark.", "scala.")

Handler = Callable[[Any, str], None]
VOUCH = "give version= to vouch for it"


class CatalystWalk:
    """One walk. `handlers` maps simple class names to functions that handle these objects."""

    def __init__(self, jvm: Jvm) -> None:
        self.jvm = jvm
        self.tokens: list[str] = []
        self.unresolved: list[str] = []
        """Sentences: what cannot be recognised in another run, and what helps."""
        self.classes: set[str] = set()
        """Simple class names of the tree nodes visited."""
        self.opaque: list[str] = []
        """What distinguishes unresolved inputs with equal tokens, within this session."""
        self.handlers: dict[str, Handler] = {}
        self.numbers = Numbers()
        self._assembles = False
        """The last function of the JVM is that of a VectorAssembler; its input comes next."""
        self._fields: dict[str, list[tuple[int, str]]] = {}
        """Class name -> places and names of the constructor arguments that this walk visits."""

    def digest(self) -> str:
        """Return the digest of the tokens so far, 32 hex digits."""
        return hex_digest(self.tokens)

    def visit(self, value: Any) -> None:
        """Append the tokens of a value."""
        if is_object(value):
            self._object(value)
        elif isinstance(value, list):
            self._many("array", value)
        elif value is None or isinstance(value, bool | int | float | str | bytes | Decimal):
            self.tokens.append(f"{type(value).__name__} {value!r}")
        else:
            self.give_up(f"a value of type {type(value).__name__} in the plan")

    def give_up(self, what: str, opaque: str | None = None, *, mend: str = VOUCH) -> None:
        """Record why the plan cannot be recognised in another run.

        Args:
            what: names the input as its user knows it.
            opaque: distinguishes the input from others of this session with equal tokens.
            mend: what the user can do.
        """
        self.tokens.append(f"unresolved {what}")
        self.unresolved.append(f"{what} cannot be recognised in another run: {mend}")
        if opaque is not None:
            self.opaque.append(opaque)

    def give_up_on(self, what: str, obj: Any, *, mend: str = VOUCH) -> None:
        """Like `give_up`, for a JVM object of which only the class is known."""
        self.origin(obj)
        number = self.jvm.identity_hash(obj)
        self.give_up(what, f"{self.jvm.class_name(obj)} {number}", mend=mend)

    def handle(self, simple: str, obj: Any, name: str) -> None:
        """Call the handler of a class. An object that it cannot read is given up.

        Tables of other projects bring objects of their own into Spark's leaves.
        """
        try:
            self.handlers[simple](obj, name)
        except JVM_ERRORS as error:
            _LOG.debug("%s is not recognised: %s", name, named_text_of(error))
            self.give_up_on(f"a {simple} that cannot be read", obj)

    def origin(self, obj: Any, name: str = "") -> None:
        """Append the jar of an object's class, unless it is one of Spark's own jars.

        Args:
            name: of the class, if it is known.
        """
        jar = self.jvm.foreign_jar(obj, name)
        if jar:
            self.tokens.append(f"jar {jar}")

    def name(self, name: str) -> str:
        """Return a column's name; "" if Spark may have made it, since it differs in every JVM.

        Outside of the operators of `BLIND`, names count as they are (`_seen_names`).
        """
        return "" if _MADE_BY_SPARK.search(name) else repr(name)

    def _seen_names(self, node: Any, name: str) -> None:
        """Append the names of an operator's columns, unless no row depends on them."""
        if not self.jvm.is_a(node, LOGICAL) or simple_name(name) in _BLIND:
            return
        for one in (node, *items(node.children())):
            self.tokens.append(f"names {column_names(one)!r}")

    def same_columns(self, some: Sequence[Any], others: Sequence[Any]) -> None:
        """Number each column of one list as the column at its place in the other list.

        If both have numbers already, the tokens say that they are the same.
        """
        for one, other in zip(some, others, strict=True):
            keys = [("expr", int(column.exprId().id())) for column in (one, other)]
            differ = self.numbers.same(keys[0], keys[1])
            if differ:
                self.tokens.append(f"column {differ[0]} is column {differ[1]}")

    def id_token(self, space: str, number: int) -> None:
        """Append an id, numbered by first appearance within its space."""
        self.tokens.append(f"{space} {self.numbers.of((space, number))}")

    def _object(self, obj: Any) -> None:
        name = self.jvm.class_name(obj)
        if isinstance(obj, Seen) and not name.startswith(_SAFE_CLASSES):
            obj = obj.seen_object  # an array, a list, or what is only named
        if isinstance(obj, JavaArray | JavaList):
            self._many("array", list(obj))
        else:
            self._named(obj, name)

    def _named(self, obj: Any, name: str) -> None:
        """Append the tokens of an object of a class."""
        simple = simple_name(name)
        if simple in self.handlers and name.startswith("org.apache.spark."):
            self.classes.add(simple)
            self.origin(obj, name)
            self.handle(simple, obj, name)
            return
        if simple in _ONLY_NAMES:
            self.visit(obj.child())
        elif simple == "AttributeReference":
            self._attribute(obj)
        elif name == "org.apache.spark.sql.catalyst.expressions.ExprId":
            self.id_token("expr", obj.id())
        elif name == "org.apache.spark.sql.catalyst.expressions.Literal":
            literal(self, obj)
        elif name == "org.apache.spark.sql.catalyst.expressions.Alias":
            self.tokens.append(f"alias {self.name(obj.name())}")
            self.visit(obj.child())
            self.visit(obj.exprId())
        elif name.endswith("$") and name.startswith(_SAFE_CLASSES):
            self.classes.add(simple)
            self.tokens.append(name)  # a Scala object: there is only one
            self.origin(obj, name)
        else:
            self._by_kind(obj, name, simple)

    def _by_kind(self, obj: Any, name: str, simple: str) -> None:
        known = self.jvm.known(name)
        if known.kind is None:
            kinds = (tag for full, tag in _KINDS if self.jvm.is_a(obj, full))
            known.kind = next(kinds, "unknown")
        kind = known.kind
        if kind == "type":
            self.data_type(obj)
        elif kind == "option":
            self._many("some", [obj.get()])
        elif kind == "map":
            pairs = elements(obj)
            self.unordered("map", pairs)
            for what in named_files([str(pair.productElement(0)) for pair in pairs]):
                self.give_up(what)
        elif kind == "set":
            self.unordered("set", elements(obj))
        elif kind == "seq":
            self._many("seq", items(obj))
        elif kind == "enum":
            self.tokens.append(f"{name} {obj.toString()}")
        elif kind == "java class":
            self.tokens.append(f"class {obj.getName()}")
        elif kind in ("tree", "product") and name.startswith(_SAFE_CLASSES):
            self.origin(obj, name)
            self._product(obj, name, simple, is_tree=kind == "tree")
        elif kind == "text" or name in _VALUE_TEXTS:
            self.tokens.append(f"{name} {obj.toString()}")
        elif "Lambda" in name:
            self._lambda(obj)
        elif kind != "nothing" and not untyped(self, obj, name):
            self.give_up_on(f"an object of class {name}", obj)

    def _lambda(self, obj: Any) -> None:
        """Append a JVM function: code name and captured values. Only Spark's own are resolved."""
        proxy = self.jvm.lambda_proxy(obj)
        if proxy is None:
            self.give_up_on("a JVM function", obj)
            return
        where = str(proxy.getImplClass()).replace("/", ".")
        self.tokens.append(f"function {where} {proxy.getImplMethodName()}")
        self._assembles = where == _ASSEMBLER
        if not where.startswith(_SAFE_CLASSES):
            self.give_up_on(f"a JVM function of {where}", obj)
            return
        self.origin(obj)
        count = int(proxy.getCapturedArgCount())
        self._many("captured", [proxy.getCapturedArg(i) for i in range(count)])

    def _product(self, obj: Any, name: str, simple: str, *, is_tree: bool) -> None:
        known = self.jvm.known(name)
        if name not in self._fields:
            dropped = DROPPED.get(simple, ())
            self._fields[name] = [
                field
                for field in enumerate(self.jvm.fields(obj, name))
                if field[1] not in dropped and not self.skips(obj, *field)
            ]
        fields = self._fields[name]
        self.tokens.append(f"{name} {len(fields)}")
        if is_tree:
            self.classes.add(simple)
            if not name.startswith(EXPRESSIONS):
                self._seen_names(obj, name)
        if simple == "Range":
            self._slices(obj)
        elif simple == "CallMethodViaReflection":
            self.give_up("what reflect() calls")
        elif simple == "CreateNamedStruct" and self._assembles:
            self._assembled(items(obj.productElement(0)))
            return
        ids = IDS.get(simple, {})
        for i, field in fields:
            if field in ids:
                self.id_token(ids[field], obj.productElement(i))
            else:
                self.visit(obj.productElement(i))
        if simple == "ScalaUDF":
            self._assembles = False  # what comes now is not its input
        if is_tree and known.curried:
            more = obj.otherCopyArgs()  # arguments of a second parameter list
            known.curried = more.size() > 0
            if known.curried:
                self.visit(more)

    def _assembled(self, names_and_values: Sequence[Any]) -> None:
        """Append the input of a VectorAssembler, without the random id in the fields' names."""
        self._assembles = False  # a struct within a value has names of the user's
        for place, one in enumerate(names_and_values):
            self.visit(one)
            if place % 2 == 0:
                self.tokens[-1] = _UID.sub("", self.tokens[-1])

    def skips(self, obj: Any, place: int, field: str) -> bool:
        """Return whether the walk visits a constructor argument in another way."""
        del obj, place, field
        return False

    def _slices(self, node: Any) -> None:
        """Append a range's number of partitions, unless it is the default, which may change."""
        slices = node.numSlices()
        if slices.isDefined() and int(slices.get()) != self.jvm.context.defaultParallelism:
            self.tokens.append(f"slices {slices.get()}")

    def _many(self, tag: str, values: list[Any]) -> None:
        self.tokens.append(f"{tag} {len(values)}")
        for value in values:
            self.visit(value)

    def unordered(self, tag: str, values: list[Any]) -> None:
        """Append elements whose order has no meaning, sorted by their digests."""
        outer = self.tokens
        digests = []
        for value in values:
            self.tokens = []
            self.visit(value)
            digests.append(self.digest())
        self.tokens = outer
        self.tokens += [f"{tag} {len(values)}", *sorted(digests)]

    def columns(self, node: Any) -> None:
        """Append the output of a leaf, by the JSON of its schema."""
        output = node.output()
        try:
            fields = json.loads(str(node.schema().json()))["fields"]
        except JVM_ERRORS:  # a type without a JSON form
            self._many("columns", items(output))
            return
        numbers = [one.exprId().id() for one in items(output)]
        self.tokens.append(f"columns {len(fields)}")
        for field, number in zip(fields, map(int, numbers), strict=True):
            if ("expr", number) not in self.numbers:
                collation = field["metadata"].get("__COLLATIONS", {})
                self.tokens.append(f"column {self.name(field['name'])} {field['type']} {collation}")
            self.id_token("expr", number)

    def _attribute(self, obj: Any) -> None:
        """Append name, type and number at the first appearance, later only the number."""
        number = int(obj.exprId().id())
        if ("expr", number) not in self.numbers:
            self.tokens.append(f"attribute {self.name(obj.name())}")
            self.visit(obj.dataType())
        self.id_token("expr", number)

    def data_type(self, obj: Any) -> None:
        """Append the JSON and the SQL form of a type; only SQL shows a top-level collation."""
        try:
            self.tokens.append(f"type {obj.json()} {obj.sql()}")
        except JVM_ERRORS:
            self.give_up(f"the data type {obj.toString()}")
