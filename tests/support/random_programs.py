"""Random programs over Spark DataFrames, as trees of steps that write their own text.

A tree holds names of steps and numbers only. What a step does with the columns that it finds is
drawn from its own number, so that any subtree may stand in another's place: that is how a failing
program shrinks. The text that a tree writes is Python, in which `S` is a `DurableShuffle` or
`Plain`, which does the same with Spark alone.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

MOST_ROWS = 3000
"""No step makes more rows than this, by the bound that it computes from those below."""
MOST_COLUMNS = 7


@dataclass(frozen=True)
class Node:
    """A step: its name, the number it draws from, the steps it reads."""

    step: str
    number: int
    below: tuple["Node", ...] = ()

    def size(self) -> int:
        """How many steps there are."""
        return 1 + sum(node.size() for node in self.below)


@dataclass(frozen=True)
class Program:
    """A tree, and how its rows are asked for."""

    tree: Node
    way: str
    """One of WAYS."""

    def smaller(self) -> Iterator["Program"]:
        """Programs with fewer steps, the smallest first."""
        found = {replace(self, tree=tree) for tree in _smaller(self.tree)}
        yield from sorted(found, key=lambda program: (program.tree.size(), repr(program)))


TWO = frozenset({"join", "cross", "union", "intersect", "subquery", "cogroup"})
"""Steps that read two frames."""
WAYS = ("query", "collect", "count", "first", "toArrow", "durable", "repartition")
"""`query(df)`; actions within `transparent()`, `first` asks for one row; a stored frame."""


def _smaller(node: Node) -> Iterator[Node]:
    yield from node.below
    for i, below in enumerate(node.below):
        for less in _smaller(below):
            yield replace(node, below=(*node.below[:i], less, *node.below[i + 1 :]))


@dataclass
class Frame:
    """A DataFrame of a program, under its name there."""

    name: str
    df: DataFrame
    bound: int
    """It has at most this many rows."""
    leaf: bool = False
    """Its rows come in an order, and in partitions, that are always the same."""
    fields: list[T.StructField] = field(init=False)

    def __post_init__(self) -> None:
        self.fields = list(self.df.schema.fields)

    def of(self, *kinds: type[T.DataType]) -> list[str]:
        """The columns of these types."""
        return [f.name for f in self.fields if isinstance(f.dataType, kinds)]

    def where(self, fits: Callable[[T.DataType], bool]) -> list[str]:
        """The columns whose type fits."""
        return [f.name for f in self.fields if fits(f.dataType)]


class Plain:
    """Stands for a `DurableShuffle`: the same by Spark alone."""

    def durable(self, df: DataFrame) -> DataFrame:
        return df

    def repartition(self, df: DataFrame, n: int, *cols: str) -> DataFrame:
        return df.repartition(n, *cols)


Step = Callable[["Writer", Frame, Frame], "tuple[str, int]"]
"""Given two frames (the same one twice if only one is below): an expression, its rows' bound."""


@dataclass
class Writer:
    """Writes and carries out the text of one program in one session."""

    session: SparkSession
    store: Any
    steps: dict[str, Step]
    leaves: dict[str, Step]
    lines: list[str] = field(default_factory=list)
    unresolved: bool = False
    """A step says that another run cannot recognise what it does."""
    ordered: bool = False
    """The last step sorts."""
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    _made: dict[Node, Frame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names: dict[str, Any] = {
            "__name__": "__main__",
            "spark": self.session,
            "S": self.store,
            "F": F,
            "Window": Window,
        }

    def write(self, node: Node) -> Frame:
        """Return the frame of a tree; equal subtrees are one frame."""
        if node in self._made:
            return self._made[node]
        frames = [self.write(below) for below in node.below]
        self.draw, self.ordered = random.Random(node.number), node.step == "sort"
        if frames:
            text, bound = self.steps[node.step](self, frames[0], frames[-1])
        else:
            nothing: Any = None
            text, bound = self.leaves[node.step](self, nothing, nothing)
        name = f"x{len(self._made)}"
        df = self._run(text)
        names = [f"c{i}" for i in range(len(df.columns))]
        if df.columns != names:
            text += f".toDF({', '.join(map(repr, names))})"
            df = df.toDF(*names)
        self.lines.append(f"{name} = {text}")
        self._names[name] = df
        self._made[node] = Frame(name, df, bound, leaf=not frames)
        return self._made[node]

    def _run(self, text: str) -> DataFrame:
        made: DataFrame = eval(text, self._names)
        return made

    def chance(self, share: float) -> bool:
        """True in this share of all cases."""
        return self.draw.random() < share

    def some(self, of: list[str], least: int = 1, most: int = MOST_COLUMNS) -> list[str]:
        """A few of these in random order."""
        most = min(most, len(of))
        return self.draw.sample(of, self.draw.randint(min(least, most), most))


def random_program(seed: object, steps: dict[str, Step], leaves: dict[str, Step]) -> Program:
    """Return the program of a seed."""
    draw = random.Random(str(seed))
    weights = (40, 12, 8, 4, 4, 16, 16)
    way = draw.choices(WAYS, weights)[0]
    tree = _tree(draw, draw.choice([1, 1, 2, 2, 3, 3, 4]), sorted(steps), sorted(leaves))
    if way not in ("count", "first") and draw.random() < 0.2:
        tree = Node("sort", draw.randrange(1 << 30), (tree,))
    return Program(tree, way)


def _tree(draw: random.Random, depth: int, steps: list[str], leaves: list[str]) -> Node:
    number = draw.randrange(1 << 30)
    if depth == 0:
        return Node(draw.choice(leaves), number)
    step = draw.choice(steps)
    below = _tree(draw, depth - 1, steps, leaves)
    if step not in TWO:
        return Node(step, number, (below,))
    other = below if draw.random() < 0.15 else _tree(draw, draw.randint(0, 1), steps, leaves)
    return Node(step, number, (below, other))
