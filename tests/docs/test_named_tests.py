"""Tests that the pages name as evidence exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from doc_blocks import PAGES, ROOT

NAMED = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)*)(?:\[[^`]*\])?`")
WRITTEN = {"requirements.md", "soak.md"}
"""Pages that are written anew, whole, from the tests of today."""


@cache
def defined_in(file: str) -> frozenset[str]:
    """`::name` and `::Class::name` of everything defined in a file, inherited methods included."""
    tree = ast.parse((ROOT / file).read_text())
    found = {""}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(f"::{node.name}")
        if isinstance(node, ast.ClassDef):
            names = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            # a base in the same file stands above
            known = found.union(*(imported(tree, base) for base in bases))
            names |= {n.split("::")[2] for n in known for b in bases if n.startswith(f"::{b}::")}
            found |= {f"::{node.name}::{name}" for name in names}
    return frozenset(found)


def imported(tree: ast.Module, name: str) -> frozenset[str]:
    """What the module of this package defines from which a file imports a name."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            module = (node.module or "").removeprefix("durable_shuffle.").replace(".", "/") + ".py"
            return defined_in(module) if (ROOT / module).exists() else frozenset()
    return frozenset()


def missing(text: str) -> list[str]:
    """Names in a page that are no tests."""
    return [
        file + name
        for file, name in NAMED.findall(text)
        if not (ROOT / file).exists() or name not in defined_in(file)
    ]


@pytest.mark.parametrize(
    "path",
    [path for path in PAGES if path.name not in WRITTEN],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_named_tests_exist(path: Path) -> None:
    """A test that was renamed is renamed in the pages as well."""
    assert missing(path.read_text()) == []


def test_what_is_not_there_is_found() -> None:
    """Both a file and a function may be missing."""
    here = "tests/docs/test_named_tests.py"
    assert missing(f"`{here}::test_what_is_not_there_is_found` `{here}`") == []
    assert missing(f"`{here}::test_none`") == [f"{here}::test_none"]
    assert missing("`tests/none.py`") == ["tests/none.py"]
    kit = "tests/storage/test_local_storage.py::TestLocalStorage"
    assert missing(f"`{kit}::test_none`") == [f"{kit}::test_none"]


def test_every_fault_names_its_test() -> None:
    """Each line of the tables of faults ends with a test."""
    page = (ROOT / "docs/internals/faults.md").read_text()
    rows = re.findall(r"^\| (?!fault|--)(.*) \|$", page, re.M)
    assert len(rows) > 40
    assert [row for row in rows if not NAMED.search(row.rpartition(" | ")[2])] == []


def test_the_page_about_tests_names_every_folder() -> None:
    """Those of unit tests one by one, and each file that stands in none."""
    page = (ROOT / "tests" / "README.md").read_text()
    below = [*(ROOT / "tests").iterdir(), *(ROOT / "tests" / "unit").iterdir()]
    folders = {p for p in below if p.is_dir() and any(p.glob("*.py"))}
    named = [str(folder.relative_to(ROOT / "tests")) for folder in folders]
    assert [name for name in named if f"`{name}`" not in page and f"`{name}/`" not in page] == []
    files = [path.name for path in (ROOT / "tests").glob("test_*.py")]
    assert [name for name in files if f"`{name}`" not in page] == []
