"""What PySpark sends for an object: the reductions of its cloudpickle, less what no row can show.

Workers rebuild classes, functions and objects from these parts and from nothing else. So whatever
a worker can see counts, and only the entries of `INVISIBLE` are left out.

Line numbers and file names of code are among them, so that a function may move in its script.
Where code can see them, they count beside (`places`).
"""

import copyreg
import functools
import io
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, cast

from pyspark.cloudpickle import CloudPickler, cloudpickle

from durable_shuffle.jobs.identity.exclusions import Excluded
from durable_shuffle.jobs.spark_versions import reductions

INVISIBLE = (
    Excluded("co_filename", "the place of the source; see `places`"),
    Excluded("co_firstlineno", "moves when lines above are edited; see `places`"),
    Excluded("co_linetable", "moves when lines or columns are edited; see `places`"),
    Excluded("class_tracker_id", "a random id; workers only look up the same class by it"),
    Excluded("__slotnames__", "pickle's own cache on a class; follows from __slots__"),
    Excluded("__firstlineno__", "the line of a class; see `places`"),
    Excluded("lock", "the lock of a functools.cached_property; workers make their own"),
)
_CODE = {"co_filename": "", "co_firstlineno": 1, "co_linetable": b""}
_LOCK = ("lock",) if sys.version_info < (3, 12) else ()
_CLASS = ("__slotnames__", *(("__firstlineno__",) if sys.version_info >= (3, 13) else ()))
_BY_USE = ("__globals__", "__closure__", "_cloudpickle_submodules")
_cloudpickle = reductions()
Parts = list[tuple[str, object]]


def code_parts(code: types.CodeType) -> tuple[object, ...]:
    """Return everything that is sent of a code object, without its place in the source."""
    placed_nowhere = code.replace(**cast("Any", _CODE))
    return cast("tuple[object, ...]", _cloudpickle._code_reduce(placed_nowhere)[1])  # noqa: SLF001


def function_parts(fn: types.FunctionType) -> tuple[Parts, Parts]:
    """Return the slots and the attributes that are sent of a function.

    The code, the globals and the closure are missing: they count by what the code uses of them.
    """
    state, slots = _cloudpickle._function_getstate(fn)  # noqa: SLF001
    return [(k, v) for k, v in slots.items() if k not in _BY_USE], list(state.items())


def registry_of(fn: types.FunctionType) -> Mapping[type, Any] | None:
    """Return type -> function of a `functools.singledispatch` function; None for any other.

    It is made of them; besides, it holds a cache of the types that it has met in this process.
    """
    registry = vars(fn).get("registry")
    made_there = fn.__globals__ is functools.singledispatch.__globals__
    return registry if made_there and type(registry) is types.MappingProxyType else None


def class_parts(cls: type) -> tuple[list[object], Parts]:
    """Return the arguments that make a class in a worker, and the attributes that are set on it."""
    _, arguments, (state, _), *_ = _cloudpickle._dynamic_class_reduce(cls)  # noqa: SLF001
    tracker = _cloudpickle._get_or_create_tracker_id(cls)  # noqa: SLF001
    if "_abc_impl" in state:  # in the order of a set; workers register each of them
        state = {**state, "_abc_impl": frozenset(state["_abc_impl"])}
    # cloudpickle drops what is the same object in a base; unpickling can make it another one
    above = {name: value for base in reversed(cls.__bases__) for name, value in vars(base).items()}
    own = {name: value for name, value in vars(cls).items() if above.get(name, above) is value}
    return (
        [argument for argument in arguments if argument is not tracker],
        [(k, v) for k, v in sorted({**own, **state}.items()) if k not in _CLASS],
    )


def reduced(obj: Any) -> str | tuple[Any, ...]:
    """Return what pickling makes of any other object: a name, or a function with its arguments.

    Raises:
        Exception: the object cannot be pickled; its own code may raise anything.
    """
    kind = type(obj)
    if issubclass(kind, functools.cached_property):
        state = {name: value for name, value in vars(obj).items() if name not in _LOCK}
        return copyreg.__newobj__, (kind,), state  # type: ignore[attr-defined]
    if _is_set(kind):
        return kind, (frozenset(obj),), getattr(obj, "__dict__", None)
    registered = cast("Callable[[Any], Any] | None", CloudPickler.dispatch_table.get(kind))
    made = registered(obj) if registered else obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if not isinstance(made, tuple):
        return str(made)
    if made[0] is cast("Any", cloudpickle)._make_typevar:  # noqa: SLF001
        tracker = _cloudpickle._get_or_create_tracker_id(obj)  # noqa: SLF001
        return made[0], tuple(part for part in made[1] if part is not tracker), *made[2:]
    return made


def _is_set(kind: type) -> bool:
    """Return whether pickling sends the members as a list in an arbitrary order."""
    return (
        issubclass(kind, set | frozenset)
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ in (set.__reduce__, frozenset.__reduce__)
    )


def buffer_of(obj: pickle.PickleBuffer) -> bytes:
    """Return the bytes that an object sends as they stand in memory."""
    return io.BytesIO(obj.raw()).getvalue()
