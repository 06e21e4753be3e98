"""Tells `durable-shuffle run`, if it started this process, which job ran and which error ended it.

Strategy: one JSON line per fact, appended to the file that an environment variable names. Texts of
errors are left out: they are on standard error already.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from durable_shuffle.serialization import errors
from durable_shuffle.serialization.errors import DurableShuffleError

VARIABLE = "DURABLE_SHUFFLE_RUN_FILE"
_IN_A_TASK = re.compile(r"durable_shuffle\.serialization\.errors\.(\w+)")
"""An error of this library in the text of an error that Spark raises for a task."""


def tell_end() -> None:
    """From now on an exception that ends this program is told; harmless to repeat."""
    if VARIABLE in os.environ and not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook()


def tell_job(url: str, job: str, driver: str) -> None:
    """Say which job this program runs, and under which id it claimed the job."""
    _tell({"url": url, "job": job, "driver": driver})


class _Hook:
    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        _tell({"kind": kind_of(error), "types": [c.__name__ for c in type(error).__mro__]})
        self._before(kind, error, trace)


def kind_of(error: BaseException | None) -> str:
    """Return the kind of the error of this library that `error` is, or that caused it; or ""."""
    while error is not None:
        if isinstance(error, DurableShuffleError):
            return error.kind.value
        found = [getattr(errors, name, None) for name in _IN_A_TASK.findall(str(error))]
        for known in found:
            if isinstance(known, type) and issubclass(known, DurableShuffleError):
                return known.kind.value
        error = error.__cause__
    return ""


def _tell(fact: Mapping[str, object]) -> None:
    path = os.environ.get(VARIABLE)
    if path is not None:
        with Path(path).open("a") as file:
            file.write(json.dumps(fact) + "\n")


def told(text: str) -> dict[str, object]:
    """Return what a program told, the last word on everything. Lines cut by a kill are left out."""
    facts: dict[str, object] = {}
    for line in text.splitlines():
        try:
            fact = json.loads(line)
        except ValueError:
            continue
        if isinstance(fact, dict):
            facts |= fact
    return facts
