"""What functions in Spark's own Python workers opened outside, told to the driver.

A function in a plan runs in a worker without our tasks. Its pickled command begins a watch there
(`user_code.opened`), and Spark's accumulators carry what was found to the driver, with the results
of the task. The driver notes it before SEAL (`stages/store.py`). What a worker finds whose output
Spark does not read to the end stays unknown, and so does what a driver has heard that dies before
SEAL.
"""

import threading
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.accumulators import AccumulatorParam, _accumulatorRegistry

from durable_shuffle.shuffle.base.outside import begin_watch, end_watch

Found = dict[str, tuple[str, ...]]
"""Digest of a function's code -> what it opened."""
_lock = threading.Lock()
_listening: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
"""SparkContext -> its accumulator."""


class _Texts(AccumulatorParam[Found]):
    """Joins what several tasks have found."""

    def zero(self, value: Found) -> Found:
        del value
        return {}

    def addInPlace(self, value1: Found, value2: Found) -> Found:
        for code, texts in value2.items():
            value1[code] = tuple(dict.fromkeys((*value1.get(code, ()), *texts)))
        return value1


def ear_of(context: Any) -> int:
    """Return the number under which workers of this application tell what they found."""
    with _lock:
        if context not in _listening:
            _listening[context] = context.accumulator({}, _Texts())
        return int(_listening[context].aid)


def heard_of(context: Any, code: Iterable[str]) -> list[str]:
    """Return what functions with this code opened in this application so far."""
    told = _listening.get(context)
    found: Found = {} if told is None else dict(told.value)
    return list(dict.fromkeys(text for one in code for text in found.get(one, ())))


class _Ear:
    """Stands in a worker's registry of accumulators; it is asked for `_value` at the task's end."""

    def __init__(self) -> None:
        self._watch = begin_watch()
        self.code: set[str] = set()

    @property
    def _value(self) -> Found:
        end_watch(self._watch)
        found = tuple(self._watch.found)
        return dict.fromkeys(sorted(self.code), found) if found else {}

    def end(self) -> None:
        """Stop looking."""
        end_watch(self._watch)


_current: list[_Ear] = []
"""The ear of the worker's current task."""


def listen(ear: int, code: Iterable[str]) -> None:
    """Watch what functions with this code open in this worker until its task ends."""
    registry: dict[int, Any] = _accumulatorRegistry
    if not isinstance(registry.get(ear), _Ear):  # Spark clears the registry for each task
        while _current:
            _current.pop().end()
        _current.append(_Ear())
        registry[ear] = _current[0]
    _current[0].code.update(code)
