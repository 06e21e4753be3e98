"""Resolves public names at first use, so that importing this package never imports pyspark."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def resolver(
    module: str, modules: Mapping[str, str], submodules: Sequence[str] = ()
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module: name -> the module that has it.

    Args:
        submodules: imported when they are first used.
    """

    def get(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{module}.{name}")
        if name not in modules:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        importlib.import_module("durable_shuffle.jobs.outcome").tell_end()  # to who runs us, if any
        try:
            return getattr(importlib.import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "pyspark":
                raise
            raise ModuleNotFoundError(
                f"{name} needs PySpark: pip install 'durable-shuffle[spark]'", name="pyspark"
            ) from error

    return get
