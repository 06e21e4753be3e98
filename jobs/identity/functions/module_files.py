"""Finds a module's file without importing the module, in the same way on drivers and workers."""

import hashlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def spec_of(name: str) -> ModuleSpec | None:
    """Return the module's spec without importing it or its parents; None if there is no module."""
    loaded = getattr(sys.modules.get(name), "__spec__", None)
    if isinstance(loaded, ModuleSpec):
        return loaded
    parent, _, _ = name.rpartition(".")
    try:
        if not parent:
            return importlib.util.find_spec(name)
        above = spec_of(parent)
        if above is None or above.submodule_search_locations is None:
            return None
        return PathFinder.find_spec(name, list(above.submodule_search_locations))
    except (ImportError, ValueError):
        return None


def source_of(spec: ModuleSpec) -> bytes | None:
    """Return the content of the module's file (source, bytecode or extension), or None."""
    if spec.origin is None:
        return None
    try:
        return Path(spec.origin).read_bytes()
    except OSError:
        get_data = getattr(spec.loader, "get_data", None)  # a module inside a zip file
    try:
        found = get_data(spec.origin) if get_data is not None else None
    except OSError:
        return None
    return found if isinstance(found, bytes) else None


def changed_ns(spec: ModuleSpec) -> int:
    """Return when the module's file, or the archive that holds it, last changed, in ns since 1970.

    This is the inode change time (ctime), because copying and unpacking can set the modification
    time back. 0 if there is no such file.
    """
    if spec.origin is None:
        return 0
    path = Path(spec.origin)
    for place in (path, *path.parents):
        if place.is_file():
            return place.stat().st_ctime_ns
    return 0


def sha256_of(source: bytes) -> str:
    """Return the SHA-256 as 64 hex digits."""
    return hashlib.sha256(source).hexdigest()
