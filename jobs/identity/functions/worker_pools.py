"""Makes Spark start new Python workers when the user's code has changed.

Spark reuses Python workers that have the same environment variables, and a worker keeps a module as
it was first imported. So when a module changes, or a value that it computed at import, this module
sets an environment variable for all later functions, and counts it up at each further change. Spark
then starts workers that import the modules again.
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
    """The user's code as this application last saw it."""

    def __init__(self) -> None:
        self.state: dict[str, object] = {}
        self.changes = 0


@cache
def _seen(application: str) -> _Seen:
    del application  # the cache key
    return _Seen()


def environment_of(variables: Mapping[str, str]) -> str:
    """Return the variables that Spark sends to workers as one str, without our own variable."""
    return repr(sorted((name, value) for name, value in variables.items() if name != VARIABLE))


def note_code(context: Any, found: FunctionIdentity) -> None:
    """Compare code with its last use in this application; if it changed, get new workers.

    Args:
        context: the SparkContext; functions that are made later take over its `environment`.
    """
    started = context.startTime * _MILLISECOND
    with _LOCK:
        seen = _seen(str(context.applicationId))
        changed = False
        for name, digest in found.modules.items():
            spec = spec_of(name)
            now = (digest, 0 if spec is None else changed_ns(spec))
            # if a file is younger than the application, workers may have imported an older state
            changed |= seen.state.get(name, now) != now
            changed |= name not in seen.state and now[1] > started
            seen.state[name] = now
        for name, value in found.values.items():
            changed |= seen.state.get(f"{name} value", value) != value
            seen.state[f"{name} value"] = value
        if changed:
            seen.changes += 1
            context.environment[VARIABLE] = str(seen.changes)
