"""The identity of the code behind a module name.

- Standard library: the Python version.
- A file that the RECORD of an installed distribution lists: `installed`, by name, version and the
  hashes in the RECORD.
- This package, PySpark and py4j: the version.
- Everything else, also what was copied into site-packages: the SHA-256 of its source, and of every
  module that the source imports.

Imports are found in the syntax tree, so those inside functions are included. Modules that are not
loaded yet are located without running them. Not seen: modules that are imported by a computed name
(`importlib.import_module(x)`).
"""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from types import CodeType

from durable_shuffle.jobs.identity.functions.code_use import ImportUse
from durable_shuffle.jobs.identity.functions.installed import owner_of
from durable_shuffle.jobs.identity.functions.user_code import sha256_of, source_of, spec_of

# may be installed anywhere (a Spark home's zip, a checkout); the version identifies them
_BY_VERSION = frozenset({"durable_shuffle", "pyspark", "py4j"})
_STANDARD = PurePath(ast.__file__).parent
_SITES = frozenset({"site-packages", "dist-packages"})


class ModuleCode:
    """Collects the modules that one function reaches. It caches look-ups, so use it only once."""

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}
        self._unresolved: list[str] = []
        self._owners: dict[str, str | None] = {}
        self._standard: dict[str, bool] = {}

    def reach(self, name: str) -> None:
        """Add the module, its parent packages and all modules that they import."""
        waiting = [name]
        while waiting:
            current = waiting.pop()
            top = current.partition(".")[0]
            if not top or current == "__main__" or self._is_standard(top):
                continue
            if top in _BY_VERSION:
                current = top
            if current in self._tokens:
                continue
            waiting.extend(self._count(current))
            if "." in current:
                waiting.append(current.rpartition(".")[0])

    def not_loaded(self, name: str) -> CodeType | None:
        """Return the compiled source of a user's module that is not loaded, else None."""
        if name in sys.modules or self.is_library(name):
            return None
        spec = spec_of(name)
        source = None if spec is None else source_of(spec)
        try:
            return None if source is None else compile(source, name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):  # bytecode or an extension module
            return None

    def is_package(self, name: str) -> bool:
        """Return whether the module is a package."""
        spec = spec_of(name)
        return spec is not None and spec.submodule_search_locations is not None

    def is_library(self, name: str) -> bool:
        """Return whether a version identifies the module: it is not the user's own code."""
        top = name.partition(".")[0]
        if name == "__main__":
            return False
        return self._is_standard(top) or top in _BY_VERSION or self._owner(name) is not None

    def tokens(self) -> list[str]:
        """Return one text per distribution and per other module reached, sorted."""
        owned = {token for name, token in self._tokens.items() if self._owners.get(name)}
        others = (
            f"{name}={token}" for name, token in self._tokens.items() if not self._owners.get(name)
        )
        return sorted([*owned, *others])

    def sources(self) -> dict[str, str]:
        """Return module name -> SHA-256 of its source, for the user's modules reached."""
        return {name: token[7:] for name, token in self._tokens.items() if token[:7] == "sha256 "}

    def unresolved(self) -> tuple[str, ...]:
        """Return a sentence for each module whose code could not be read."""
        return tuple(self._unresolved)

    def _count(self, name: str) -> Iterator[str]:
        """Record the module; return the modules that its source imports."""
        top = name.partition(".")[0]
        if top in _BY_VERSION:
            self._tokens[name] = f"version {_version_of(top)}"
            return iter(())
        spec = spec_of(name)
        if spec is None and name not in sys.modules:
            self._tokens[name] = "absent"  # an optional import, or an attribute
            return iter(())
        owner = self._owner(name)
        if owner is not None:
            self._tokens[name] = owner
            return iter(())
        if spec is not None and spec.origin is None and spec.submodule_search_locations is not None:
            self._tokens[name] = "namespace package"
            return iter(())
        source = None if spec is None else source_of(spec)
        if source is None or spec is None:
            self._tokens[name] = "unreadable"
            self._unresolved.append(f"module {name} has no source that can be read")
            return iter(())
        self._tokens[name] = f"sha256 {sha256_of(source)}"
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        return _imports_in(source, package)

    def _is_standard(self, top: str) -> bool:
        """Return whether the module is Python's own, not a user's file with the same name."""
        if top not in sys.stdlib_module_names:
            return False
        if top not in self._standard:
            spec = spec_of(top)
            place = None if spec is None or not spec.has_location else spec.origin
            self._standard[top] = place is None or (
                PurePath(place).is_relative_to(_STANDARD)
                and not _SITES.intersection(PurePath(place).parts)
            )
        return self._standard[top]

    def _owner(self, name: str) -> str | None:
        """Return the token of the distribution that installed the module's file, if one did."""
        if name not in self._owners:
            spec = spec_of(name)
            above = name.rpartition(".")[0]
            if spec is not None:
                self._owners[name] = owner_of(name, spec)
            else:  # an attribute, or a module that a package makes while it runs
                self._owners[name] = self._owner(above) if above else None
        return self._owners[name]


def _version_of(top: str) -> str:
    stated = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(stated, str):
        return stated
    try:
        return version(top.replace("_", "-"))
    except PackageNotFoundError:
        return "unknown"


def _imports_in(source: bytes, package: str) -> Iterator[str]:
    for use in _import_statements(source):
        yield from imported_names(use, package) if use.level or use.names else (use.module,)


@lru_cache(maxsize=4096)
def _import_statements(source: bytes) -> tuple[ImportUse, ...]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # bytecode or an extension module
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [ImportUse(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            found.append(ImportUse(node.level, node.module or "", names))
    return tuple(found)


def imported_names(use: ImportUse, package: str | None) -> Iterator[str]:
    """Yield the modules that an import statement in code of `package` may name."""
    base = use.module
    if use.level:
        try:
            base = importlib.util.resolve_name("." * use.level + use.module, package or "")
        except ImportError:
            return
    yield base
    for name in use.names:  # `from base import name`: name may be a module
        below = f"{base}.{name}"
        if name != "*" and (below in sys.modules or spec_of(below) is not None):
            yield below
