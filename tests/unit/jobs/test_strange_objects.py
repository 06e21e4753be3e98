"""Objects whose own code raises or reads, and packages without a RECORD."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durable_shuffle.jobs.identity.functions import module_code
from durable_shuffle.jobs.identity.functions.identity import identify_function, opaque_functions

ROOT = Path(__file__).parents[3]


class Strange(BaseException):
    """No Exception, as some frameworks raise."""


class RaisingAttribute:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class ReadingAttribute:
    def __getattr__(self, name: str) -> Any:
        return Path(f"/nonexistent/{name}").read_text()


class RaisingReduce:
    def __reduce__(self) -> Any:
        raise Strange("reduce")


class ReadingReduce:
    def __reduce_ex__(self, protocol: Any) -> Any:
        return Path("/nonexistent").read_text()


class RaisingClass:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise ValueError("class")


class Endless:
    def __getattr__(self, name: str) -> Any:
        return getattr(self, name)


class RaisingItems(dict[str, int]):
    def items(self) -> Any:
        raise ValueError("items")


class RaisingMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise KeyError(name)


class OfRaisingMeta(metaclass=RaisingMeta):
    pass


OBJECTS: dict[str, Callable[[], Any]] = {
    "an attribute that raises": RaisingAttribute,
    "an attribute that reads": ReadingAttribute,
    "a reduction that raises": RaisingReduce,
    "a reduction that reads": ReadingReduce,
    "a class that raises": RaisingClass,
    "an attribute that asks itself": Endless,
    "items that raise": lambda: RaisingItems(a=1),
    "a metaclass that raises": lambda: OfRaisingMeta,
}
NOT_PICKLED = set(OBJECTS) - {
    "an attribute that raises",
    "an attribute that asks itself",
}


@pytest.mark.parametrize("name", OBJECTS)
def test_no_object_raises_out_of_identity(name: str) -> None:
    """In a closure, a container, a partial, by itself, by an attribute: what cannot be looked at is
    unresolved by name."""
    held = OBJECTS[name]()

    def whole(x: int) -> Any:
        return x, held

    def part(x: int) -> Any:
        return held.rate * x

    for case in (whole, part, held, [held], {"a": held}, functools.partial(max, held)):
        found = identify_function(case)
        assert all(len(digest) == 32 for digest in opaque_functions(found, case))
        if name in NOT_PICKLED:
            assert found.unresolved
            assert all(found.unresolved)


def test_versions_around_a_function_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """pandas, pyarrow, numpy and PySpark carry rows into functions that do not name them."""
    before = identify_function(lambda s: s * 2).digest
    for package in ("pandas", "pyarrow", "numpy", "pyspark"):
        with monkeypatch.context() as patch:
            owner, version = module_code.owner_of, module_code._version_of

            def owned(name: str, spec: Any, of: Any = owner, other: str = package) -> Any:
                return f"{other} 0.0" if name == other else of(name, spec)

            def versioned(top: str, of: Any = version, other: str = package) -> str:
                return "0.0" if top == other else of(top)

            patch.setattr(module_code, "owner_of", owned)
            patch.setattr(module_code, "_version_of", versioned)
            assert identify_function(lambda s: s * 2).digest != before


def test_a_package_without_record_counts_by_its_whole_source(tmp_path: Path) -> None:
    """Copied into site-packages, not installed: an edit of any module that is reached counts."""
    code = (
        "import copied\ndef f(x):\n    return copied.value(x)\n"
        "from durable_shuffle.jobs.identity.functions.identity import identify_function\n"
        "found = identify_function(f)\nassert not found.unresolved, found.unresolved\n"
        "print(found.digest)\n"
    )
    digests = []
    for body, other in (("1", "1"), ("2", "1"), ("1", "2"), ("1", "1")):
        site = tmp_path / str(len(digests)) / "site-packages"
        (site / "copied/deep").mkdir(parents=True)
        (site / "copied/__init__.py").write_text("from copied.impl import value\n")
        (site / "copied/impl.py").write_text(
            f"from copied.deep.other import OTHER\ndef value(x): return x + {body} + OTHER\n"
        )
        (site / "copied/deep/__init__.py").write_text("")
        (site / "copied/deep/other.py").write_text(f"OTHER = {other}\n")
        digests.append(printed(code, site))
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


DISPATCH = """
import functools
RATE = {rate}
@functools.singledispatch
def shown(value): return repr(value)
@shown.register
def _(value: int): return str(value * RATE)
"""


def test_a_dispatching_function_counts_by_what_is_registered(tmp_path: Path) -> None:
    """The types that the driver has shown it do not count; each registered function does."""
    code = (
        "import shapes\ndef f(x):\n    return shapes.shown(x)\n"
        "from durable_shuffle.jobs.identity.functions.identity import identify_function\n"
        "before = identify_function(f)\nshapes.shown(1), shapes.shown('a')\n"
        "after = identify_function(f)\nassert not before.unresolved, before.unresolved\n"
        "assert before == after\nprint(after.digest)\n"
    )
    digests = []
    for number, rate in enumerate(("1", "2", "1")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "shapes.py").write_text(DISPATCH.replace("{rate}", "__import__('rates').RATE"))
        (folder / "rates.py").write_text(f"RATE = {rate}\n")
        digests.append(printed(code, folder))
    assert digests[0] == digests[2] != digests[1]


def printed(code: str, folder: Path) -> str:
    """What a new process prints, with `folder` importable."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
