"""Fresh Python workers once the user's code has changed.

Spark keeps Python workers per set of environment variables, and a worker keeps a module as it was
when it first imported it. So the first change of a module, or of a value that it read when it was
imported, adds a variable to all functions from then on, and each further change counts it up:
Spark then starts workers that import the modules anew.
"""

import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

from durable_shuffle.jobs.identity.functions.identity import FunctionIdentity
from durable_shuffle.jobs.identity.functions.module_files import changed_ns, spec_of

VARIABLE = "DURABLE_SHUFFLE_CODE"
_MILLISECOND = 10**6
_LOCK = threading.Lock()


class _Seen:
    """The user's code as this application saw it last."""

    def __init__(self) -> None:
        self.state: dict[str, object] = {}
        self.changes = 0


@cache
def _seen(application: str) -> _Seen:
    del application  # one for each
    return _Seen()


def environment_of(variables: Mapping[str, str]) -> str:
    """Return the variables that Spark sends to workers, as one text; our own does not count."""
    return repr(sorted((name, value) for name, value in variables.items() if name != VARIABLE))


def note_code(context: Any, found: FunctionIdentity) -> None:
    """Look whether code has changed since it was last used, and have new workers if it has.

    Args:
        context: the SparkContext; its `environment` is what new functions carry.
    """
    started = context.startTime * _MILLISECOND
    with _LOCK:
        seen = _seen(str(context.applicationId))
        changed = False
        for name, digest in found.modules.items():
            spec = spec_of(name)
            now = (digest, 0 if spec is None else changed_ns(spec))
            # of a file younger than the application workers may have imported an older state
            changed |= seen.state.get(name, now) != now
            changed |= name not in seen.state and now[1] > started
            seen.state[name] = now
        for name, value in found.values.items():
            changed |= seen.state.get(f"{name} value", value) != value
            seen.state[f"{name} value"] = value
        if changed:
            seen.changes += 1
            context.environment[VARIABLE] = str(seen.changes)
