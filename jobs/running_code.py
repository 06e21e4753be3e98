"""Which code of this package runs here: version and a digest of its Python files.

A driver hands its own to the tasks; the version alone would not tell two development copies apart.
"""

import hashlib
import re
from functools import cache
from pathlib import Path

import durable_shuffle

_FOLDERS = ("serialization", "shuffle", "recovery", "jobs")
_DIGEST_DIGITS = 16
_ARCHIVE = re.compile(r"(?:^|/)durable_shuffle-([^/]*)\.zip(?:/|$)")


def package_sources() -> dict[str, bytes]:
    """Return archive name -> content of every Python file of the running package."""
    root = Path(durable_shuffle.__file__).parent
    files = {"durable_shuffle/__init__.py": (root / "__init__.py").read_bytes()}
    for folder in _FOLDERS:
        base = root / folder
        for path in sorted(base.rglob("*.py")):
            name = f"durable_shuffle/{folder}/{path.relative_to(base).as_posix()}"
            files[name] = path.read_bytes()
    return files


def code_of(sources: dict[str, bytes]) -> str:
    """Return `<version>-<digest>` of package sources."""
    digest = hashlib.sha256()
    for name, data in sources.items():
        digest.update(name.encode() + b"\0" + data)
    return f"{durable_shuffle.__version__}-{digest.hexdigest()[:_DIGEST_DIGITS]}"


def archive_name(code: str) -> str:
    """Return the file name of the archive that holds this code."""
    return f"durable_shuffle-{code}.zip"


def code_in(path: str) -> str | None:
    """Return the code that an archive's path, or the path of a module inside it, names."""
    match = _ARCHIVE.search(path)
    return match[1] if match else None


@cache
def running_code() -> str:
    """Return the code of this process: read off its archive's name, else from its files."""
    return code_in(durable_shuffle.__file__) or code_of(package_sources())
