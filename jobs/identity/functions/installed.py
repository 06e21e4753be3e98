"""Installed distributions: which of them put a module's file where it is.

A version stands for a file only if the RECORD of a distribution in the same folder lists the file.
A package that was copied there by hand has no RECORD, and counts like the user's own modules.
"""

from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution
from pathlib import Path, PurePath

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.exclusions import Excluded, names

INSTALLERS_NOTES = (
    Excluded("INSTALLER", "the name of the program that installed the distribution"),
    Excluded("REQUESTED", "whether a user asked for it or another distribution did"),
    Excluded("direct_url.json", "where the archive came from"),
    Excluded("uv_cache.json", "the cache entry of the program that installed it"),
)
"""Files of a distribution's own folder that differ between two installations of one archive."""

_Record = tuple[frozenset[str], str]
"""The files that a distribution put there; its name, version and a digest of their hashes."""


def owner_of(module: str, spec: ModuleSpec) -> str | None:
    """Return name, version and a digest of the RECORD of the distribution that owns the module.

    None if no distribution owns the file.
    """
    if not spec.has_location or spec.origin is None:
        return None
    package = spec.submodule_search_locations is not None
    depth = module.count(".") + (2 if package else 1)
    parts = PurePath(spec.origin).parts
    folder = Path(*parts[:-depth])
    try:
        changed = folder.stat().st_mtime_ns
    except OSError:  # inside a zip file
        return None
    return _folder(str(folder), changed).owner("/".join(parts[-depth:]))


class _Folder:
    """The distributions of one folder. It stays valid until something is installed there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._owners: dict[str, str | None] = {}
        self._near: dict[str, list[_Record]] = {}
        self._all: dict[str, list[_Record]] = {}
        self._by_top: dict[str, list[Distribution]] | None = None

    def owner(self, file: str) -> str | None:
        """Return the token of the distribution that lists the file."""
        if file not in self._owners:
            self._owners[file] = self._owner(file)
        return self._owners[file]

    def _owner(self, file: str) -> str | None:
        top = file.partition("/")[0]
        name = top.partition(".")[0]
        # nearly always, a distribution has the name of its package; to read all takes 50 ms
        if name not in self._near:
            found = Distribution.discover(name=name, path=[self._path])
            self._near[name] = [_record_of(one) for one in found]
        for files, token in self._near[name]:
            if file in files:
                return token
        if top not in self._all:
            self._all[top] = [_record_of(one) for one in self._candidates(top)]
        return next((token for files, token in self._all[top] if file in files), None)

    def _candidates(self, top: str) -> list[Distribution]:
        if self._by_top is None:
            self._by_top = {}
            for one in Distribution.discover(path=[self._path]):
                record = one.read_text("RECORD") or ""
                tops = {line.partition(",")[0].partition("/")[0] for line in record.splitlines()}
                for name in tops:
                    self._by_top.setdefault(name, []).append(one)
        return self._by_top.get(top, [])


@cache
def _folder(path: str, changed_ns: int) -> _Folder:
    del changed_ns  # installing something makes another key
    return _Folder(path)


def _record_of(installed: Distribution) -> _Record:
    record = (installed.read_text("RECORD") or "").splitlines()
    files = frozenset(line.rpartition(",")[0].rpartition(",")[0] for line in record)
    digest = hex_digest(sorted(line for line in record if _counts(line)))
    return files, f"{installed.name} {installed.version} record {digest}"


def _counts(line: str) -> bool:
    """Return whether a line of a RECORD says what was installed.

    Lines without a hash are bytecode and the RECORD. Scripts are outside the folder; they contain
    the path of Python.
    """
    path = line.partition(",")[0]
    folder, _, name = path.rpartition("/")
    notes = folder.endswith(".dist-info") and name in names(INSTALLERS_NOTES)
    return ",sha256=" in line and not path.startswith(("/", "..")) and not notes
