"""Walks everything that a Python function reaches, and digests it.

- Functions, classes and objects of the user count by what PySpark sends workers for them (`sent`),
  and by the values of the globals that their code names (`name_use`). This holds whether workers
  get them by value or import them. For an imported one, the source of its module counts, too
  (`module_code`).
- Functions and classes of installed packages count by the package's version.
- An object that cannot be pickled, or that raises while it is looked at, is named as unresolved.

Order counts wherever a worker can see it: in dictionaries, in attributes of instances, in sets as
far as hashes are the same in every process. The rest of a set is sorted, as each driver has another
order. Whether two equal values are one object counts for all that a function may change or compare
by identity.
"""

import functools
import inspect
import pickle
import re
import sys
import types
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol, cast

import numpy as np

from durable_shuffle.jobs.identity.digests import atom_digest, data_parts, raw_digest
from durable_shuffle.jobs.identity.functions.module_code import ModuleCode
from durable_shuffle.jobs.identity.functions.name_use import NameUse, cell_value, is_module
from durable_shuffle.jobs.identity.functions.places import place_of, place_of_class
from durable_shuffle.jobs.identity.functions.sent import (
    buffer_of,
    class_parts,
    code_parts,
    function_parts,
    reduced,
    registry_of,
)
from durable_shuffle.jobs.spark_versions import broadcasts

_SHARED_UNSEEN = (
    *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType, type),
)
"""What is one object however often a worker asks for it. So are tuples of constants."""
_ATOMS = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
_FIXED_HASHES = tuple(
    kind.__hash__ for kind in (int, float, complex, Decimal, Fraction, timedelta, range)
)
"""Hashes that are the same in every process. Those of texts depend on a seed, many on addresses."""
_ADDRESSED = re.compile(r"([\w.<>]+):(\d{6,})")
"""How Pydantic refers to a class: by name and address."""


class OwnIdentity(Protocol):
    """An object of this library that states its own identity, without the handles it holds."""

    def durable_identity(self) -> str:
        """Return a str; equal strs mean equal behaviour."""


