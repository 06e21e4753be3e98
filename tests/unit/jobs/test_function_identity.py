"""Identity of Python functions: what changes it, what does not, and what is refused by name."""

import dataclasses
import enum
import functools
import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from durable_shuffle.jobs.identity.functions.identity import identify_function

ROOT = Path(__file__).parents[3]


def function(source: str, name: str = "f", **globals_: object) -> Any:
    """The object `name` of a script, as if its module were the main program."""
    space: dict[str, object] = {"__name__": "__main__", **globals_}
    exec(compile(source, "somewhere.py", "exec"), space)
    return space[name]


def digest(fn: object) -> str:
    """The digest of something that has to be fully resolved."""
    identity = identify_function(fn)
    assert identity.unresolved == ()
    assert len(identity.digest) == 32
    assert set(identity.digest) <= set("0123456789abcdef")
    return identity.digest


def in_process(folder: Path, code: str, seed: str = "1") -> dict[str, Any]:
    """What a new Python process prints as JSON for `code`, with `folder` importable."""
    path = os.pathsep.join([str(ROOT / "src"), str(folder)])
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


SHOW = """
import json
from durable_shuffle.jobs.identity.functions.identity import identify_function
found = identify_function(f)
print(json.dumps({"digest": found.digest, "unresolved": found.unresolved}))
"""

PLUS = "def f(x, y=1, *, z=2):\n    return x + y\n"


def test_place_in_the_file_does_not_count() -> None:
    """Moving a function down by some lines keeps its identity."""
    assert digest(function(PLUS)) == digest(function("\n\n# moved\n" + PLUS))


@pytest.mark.parametrize(
    "changed",
    [
        PLUS.replace("x + y", "x - y"),
        PLUS.replace("x + y", "x + y + 1"),
        PLUS.replace("y=1", "y=2"),
        PLUS.replace("y=1", "y=True"),
        PLUS.replace("y=1", "y=1.0"),
        PLUS.replace("z=2", "z=3"),
        PLUS.replace("x + y", "x.real + y"),
        PLUS.replace("x + y", "(lambda q: q + 1)(x) + y"),
    ],
)
def test_changed_function_differs(changed: str) -> None:
    """Body, constants, default values and their types count."""
    assert digest(function(PLUS)) != digest(function(changed))


def test_nested_code_differs() -> None:
    """A constant inside a nested lambda counts."""
    one = function("def f(x):\n    return (lambda q: q + 1)(x)\n")
    two = function("def f(x):\n    return (lambda q: q + 2)(x)\n")
    assert digest(one) != digest(two)


CELLS: list[tuple[object, object]] = [
    (1, 2),
    (1, True),
    (0.0, -0.0),
    ("", None),
    ("1", b"1"),
    ((1, 2), [1, 2]),
    (["ab", "c"], ["a", "bc"]),
    ({"a": 1}, {"a": 2}),
    ({1, 2}, frozenset({1, 2})),
    (np.array([1, 2]), np.array([1, 3])),
    (np.array([1, 2], np.int32), np.array([1, 2], np.int64)),
    (np.zeros((2, 3)), np.zeros((3, 2))),
    (np.array(["a", None], object), np.array(["a", "None"], object)),
    (pa.table({"a": [1, None]}), pa.table({"a": [1, 0]})),
    (pa.schema([("a", pa.int32())]), pa.schema([("a", pa.int64())])),
    (pa.int32(), pa.int64()),
    (functools.partial(max, 1), functools.partial(max, 2)),
    (functools.partial(max, 1), functools.partial(min, 1)),
    (np.add, np.subtract),
    (len, max),
]


@pytest.mark.parametrize(("one", "two"), CELLS, ids=range(len(CELLS)))
def test_closure_contents_count(one: object, two: object) -> None:
    """Two closures over different values differ, over equal copies they are equal."""

    def around(value: object) -> Callable[[], object]:
        return lambda: value

    assert digest(around(one)) != digest(around(two))
    assert digest(around([one, two])) == digest(around([one, two]))
    assert digest(around([one, two])) != digest(around([two, one]))


