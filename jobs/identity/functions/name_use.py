"""Resolves the names in a function's code: globals, attributes of modules, imports.

The user's own values are digested by content. Installed packages are identified by their version;
for a name in one, only check whether it reads something outside the program (`outside_reads`). Code
that workers will import but the driver has not loaded is compiled, never run.
"""

import builtins
import inspect
import sys
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeGuard

from durable_shuffle.jobs.identity.digests import atom_digest, raw_digest
from durable_shuffle.jobs.identity.exclusions import Excluded, names
from durable_shuffle.jobs.identity.functions.calls import UNCALLED, Way
from durable_shuffle.jobs.identity.functions.code_use import (
    Binding,
    CodeUse,
    ImportUse,
    code_use,
)
from durable_shuffle.jobs.identity.functions.module_code import imported_names
from durable_shuffle.jobs.identity.functions.outside_reads import (
    asks_clock,
    asks_zone,
    methods_that_read,
    name_of,
    only_numbers_partitions,
    raises_events,
    what_is_read,
)
from durable_shuffle.jobs.identity.functions.places import shows_places

if TYPE_CHECKING:
    from durable_shuffle.jobs.identity.functions.walk import Visit

Parts = list[bytes | str]
_BY_IMPORT = "set by the import system of each process"
MODULE_NOTES = (
    Excluded("__builtins__", _BY_IMPORT),
    Excluded("__cached__", _BY_IMPORT),
    Excluded("__file__", _BY_IMPORT),
    Excluded("__loader__", _BY_IMPORT),
    Excluded("__path__", _BY_IMPORT),
    Excluded("__spec__", _BY_IMPORT),
)
"""Attributes of a module that do not count where code uses a whole module."""
_MISSING = object()
_MEMORY = ("_io.BytesIO", "_io.StringIO", "pyarrow.lib.BufferReader", "pyarrow.lib.py_buffer")
_UNKNOWN = frozenset({UNCALLED})
"""How a name is used of which only that is known."""
_CODE = (
    *(type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType),
    types.ClassMethodDescriptorType,
)


