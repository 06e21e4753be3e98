"""Identity of Python functions: a digest of their code and of everything that decides the result.

Strategy: follow what the code uses.
- For the user's functions and classes, digest their code, defaults, closure and attributes, and the
  values of the globals that they and their callees name. This holds whether workers get them by
  value or import them. For an imported one, digest the source of its module too (`module_code`).
- For installed packages, use the version.
- For any other object, digest what pickling would send (`__reduce_ex__`); it is never stored.
- An object that cannot be pickled (a lock, an open file, a connection), or code that reads what is
  outside the program (the clock, the environment, files: `outside_reads`), is named as unresolved.

Dictionaries are digested in insertion order, because functions can observe it. If members of a set
refer to each other in a cycle, the digest can depend on the order of the set; the worst effect is
a fresh stage.
"""

import copyreg
import enum
import functools
import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pyspark.cloudpickle import dumps

from durable_shuffle.jobs.identity.digests import atom_digest, data_parts, hex_digest, raw_digest
from durable_shuffle.jobs.identity.functions.code_use import code_digest
from durable_shuffle.jobs.identity.functions.module_code import ModuleCode
from durable_shuffle.jobs.identity.functions.name_use import NameUse, cell_value

# class attributes that only name or describe it, or are derived from what is digested anyway
_CLASS_NOISE = frozenset(
    {
        *("__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__slotnames__"),
        *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
        *("__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl"),
        *("__dataclass_fields__", "__dataclass_params__", "__match_args__"),
        *("__parameters__", "__orig_bases__", "__type_params__", "__subclasshook__"),
    }
)


@runtime_checkable
class OwnIdentity(Protocol):
    """An object of this library that states its own identity, without the handles it holds."""

    def durable_identity(self) -> str:
        """Return a str; equal strs mean equal behaviour."""


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


def identify_function(fn: object) -> FunctionIdentity:
    """Return the identity of a function, callable object, class or plain value.

    Not seen: code that is reached by a computed attribute name, and state outside the process that
    is read through packages that `outside_reads` does not list.
    """
    visit = Visit()
    with visit.at(getattr(fn, "__name__", type(fn).__name__)):
        digest = visit.value(fn)
    python = f"python {sys.version_info.major}.{sys.version_info.minor}"
    return FunctionIdentity(
        hex_digest([python, digest, *visit.modules.tokens()]),
        tuple(dict.fromkeys([*visit.unresolved, *visit.modules.unresolved()])),
        visit.modules.sources(),
        visit.names.values,
        visit.names.captured,
        tuple(sorted(visit.code)),
    )


