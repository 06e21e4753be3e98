"""A walk that reads whole expressions at a time.

It appends the tokens that `CatalystWalk` appends, in fewer calls: the children of an expression are
known without asking it, and a column that has its number is not asked at all.
"""

import re
from collections.abc import Callable
from typing import Any

from durable_shuffle.jobs.identity.plan.catalyst_walk import DROPPED, ID_AT_END, IDS, CatalystWalk
from durable_shuffle.jobs.identity.plan.jvm import Jvm, simple_name
from durable_shuffle.jobs.identity.plan.mapped import ATTRIBUTE, EXPRESSIONS, LITERAL, NULL, Tree

_ALIAS = EXPRESSIONS + "Alias"
_TREES = frozenset({ATTRIBUTE, _ALIAS, LITERAL})
"""Expressions that the walk knows by name, so it does not ask of which kind they are."""
_CHILDREN: dict[str, tuple[str, ...]] = {
    "UnaryLike": ("child",),
    "BinaryLike": ("left", "right"),
}
"""Shape of a class -> constructor arguments that are the children, because they have the names of
the methods that return them."""
_FIRST_CHILD = {"AggregateExpression": "aggregateFunction", "SortOrder": "child"}
"""Constructor argument that is the first child of these classes of another shape."""
_FEW = 3
"""From so many elements on, asking all at once takes fewer calls."""
_SPECIAL = frozenset({*DROPPED, *IDS})
_DECIMAL = "org.apache.spark.sql.types.Decimal"
_TOKENS: dict[str, Callable[[str], str]] = {
    NULL: lambda _: "NoneType None",
    "java.lang.Integer": "int {}".format,
    "java.lang.Long": "int {}".format,
    "java.lang.Boolean": lambda text: f"bool {text == 'true'}",
    "org.apache.spark.unsafe.types.UTF8String": lambda text: f"bytes {text.encode()!r}",
    _DECIMAL: f"{_DECIMAL} {{}}".format,
}
"""Class of a literal's value -> the token of the value that prints so."""
_TYPES = re.compile(
    "(?:Integer|Long|Boolean|Date|Timestamp|TimestampNTZ|String)Type|DecimalType\\(\\d+,\\d+\\)"
)
"""Types that are equal if they print the same."""
_NOT_UTF8 = "\ufffd"


class TreeWalk(CatalystWalk):
    """One walk. Use it; `CatalystWalk` alone is what tests compare it with."""

    def __init__(self, jvm: Jvm) -> None:
        super().__init__(jvm)
        self._types: dict[str, list[str]] = {}
        """What the type of a literal prints -> its tokens."""

    def node(self, tree: Tree) -> None:
        """Append the tokens of a node: those of its object, in fewer calls."""
        simple = simple_name(tree.name)
        if tree.name == ATTRIBUTE and self._has_number(tree.text):
            return
        if tree.literal is not None and self._literal(*tree.literal, tree):
            return
        if simple in self.handlers or not tree.children:
            super().node(tree)
        elif tree.name == _ALIAS:
            self.tokens.append(f"alias {self.name(tree.object.name())}")
            self.node(tree.children[0])
            self.visit(tree.object.exprId())
        elif not self.jvm.is_own(tree.name):
            super().node(tree)
        elif simple == "CaseWhen":
            self._cases(tree)
        else:
            self._expression(tree, simple)

    def _literal(self, value_class: str, value: str, data_type: str, tree: Tree) -> bool:
        """Append a literal if its texts say all of it."""
        token = _TOKENS.get(value_class)
        if token is None or not _TYPES.fullmatch(data_type) or _NOT_UTF8 in value:
            return False
        self.tokens.append("literal")
        if data_type not in self._types:
            before = len(self.tokens)
            self.visit(tree.object.dataType())
            self._types[data_type] = self.tokens[before:]
        else:
            self.tokens += self._types[data_type]
        self.tokens.append(token(value))
        return True

    def _cases(self, tree: Tree) -> None:
        """Append a CASE: its children are conditions and values by turns, then the ELSE."""
        self.classes.add("CaseWhen")
        pairs = list(zip(tree.children[::2], tree.children[1::2], strict=False))
        self.tokens += [f"{tree.name} 2", f"seq {len(pairs)}"]
        for pair in pairs:
            self._many("scala.Tuple2", list(pair))
        if len(tree.children) % 2:
            self._many("some", tree.children[-1:])
        else:
            self.tokens.append("scala.None$")

    def _expression(self, tree: Tree, simple: str) -> None:
        known = self.jvm.known(tree.name)
        fields = known.fields or ()
        if known.kind == "tree" and not known.curried and simple not in _SPECIAL:
            shape = known.shape or self.jvm.shape(tree.object, tree.name)
            names = _CHILDREN.get(shape, (_FIRST_CHILD.get(simple, ""),))
            if set(names) <= set(fields):
                below = dict(zip(names, tree.children, strict=False))
                self.tokens.append(f"{tree.name} {len(fields)}")
                self.classes.add(simple)
                for i, field in enumerate(fields):
                    value = below[field] if field in below else tree.object.productElement(i)
                    self.visit(value)
                return
        self._named(tree.object, tree.name)

    def _has_number(self, text: str) -> bool:
        """Append the number of an attribute if it has one and its text shows its id."""
        at_end = ID_AT_END.search(text)
        if at_end is None or ("expr", int(at_end[1])) not in self.numbers:
            return False
        self.id_token("expr", int(at_end[1]))
        return True

    def elements_of(self, seq: Any) -> list[Tree]:
        """Return the elements of a list; expressions as whole trees."""
        mapped = self.jvm.mapped
        elements = mapped.elements(seq)
        if len(elements) < _FEW:
            return elements
        if all(element.name == ATTRIBUTE for element in elements):
            texts = mapped.texts(seq)
            if len(texts) == len(elements):
                for element, text in zip(elements, texts, strict=True):
                    element.text = text
        elif all(self._is_expression(element.name) for element in elements):
            return mapped.trees(seq)
        return elements

    def _is_expression(self, name: str) -> bool:
        known = name.startswith(EXPRESSIONS) and self.jvm.known(name).kind == "tree"
        return known or name in _TREES