class NameUse:
    """The part of one walk over an object graph that handles names; the walk digests values."""

    def __init__(self, walk: "Visit") -> None:
        self._walk, self._modules = walk, walk.modules
        self.values: dict[str, str] = {}
        """Digest of each variable of the user's modules that code uses."""
        self.captured: dict[str, str] = {}
        """Like `values`, plus the main program's variables, closures and default arguments."""
        self.zones: set[str] = set()
        """What of `zones` code asks for."""
        self.places = False
        """Whether code may see its own place in the source."""
        self.busy = False
        """Whether a watch on what the code opens would slow it down (`raises_events`)."""
        self._called: list[tuple[str, frozenset[str]]] = []
        """Function -> the methods that it calls on any object."""
        self._used_modules: set[str] = set()
        self._users: list[str] = []
        self._uses: list[CodeUse] = []
        self._named: list[dict[str, frozenset[Way]]] = []
        """For each function on the way: dotted names in libraries that it uses -> how."""
        self._judged: dict[int, object] = {}
        """Objects that code names: how it calls them is known."""
        self._compiled: set[str] = set()

    def of_function(self, fn: types.FunctionType, name: str) -> bytes:
        """Return the digest of everything that the function's code names."""
        use = code_use(fn.__code__, _makers_of_memory(fn))
        package = fn.__globals__.get("__package__")
        package = package if isinstance(package, str) else None
        self._users.append(name)
        self._named.append({})
        self._uses.append(use)
        try:
            for statement in use.imports:
                for imported in imported_names(statement, package):
                    self._modules.reach(imported)
            parts = self._globals(fn, use)
            parts += self._imported(use, package)
            parts += self._module_cells(fn, use)
            self._methods(use, _modules_of(use, fn.__globals__))
        finally:
            self._named.pop()
            self._uses.pop()
            self._users.pop()
        return raw_digest(parts)

    def of_module(self, module: types.ModuleType) -> bytes:
        """Return the digest of a whole module, any of whose attributes may be used."""
        name = module.__name__
        self._modules.reach(name)
        parts: Parts = ["module", name]
        if self._modules.is_library(name):
            self._read(f"{name}.", _UNKNOWN)
        elif name != "__main__":
            for attribute, value in sorted(vars(module).items()):
                if attribute not in names(MODULE_NOTES):
                    with self._walk.at(f"{name}.{attribute}"):
                        parts += [attribute, self._of_variable(attribute, value, name)]
        return raw_digest(parts)

    def of_library_object(self, obj: object) -> None:
        """Record what an installed package's object reads from outside, if anything."""
        name = name_of(obj)
        if name is not None and id(obj) not in self._judged:
            code = inspect.isroutine(obj) or issubclass(type(obj), type)
            self._read(name, _UNKNOWN if code else frozenset())

    def finish(self) -> None:
        """Record what methods read of objects that one function makes and another one gets."""
        for user, methods in self._called:
            for name, meaning in methods_that_read({}, methods, self._used_modules).items():
                text = f"{user} {meaning} (.{name}())"
                read = (one for one in self._walk.unresolved if one.startswith(f"{user} {meaning}"))
                if not any(one.endswith((f".{name})", text)) for one in read):
                    self._walk.unresolved.append(text)

    def _globals(self, fn: types.FunctionType, use: CodeUse) -> Parts:
        module = fn.__module__ if fn.__module__ != "__main__" else None
        parts: Parts = []
        for name in sorted(use.globals):
            parts.append(name)
            with self._walk.at(f"{module}.{name}" if module else name):
                if name in fn.__globals__:
                    value = fn.__globals__[name]
                    parts += self._used(name, value, use.globals[name], use, module)
                elif hasattr(builtins, name):
                    parts.append("builtin")
                    if name == "id" and _is_repr_of_attrs(fn.__code__):
                        continue
                    self._by_name(f"builtins.{name}", name, use.globals[name], use)
                else:
                    parts.append("missing")
        return parts

    def _module_cells(self, fn: types.FunctionType, use: CodeUse) -> Parts:
        """Return the parts for modules that an enclosing function imported."""
        parts: Parts = []
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            value = cell_value(cell)
            if is_module(value):
                with self._walk.at(name):
                    paths = use.locals.get(name, {()})
                    parts += [name, *self._used(name, value, paths, use)]
        return parts

    def _imported(self, use: CodeUse, package: str | None) -> Parts:
        """Return the parts for names that imports inside the code bind, and for their use."""
        parts: Parts = []
        for binding in use.bindings:
            paths = use.locals.get(binding.to, set()) | use.globals.get(binding.to, set())
            bound = self._bound(binding, package)
            parts += [binding.to, binding.module, binding.name or ""]
            if bound is not None:
                with self._walk.at(binding.to):
                    parts += self._used(binding.to, bound[0], paths, use)
            else:
                if self._modules.is_library(_dotted(binding)):
                    self._by_name(_dotted(binding), binding.to, paths, use)
        for statement in use.imports:
            for name in imported_names(statement, package):
                self._not_loaded(name)
        return parts

    def _bound(self, binding: Binding, package: str | None) -> tuple[object] | None:
        """Return the object that an import statement binds, if no module must be loaded for it."""
        for base in imported_names(ImportUse(binding.level, binding.module, ()), package):
            module = sys.modules.get(base)
            if module is None:
                return None
            if binding.name is None:
                return (module,)
            if binding.name in vars(module):
                return (vars(module)[binding.name],)
            below = sys.modules.get(f"{base}.{binding.name}")
            return None if below is None else (below,)
        return None

    def _used(
        self,
        name: str,
        value: object,
        paths: set[tuple[str, ...]],
        use: CodeUse,
        module: str | None = None,
    ) -> Parts:
        if not is_module(value):
            for path in sorted(paths):
                self._tail(value, path, _ways(use, name, path))
            return [self._of_variable(name, value, module)]
        self._modules.reach(value.__name__)
        parts: Parts = ["module", value.__name__]
        for path in sorted(paths):
            parts += self._attribute(value, path, _ways(use, name, path))
        return parts

    def _attribute(
        self, module: types.ModuleType, path: tuple[str, ...], ways: frozenset[Way]
    ) -> Parts:
        """Return the parts for the object at the end of a path that begins at a module."""
        value: object = module
        holder = module
        walked = 0
        while walked < len(path) and is_module(value):
            holder = value
            self._modules.reach(holder.__name__)
            value = getattr(holder, path[walked], _MISSING)
            walked += 1
        label = ".".join(path)
        if value is _MISSING:
            return [label, "missing"]
        if is_module(value):
            return [label, self.of_module(value)]
        attribute, rest = path[walked - 1], path[walked:]
        if self._modules.is_library(holder.__name__):
            dotted = ".".join((holder.__name__, attribute, *rest))
            if not self._read(dotted, ways):
                self._tail(value, rest, ways)
            atom = atom_digest(value)
            return [] if atom is None else [label, atom]
        with self._walk.at(f"{holder.__name__}.{attribute}"):
            self._tail(value, rest, ways)
            return [label, self._of_variable(attribute, value, holder.__name__)]

    def _of_variable(self, name: str, value: object, module: str | None) -> bytes:
        digest, everywhere = self._walk.variable(value)
        user = self._users[-1] if self._users else ""
        self.capture(f"{module or user}.{name}", value, digest)
        if module is not None and everywhere and not _is_code(value):
            self.values[f"{module}.{name}"] = digest.hex()
        return digest

    def capture(self, name: str, value: object, digest: bytes) -> None:
        """Record a value that a function uses, unless it is code."""
        if not _is_code(value):
            self.captured[name] = digest.hex()

    def _tail(self, value: object, path: tuple[str, ...], ways: frozenset[Way]) -> None:
        """Record what an attribute of an installed package's class or instance reads."""
        name = _known_name(value)
        if name is None or not self._modules.is_library(name):
            return
        self._judged[id(value)] = value
        if type(value) is types.MethodType:
            self._judged |= {id(part): part for part in (value.__self__, value.__func__)}
        self._read(".".join((name, *path)), ways)

    def _methods(self, use: CodeUse, modules: set[str]) -> None:
        """Record what methods of any object read, and what follows from several names together."""
        named = self._named[-1]
        self.zones |= asks_zone(named, use.attributes)
        self.busy |= raises_events(named)
        self.places = self.places or shows_places(named, use.attributes, use.words)
        clock = asks_clock(named, use)
        if clock is not None:
            self._add("reads the clock", f"{clock} of a text such as 'now'")
        self._called.append((self._users[-1], frozenset(use.methods)))
        self._used_modules |= modules
        for name, meaning in methods_that_read(use.methods, use.attributes, modules).items():
            if not any(
                text.endswith((f".{name})", f"({name})")) for text in self._walk.unresolved[-8:]
            ):
                self._add(meaning, f".{name}()")

    def _by_name(
        self, dotted: str, name: str, paths: Iterable[tuple[str, ...]], use: CodeUse
    ) -> None:
        for path in sorted(paths):
            self._read(".".join((dotted, *path)), _ways(use, name, path))

    def _not_loaded(self, name: str) -> None:
        """Record what a module that only workers import would read from outside."""
        if name in self._compiled:
            return
        self._compiled.add(name)
        code = self._modules.not_loaded(name)
        if code is None:
            return
        use = code_use(code)
        known = {one.to: _dotted(one) for one in use.bindings}
        package = name if self._modules.is_package(name) else name.rpartition(".")[0]
        self._users.append(f"module {name}, which workers import,")
        self._named.append({})
        self._uses.append(use)
        try:
            for name, paths in (*use.globals.items(), *use.locals.items()):
                if name in known:
                    if self._modules.is_library(known[name]):
                        self._by_name(known[name], name, paths, use)
                elif name in use.globals and hasattr(builtins, name):
                    self._by_name(f"builtins.{name}", name, paths, use)
            self._methods(use, _modules_of(use, {}))
            for one in use.imports:
                for imported in imported_names(one, package):
                    if imported in sys.modules and not self._modules.is_library(imported):
                        self._walk.value(sys.modules[imported])
                    self._not_loaded(imported)
        finally:
            self._named.pop()
            self._uses.pop()
            self._users.pop()

    def _read(self, dotted: str, ways: frozenset[Way]) -> bool:
        """Record what a name in a library reads; return whether it does."""
        if self._named:
            self._named[-1][dotted] = self._named[-1].get(dotted, frozenset()) | ways
        known = what_is_read(dotted, ways)
        if known is not None and self._uses:
            use = self._uses[-1]
            if only_numbers_partitions(dotted, use.methods, use.attributes):
                return False
        if known is not None:
            self._add(known[0], known[1].removeprefix("builtins.").rstrip("."))
        return known is not None

    def _add(self, meaning: str, what: str) -> None:
        user = self._users[-1] if self._users else self._walk.place()
        self._walk.unresolved.append(f"{user} {meaning} ({what})")


