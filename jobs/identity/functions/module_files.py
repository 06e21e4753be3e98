"""Where a module's code stands, on a driver and on a worker alike, without importing the module."""

import hashlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def spec_of(name: str) -> ModuleSpec | None:
    """Where the module comes from, without importing it or its parents; None: there is none."""
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
    """The module's file, whatever it is (source, bytecode, extension), or None."""
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
    """When the module's file, or the archive it is in, last changed, by the file system's clock.

    The inode's time: copying and unpacking set the other one back. 0 if there is no such file.
    """
    if spec.origin is None:
        return 0
    path = Path(spec.origin)
    for place in (path, *path.parents):
        if place.is_file():
            return place.stat().st_ctime_ns
    return 0


def sha256_of(source: bytes) -> str:
    """Return 64 hex digits."""
    return hashlib.sha256(source).hexdigest()
