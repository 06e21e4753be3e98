"""What the parts of a plan are, so that two plans can be compared: shapes and digests.

Strategy: a part's values are pickled, to be hashed and never stored; every class and function on
the way that is not of Python or an installed package counts with the text of its module. An edit
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
from pathlib import Path
from typing import Any

from durable_shuffle.recovery.command.reconcile import Part
from durable_shuffle.recovery.pipeline.plan import ConsumerPlan, PipelinePlan, StagePlan


def parts_of(plan: PipelinePlan) -> dict[str, Part]:
    """Return the sources and consumers of a plan."""
    found: dict[str, Part] = {}
    for name, source in plan.sources.items():
        shape = f"a source of {_stage(plan.stages[name])}"
        found[name] = Part(name, shape, _digest(shape, source.source, source.version))
    for name, consumer in plan.consumers.items():
        shape = _consumer(plan, consumer)
        schema = None if consumer.schema is None else consumer.schema.to_string()
        values = (consumer.step, consumer.sink, schema, consumer.start)
        found[name] = Part(name, shape, _digest(shape, values, consumer.version))
    return found


def digest_of(parts: Mapping[str, Part]) -> str:
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