class Visit:
    """One walk over an object graph. Names in code are handled by `NameUse`."""

    def __init__(self) -> None:
        self.modules = ModuleCode()
        self.unresolved: list[str] = []
        self.cycles = 0
        self.code: set[str] = set()
        self.shared: Counter[bytes] = Counter()
        """Digest of an object that is met again -> how often."""
        self.twins: Counter[bytes] = Counter()
        """Digest of a function or class that workers get by value -> how many there are of it."""
        self._constants: set[int] = set()
        """Tuples and frozensets that never change, nor do their members."""
        self._methods: set[int] = set()
        """Functions of classes; a bound method that was unpickled beside its class has a copy."""
        self.places: set[bytes] = set()
        """Where the user's functions and classes stand in the source."""
        self.names = NameUse(self)
        self._addresses: dict[str, int] = {}
        self._named_classes: dict[int, str] = {}
        self._where: list[str] = []
        self._open: set[int] = set()
        self._labels: dict[int, int] = {}
        """Object that refers to itself -> its number, in the order of discovery."""
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
        """Return the digest of any object; never raise."""
        atom = atom_digest(self._addressed(obj) if type(obj) is str else obj)
        if atom is not None:
            return atom
        key = id(obj)
        if key in self._done:
            digest = self._done[key][0]
            if type(obj) not in _SHARED_UNSEEN and key not in self._constants:
                self.shared[digest] += 1
            return digest
        if key in self._open:
            self.cycles += 1
            label = self._labels.setdefault(key, len(self._labels))
            return raw_digest(["cycle", str(label)])
        self._open.add(key)
        try:
            digest = self._compound(obj, type(obj))
        except RecursionError:
            digest = self._give_up("is nested too deeply to be recognised")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - objects run their own code when looked at
            digest = self._give_up(f"cannot be compared ({_text(error)})", obj)
        finally:
            self._open.discard(key)
        if key in self._labels:
            digest = raw_digest(["cyclic", str(self._labels[key]), digest])
        self._done[key] = (digest, obj)
        if type(obj) in (tuple, frozenset) and self._are_constants(cast("tuple[object]", obj)):
            self._constants.add(key)
        return digest

    def _are_constants(self, members: Iterable[object]) -> bool:
        """Return whether these members of a tuple never change; they were visited before."""
        return all(type(one) in _ATOMS or id(one) in self._constants for one in members)

    def _addressed(self, text: str) -> str:
        """Return a text with the address of a class in it numbered in the order of discovery."""
        found = _ADDRESSED.match(text)
        if found is None or self._classes().get(int(found[2])) != found[1]:
            return text
        number = self._addresses.setdefault(found[2], len(self._addresses))
        return f"address {number}, {text.replace(found[2], '')}"

    def _classes(self) -> dict[int, str]:
        """Return address -> name of each class that there is."""
        if not self._named_classes:
            waiting, seen = [object], self._named_classes
            while waiting:
                below = [cls for cls in type.__subclasses__(waiting.pop()) if id(cls) not in seen]
                seen |= {id(cls): _kind_name(cls) for cls in below}
                waiting += below
        return self._named_classes

    def variable(self, obj: object) -> tuple[bytes, bool]:
        """Return the digest of a value, and whether every visit of it gives the same digest."""
        cycles, known = self.cycles, id(obj) in self._done
        digest = self.value(obj)
        return digest, not (known or cycles != self.cycles)

    def _compound(self, obj: Any, kind: type) -> bytes:
        # objects are asked by their type: `isinstance` may run the object's own code
        if kind in (tuple, list):
            return self._sequence(kind.__name__, obj)
        if kind in (set, frozenset):
            return self._set(kind.__name__, obj)
        if kind is dict:
            return self._mapping(obj.items())
        if kind is bytearray:
            return raw_digest(["bytearray", bytes(obj)])
        if kind is types.CodeType:
            return self._sequence("code", code_parts(obj))
        if issubclass(kind, types.ModuleType):
            return self.names.of_module(obj)
        if self._from_library(obj, kind):
            self.names.of_library_object(obj)
        if kind is types.FunctionType:
            return self._function(obj)
        if issubclass(kind, type):
            return self._class(obj)
        data = data_parts(obj)
        if data is not None:
            return raw_digest(data)
        if any("durable_identity" in vars(base) for base in kind.__mro__):
            return raw_digest(["own identity", obj.durable_identity()])
        return self._object(obj, kind)

    def _sequence(self, tag: str, items: Iterable[object]) -> bytes:
        parts = []
        for index, item in enumerate(items):
            with self.at(f"[{index}]"):
                parts.append(self.value(item))
        return raw_digest([tag, *parts])

    def _set(self, tag: str, members: Collection[object]) -> bytes:
        # the order of a set differs between processes, and so would the numbers of cycles in it
        found = {id(member): self.value(member) for member in sorted(members, key=_place_in_set)}
        in_order = [found[id(member)] for member in members if _has_fixed_hash(member)]
        return raw_digest([tag, *sorted(found.values()), "in order", *in_order])

    def _mapping(self, pairs: Iterable[tuple[object, object]]) -> bytes:
        parts: list[bytes | str] = ["dict"]
        for key, value in pairs:
            with self.at(f"[{key!r}]" if type(key) in (str, int) else "[…]"):
                parts += [self.value(key), self.value(value)]
        return raw_digest(parts)

    def _named(self, pairs: Iterable[tuple[str, object]]) -> bytes:
        parts: list[bytes | str] = []
        for name, value in pairs:
            with self.at(str(name)):
                parts += [self.value(name), self.value(value)]
        return raw_digest(parts)

    def _from_library(self, obj: object, kind: type) -> bool:
        """Return whether a function, class or instance is from a package identified by version."""
        named = issubclass(kind, type) or inspect.isroutine(obj)
        module = getattr(obj if named else kind, "__module__", None) or "builtins"
        return self.modules.is_library(str(module))

    def _function(self, fn: types.FunctionType) -> bytes:
        importable = _is_importable(fn)
        module, label = str(fn.__module__), fn.__qualname__
        if importable:
            self.modules.reach(module)
            if self.modules.is_library(module):
                return raw_digest(["imported", module, fn.__qualname__])
            label = f"{module}.{label}"
            registry = registry_of(fn)
            if registry is not None:
                return raw_digest(["dispatch", module, self._mapping(registry.items())])
        # functools.wraps copies `__module__`; the globals tell where the code was written
        home = str(fn.__globals__.get("__name__", "__main__"))
        library = self.modules.is_library(home)
        if library:
            self.modules.reach(home)
        names: bytes | str = home if library else self.names.of_function(fn, label)
        pairs = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        cells = {name: cell_value(cell) for name, cell in pairs}
        with self.at("__code__"):
            code = self.value(fn.__code__)
        if not library:
            self.code.add(code.hex())
            self.places.add(place_of(fn.__code__))
            for name, value in {**cells, **_defaults(fn)}.items():
                if not is_module(value):  # `names` digests what is used of it
                    with self.at(name):
                        self.names.capture(f"{fn.__qualname__}.{name}", value, self.value(value))
        slots, attributes = function_parts(fn)
        by_value = [(k, v) for k, v in cells.items() if not is_module(v)]
        parts = [code, self._named(by_value), names, self._named(slots), self._named(attributes)]
        digest = raw_digest(["function", "by name" if importable else "by value", *parts])
        self.twins[digest] += not (importable or id(fn) in self._methods)
        return digest

    def _class(self, cls: type) -> bytes:
        library, importable = self.modules.is_library(str(cls.__module__)), _is_importable(cls)
        if importable:
            self.modules.reach(cls.__module__)
        if library and (importable or cls.__module__ == "builtins"):
            return raw_digest(["class", cls.__module__, cls.__qualname__])
        self.places.add(place_of_class(cls))
        arguments, state = class_parts(cls)
        made = [self.value(argument) for argument in arguments]
        functions = (_function_of(value) for _, value in state)
        self._methods.update(id(fn) for fn in functions if type(fn) is types.FunctionType)
        name = cls.__qualname__ if importable else ""
        digest = raw_digest(["class of the user's", name, *made, self._named(state)])
        self.twins[digest] += not importable
        return digest

    def _object(self, obj: Any, kind: type) -> bytes:
        """Return the digest of any other object: of what pickling it would send."""
        if kind.__module__ == broadcasts.__name__ and kind.__name__ == "Broadcast":
            return raw_digest(["broadcast", self.value(obj.value)])
        if kind is functools._lru_cache_wrapper and hasattr(obj, "__wrapped__"):  # noqa: SLF001
            how = self.value(obj.cache_parameters())
            return raw_digest(["cached", how, self._named(vars(obj).items())])
        if kind is pickle.PickleBuffer:
            return raw_digest(["buffer", buffer_of(obj)])
        sent = reduced(obj)
        if isinstance(sent, str):
            module = str(getattr(obj, "__module__", None) or kind.__module__)
            self.modules.reach(module)
            return raw_digest(["named", module, sent])
        if sent[0] is getattr and is_module(sent[1][0]):  # a type variable, standard output
            self.modules.reach(sent[1][0].__name__)
            return raw_digest(["named", sent[1][0].__name__, str(sent[1][1])])
        make, arguments, state, items, pairs, setter = (*sent, None, None, None, None)[:6]
        parts = [self.value(make), self._sequence("arguments", arguments), self._state(state)]
        parts.append(self._sequence("items", items or ()))
        parts.append(self._mapping(pairs or ()))
        return raw_digest(["object", *parts, self.value(setter)])

    def _state(self, state: object) -> bytes:
        """Return the digest of an instance's state; messages name its attributes."""
        if isinstance(state, dict) and all(isinstance(name, str) for name in state):
            return raw_digest(["attributes", self._named(state.items())])
        if type(state) is tuple:
            return raw_digest(["state", *(self._state(part) for part in state)])
        return self.value(state)

    def _give_up(self, why: str, obj: object = None) -> bytes:
        kind = _kind_name(type(obj))
        what = f" of type {kind}" if obj is not None else ""
        self.unresolved.append(f"{self.place()}{what} {why}")
        return raw_digest(["unresolved", kind])

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


