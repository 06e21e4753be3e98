"""What the Python reference says of a name agrees with its code."""

import builtins
import importlib
import re
from collections.abc import Iterator

import griffe
import pytest
from doc_blocks import ROOT

from durable_shuffle.serialization import errors

PAGE = (ROOT / "docs/api.md").read_text()
NAMES = re.findall(r"^::: (durable_shuffle[\w.]*)$", PAGE, re.M)
ALONE = re.findall(r"^::: (\S+)\n    options:\n      members: false$", PAGE, re.M)
"""Classes without their methods: only a pipeline calls those."""
NAME_SAYS_IT = (
    *("StageReport", "ConsumerReport", "Report", "StageInfo"),
    *("StageStatus", "StageAction"),
)
"""Classes of plain figures; those that need words have them.
Words have their meaning beside them."""
SECTIONS = griffe.DocstringSectionKind


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    """The package as the reference reads it: from its source."""
    found = griffe.load("durable_shuffle", search_paths=[str(ROOT / "src")], resolve_aliases=True)
    assert isinstance(found, griffe.Module)
    return found


def described(
    package: griffe.Module,
) -> Iterator[griffe.Class | griffe.Function | griffe.Attribute]:
    """Everything that the reference shows: the names, and the public members of classes."""
    for name in NAMES:
        found = package[name.partition(".")[2]]
        yield found
        if found.is_class and name not in ALONE:
            for member in found.all_members.values():
                if not member.name.startswith("_"):
                    yield member


def section(docstring: griffe.Docstring | None, kind: griffe.DocstringSectionKind) -> list:
    """The items of one section of a docstring."""
    parsed = docstring.parse("google") if docstring else []
    return [item for part in parsed if part.kind is kind for item in part.value]


def test_the_reference_has_every_public_name() -> None:
    """What `__all__` offers is there, but for what is listed elsewhere."""
    listed = {name.rpartition(".")[2] for name in NAMES}
    elsewhere = {"DurableShuffleError", "FencedError", "__version__"}  # the module of errors
    for facade in ("", ".aio", ".pipelines", ".results", ".streaming", ".views"):
        module = importlib.import_module(f"durable_shuffle{facade}")
        assert set(module.__all__) - elsewhere <= listed, module


def test_everything_says_what_it_is(package: griffe.Module) -> None:
    """No name, method or field is without a docstring."""
    silent = [d.path for d in described(package) if not d.has_docstring and not trivial(d)]
    assert not silent, "\n".join(silent)


def trivial(member: griffe.Object | griffe.Alias) -> bool:
    """Fields that the class describes as arguments, or whose name says it all."""
    if not member.is_attribute or member.parent is None:
        return False
    items = section(member.parent.docstring, SECTIONS.parameters)
    return member.name in {i.name for i in items} or member.parent.name in NAME_SAYS_IT


def test_documented_arguments_exist(package: griffe.Module) -> None:
    """An argument that was renamed is renamed in the docstring as well."""
    wrong, checked = [], 0
    for found in described(package):
        if not (found.is_class or found.is_function):
            continue
        known = {p.name.lstrip("*") for p in found.parameters}
        for item in section(found.docstring, SECTIONS.parameters):
            checked += 1
            if item.name not in known:
                wrong.append(f"{found.path}: {item.name}")
    assert wrong == []
    assert checked > 100


def test_documented_errors_exist(package: griffe.Module) -> None:
    """What is listed below Raises is an error of this package, or Python's."""
    wrong, checked = [], 0
    for found in described(package):
        for item in section(found.docstring, SECTIONS.raises):
            for name in re.findall(r"\w+", str(item.annotation)):
                checked += 1
                if not hasattr(errors, name) and not hasattr(builtins, name):
                    wrong.append(f"{found.path}: {name}")
    assert wrong == []
    assert checked > 40
