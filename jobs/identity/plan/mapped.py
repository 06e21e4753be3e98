"""Asks all elements of a Scala list, or all nodes of a tree, in a few calls.

A call over py4j asks one object one thing. Scala's own `map` asks all elements in one call, but it
takes a Scala function. The functions here are made of handles of methods that the JVM has, by
`java.lang.invoke.MethodHandleProxies`: nothing is compiled or sent to it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from durable_shuffle.jobs.spark_versions import mapping_arguments, sequence_name, sized_name

_SEPARATOR = "\n\x02\n"
_TREE = "org.apache.spark.sql.catalyst.trees.TreeNode"
_PLAN = "org.apache.spark.sql.execution.SparkPlan"
EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
ATTRIBUTE = EXPRESSIONS + "AttributeReference"
LITERAL = EXPRESSIONS + "Literal"

NULL = "null"
"""Stands for the class of null."""


class Literal(NamedTuple):
    """What a literal prints."""

    value_class: str
    value: str
    data_type: str


class Tree:
    """A node of a tree, or an element of a list. Its object is fetched when it is needed."""

    __slots__ = ("_index", "_nodes", "_object", "children", "literal", "name", "number", "text")

    def __init__(self, nodes: Any, index: int, name: str, number: str = "") -> None:
        self._nodes, self._index, self._object = nodes, index, None
        self.name = name
        """Full name of the class."""
        self.children: list[Tree] = []
        """Empty for a leaf, and where only the elements of a list were asked for."""
        self.number = int(number or -1)
        """What `Mapped.tree` was asked to number nodes by."""
        self.text = ""
        """Of an attribute: what Scala prints, name and id."""
        self.literal: Literal | None = None
        """Of one of several literals."""

    @classmethod
    def of(cls, obj: Any, name: str, number: int, children: list["Tree"]) -> "Tree":
        """Return a node whose object is there."""
        node = cls(None, 0, name, str(number))
        node._object, node.children = obj, children
        return node

    def every(self) -> Iterator["Tree"]:
        """Yield this node, then the nodes below it, each before its children."""
        yield self
        for child in self.children:
            yield from child.every()

    @property
    def object(self) -> Any:
        """The object in the JVM."""
        if self._object is None:
            self._object = self._nodes.apply(self._index)
        return self._object


class Mapped:
    """The functions of one JVM. `root` is a session's `_jvm`."""

    def __init__(self, root: Any) -> None:
        handles = getattr(root, "java.lang.invoke.MethodHandles")
        kind = getattr(root, "java.lang.invoke.MethodType").methodType
        proxies = getattr(root, "java.lang.invoke.MethodHandleProxies")
        of = getattr(root, "java.lang.Class").forName
        found = handles.publicLookup()
        function, thing, text = (
            of("scala.Function1"),
            of("java.lang.Object"),
            of("java.lang.String"),
        )
        whole = getattr(root, "java.lang.Integer").TYPE

        def made(handle: Any) -> Any:
            return proxies.asInterfaceInstance(function, handle)

        def method(owner: str, name: str, result: Any) -> Any:
            return found.findVirtual(of(owner), name, kind(result))

        def filled(handle: Any, value: Any) -> Any:
            """Return a handle whose second argument has a value."""
            values = getattr(root, "java.util.Collections").singletonList(value).toArray()
            return handles.insertArguments(handle, 1, values)

        classes, lists = of("org.apache.commons.lang3.ClassUtils"), of(sequence_name(root))
        two = kind(text, thing).appendParameterTypes(
            getattr(root, "java.util.Collections").singletonList(text)
        )
        names = filled(found.findStatic(classes, "getName", two), NULL)
        numbers = found.findStatic(of("java.lang.System"), "identityHashCode", kind(whole, thing))
        is_a = found.findVirtual(
            of("java.lang.Class"),
            "isInstance",
            kind(getattr(root, "java.lang.Boolean").TYPE, thing),
        )
        self._name, self.identity = made(names), made(numbers)
        """`identity` numbers nodes by their identity hash."""
        self.plan_id = made(method(_PLAN, "id", whole))
        """Numbers the operators of a physical plan by Spark's ids."""
        self._same = made(handles.identity(thing))
        self._mapping = mapping_arguments(root)
        self._children = made(method(_TREE, "children", lists))
        self._subqueries = made(
            method("org.apache.spark.sql.catalyst.plans.QueryPlan", "subqueries", lists)
        )
        self._size = made(method(sized_name(root), "size", whole))
        self._text = made(method("java.lang.Object", "toString", text))
        self._is_attribute = made(is_a.bindTo(of(ATTRIBUTE)))
        self._is_literal = made(is_a.bindTo(of(LITERAL)))
        value = found.findVirtual(of(LITERAL), "value", kind(thing))
        data_type = found.findVirtual(
            of(LITERAL), "dataType", kind(of("org.apache.spark.sql.types.DataType"))
        ).asType(value.type())
        texts = found.findStatic(text, "valueOf", kind(text, thing))
        self._of_literals = [
            made(handles.filterReturnValue(*both))
            for both in ((value, names), (value, texts), (data_type, texts))
        ]
        mapping = found.findVirtual(of(_TREE), "map", kind(lists, function))
        self._nodes = made(filled(mapping, self._same))

    def elements(self, seq: Any) -> list[Tree]:
        """Return the elements of a list, in 2 calls."""
        return [Tree(seq, i, name) for i, name in enumerate(self._asked(seq, self._name))]

    def tree(self, root: Any, number: Any = None) -> Tree:
        """Return a tree of plan nodes or expressions, in 5 calls.

        Args:
            number: `identity` or `plan_id`; two more calls.
        """
        (found,) = self._read(root.map(self._same), number)
        return found

    def subqueries(self, plan: Any) -> list[int]:
        """Return how many subqueries the expressions of each operator hold, in 3 calls.

        The operators come in the order of `names`: each one before its children.
        """
        return [int(size) for size in self._asked(plan.map(self._subqueries), self._size)]

    def texts(self, seq: Any) -> list[str]:
        """Return what each element prints, in 2 calls; of other length if a text has separators."""
        return self._asked(seq, self._text)

    def names(self, root: Any) -> list[str]:
        """Return the class names of all nodes of a tree, in 2 calls."""
        return self._printed(root.map(self._name))

    def trees(self, seq: Any) -> list[Tree]:
        """Return a list of expressions as trees, in 5 calls; 3 more for the texts of attributes, 7
        for those of literals, if there are several."""
        nodes = seq.flatMap(self._nodes, *self._mapping)
        return self._read(nodes, None, expressions=True)

    def _read(self, nodes: Any, number: Any, *, expressions: bool = False) -> list[Tree]:
        names = self._asked(nodes, self._name)
        sizes = map(int, self._asked(nodes.map(self._children, *self._mapping), self._size))
        numbers = [""] * len(names) if number is None else self._asked(nodes, number)
        every = [Tree(nodes, i, *of) for i, of in enumerate(zip(names, numbers, strict=True))]
        if expressions:
            self._read_texts(nodes, every)
        tops: list[Tree] = []
        for node, size in zip(reversed(every), reversed(list(sizes)), strict=True):
            node.children = [tops.pop() for _ in range(size)]
            tops.append(node)
        return tops[::-1]

    def _read_texts(self, nodes: Any, every: list[Tree]) -> None:
        """Ask attributes and literals for their texts; drop them if one holds the separator."""
        named = [node for node in every if node.name == ATTRIBUTE]
        if named:
            texts = self._asked(nodes.filter(self._is_attribute), self._text)
            if len(texts) == len(named):
                for node, text in zip(named, texts, strict=True):
                    node.text = text
        literals = [node for node in every if node.name == LITERAL]
        if len(literals) > 1:
            found = nodes.filter(self._is_literal)
            answers = [self._asked(found, function) for function in self._of_literals]
            if all(len(answer) == len(literals) for answer in answers):
                for node, *of in zip(literals, *answers, strict=True):
                    node.literal = Literal(*of)

    def _asked(self, seq: Any, function: Any) -> list[str]:
        """Return what a function gives for each element of a list, as text."""
        return self._printed(seq.map(function, *self._mapping))

    @staticmethod
    def _printed(found: Any) -> list[str]:
        printed = str(found.mkString(_SEPARATOR, _SEPARATOR, ""))
        return printed.split(_SEPARATOR)[1:] if printed != _SEPARATOR else []
