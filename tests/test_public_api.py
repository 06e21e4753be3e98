"""What the package offers is what it says it offers."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import durable_shuffle
from durable_shuffle import errors as public_errors
from durable_shuffle.serialization import errors

PUBLIC = ("aio", "errors", "pipelines", "results", "streaming", "views")
LAYERS = ("serialization", "shuffle", "recovery", "jobs", "bench")


def modules() -> list[str]:
    """Names of all modules of the package."""
    found = ["durable_shuffle", *(f"durable_shuffle.{name}" for name in PUBLIC)]
    for layer in LAYERS:
        folder = Path(durable_shuffle.__file__).parent / layer
        walked = pkgutil.walk_packages([str(folder)], f"durable_shuffle.{layer}.")
        found += [f"durable_shuffle.{layer}", *(info.name for info in walked)]
    return found


FACADE = ["durable_shuffle", *(f"durable_shuffle.{name}" for name in PUBLIC)]


def test_completion_shows_names_and_submodules_only() -> None:
    """`durable_shuffle.<tab>` has what users may use; a submodule needs no import of its own."""
    shown = {name for name in dir(durable_shuffle) if not name.startswith("_")}
    assert shown == {*durable_shuffle.__all__, *PUBLIC} - {"__version__"}
    code = "import durable_shuffle as d; print(d.errors.FencedError is d.FencedError)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("module", FACADE)
def test_all_is_true_and_sorted(module: str) -> None:
    """Every public name is there, `dir` lists it for completion, and the list is sorted."""
    facade = importlib.import_module(module)
    names = facade.__all__
    assert names == sorted(names)
    assert set(names) <= set(dir(facade))
    for name in names:
        assert getattr(facade, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        facade.Missing  # noqa: B018 - looking it up is the test


def test_each_name_is_public_in_one_place() -> None:
    """No name is offered by two modules, but for the two errors that most programs catch."""
    facades = map(importlib.import_module, FACADE)
    names = Counter(name for facade in facades for name in facade.__all__)
    twice = {name for name, times in names.items() if times > 1}
    assert twice == {"DurableShuffleError", "FencedError"}


ENGINES = "durable_shuffle.bench.peers.engines.on_"
"""Modules of engines beside which the benchmark measures; each imports the engine of its name."""


@pytest.mark.parametrize("name", modules())
def test_module_lists_are_true(name: str) -> None:
    """Every module can be imported, says what it is for, and its `__all__` holds real names."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if name.startswith(ENGINES) and missing.removeprefix("py") in name:
            pytest.skip(f"{missing} is not installed: no part of what tests need")
        raise
    assert module.__doc__, f"{name} has no docstring"
    for listed in getattr(module, "__all__", ()):
        assert hasattr(module, listed), f"{name}.__all__ names {listed}"


def test_facade_class_is_the_one_of_the_jobs_layer() -> None:
    """The lazily resolved name is the class itself, with the documented arguments."""
    from durable_shuffle.jobs.session import DurableShuffle

    assert durable_shuffle.DurableShuffle is DurableShuffle
    arguments = inspect.signature(DurableShuffle).parameters
    by_position = [n for n, p in arguments.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position == ["spark", "url"]
    documented = {"job", "version", "reuse", "on_conflict", "retention", "storage_options"}
    assert documented | {"settings"} <= set(arguments)
    assert not {"clock", "ids"} & set(arguments)


def test_public_methods_have_docstrings() -> None:
    """Everything a user can call on a `DurableShuffle` says what it does."""
    members = inspect.getmembers(durable_shuffle.DurableShuffle)
    public = {name: member for name, member in members if not name.startswith("_")}
    assert {"checkpoint", "repartition", "explain", "report", "stages", "release"} <= set(public)
    assert [name for name, member in public.items() if not inspect.getdoc(member)] == []


def test_every_error_is_public() -> None:
    """`durable_shuffle.errors` has each class of the error tree."""
    classes = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}
    assert set(public_errors.__all__) == {n for n in classes if n.endswith(("Error", "Kind"))}
    assert all(getattr(public_errors, n) is getattr(errors, n) for n in public_errors.__all__)


def test_errors_of_the_facade_have_one_root() -> None:
    """Catching `DurableShuffleError` catches every class of the error tree."""
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    raised = [c for c in classes if issubclass(c, Exception)]
    assert len(raised) >= 11
    assert all(issubclass(c, durable_shuffle.DurableShuffleError) for c in raised)