class Visit:
    """One walk over an object graph. Names in code are handled by `NameUse`."""

    def __init__(self) -> None:
        self.modules = ModuleCode()
        self.unresolved: list[str] = []
        self.cycles = 0
        self.code: set[str] = set()
        self.names = NameUse(self)
        self._where: list[str] = []
        self._open: dict[int, int] = {}
        self._done: dict[int, tuple[bytes, object]] = {}  # keeps the object, and so its id

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Set the name of the current variable, for messages."""
        self._where.append(name)
        try:
            yield
        finally:
            self._where.pop()

    def value(self, obj: object) -> bytes:
        atom = atom_digest(obj)
        if atom is not None:
            return atom
        key = id(obj)
        if key in self._done:
            return self._done[key][0]
        if key in self._open:
            self.cycles += 1
            return raw_digest(["cycle", str(len(self._open) - self._open[key])])
        self._open[key] = len(self._open)
        try:
            digest = self._compound(obj)
        except RecursionError:
            digest = self._give_up("is nested too deeply to be recognised")
        finally:
            del self._open[key]
        self._done[key] = (digest, obj)
        return digest

    def variable(self, obj: object) -> tuple[bytes, bool]:
        """Return the digest of a value, and whether every visit of it gives the same digest."""
        cycles, known = self.cycles, id(obj) in self._done
        digest = self.value(obj)
        return digest, not (known or cycles != self.cycles)

    def _compound(self, obj: object) -> bytes:
        kind = type(obj)
        if kind in (tuple, list):
            return self._sequence(kind.__name__, obj)  # type: ignore[arg-type]
        if kind in (set, frozenset):
            members: Iterable[object] = obj  # type: ignore[assignment]
            return raw_digest([kind.__name__, *sorted(self.value(member) for member in members)])
        if isinstance(obj, dict | types.MappingProxyType) and kind in (
            dict,
            types.MappingProxyType,
        ):
            return self._mapping("dict", obj)
        if isinstance(obj, types.CodeType):
            return code_digest(obj, self.value)
        if isinstance(obj, types.ModuleType):
            return self.names.of_module(obj)
        if self._from_library(obj):
            self.names.of_library_object(obj)
        if isinstance(obj, types.FunctionType):
            return self._function(obj)
        if isinstance(obj, types.MethodType):
            return raw_digest(["method", self.value(obj.__func__), self.value(obj.__self__)])
        if isinstance(obj, type):
            return self._class(obj)
        if isinstance(obj, enum.Enum):
            parts = [self.value(kind), self.value(obj.name), self.value(obj.value)]
            return raw_digest(["enum", *parts])
        data = data_parts(obj)
        if data is not None:
            return raw_digest(data)
        if isinstance(obj, OwnIdentity):
            return raw_digest(["own identity", obj.durable_identity()])
        return self._object(obj)

    def _sequence(self, tag: str, items: Iterable[object]) -> bytes:
        parts = []
        for index, item in enumerate(items):
            with self.at(f"[{index}]"):
                parts.append(self.value(item))
        return raw_digest([tag, *parts])

    def _mapping(self, tag: str, items: Iterable[object] | dict[object, object]) -> bytes:
        pairs = items.items() if hasattr(items, "items") else items
        parts: list[bytes | str] = [tag]
        for key, value in pairs:  # type: ignore[misc]
            with self.at(f"[{key!r}]" if isinstance(key, str | int) else "[…]"):
                parts += [self.value(key), self.value(value)]
        return raw_digest(parts)

    def _named(self, pairs: Iterable[tuple[str, object]]) -> bytes:
        parts: list[bytes | str] = []
        for name, value in sorted(pairs, key=lambda pair: pair[0]):
            with self.at(name):
                parts += [name, self.value(value)]
        return raw_digest(parts)

    def _from_library(self, obj: object) -> bool:
        """Return whether a function, class or instance is from a package identified by version."""
        named = isinstance(obj, type) or inspect.isroutine(obj)
        module = getattr(obj if named else type(obj), "__module__", None) or "builtins"
        return self.modules.is_library(module)

    def _function(self, fn: types.FunctionType) -> bytes:
        module = fn.__module__ or "__main__"
        importable = _is_importable(fn)
        if module != "__main__" and (importable or self.modules.is_library(module)):
            self.modules.reach(module)
        named = [module, fn.__qualname__] if importable else []
        if self.modules.is_library(module):
            if importable:
                return raw_digest(["imported", *named])
            names: bytes | str = module
        else:
            label = ".".join(named) or fn.__qualname__
            names = self.names.of_function(fn, label)
        pairs = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        cells = {name: cell_value(cell) for name, cell in pairs}
        code = code_digest(fn.__code__, self.value)
        if not self.modules.is_library(module):
            self.code.add(code.hex())
            for name, value in {**cells, **_defaults(fn)}.items():
                if not isinstance(value, types.ModuleType):  # `names` digests what is used of it
                    with self.at(name):
                        self.names.capture(f"{fn.__qualname__}.{name}", value, self.value(value))
        state = {k: v for k, v in vars(fn).items() if k != "__wrapped__"}
        return raw_digest(
            [
                "function",
                *(str(len(named)), *named),
                code,
                self.value(fn.__defaults__),
                self.value(fn.__kwdefaults__),
                self._named(  # for modules, `names` digests the attributes that are used
                    (name, value)
                    for name, value in cells.items()
                    if not isinstance(value, types.ModuleType)
                ),
                names,
                self._named(state.items()),
            ]
        )

    def _class(self, cls: type) -> bytes:
        library, importable = self.modules.is_library(cls.__module__), _is_importable(cls)
        if importable:
            self.modules.reach(cls.__module__)
        if library and (importable or cls.__module__ == "builtins"):
            return raw_digest(["class", cls.__module__, cls.__qualname__])
        body = [(k, v) for k, v in vars(cls).items() if k not in _CLASS_NOISE]
        if issubclass(cls, enum.Enum):
            values = {name: member.value for name, member in cls.__members__.items()}
            functions = [(k, v) for k, v in body if isinstance(v, types.FunctionType | property)]
            body = [*functions, ("__members__", values)]
        return raw_digest(
            [
                "class of the user's",
                cls.__qualname__ if importable else cls.__name__,
                *(self.value(base) for base in cls.__bases__),
                self.value(type(cls)),
                self._named((name, _plain_member(member)) for name, member in body),
            ]
        )

    def _object(self, obj: object) -> bytes:
        """Return the digest of any other object: of what pickling it would send."""
        kind = type(obj)
        if kind.__module__ == "pyspark.core.broadcast" and kind.__name__ == "Broadcast":
            return raw_digest(["broadcast", self.value(obj.value)])  # type: ignore[attr-defined]
        wrapped = getattr(obj, "__wrapped__", None)
        if isinstance(obj, functools._lru_cache_wrapper) and wrapped is not None:  # noqa: SLF001
            return raw_digest(["cached", self.value(wrapped)])
        try:
            registered = copyreg.dispatch_table.get(kind)
            reduced = registered(obj) if registered is not None else obj.__reduce_ex__(4)
        except Exception as error:  # noqa: BLE001 - any class may raise its own error
            return self._give_up(f"cannot be compared ({error})", obj)
        if isinstance(reduced, str):
            module = getattr(obj, "__module__", None) or kind.__module__
            self.modules.reach(str(module))
            return raw_digest(["named", str(module), reduced])
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        parts = [self.value(make), self.value(arguments)]
        parts.append(self._state(state))
        parts.append(self._sequence("items", items or ()))
        parts.append(self._mapping("pairs", pairs or ()))
        return raw_digest(["object", *parts])

    def _state(self, state: object) -> bytes:
        """Return the digest of an instance's state, whatever the order of its attributes."""
        if isinstance(state, dict) and all(isinstance(name, str) for name in state):
            return self._named(state.items())
        if isinstance(state, tuple):
            return raw_digest(["state", *(self._state(part) for part in state)])
        return self.value(state)

    def _give_up(self, why: str, obj: object = None) -> bytes:
        kind = type(obj)
        what = f" of type {kind.__module__}.{kind.__qualname__}" if obj is not None else ""
        self.unresolved.append(f"{self.place()}{what} {why}")
        return raw_digest(["unresolved", kind.__module__, kind.__qualname__])

    def place(self) -> str:
        """Return the dotted name of the current variable, from its module or its function on."""
        roots = [index for index, name in enumerate(self._where) if "." in name and name[0] != "["]
        return ".".join(self._where[roots[-1] if roots else 0 :])


