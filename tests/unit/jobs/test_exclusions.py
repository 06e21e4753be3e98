"""The rule of the house: whatever is left out of an identity is proven harmless by a test."""

import ast
import importlib
import pkgutil
from pathlib import Path

import durable_shuffle.jobs.identity as identity
from durable_shuffle.jobs.identity.exclusions import Excluded

TESTS = Path(__file__).parents[2]


def lists_of_exclusions() -> list[tuple[set[str], tuple[Excluded, ...]]]:
    """Return all lists in jobs/identity, each with its names "module.NAME"."""
    found: dict[int, tuple[set[str], tuple[Excluded, ...]]] = {}
    for info in pkgutil.walk_packages(identity.__path__, f"{identity.__name__}."):
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, tuple) and any(isinstance(one, Excluded) for one in value):
                found.setdefault(id(value), (set(), value))[0].add(f"{info.name}.{name}")
    return list(found.values())


def lists_with_cases() -> set[str]:
    """Return the "module.NAME" of each list that a test gives to `every`."""
    found = set()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        if "every(" not in text:
            continue
        tree = ast.parse(text)
        homes = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        for call in calls:
            if isinstance(call.func, ast.Name) and call.func.id == "every" and call.args:
                found.add(homes.get(ast.unparse(call.args[0]), ""))
    return found


def test_every_list_of_exclusions_has_cases() -> None:
    """Each list of exclusions is given to `every` by a test, which then needs a case per entry."""
    proven = lists_with_cases()
    assert [names for names, _ in lists_of_exclusions() if not names & proven] == []


def test_exclusions_are_plain() -> None:
    """Lists hold nothing but exclusions, each name once and with a reason."""
    for where, entries in lists_of_exclusions():
        assert all(isinstance(entry, Excluded) and entry.why for entry in entries), where
        assert len({entry.name for entry in entries}) == len(entries), where
