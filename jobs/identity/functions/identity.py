"""Identity of Python functions: a digest of their code and of everything that decides the result.

`walk` goes through everything that a function reaches. An object counts as what PySpark sends
workers for it (`sent`), a name in code as the value that it has (`name_use`), and a module that
workers import as its source or its version (`module_code`). Code that reads what is outside the
program (the clock, the environment, files: `outside_reads`) is named as unresolved.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.cloudpickle import dumps

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.functions.walk import Visit
from durable_shuffle.jobs.identity.functions.zones import (
    PACKAGES,
    rules_of_zones,
    zone_of_process,
)

AROUND_ROWS = ("pandas", "pyarrow", "numpy", "pyspark")
"""Packages that carry rows into a function and its results out, whether it names them or not."""


@dataclass(frozen=True, slots=True)
class FunctionIdentity:
    """Identity of a function. If `unresolved` is empty, equal digests mean equal code and data."""

    digest: str
    """32 hex digits."""
    unresolved: tuple[str, ...]
    """Why it cannot be recognised in another run, one sentence per value; empty if it can."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Name of each of the user's modules that it reaches -> SHA-256 of the source."""
    values: Mapping[str, str] = field(default_factory=dict)
    """"module.name" of each variable of these modules that it uses -> digest; not for code."""
    captured: Mapping[str, str] = field(default_factory=dict)
    """"function.name" or "module.name" of each value that it uses -> digest; not for code."""
    code: tuple[str, ...] = ()
    """Digests of the user's functions that it reaches, without their values; sorted."""
    watched: bool = True
    """Whether workers watch what it opens: not if it is unresolved, nor if that would cost much."""


def identify_function(fn: object, around: Sequence[str] = AROUND_ROWS) -> FunctionIdentity:
    """Return the identity of a function, callable object, class or plain value. It never raises.

    Not seen: code that is reached by a computed attribute name, and what packages that
    `outside_reads` does not list read outside, unless a worker sees it (`shuffle/base/outside.py`).

    Args:
        around: packages that decide the rows whether the function names them or not.
    """
    visit = Visit()
    with visit.at(_name_of(fn)):
        digest = visit.value(fn)
    visit.names.finish()
    zones = visit.names.zones
    for package in (*around, *(PACKAGES if "rules" in zones else ())):
        visit.modules.reach(package)
    asked = {"process": zone_of_process, "rules": rules_of_zones}
    counted = [asked[what]() for what in sorted(zones)]
    twins = {one: count for one, count in visit.twins.items() if count > 1}
    for what, counts in (("shared", visit.shared), ("twins", twins)):
        counted += [f"{what} {count} {one.hex()}" for one, count in sorted(counts.items())]
    counted += [place.hex() for place in sorted(visit.places) if visit.names.places]
    python = "python " + ".".join(map(str, sys.version_info[:3]))
    unresolved = tuple(dict.fromkeys([*visit.unresolved, *visit.modules.unresolved()]))
    return FunctionIdentity(
        hex_digest([python, digest, *counted, *visit.modules.tokens()]),
        unresolved,
        visit.modules.sources(),
        visit.names.values,
        visit.names.captured,
        tuple(sorted(visit.code)),
        watched=not unresolved and not visit.names.busy,
    )


def _name_of(fn: object) -> str:
    try:
        return str(getattr(fn, "__name__", type(fn).__name__))
    except Exception:  # noqa: BLE001 - the object's own code
        return type(fn).__name__


def opaque_functions(identity: FunctionIdentity, function: object) -> tuple[str, ...]:
    """Return a digest of the pickled function if its identity is unresolved, else nothing.

    It never raises: what cannot be pickled counts by its identity, and Spark refuses to run it.
    """
    if not identity.unresolved:
        return ()
    try:
        pickled: bytes = dumps(function)  # type: ignore[no-untyped-call]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - objects run their own code when they are pickled
        return (identity.digest,)
    return (hex_digest([pickled]),)