def _is_importable(obj: types.FunctionType | type) -> bool:
    """Return whether a worker imports it: its module holds this object under its own name."""
    module = obj.__module__
    if module == "__main__" or module not in sys.modules:
        return False
    named: object = sys.modules[module]
    for name in obj.__qualname__.split("."):
        named = getattr(named, name, None)
    return named is obj


def _defaults(fn: types.FunctionType) -> dict[str, object]:
    values = fn.__defaults__ or ()
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    last = names[len(names) - len(values) :]
    return {**dict(zip(last, values, strict=True)), **(fn.__kwdefaults__ or {})}


def _plain_member(member: object) -> object:
    """Return a member of a class body in a form that can be digested."""
    if isinstance(member, staticmethod | classmethod):
        return (type(member).__name__, member.__func__)
    if isinstance(member, property):
        return ("property", member.fget, member.fset, member.fdel)
    if isinstance(member, functools.cached_property):
        return ("cached property", member.func)
    if isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
        return ("slot", member.__name__)
    return member


def opaque_functions(identity: FunctionIdentity, function: object) -> tuple[str, ...]:
    """Return a digest of the pickled function if its identity is unresolved, else nothing."""
    if not identity.unresolved:
        return ()
    pickled: bytes = dumps(function)  # type: ignore[no-untyped-call]
    return (hex_digest([pickled]),)
