"""Little programs in pairs that differ in one thing a worker can see, for identity of functions.

A definition is a source text that makes `thing`, and an expression over `thing` that shows the
difference. `[[one|two]]` in either stands for the two variants. A program puts a few definitions
in one function `f`, each reached in some way; its pair differs in one of them.
"""

import random
import re
import textwrap
from dataclasses import dataclass

from observed_objects import OBJECTS

_CHOICE = re.compile(r"\[\[(.*?)\|(.*?)\]\]", re.DOTALL)

FUNCTIONS = {
    "name": ("def [[ratio|share]](a): return a\nthing = [[ratio|share]]", "thing.__name__"),
    "qualname": ("def thing(a): return a\nthing.__qualname__ = '[[a|b]]'", "thing.__qualname__"),
    "module": ("def thing(a): return a\nthing.__module__ = '[[a|b]]'", "thing.__module__"),
    "docstring": ("def thing(a): '[[French|German]]'", "thing.__doc__"),
    "docstring set": ("def thing(a): ''\nthing.__doc__ = '[[x|y]]'", "thing.__doc__"),
    "annotation": ("def thing(a: [[int|float]]): return a", "thing.__annotations__['a'](x)"),
    "return annotation": ("def thing(a) -> [[int|float]]: return a", "thing.__annotations__"),
    "text annotation": ("def thing(a: '[[A|B]]'): return a", "thing.__annotations__"),
    "order of annotations": (
        "def thing(a, b): return a\nthing.__annotations__ = [[dict(a=1, b=2)|dict(b=2, a=1)]]",
        "thing.__annotations__",
    ),
    "default": ("def thing(a=[[1|2]]): return a", "thing()"),
    "default's type": ("def thing(a=[[1|True]]): return a", "thing()"),
    "keyword default": ("def thing(*, a=[[1|2]]): return a", "thing()"),
    "order of keyword defaults": (
        "def thing(*, a, b): return a\nthing.__kwdefaults__ = [[dict(a=1, b=2)|dict(b=2, a=1)]]",
        "thing.__kwdefaults__",
    ),
    "attribute": ("def thing(a): return a\nthing.tag = [[1|2]]", "thing.tag"),
    "order of attributes": (
        "def thing(a): return a\nfor n in '[[ab|ba]]': setattr(thing, n, 1)",
        "list(vars(thing))",
    ),
    "wrapped": (
        "def inner(a): return a + [[1|2]]\ndef thing(a): return None\nthing.__wrapped__ = inner",
        "thing.__wrapped__(x)",
    ),
    "wraps a library function": (
        "import functools, json\nLIMIT = [[1|2]]\n@functools.wraps(json.dumps)\n"
        "def thing(a): return LIMIT",
        "thing(x)",
    ),
    "closure": ("def around(n): return lambda a: a + n\nthing = around([[1|2]])", "thing(x)"),
    "closure of a closure": (
        "def around(n):\n    def one(): return n\n    return lambda a: a + one()\n"
        "thing = around([[1|2]])",
        "thing(x)",
    ),
    "constant": ("def thing(a): return a + [[1|2]]", "thing(x)"),
    "negative zero": ("def thing(a): return [[0.0|-0.0]]", "thing(x)"),
    "constant of a lambda": ("def thing(a): return (lambda b: b + [[1|2]])(a)", "thing(x)"),
    "name of an argument": ("def thing([[a|b]]): return 1", "thing.__code__.co_varnames"),
    "name of a nested function": (
        "def thing(a):\n    def [[one|two]](): return 1\n    return [[one|two]]",
        "thing(x).__name__",
    ),
    "positional only": ("def thing(a[[|, /]]): return a", "thing.__code__.co_posonlyargcount"),
    "generator": ("def thing(a): return [[(1, 2)|iter([1, 2])]]", "type(thing(x)).__name__"),
    "global": ("G = {'k': [[1|2]]}\ndef thing(a): return G['k']", "thing(x)"),
    "global of a helper": (
        "G = [[1|2]]\ndef help(): return G\ndef thing(a): return help()",
        "thing(x)",
    ),
    "missing global": ("[[|G = 1]]\ndef thing(a): return G", "'G' in thing.__globals__"),
    "recursion": ("def thing(a): return [[1|2]] if a < 1 else thing(a - 1)", "thing(x)"),
    "local import": (
        "def thing(a):\n    import [[math|cmath]] as m\n    return m.sqrt(a)",
        "thing(x)",
    ),
    "partial": (
        "import functools\nthing = functools.partial(lambda a, b: a + b, b=[[1|2]])",
        "thing(x)",
    ),
    "attribute of a partial": (
        "import functools\nthing = functools.partial(max, 1)\nthing.tag = [[1|2]]",
        "thing.tag",
    ),
    "coroutine": (
        "[[async |]]def thing(a): return a",
        "thing.__code__.co_flags",
    ),
}
CLASSES = {
    "name": ("class [[A|B]]: pass\nthing = [[A|B]]", "thing.__name__"),
    "docstring": ("class thing: '[[French|German]]'", "thing.__doc__"),
    "module": ("class thing: __module__ = '[[a|b]]'", "thing.__module__"),
    "attribute": ("class thing: w = [[1|2]]", "thing.w"),
    "attribute set later": ("class thing: w = 1\nthing.w = [[3|2]]", "thing.w"),
    "annotation": ("class thing: a: [[int|float]]", "thing.__annotations__['a'](x)"),
    "order of annotations": (
        "class thing:\n    [[a|b]]: int\n    [[b|a]]: int",
        "list(thing.__annotations__)",
    ),
    "method": ("class thing:\n    def m(self): return [[1|2]]", "thing().m()"),
    "docstring of a method": ("class thing:\n    def m(self): '[[1|2]]'", "thing.m.__doc__"),
    "name of a method": (
        "class thing:\n    def [[m|n]](self): return 1\n    k = [[m|n]]",
        "thing.k.__name__",
    ),
    "static method": ("class thing:\n    @staticmethod\n    def m(): return [[1|2]]", "thing.m()"),
    "class method": (
        "class thing:\n    @classmethod\n    def m(cls): return [[1|2]]",
        "thing.m()",
    ),
    "kind of method": (
        "class thing:\n    @[[class|static]]method\n    def m(*a): return len(a)",
        "thing.m()",
    ),
    "property": ("class thing:\n    @property\n    def p(self): return [[1|2]]", "thing().p"),
    "docstring of a property": (
        "class thing:\n    p = property(lambda self: 1, doc='[[a|b]]')",
        "thing.p.__doc__",
    ),
    "setter": (
        "class thing:\n    p = property(lambda s: s.v, lambda s, v: setattr(s, 'v', v + [[1|2]]))",
        "[(k, setattr(k, 'p', 1), k.p)[2] for k in [thing()]]",
    ),
    "partial method": (
        "import functools\nclass thing:\n    def m(self, a): return a\n"
        "    n = functools.partialmethod(m, [[1|2]])",
        "thing().n()",
    ),
    "descriptor": (
        "class D:\n    def __init__(self, k): self.k = k\n"
        "    def __get__(self, o, t=None): return self.k\nclass thing: d = D([[1|2]])",
        "thing.d",
    ),
    "name given to a descriptor": (
        "class D:\n    def __set_name__(self, o, n): self.n = n\n"
        "class thing: [[a|b]] = D()\nthing.d = thing.[[a|b]]",
        "thing.d.n",
    ),
    "dunder": ("class thing:\n    def __len__(self): return [[1|2]]", "len(thing())"),
    "computed attributes": (
        "class thing:\n    T = {'a': [[1|2]]}\n    def __getattr__(self, n): return self.T[n]",
        "getattr(thing(), 'a')",
    ),
    "hash": ("class thing:\n    [[__hash__ = None|pass]]", "thing.__hash__ is None"),
    "slots": ("class thing: __slots__ = ([['a'|'a', 'b']],)", "thing.__slots__"),
    "order of bases": (
        "class A: w = 1\nclass B: w = 2\nclass thing([[A, B|B, A]]): pass",
        "thing.w",
    ),
    "base": ("class A: w = [[1|2]]\nclass thing(A): pass", "thing().w"),
    "library base": ("class thing([[int|float]]): pass", "thing(x).__mul__(2)"),
    "super": (
        "class A:\n    def m(self): return [[1|2]]\nclass thing(A):\n"
        "    def m(self): return super().m()",
        "thing().m()",
    ),
    "generic base": (
        "import typing\nT = typing.TypeVar('T')\nclass P(typing.Generic[T]): pass\n"
        "class thing(P[ [[int|float]] ]): pass",
        "thing.__orig_bases__[0].__args__",
    ),
    "type variable": (
        "import typing\nT = typing.TypeVar('T', bound=[[int|float]])\n"
        "class thing(typing.Generic[T]): pass",
        "thing.__parameters__[0].__bound__",
    ),
    "match arguments": (
        "class thing:\n    __match_args__ = ([['a', 'b'|'b', 'a']])\n"
        "    def __init__(self): self.a, self.b = 1, 2",
        "thing.__match_args__",
    ),
    "abstract methods": (
        "import abc\nclass thing(abc.ABC):\n    [[@abc.abstractmethod|]]\n    def m(self): pass",
        "sorted(thing.__abstractmethods__)",
    ),
    "registry": (
        "import abc\nclass thing(abc.ABC): pass\nthing.register([[int|str]])",
        "isinstance(x, thing)",
    ),
    "subclass hook": (
        "import abc\nclass thing(abc.ABC):\n    @classmethod\n"
        "    def __subclasshook__(cls, c): return [[True|False]]",
        "isinstance(x, thing)",
    ),
    "metaclass": (
        "class M(type):\n    def __getitem__(cls, k): return [[1|2]]\n"
        "class thing(metaclass=M): pass",
        "thing[0]",
    ),
    "attribute of a metaclass": (
        "class M(type): w = [[1|2]]\nclass thing(metaclass=M): pass",
        "thing.w",
    ),
    "keyword of a base": (
        "class A:\n    def __init_subclass__(cls, scale=1): cls.scale = scale\n"
        "class thing(A, scale=[[1|2]]): pass",
        "thing.scale",
    ),
    "list of subclasses": (
        "class thing:\n    all = []\n"
        "    def __init_subclass__(cls): thing.all.append(cls.__name__)\n"
        "class A(thing): pass\n[[|class B(thing): pass]]",
        "thing.all",
    ),
    "nested class": ("class thing:\n    class In: w = [[1|2]]", "thing.In.w"),
    "subscript": (
        "class thing:\n    def __class_getitem__(cls, k): return [[1|2]]",
        "thing[0]",
    ),
    "exception": ("class thing(Exception):\n    code = [[1|2]]", "thing('a').code"),
    "local class": (
        "def thing():\n    class K:\n        '[[a|b]]'\n    return K",
        "thing().__doc__",
    ),
    "type()": ("thing = type('K', (), {'w': [[1|2]]})", "thing.w"),
}
DATA_CLASSES = {
    "metadata": ("a: int = field(metadata={'k': [[1|2]]})", "fields(thing)[0].metadata['k']"),
    "default": ("a: int = [[1|2]]", "thing().a"),
    "default factory": ("a: object = field(default_factory=[[list|dict]])", "thing().a"),
    "type of a field": ("a: [[int|float]] = 1", "fields(thing)[0].type(x)"),
    "comparison of a field": (
        "a: int = field(default=1, compare=[[True|False]])",
        "thing(1) == thing(2)",
    ),
    "repr of a field": ("a: int = field(default=1, repr=[[True|False]])", "repr(thing())"),
    "name of a field": ("[[a|b]]: int = 1", "fields(thing)[0].name"),
    "class variable": ("a: [[int|ClassVar]] = 1", "len(fields(thing))"),
    "order of fields": (
        "[[a|b]]: int = 1\n    [[b|a]]: int = 1",
        "[f.name for f in fields(thing)]",
    ),
}
ENUMS = {
    "value": ("class thing(Enum): A = [[1|2]]", "thing.A.value"),
    "name of a member": ("class thing(Enum): [[A|B]] = 1", "thing(1).name"),
    "order": (
        "class thing(Enum):\n    [[A|B]] = '[[A|B]]'\n    [[B|A]] = '[[B|A]]'",
        "list(thing)",
    ),
    "name": ("class [[K|L]](Enum): A = 1\nthing = [[K|L]]", "repr(thing.A)"),
    "docstring": ("class thing(Enum):\n    '[[a|b]]'\n    A = 1", "thing.__doc__"),
    "method": ("class thing(Enum):\n    A = 1\n    def m(self): return [[1|2]]", "thing.A.m()"),
    "class method": (
        "class thing(Enum):\n    A = 1\n    @classmethod\n    def of(cls, s): return [[1|2]]",
        "thing.of(x)",
    ),
    "static method": (
        "class thing(Enum):\n    A = 1\n    @staticmethod\n    def w(s): return [[1|2]]",
        "thing.w(x)",
    ),
    "property": (
        "class thing(Enum):\n    A = 1\n    @property\n    def p(self): return [[1|2]]",
        "thing.A.p",
    ),
    "missing": (
        "class thing(Enum):\n    A = 1\n    B = 2\n    @classmethod\n"
        "    def _missing_(cls, v): return cls.[[A|B]]",
        "thing(7)",
    ),
    "boundary": (
        "class thing(Flag, boundary=[[KEEP|CONFORM]]):\n    A = 1\n    B = 2",
        "thing(9).value",
    ),
    "no member": ("class thing(Enum):\n    A = 1\n    w = nonmember([[1|2]])", "thing.w"),
    "str": (
        "class thing(Enum):\n    A = 1\n    def __str__(self): return '[[a|b]]'",
        "str(thing.A)",
    ),
    "base": ("class thing([[IntEnum|Enum]]): A = 1", "thing.A == 1"),
    "attribute by a mixin": (
        "class M:\n    def __init_subclass__(cls, scale=1, **k):\n"
        "        cls.scale = scale\n        super().__init_subclass__(**k)\n"
        "class thing(M, Enum, scale=[[1|2]]): A = 1",
        "thing.scale",
    ),
    "annotation": ("class thing(Enum):\n    A = 1\n    b: [[int|float]]", "thing.__annotations__"),
    "attribute set later": ("class thing(Enum): A = 1\nthing.w = [[1|2]]", "thing.w"),
    "member": ("class K(Enum):\n    A = 1\n    B = 2\nthing = K.[[A|B]]", "thing.name"),
    "flags": ("class K(Flag):\n    A = 1\n    B = 2\nthing = K.A[[| \\| K.B]]", "thing.value"),
}
NAMED_TUPLES = {
    "type of a field": (
        "class thing(typing.NamedTuple): a: [[int|float]]",
        "thing.__annotations__",
    ),
    "default of a field": ("class thing(typing.NamedTuple): a: int = [[1|2]]", "thing()"),
    "name of a field": ("thing = collections.namedtuple('K', '[[a|b]]')", "thing._fields"),
    "defaults": ("thing = collections.namedtuple('K', 'a', defaults=[ [[1|2]] ])", "thing()"),
    "typed dict": ("class thing(typing.TypedDict): a: [[int|float]]", "thing.__annotations__"),
    "total": ("class thing(typing.TypedDict, total=[[True|False]]): a: int", "thing.__total__"),
}
_HEADS = {
    "data class": "from dataclasses import dataclass, field, fields\nfrom typing import ClassVar\n"
    "@dataclass\nclass thing:\n    ",
    "enum": "from enum import Enum, IntEnum, Flag, KEEP, CONFORM\n"
    "try:\n    from enum import nonmember\nexcept ImportError: pass\n",
    "named tuple": "import typing, collections\n",
}
REACHED = {
    "global": ("held = thing", "held"),
    "item": ("held = {'k': [thing]}", "held['k'][0]"),
    "attribute": ("class Holder: pass\nheld = Holder()\nheld.t = thing", "held.t"),
    "class attribute": ("class held: t = {'k': thing}", "held.t['k']"),
    "default": ("def held(t=thing): return t", "held()"),
    "closure": ("def around(t): return lambda: t\nheld = around(thing)", "held()"),
    "helper": ("def held(): return thing", "held()"),
    "partial": ("import functools\nheld = functools.partial(lambda t: t, thing)", "held()"),
}
"""How `f` gets at the thing."""