def is_module(value: object) -> TypeGuard[types.ModuleType]:
    """Return whether the value is a module, without running the value's own code."""
    return issubclass(type(value), types.ModuleType)


def _is_code(value: object) -> bool:
    return issubclass(type(value), _CODE)


def _known_name(value: object) -> str | None:
    try:
        return name_of(value)
    except Exception:  # noqa: BLE001 - the object's own code; the walk says that it raises
        return None


def cell_value(cell: types.CellType) -> object:
    """Return the value of a closure variable, or a marker if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return ("empty cell",)


def _modules_of(use: CodeUse, known: dict[str, object]) -> set[str]:
    """Return the top-level modules whose names the code uses."""
    values = [known.get(name) for name in use.globals]
    names = [_known_name(value) or "" for value in values if value is not None]
    names += [binding.module for binding in use.bindings]
    return {name.partition(".")[0] for name in names}


def _makers_of_memory(fn: types.FunctionType) -> frozenset[str]:
    """Return the global names in a function's code under which it knows what makes such files."""
    names = (name for name in fn.__code__.co_names if name in fn.__globals__)
    return frozenset(name for name in names if _known_name(fn.__globals__[name]) in _MEMORY)


def _ways(use: CodeUse, name: str, path: tuple[str, ...]) -> frozenset[Way]:
    return frozenset(use.ways.get((name, *path), _UNKNOWN))


def _dotted(binding: Binding) -> str:
    return binding.module if binding.name is None else f"{binding.module}.{binding.name}"


def _is_repr_of_attrs(code: types.CodeType) -> bool:
    """Return whether attrs made this code to print an object.

    It asks for the id of an object to find out whether the object holds itself. No text shows it.
    """
    return code.co_name == "__repr__" and code.co_filename.startswith("<attrs generated")