def test_globals_count_by_use() -> None:
    """A global that the function reads counts, any other does not."""
    source = "def f(x):\n    return x + K\n"
    assert digest(function(source, K=1)) != digest(function(source, K=2))
    assert digest(function(source, K=1, other=1)) == digest(function(source, K=1, other=2))
    attribute = "def f(x):\n    return x.K\n"
    assert digest(function(attribute, K=1)) == digest(function(attribute, K=2))


def test_functions_called_count() -> None:
    """A helper two calls away counts."""
    source = (
        "def c(x):\n    return x + {}\ndef b(x):\n    return c(x)\ndef f(x):\n    return b(x)\n"
    )
    assert digest(function(source.format(1))) != digest(function(source.format(2)))


def test_cycles_end() -> None:
    """Mutually recursive functions and a list that holds itself have an identity that counts."""
    source = "def f(x):\n    return g(x)\ndef g(x):\n    return f(x) + {}\n"
    assert digest(function(source.format(1))) == digest(function(source.format(1)))
    assert digest(function(source.format(1))) != digest(function(source.format(2)))
    loop: list[object] = [1]
    loop.append(loop)
    assert digest(loop) != digest([1, [1]])


CLASS = """
class Base:
    scale = 3
class C(Base):
    def __init__(self, n):
        self.n = n
        self.seen = set()
    def __call__(self, x):
        return self.n * x * self.scale
    @staticmethod
    def helper():
        return 5
    @property
    def double(self):
        return 2 * self.n
f = C(4)
method = f.__call__
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("C(4)", "C(5)"),
        ("scale = 3", "scale = 4"),
        ("self.n * x", "self.n + x"),
        ("return 5", "return 6"),
        ("2 * self.n", "3 * self.n"),
        ("class C(Base)", "class C"),
    ],
)
def test_callable_objects_count_by_state_and_class(old: str, new: str) -> None:
    """Instance state, methods, static methods, properties, class attributes and bases count."""
    changed = CLASS.replace(old, new)
    for name in ("f", "method"):
        assert digest(function(CLASS, name)) == digest(function(CLASS, name))
        assert digest(function(CLASS, name)) != digest(function(changed, name))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: list[int] = dataclasses.field(default_factory=list)


def test_enums_and_dataclasses() -> None:
    """Enum members and slotted data classes count by value."""
    assert digest(Colour.RED) != digest(Colour.BLUE)
    assert digest(Point(1, [2])) == digest(Point(1, [2]))
    assert digest(Point(1, [2])) != digest(Point(1, [3]))


def test_order_of_attributes_counts() -> None:
    """Workers see the order in which attributes were set: `vars` and `repr` show it."""
    space = types.SimpleNamespace(a=1, b=2)
    other = types.SimpleNamespace(b=2, a=1)
    assert digest(space) != digest(other)
    assert digest({"a": 1, "b": 2}) != digest({"b": 2, "a": 1})


def test_lock_is_named() -> None:
    """A lock is unresolved, and the sentence names the variable and the type."""
    source = "def f(x):\n    with guard:\n        return x\n"
    (reason,) = identify_function(function(source, guard=threading.Lock())).unresolved
    assert "guard" in reason
    assert "lock" in reason


def test_open_file_is_named(tmp_path: Path) -> None:
    """An open file in a nested container of a closure is unresolved by name."""
    with (tmp_path / "x").open("w") as handle:
        held = {"log": [handle]}
        (reason,) = identify_function(lambda: held).unresolved
    assert "held" in reason
    assert "log" in reason
    assert "TextIOWrapper" in reason


def test_generator_is_unresolved() -> None:
    """A generator has no identity of its own."""
    numbers = (n for n in range(3))
    assert identify_function(lambda: numbers).unresolved


def test_hash_seed_does_not_count(tmp_path: Path) -> None:
    """Sets of strings and frozen sets in code have one identity under all hash seeds."""
    code = (
        "names = {'a', 'b', 'c', 'dd', ('e', 1)}\n"
        "def f(x):\n    return x in {'p', 'q', 'r', 's'} or x in names\n" + SHOW
    )
    found = [in_process(tmp_path, code, seed) for seed in ("0", "1", "77")]
    assert found[0] == found[1] == found[2]
    assert found[0]["unresolved"] == []


HELPER = "import deeper\nLIMIT = 3\ndef work(x):\n    return deeper.add(x)\n"
DEEPER = "def add(x):\n    return x + 1\n"
USES = {
    "function": "from helper import work\ndef f(x):\n    return work(x)\n",
    "module": "import helper\ndef f(x):\n    return helper.work(x)\n",
    "inside": "def f(x):\n    import helper\n    return helper.work(x)\n",
    "inside from": "def f(x):\n    from helper import work\n    return work(x)\n",
    "direct": "from helper import work as f\n",
    "package": "from pack.inner import f\n",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("use", USES)
def test_source_of_modules_counts(tmp_path: Path, use: str) -> None:
    """A changed module differs, also when only another module imports it; equal copies do not."""
    digests = {}
    versions = {"a": (HELPER, DEEPER), "b": (HELPER, DEEPER.replace("1", "2"))}
    versions |= {"c": (HELPER + "\n", DEEPER), "same": (HELPER, DEEPER)}
    for name, (helper, deeper) in versions.items():
        folder = tmp_path / name
        (folder / "pack").mkdir(parents=True)
        (folder / "helper.py").write_text(helper)
        (folder / "deeper.py").write_text(deeper)
        (folder / "pack/__init__.py").write_text("")
        (folder / "pack/inner.py").write_text("from .beside import g\ndef f(x):\n    return g(x)\n")
        (folder / "pack/beside.py").write_text("def g(x):\n    import helper\n    return helper\n")
        found = in_process(folder, USES[use] + SHOW)
        assert found["unresolved"] == []
        digests[name] = found["digest"]
    assert digests["a"] == digests["same"]
    assert len({digests["a"], digests["b"], digests["c"]}) == 3


def test_unrelated_module_does_not_count(tmp_path: Path) -> None:
    """A module that is loaded but not reached may change."""
    found = []
    for name, body in (("a", "X = 1\n"), ("b", "X = 2\n")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "other.py").write_text(body)
        found.append(in_process(folder, "import other\ndef f(x):\n    return x\n" + SHOW))
    assert found[0] == found[1]


def test_distributions_count_by_their_record(tmp_path: Path) -> None:
    """An installed distribution counts by version and by the hashes of what was installed, not by
    the notes and scripts of one installation."""
    digests = {}
    cases = {"a": ("1.0", "x"), "other place": ("1.0", "x"), "b": ("1.1", "x"), "c": ("1.0", "y")}
    for name, (version, hashed) in cases.items():
        site = tmp_path / name / "site-packages"
        (site / "thing").mkdir(parents=True)
        (site / "thing/__init__.py").write_text("def go(x):\n    return x\n")
        info = site / f"some_dist-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: some-dist\nVersion: {version}\n"
        )
        (info / "top_level.txt").write_text("thing\n")
        record = f"thing/__init__.py,sha256={hashed},30\nthing/__pycache__/__init__.pyc,,\n"
        record += f"../../../bin/thing,sha256={name},9\n{info.name}/INSTALLER,sha256={name},4\n"
        (info / "RECORD").write_text(record)
        code = "import thing\ndef f(x):\n    return thing.go(x)\n" + SHOW
        digests[name] = in_process(site, code)["digest"]
    assert digests["a"] == digests["other place"]
    assert len({digests["a"], digests["b"], digests["c"]}) == 3


def test_module_named_like_one_of_pythons_own(tmp_path: Path) -> None:
    """A file of the user's that stands before Python's own module counts by its source."""
    digests = set()
    for name, body in (("a", "K = 1\n"), ("b", "K = 2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "calendar.py").write_text(body)
        code = "import calendar\ndef f(x):\n    return calendar.K\n" + SHOW
        digests.add(in_process(tmp_path / name, code)["digest"])
    assert len(digests) == 2


def test_pickled_function_is_the_same(tmp_path: Path) -> None:
    """A function that travelled through cloudpickle keeps its identity, closures included."""
    code = (
        "from pyspark.cloudpickle import dumps, loads\nimport numpy as np\nK = {'a': [1]}\n"
        "def helper(x):\n    return np.abs(x) + K['a'][0]\n"
        "def outer(n):\n    def f(x):\n        return helper(x) + n\n    return f\n"
        "plain, f = outer(3), loads(dumps(outer(3)))\n" + SHOW + "first = found.digest\n"
        "print(json.dumps({'same': identify_function(plain).digest == first}))\n"
    )
    assert in_process(tmp_path, code) == {"same": True}