@dataclass(frozen=True)
class Definition:
    """One definition, with the two texts of its variants chosen by `variant`."""

    name: str
    source: str
    look: str

    def variant(self, number: int) -> tuple[str, str]:
        """Return the source and the expression of a variant."""
        return _chosen(self.source, number), _chosen(self.look, number)


def _chosen(text: str, number: int) -> str:
    return _CHOICE.sub(lambda found: found.group(number + 1).replace("\\|", "|"), text)


def definitions() -> list[Definition]:
    """Return all definitions."""
    kinds = {
        "function": FUNCTIONS,
        "class": CLASSES,
        "data class": DATA_CLASSES,
        "enum": ENUMS,
        "named tuple": NAMED_TUPLES,
        "object": OBJECTS,
    }
    return [
        Definition(f"{kind}: {name}", _HEADS.get(kind, "") + source, look)
        for kind, texts in kinds.items()
        for name, (source, look) in texts.items()
    ]


def program(main: Definition, way: str, variant: int, others: list[tuple[Definition, str]]) -> str:
    """Return a program whose `f(x)` returns what each definition shows.

    The main one stands at the top level, the others stand in functions.

    Args:
        way: a key of `REACHED`.
    """
    text, shown = "", []
    for number, (other, by) in enumerate(others):
        source, look = other.variant(0)
        hold, get = REACHED[by]
        body = f"{source}\n{hold}\nreturn lambda x: (lambda thing: {look})({get})"
        text += (
            f"def make{number}():\n{textwrap.indent(body, '    ')}\nlook{number} = make{number}()\n"
        )
        shown.append(f"look{number}(x)")
    source, look = main.variant(variant)
    hold, get = REACHED[way]
    shown.append(f"(lambda thing: {look})({get})")
    return f"{text}{source}\n{hold}\ndef f(x): return [{', '.join(shown)}]\n"


def pairs(seed: int) -> list[tuple[str, str, str]]:
    """Return (name, program, program) for each definition; the programs differ in that one.

    Two other functions or classes stand beside it, so that places in the walk differ.
    """
    chance = random.Random(seed)
    every = definitions()
    beside = [one for one in every if not one.name.startswith("object:")]
    found = []
    for one in every:
        way, *ways = [chance.choice(sorted(REACHED)) for _ in range(3)]
        others = list(zip(chance.sample(beside, 2), ways, strict=True))
        texts = [program(one, way, variant, others) for variant in (0, 1)]
        found.append((f"{one.name}, by {way}", texts[0], texts[1]))
    return found
