"""The identity of a requested stage: its plan, its keys, and the inputs that a version stands for.

Two requests with equal fingerprints give equal partitions, so each may read the other's rows.

If a function captures a run id, a time or a temporary folder, each run gets a new stage, because
the value may decide rows. The user may not have intended this. So if only captured values differ
from the last run's stage, a warning names them (`moved_values`).

A plan over an RDD or a checkpointed DataFrame shows little of its rows. If the user gives a
version, the fingerprint is made of the plan and the version. A second, different input with the
same fingerprint would get the rows of the first, so `SeenInputs` refuses it.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.plan.files import ListedFiles
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity
from durable_shuffle.jobs.identity.plan.rdds import MICRO_BATCH_ELSEWHERE
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import IdSource

CAPTURED = "captured"
"""The component of a stage's identity that lists the values, each by its digest."""
_CODE = ""
"""The listed name of the functions' code, without the values."""
_FOLLOWS = frozenset({CAPTURED, "functions", "map"})
"""Components that differ whenever a captured value differs."""
_DIGITS = 12
_MOST = 200
"""With more values, none are listed. They are part of the fingerprint all the same."""
MOVED = "from the last run's stage"
"""Part of every sentence that `moved_sentence` returns; the report finds the sentence by it."""
_lock = threading.Lock()
_seen: WeakKeyDictionary[object, dict[tuple[str, ...], str]] = WeakKeyDictionary()
"""Per Spark application: place, name and fingerprint -> digest of what distinguishes the input."""


@dataclass(frozen=True, slots=True)
class StageIdentity:
    """What a stage is called on storage, and why."""

    fingerprint: str
    components: dict[str, str]
    """Name of a component -> digest; the fingerprint is the digest of all components."""
    unresolved: tuple[str, ...]
    """Why no other run can recognise the stage; empty if it can, or if the user gave a version."""
    vouched: tuple[str, ...] = ()
    """What only the user's version vouches for."""
    vouched_inputs: tuple[str, ...] = ()
    """Those of them that are not about functions."""
    reads: tuple[str, ...] = ()
    """The stored stages that it reads, each as name and fingerprint with a hyphen between."""
    opaque: tuple[str, ...] = ()
    """What distinguishes the vouched inputs from other inputs of this session."""
    files: tuple[ListedFiles, ...] = field(default=(), compare=False, repr=False)
    """The files that it reads."""
    code: tuple[str, ...] = ()
    """Digests of the code of Python functions that make its rows."""

    @property
    def watched(self) -> bool:
        """Whether what functions open counts: not if a version vouches for what they read."""
        return not self.unresolved and "version" not in self.components


def fingerprinted(plan: PlanIdentity, version: str | None, ids: IdSource) -> StageIdentity:
    """Return the identity of a stage, from its plan and from what the user vouches for.

    Args:
        plan: with components for everything that decides the stage's rows and partitions.
        version: vouches for inputs that cannot be resolved. With None, a stage with such inputs is
            unique to this call.
    """
    components, unresolved = dict(plan.components), plan.unresolved
    captured = captured_text(plan.captured, plan.code)
    if captured:
        components[CAPTURED] = captured
    vouched: tuple[str, ...] = ()
    if version is not None:
        components["version"] = hex_digest([version])
        unresolved, vouched = (), unresolved
    elif unresolved:
        components["unresolved"] = ids.new_id()
    fingerprint = hex_digest(part for pair in sorted(components.items()) for part in pair)
    opaque = () if version is None else plan.opaque
    inputs = tuple(reason for reason in vouched if reason not in plan.functions)
    reads = plan.reads, opaque, plan.inputs, plan.code
    return StageIdentity(fingerprint, components, unresolved, vouched, inputs, *reads)


def captured_text(values: Mapping[str, str], code: tuple[str, ...]) -> str:
    """Return the content of the component; "" if there are no values, or too many to list."""
    if not values or len(values) > _MOST:
        return ""
    listed = {name: digest[:_DIGITS] for name, digest in values.items()}
    return json.dumps({**listed, _CODE: hex_digest(code)}, sort_keys=True)


def moved_values(wanted: Mapping[str, str], stored: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the captured values, if they are all that differs from the stored stage.

    Args:
        wanted: components of the stage that this run asks for.
        stored: components of a stored stage.
    """
    differing = {k for k in {*wanted, *stored} if wanted.get(k) != stored.get(k)}
    if CAPTURED not in differing or not differing <= _FOLLOWS:
        return ()
    if CAPTURED not in wanted or CAPTURED not in stored:
        return ()
    now, then = json.loads(wanted[CAPTURED]), _listed(stored[CAPTURED])
    if now.keys() != then.keys() or now[_CODE] != then[_CODE]:
        return ()
    return tuple(name for name in sorted(now) if now[name] != then[name])


def _listed(text: str) -> Mapping[str, object]:
    """Return what a stored component lists; nothing if `captured_text` never wrote it."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def moved_sentence(names: tuple[str, ...]) -> str:
    """Return the warning about these values, for people."""
    what = ", ".join(names)
    verb, it = ("differs", "it does") if len(names) == 1 else ("differ", "they do")
    return (
        f"only {what} {verb} {MOVED}. If {it} not decide rows (a run id, a time, "
        "a temporary folder), keep the function from using it; else this is a new stage each time"
    )


class SeenInputs:
    """The vouched inputs of one job.

    Args:
        spark: any session of the application; on Spark Connect each session counts alone.
        place: storage and name of the job.
    """

    def __init__(self, spark: SparkSession, place: Sequence[str]) -> None:
        self._application: object = spark if is_connect(spark) else spark.sparkContext
        self._place = tuple(place)

    def check(self, name: str, identity: StageIdentity, *, remember: bool = True) -> None:
        """Refuse an input if a different one has the same fingerprint.

        Args:
            remember: record this input for its fingerprint, if it is the first.

        Raises:
            InvalidInputError: another input of this session has the same fingerprint, or one
                version would vouch for every micro-batch of a stream.
        """
        if any(MICRO_BATCH_ELSEWHERE in reason for reason in identity.vouched):
            raise InvalidInputError(
                f"{name}: {MICRO_BATCH_ELSEWHERE}, cannot be vouched for by version=, which would "
                "be that of every batch: make this call in that thread, or in one started with "
                "pyspark.inheritable_thread_target"
            )
        if not identity.opaque:
            return
        told = hex_digest(identity.opaque)
        key = (*self._place, name, identity.fingerprint)
        with _lock:
            known = _seen.setdefault(self._application, {})
            before = known.setdefault(key, told) if remember else known.get(key, told)
        if before != told:
            raise InvalidInputError(
                f"{name}: version= vouches for two different inputs of this session that nothing "
                f"else tells apart ({'; '.join(identity.vouched)}): give each call a version= or "
                "a name= of its own"
            )
