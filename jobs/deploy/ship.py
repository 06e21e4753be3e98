"""How this package reaches executors: as a zip made from the running code, added to the session.

A wheel is refused by `addPyFile`; a zip with the same content works. On classic Spark it holds
beside the sources what the driver has loaded, compiled: every Python worker would else compile that
anew, 0.2 instead of 0.07 CPU seconds. That is not compressed, sources are: workers read them for
tracebacks alone. Spark Connect takes a name a second time only with equal bytes, and what is loaded
differs from call to call: it gets the sources alone.
"""

import marshal
import sys
import tempfile
import zipfile
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.running_code import (
    archive_name,
    code_in,
    code_of,
    package_sources,
    running_code,
    sources_besides,
)

_EPOCH = (1980, 1, 1, 0, 0, 0)
_BY_HASH_UNCHECKED = (1).to_bytes(4, "little")
"""Flags of compiled code that counts whatever the source says; another Python version takes the
source."""


def make_archive(folder: Path, *, compiled: bool) -> Path:
    """Write the package as a zip whose name holds a digest of its sources, unless it is there."""
    sources = package_sources()
    path = folder / archive_name(code_of(sources))
    if not path.exists():
        sources |= _besides()
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in sources.items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
            for name, data in (_compiled(sources) if compiled else {}).items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    return path


@cache
def _besides() -> dict[str, bytes]:
    """Return `sources_besides()` of the first archive: a later one of this process is the same."""
    return sources_besides()


def _compiled(sources: dict[str, bytes]) -> dict[str, bytes]:
    """Return archive name -> byte code (PEP 552) of the modules that this process has loaded."""
    found = {}
    for module in list(sys.modules):
        stem = module.replace(".", "/")
        for name in (f"{stem}.py", f"{stem}/__init__.py"):
            path = _file_of(module) if name in sources else None
            if path is not None:
                code = SourceFileLoader(module, path).get_code(module)
                head = MAGIC_NUMBER + _BY_HASH_UNCHECKED + source_hash(sources[name])
                found[f"{name}c"] = head + marshal.dumps(code)
    return found


def _file_of(module: str) -> str | None:
    """Return the source file of a loaded module; none if it comes from an archive."""
    path = getattr(sys.modules[module], "__file__", None)
    return path if path is not None and Path(path).is_file() else None


def ship(spark: SparkSession) -> None:
    """Make this package importable in the session's Python workers; safe to repeat.

    On classic Spark the first call of an application decides: workers that came later would else
    see another version of the code than those that are running. A driver whose code has changed
    since meets IncompatibleError in its first task.
    """
    running_code()  # stated now: files may change while the loaded code stays
    connect = is_connect(spark)
    if not connect and any(code_in(f) for f in spark.sparkContext.listFiles):
        return
    archive = make_archive(Path(tempfile.mkdtemp(prefix="durable-shuffle-")), compiled=not connect)
    if connect:
        spark.addArtifacts(str(archive), pyfile=True)
    else:
        spark.sparkContext.addPyFile(str(archive))


def is_connect(spark: SparkSession) -> bool:
    """Return True for a Spark Connect session, which has no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
