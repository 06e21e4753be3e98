"""Updates: the code that a description names, and how its parts differ from the running ones.

A description names "module:function" and JSON arguments. An update runs code that is installed
where the coordinator runs, never bytes from the storage. A name from the storage counts only if it
is in a package that the coordinator was started with, and if `pipeline_factory` marks the function.
The package is checked before anything is imported. Otherwise anybody who can write to the storage
could have any function called. The module and its package are reloaded, so that an edited file
counts. If a description is refused, the earlier modules are put back.

Every source and consumer has a shape, which its stored data depends on, and a digest of everything
else. A part with the same digest is not touched. A part with another digest and the same shape is
replaced, and continues where it was. If any shape differs, nothing is changed.

For the digest, a part's values are pickled and hashed, never stored. Every class and function among
them counts with the text of its module, unless it comes from Python or an installed package. An
edit anywhere in such a module makes its parts new. An edit in a module that they only import does
not, so a part can have a version.
"""

import hashlib
import importlib
import io
import json
import pickle
import sys
import sysconfig
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from durable_shuffle.recovery.pipeline.commands.requests import Description
from durable_shuffle.recovery.pipeline.plan.plan import (
    ConsumerPlan,
    PipelinePlan,
    StagePlan,
    plan_stage,
)
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError
from durable_shuffle.shuffle.base.user_code import named_text_of
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.contract import Storage


@dataclass(frozen=True, slots=True)
class PlanPart:
    """The description of one source or consumer."""

    name: str
    shape: str
    """Text of everything that stored data depends on: kind, input, columns, keys, counts."""
    digest: str
    """Of the shape, the code, its values, the version; "" if unknown, which equals nothing."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes to make; names of parts, in the order of the description."""

    keep: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether nothing changes."""
        return not (self.replace or self.start or self.drop)


def changes(
    running: Mapping[str, PlanPart],
    wanted: Mapping[str, PlanPart],
    *,
    running_version: str,
    wanted_version: str,
) -> Changes:
    """Return the changes that lead from one set of parts to the other.

    Raises:
        IncompatibleError: a part has another shape; the message names both versions.
    """
    for name, part in wanted.items():
        before = running.get(name)
        if before is not None and before.shape != part.shape:
            raise IncompatibleError(
                f"{name!r} does not fit what is stored: version {running_version!r} has "
                f"{before.shape}; version {wanted_version!r} has {part.shape}; give it another "
                "name, or put it back"
            )
    known = {name: part.digest for name, part in running.items() if part.digest}
    same = {name for name, part in wanted.items() if known.get(name) == part.digest}
    return Changes(
        keep=tuple(name for name in wanted if name in same),
        replace=tuple(name for name in wanted if name in running and name not in same),
        start=tuple(name for name in wanted if name not in running),
        drop=tuple(name for name in running if name not in wanted),
    )


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A plan that can run: its parts are described and its stages exist."""

    plan: PipelinePlan
    parts: Mapping[str, PlanPart]
    paths: Mapping[str, StagePath]
    """Of its own stages, by name."""
    description: Description

    def stage(self, storage: Storage, name: str) -> StageHandle:
        """Return a stage of the plan."""
        return plan_stage(self.plan, self.paths, storage, name)

    def changes_to(self, parts: Mapping[str, PlanPart], description: Description) -> Changes:
        """Return the changes that lead from this plan to other parts; raises as `changes`."""
        return changes(
            self.parts,
            parts,
            running_version=str(self.description),
            wanted_version=str(description),
        )

    def without(self, part: str) -> "PreparedPlan":
        """Return the plan without one part."""
        parts = {name: other for name, other in self.parts.items() if name != part}
        return replace(self, plan=self.plan.without(part), parts=parts)


def plan_parts(plan: PipelinePlan) -> dict[str, PlanPart]:
    """Return the sources and consumers of a plan."""
    parts: dict[str, PlanPart] = {}
    for name, source in plan.sources.items():
        shape = f"a source of {_stage(plan.stages[source.stage])}{_share(plan, name)}"
        parts[name] = PlanPart(name, shape, _digest(shape, source.source, source.version))
    for name, consumer in plan.consumers.items():
        shape = _consumer(plan, consumer)
        schema = None if consumer.schema is None else consumer.schema.to_string()
        values: tuple[Any, ...] = (consumer.step, consumer.sink, schema, consumer.start)
        if consumer.dead_letters is not None:
            values = (*values, consumer.dead_letters)
        parts[name] = PlanPart(name, shape, _digest(shape, values, consumer.version))
    return parts


