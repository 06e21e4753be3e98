"""Sends this package to executors, as a zip made from the running code and added to the session.

`addPyFile` refuses a wheel but takes a zip with the same content. On classic Spark the zip also
holds compiled code of the modules that the driver has loaded, because otherwise every Python worker
would compile them (0.2 instead of 0.07 CPU seconds). Sources are compressed, compiled code is not:
workers read sources only for tracebacks. Spark Connect accepts a name again only with equal bytes,
and the set of loaded modules changes between calls, so it gets only the sources.
"""

import marshal
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.archive_folder import archive_folder
from durable_shuffle.jobs.deploy.running_code import (
    archive_name,
    code_in,
    code_of,
    package_sources,
    running_code,
    sources_besides,
)
from durable_shuffle.jobs.in_one_call import in_one_call
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import has_classic_package
from durable_shuffle.serialization.errors import IncompatibleError

_SHIPPED: WeakSet[SparkContext] = WeakSet()
"""Applications that have the code already."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_BY_HASH_UNCHECKED = (1).to_bytes(4, "little")
"""Flags of compiled code that is used without a check of the source. Another Python version ignores
it and compiles the source."""


def make_archive(folder: Path, *, compiled: bool) -> Path:
    """Write the package as a zip, named by a digest of its sources, unless the file exists."""
    sources = package_sources()
    path = folder / archive_name(code_of(sources))
    if not path.exists():
        sources |= sources_besides()
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in sources.items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
            for name, data in (_compiled(sources) if compiled else {}).items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    return path


def _compiled(sources: dict[str, bytes]) -> dict[str, bytes]:
    """Return archive name -> byte code (PEP 552) of the modules that this process has loaded."""
    compiled = {}
    for module in list(sys.modules):
        stem = module.replace(".", "/")
        for name in (f"{stem}.py", f"{stem}/__init__.py"):
            path = _file_of(module) if name in sources else None
            if path is not None:
                code = SourceFileLoader(module, path).get_code(module)
                head = MAGIC_NUMBER + _BY_HASH_UNCHECKED + source_hash(sources[name])
                compiled[f"{name}c"] = head + marshal.dumps(code)
    return compiled


def _file_of(module: str) -> str | None:
    """Return the source file of a loaded module; none if it comes from an archive."""
    path = getattr(sys.modules[module], "__file__", None)
    return path if path is not None and Path(path).is_file() else None


def ship(spark: SparkSession) -> None:
    """Make this package importable in the session's Python workers; safe to repeat.

    On classic Spark only the first call of an application sends the code, because otherwise later
    workers could get other code than running ones. If the driver's code has changed since then, its
    first task fails with IncompatibleError.

    Raises:
        IncompatibleError: a Connect server that takes no Python code.
    """
    running_code()  # cached now, because files may change after the code was loaded
    if is_connect(spark):
        if not has_classic_package():
            raise IncompatibleError(
                "Spark Connect needs PySpark 4.0 or newer: use a classic session of this PySpark"
            )
        try:
            spark.addArtifacts(str(_archive(compiled=False)), pyfile=True)
        except PySparkException as error:
            raise IncompatibleError(
                f"this Spark Connect server takes no Python code (addArtifacts: {error}): use "
                "Spark's own Connect server, or a classic session"
            ) from error
        return
    context = spark.sparkContext
    if context not in _SHIPPED:
        if not any(map(code_in, _files(context))):
            context.addPyFile(str(_archive(compiled=True)))
        _SHIPPED.add(context)


def _files(context: SparkContext) -> list[str]:
    """Return `context.listFiles` in one call; py4j ends each loop over a list with an error."""

    def listed(_: Any, java_context: Any) -> Any:
        return java_context.sc().listFiles().mkString("\n")

    java_context = cast("Any", context)._jsc  # noqa: SLF001
    return str(in_one_call(classes_of(context), listed, java_context)).split("\n")


def _archive(*, compiled: bool) -> Path:
    folder = archive_folder() / ("compiled" if compiled else "sources")
    folder.mkdir(exist_ok=True)
    return make_archive(folder, compiled=compiled)


def is_connect(spark: SparkSession) -> bool:
    """Return True for a Spark Connect session, which has no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
