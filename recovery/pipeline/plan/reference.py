"""Pipelines by reference: "module:function", and the JSON arguments of the function.

An update runs code that lies where the coordinator runs, never bytes from the storage. A name that
was read from the storage counts only if it is in a package that the coordinator was started with,
and if the function is marked by `pipeline_factory`. The package is checked before anything is
imported. Otherwise anybody who can write to the storage could have any function called. The module,
and its package, are imported anew, so that an edited file counts; a description that is refused
puts back what was there.
"""

import importlib
import json
import sys
from collections.abc import Callable, Collection
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from durable_shuffle.recovery.pipeline.commands.requests import Description
from durable_shuffle.recovery.pipeline.plan.changes import is_installed
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan
from durable_shuffle.serialization.errors import InvalidInputError

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__durable_shuffle_pipeline__"


def pipeline_factory(function: F) -> F:
    """Mark a function that returns a `Pipeline`: `durable-shuffle pipeline update` may name it.

    Anybody who can write to the storage can then have it called, with any arguments.
    """
    setattr(function, _MARK, True)
    return function


def package_of(factory: str) -> str:
    """Return the package of "module:function", "" of ""."""
    return factory.partition(":")[0].partition(".")[0]


def plan_of(
    description: Description,
    *,
    packages: Collection[str],
    like: PipelinePlan | None = None,
) -> tuple[PipelinePlan, Callable[[], None]]:
    """Import and call what a description from the storage names.

    Args:
        packages: names of the packages, or single modules, that it may name.
        like: a plan of the same pipeline.

    Returns:
        The plan, and a function that puts the modules back, for a caller that does not use it.

    Raises:
        InvalidInputError: it may not be named, cannot be imported, fails, or is of another
            pipeline.
    """
    _check_package(description.factory, packages)
    pipeline, undo = pipeline_of(description, marked=True)
    plan: PipelinePlan = pipeline.plan
    if like is not None and (plan.name, plan.url) != (like.name, like.url):
        undo()
        raise InvalidInputError(
            f"{description.factory} is of another pipeline or place: expected {like.name!r}, "
            f"found {plan.name!r}"
        )
    return plan, undo


def _check_package(factory: str, packages: Collection[str]) -> None:
    if ":" in factory and package_of(factory) not in packages:
        named = ", ".join(sorted(packages)) or "none: give updates_from="
        raise InvalidInputError(
            f"an update must name a function of a package that the pipeline was started with "
            f"({named}), found={factory!r}; nothing was imported"
        )


def pipeline_of(
    description: Description, *, marked: bool = False
) -> tuple[Any, Callable[[], None]]:
    """As `plan_of`: the `Pipeline` itself.

    Args:
        marked: call nothing but a function that is marked by `pipeline_factory`.
    """
    name, separator, attribute = description.factory.partition(":")
    if not separator or not name or not attribute:
        raise InvalidInputError(
            f"a pipeline is named as module:function, found={description.factory!r}"
        )
    package = name.partition(".")[0]
    taken = _forget(package)
    importlib.invalidate_caches()

    def undo() -> None:
        _forget(package)
        sys.modules.update(taken)

    try:
        return _called(_function(name, attribute, marked=marked), description), undo
    except BaseException:
        undo()
        raise


def _called(factory: Callable[..., Any], description: Description) -> Any:
    try:
        made = factory(**arguments_of(description.arguments))
    except InvalidInputError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInputError(
            f"{description.factory} fails: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(getattr(made, "plan", None), PipelinePlan):
        raise InvalidInputError(
            f"{description.factory} must return a Pipeline, found {type(made).__name__}"
        )
    return made


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments of a function.

    Raises:
        InvalidInputError: not a JSON object.
    """
    try:
        found = json.loads(text) if text else {}
    except ValueError as error:
        raise InvalidInputError(f"arguments must be a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInputError(f"arguments must be a JSON object, found {type(found).__name__}")
    return found


def _function(name: str, attribute: str, *, marked: bool) -> Callable[..., Any]:
    try:
        found = getattr(importlib.import_module(name), attribute, None)
    except (Exception, SystemExit) as error:
        raise InvalidInputError(
            f"cannot import {name!r}: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise InvalidInputError(f"there is no function {attribute!r} in module {name!r}")
    if marked and not (isinstance(found, FunctionType) and getattr(found, _MARK, False) is True):
        raise InvalidInputError(
            f"an update must name a function that is marked by durable_shuffle.pipeline_factory, "
            f"found={name}:{attribute}; it was not called"
        )
    return found  # type: ignore[no-any-return]


def _forget(package: str) -> dict[str, ModuleType]:
    """Take a package of the user's out of what is imported, and return it."""
    root = sys.modules.get(package)
    if root is None or package in ("durable_shuffle", "__main__") or not _is_users(root):
        return {}
    loaded = sys.modules.copy()  # other threads import meanwhile
    found = {n: m for n, m in loaded.items() if n == package or n.startswith(f"{package}.")}
    for name in found:
        sys.modules.pop(name, None)
    return found


def _is_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    # neither: built in; a path alone: a package without an __init__
    return hasattr(module, "__path__") if file is None else not is_installed(file)