def digest_of(parts: Mapping[str, PlanPart]) -> str:
    """Return one digest of all parts."""
    joined = repr(sorted((part.name, part.shape, part.digest) for part in parts.values()))
    return hashlib.sha256(joined.encode()).hexdigest()[:32]


def _consumer(plan: PipelinePlan, consumer: ConsumerPlan) -> str:
    read = plan.stages[consumer.reads]
    shape = f"a consumer of {consumer.reads!r} in {read.partitions} partitions"
    if read.elsewhere is not None:
        shape += f" of job {read.elsewhere.job!r}, stage {read.elsewhere.stage!r}"
    if consumer.writes is not None:
        shape += f", which writes {_stage(plan.stages[consumer.writes])}"
        shape += _share(plan, consumer.name)
    return shape


def _share(plan: PipelinePlan, part: str) -> str:
    """Say which producers of a union a part is."""
    written = plan.producers_of(part)
    if written is None or len(written[1]) == plan.stages[written[0]].producers:
        return ""
    return f", {len(written[1])} of them from {written[1].start} on, of union {written[0]!r}"


def _stage(stage: StagePlan) -> str:
    columns = "" if stage.schema is None else ", ".join(f"{f.name} {f.type}" for f in stage.schema)
    return (
        f"columns ({columns}) by key {stage.keys} of {stage.producers} producers in "
        f"{stage.partitions} partitions"
    )


def _digest(shape: str, values: Any, version: str) -> str:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    try:
        pickler.dump(values)
    except Exception:  # noqa: BLE001 - of user code
        return ""  # it can run in a thread, and never counts as the same
    digest = hashlib.sha256(repr((shape, version)).encode() + buffer.getvalue())
    for module in sorted(pickler.modules):
        digest.update(_text(module))
    return digest.hexdigest()[:32]


class _Pickler(pickle.Pickler):
    """Notes the modules of the classes and functions that it meets."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.modules: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | types.FunctionType):
            self.modules.add(obj.__module__)
        return NotImplemented


def _text(module: str) -> bytes:
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or is_installed(file):
        return b""
    try:
        return Path(file).read_bytes()
    except OSError:
        return b""


def is_installed(file: str) -> bool:
    """Return whether a module's file is of Python or of an installed package."""
    paths = sysconfig.get_paths()
    roots = {Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(root in Path(file).resolve().parents for root in roots)


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
        raise InvalidInputError(f"{description.factory} fails: {named_text_of(error)}") from error
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
        arguments = json.loads(text) if text else {}
    except ValueError as error:
        raise InvalidInputError(f"arguments must be a JSON object: {error}") from None
    if not isinstance(arguments, dict):
        raise InvalidInputError(
            f"arguments must be a JSON object, found {type(arguments).__name__}"
        )
    return arguments


def _function(name: str, attribute: str, *, marked: bool) -> Callable[..., Any]:
    try:
        function = getattr(importlib.import_module(name), attribute, None)
    except (Exception, SystemExit) as error:
        raise InvalidInputError(f"cannot import {name!r}: {named_text_of(error)}") from error
    if not callable(function):
        raise InvalidInputError(f"there is no function {attribute!r} in module {name!r}")
    if marked and not (
        isinstance(function, FunctionType) and getattr(function, _MARK, False) is True
    ):
        raise InvalidInputError(
            "an update must name a function that is marked by "
            f"durable_shuffle.pipelines.pipeline_factory, found={name}:{attribute}; "
            "it was not called"
        )
    return function  # type: ignore[no-any-return]


def _forget(package: str) -> dict[str, ModuleType]:
    """Take a package of the user's out of what is imported, and return it."""
    root = sys.modules.get(package)
    if root is None or package in ("durable_shuffle", "__main__") or not _is_users(root):
        return {}
    loaded = sys.modules.copy()  # other threads import meanwhile
    modules = {n: m for n, m in loaded.items() if n == package or n.startswith(f"{package}.")}
    for name in modules:
        sys.modules.pop(name, None)
    return modules


def _is_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    # neither: built in; a path alone: a package without an __init__
    return hasattr(module, "__path__") if file is None else not is_installed(file)