def _function_of(value: Any) -> object:
    """Return the function of a static or class method; any other object as it is."""
    return value.__func__ if type(value) in (staticmethod, classmethod) else value


def _defaults(fn: types.FunctionType) -> dict[str, object]:
    values = fn.__defaults__ or ()
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    last = names[len(names) - len(values) :]
    return {**dict(zip(last, values, strict=False)), **(fn.__kwdefaults__ or {})}


def _has_fixed_hash(member: object) -> bool:
    """Return whether a member of a set has the same hash, and so the same place, in any process."""
    hashed = type(member).__hash__
    if hashed is tuple.__hash__ or hashed is frozenset.__hash__:
        return all(map(_has_fixed_hash, member))  # type: ignore[call-overload]
    if isinstance(hashed, types.FunctionType):  # of a class in Python: as a rule, of what it holds
        return all(map(_has_fixed_hash, _held_by(member)))
    return hashed in _FIXED_HASHES or isinstance(member, np.number)


def _held_by(obj: object) -> list[object]:
    """Return the values of the attributes of an object of a class in Python. Runs no code of it."""
    held = list[object]()
    for base in type(obj).__mro__:
        for place in vars(base).values():
            if type(place) is types.MemberDescriptorType:
                with suppress(AttributeError):  # it has no value
                    held.append(place.__get__(obj))
    with suppress(AttributeError):
        held += object.__getattribute__(obj, "__dict__").values()
    return held


def _place_in_set(member: object) -> str:
    """Return a text that orders the members of a set alike in every process, where that is known.

    Otherwise the order matters only for members that refer to themselves.
    """
    atom = atom_digest(member)
    if atom is not None:
        return atom.hex()
    names = (getattr(member, name, "") for name in ("__module__", "__qualname__"))
    return ".".join([_kind_name(type(member)), *map(str, names)])


def _kind_name(kind: type) -> str:
    try:
        return f"{kind.__module__}.{kind.__qualname__}"
    except Exception:  # noqa: BLE001 - a metaclass may run its own code
        return type.__repr__(kind)


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - the error's own code
        return type(error).__name__
