"""Identifies the code of this package that runs here: version and a digest of its Python files.

The driver sends its own to the tasks, which compare. The version alone would not distinguish two
development copies. The digest covers only files that executors need, so not commands, HTML reports,
benchmarks and test tools.
"""

import hashlib
import re
import sys
from functools import cache
from pathlib import Path

import durable_shuffle

_FOLDERS = ("serialization", "shuffle", "recovery", "jobs")
_FOR_PEOPLE = ("jobs/cli", "jobs/inspect", "jobs/reports", "bench/suite")
_NO_PRODUCT = ("shuffle/testing", "bench")
_DIGEST_DIGITS = 16
_ARCHIVE = re.compile(r"(?:^|/)durable_shuffle-([^/]*)\.zip(?:/|$)")


def package_sources() -> dict[str, bytes]:
    """Return archive name -> content of the Python files that any executor needs."""
    facade = sorted(_root().glob("*.py"))  # functions of users import its modules in workers
    sources = {f"durable_shuffle/{path.name}": path.read_bytes() for path in facade}
    for folder in _FOLDERS:
        sources |= _sources(folder, without=(*_FOR_PEOPLE, *_NO_PRODUCT))
    return sources


@cache
def sources_besides() -> dict[str, bytes]:
    """Return the same for the folders of tests and benchmarks that this process has imported.

    Functions that the driver sends to executors may come from these folders. Later calls return
    the result of the first, so that all archives of a process have equal bytes.
    """
    sources: dict[str, bytes] = {}
    for folder in _NO_PRODUCT:
        if f"durable_shuffle.{folder.replace('/', '.')}" in sys.modules:
            sources |= _sources(folder, without=_FOR_PEOPLE)
    return sources


def _sources(folder: str, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    base, sources = _root() / folder, {}
    for path in sorted(base.rglob("*.py")):
        name = f"{folder}/{path.relative_to(base).as_posix()}"
        if not name.startswith(tuple(f"{other}/" for other in without)):
            sources[f"durable_shuffle/{name}"] = path.read_bytes()
    return sources


def _root() -> Path:
    return Path(durable_shuffle.__file__).parent


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
    """Return the code named in the path of an archive or of a module inside it, else None."""
    match = _ARCHIVE.search(path)
    return match[1] if match else None


@cache
def running_code() -> str:
    """Return the code of this process, from the name of its archive or else from its files."""
    return code_in(durable_shuffle.__file__) or code_of(package_sources())
