"""The identity of a requested stage: its plan, its keys and what the user vouches for.

Two requests with equal fingerprints give equal partitions, so one may read what the other wrote.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.jobs.stages.captured import CAPTURED, captured_text
from durable_shuffle.jobs.stages.request import CheckedRequest
from durable_shuffle.shuffle.base.clock import IdSource


@dataclass(frozen=True, slots=True)
class StageIdentity:
    """What a stage is called on storage, and why."""

    fingerprint: str
    components: dict[str, str]
    """Name of a component -> digest; the fingerprint is the digest of all components."""
    unresolved: tuple[str, ...]
    """Why no other run can recognise the stage; empty if it can, or if the user gave a version."""
    unstable: tuple[str, ...]
    """Non-deterministic expressions below a native exchange."""
    vouched: tuple[str, ...] = ()
    """What only the user's version vouches for."""
    opaque: tuple[str, ...] = ()
    """What distinguishes the vouched inputs from other inputs of this session."""


def identify_stage(
    checked: CheckedRequest, engine: Engine, version: str | None, ids: IdSource
) -> StageIdentity:
    """Return the identity of a stage.

    Args:
        version: vouches for inputs that cannot be resolved. With None, a stage with such inputs is
            unique to this call.
    """
    df = checked.df
    if checked.cols and not checked.key_positions:  # computed keys are part of the identity too
        df = df.select("*", *_aliased(checked.cols))
    plan = engine.identify(df)
    shape = [checked.partitioner, checked.n, checked.key_positions, len(checked.cols)]
    return fingerprinted(
        {**plan.components, "partitioning": _digest(shape)},
        plan.unresolved,
        version,
        ids,
        unstable=plan.unstable_below_exchange,
        opaque=plan.opaque,
        captured=captured_text(plan.captured, plan.code),
    )


def fingerprinted(
    components: Mapping[str, str],
    unresolved: tuple[str, ...],
    version: str | None,
    ids: IdSource,
    *,
    unstable: tuple[str, ...] = (),
    opaque: tuple[str, ...] = (),
    captured: str = "",
) -> StageIdentity:
    """Return the identity made of these components and of what the user vouches for.

    Args:
        opaque: what distinguishes unresolved inputs that have equal components, in this session.
        captured: `captured_text()` of the values that functions captured.
    """
    found = dict(components)
    if captured:
        found[CAPTURED] = captured
    vouched: tuple[str, ...] = ()
    if version is not None:
        found["version"] = _digest(version)
        unresolved, vouched = (), unresolved
    else:
        opaque = ()
        if unresolved:
            found["unresolved"] = ids.new_id()
    fingerprint = _digest(sorted(found.items()))
    return StageIdentity(fingerprint, found, unresolved, unstable, vouched, opaque)


def _aliased(cols: tuple[str | Column, ...]) -> list[Column]:
    return [(F.col(c) if isinstance(c, str) else c).alias(f"key{i}") for i, c in enumerate(cols)]


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
