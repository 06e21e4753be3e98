"""What the parts of a plan are, and what has to be done to get from one plan to another.

Every source and consumer is described by a shape, which its data was stored by, and a digest of
everything else. The same digest: it is not touched. Another one under the same shape: it is
replaced and goes on where it was. Another shape: nothing is changed at all.

For the digest a part's values are pickled, to be hashed and never stored; every class and function
on the way that is not of Python or an installed package counts with the text of its module. An edit
anywhere in such a module makes its parts new; what they only import does not, so a part may have a
version of its own.
"""

import hashlib
import io
import pickle
import sys
import sysconfig
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_shuffle.recovery.pipeline.plan.plan import ConsumerPlan, PipelinePlan, StagePlan
from durable_shuffle.serialization.errors import IncompatibleError


@dataclass(frozen=True, slots=True)
class PlanPart:
    """One source or consumer, as it is described."""

    name: str
    shape: str
    """What stored data depends on, in words: kind, input, columns, keys, counts."""
    digest: str
    """Of the shape, the code, its values, the version; "" if it cannot be told: never the same."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What has to be done; names of parts, in the order of the description."""

    keep: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether everything stays as it is."""
        return not (self.replace or self.start or self.drop)


def changes(
    running: Mapping[str, PlanPart],
    wanted: Mapping[str, PlanPart],
    *,
    running_version: str,
    wanted_version: str,
) -> Changes:
    """Return how to get from one to the other.

    Raises:
        IncompatibleError: a part has another shape; names both versions. Nothing may be done.
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


def plan_parts(plan: PipelinePlan) -> dict[str, PlanPart]:
    """Return the sources and consumers of a plan."""
    found: dict[str, PlanPart] = {}
    for name, source in plan.sources.items():
        shape = f"a source of {_stage(plan.stages[name])}"
        found[name] = PlanPart(name, shape, _digest(shape, source.source, source.version))
    for name, consumer in plan.consumers.items():
        shape = _consumer(plan, consumer)
        schema = None if consumer.schema is None else consumer.schema.to_string()
        values = (consumer.step, consumer.sink, schema, consumer.start)
        found[name] = PlanPart(name, shape, _digest(shape, values, consumer.version))
    return found


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
    return shape


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
